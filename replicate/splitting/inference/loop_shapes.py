"""Shapes of what comes out of loops' variables, stacks and lists.

An importer does not infer them. They are assumed to be those of what is put in first; if what is
put in later is then inferred to have the same ones, they are right.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replicate.compat import inference
from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf
from replicate.splitting.inference import extents
from replicate.splitting.inference.folding import Folder
from replicate.splitting.inference.probes import Probe
from replicate.splitting.structure import kinds
from replicate.splitting.structure.loops import Structure

_MOST_ROUNDS = 8

_OPENING = frozenset(
    """Merge OptionalGetValue StackPopV2 TensorArrayReadV3 TensorArrayGatherV3 TensorListGetItem
    TensorListPopBack TensorListStack""".split()
)
_BORDERS = {"Enter", "Exit", "NextIteration", "Switch", "Merge"}
_SHAPED = {"Fill": 0, "Reshape": 1, "BroadcastTo": 1, "StridedSliceGrad": 0}
_PASSED = {"Identity", "Enter", "Exit", "StopGradient"}
_MAKERS = {"Enter", "RefEnter", "Identity", "Switch", "Merge", "NextIteration", "Exit"}
# Which input is put into a list or an array, and whether it has many elements.
_WRITES = {
    "TensorListPushBack": (1, False),
    "TensorListSetItem": (2, False),
    "TensorListFromTensor": (0, True),
    "OptionalFromValue": (0, False),
    "TensorArrayWriteV3": (2, False),
    "TensorArrayScatterV3": (2, True),
}


class _Reason(NamedTuple):
    """Why a shape is assumed: tensors have it, without their first dimension if they are many."""

    tensors: Sequence[tf.Tensor]
    is_many: bool


def has_loops(ops: Sequence[tf.Operation]) -> bool:
    """Whether there are operations whose shapes an importer leaves open."""
    return any(op.type in _OPENING for op in ops)


def learn(
    probe: Probe,
    ops: Sequence[tf.Operation],
    structure: Structure,
) -> None:
    """Learns shapes around loops, stacks and lists, and what follows from them.

    Args:
        probe: What infers.
        ops: The graph's operations.
        structure: How stacks and lists are filled.
    """
    probe.look_around_loops()
    given = dict(probe.known)
    refused: set[Any] = set()
    is_done = False
    while not is_done:
        rounds = _Rounds(probe, ops, structure, refused)
        try:
            rounds.run()
            failed = rounds.failed()
            is_done = not failed
        except inference.UnfitError:
            failed = set(rounds.reasons)
            is_done = not failed  # no assumption is at fault: what is given stays
            probe.known = dict(given)
            probe.infer()
        if not is_done:
            refused |= failed
            probe.known = dict(given)
            probe.infer()


class _Rounds:
    """Rounds of assumptions; see `learn`.

    Args:
        probe: See `learn`.
        ops: See `learn`.
        structure: See `learn`.
        refused: The tensors, by `ref()`, of which nothing may be assumed.

    Attributes:
        reasons: Why something is assumed of tensors, by `ref()`.
    """

    def __init__(
        self,
        probe: Probe,
        ops: Sequence[tf.Operation],
        structure: Structure,
        refused: set[Any],
    ):
        self._probe = probe
        self._ops = ops
        self._structure = structure
        self._folder = self._new_folder()
        self._refused = refused
        self._writes = self._all_writes()
        self.reasons: dict[Any, _Reason] = {}

    def run(self) -> None:
        """Assumes shapes until no more follow."""
        for _ in range(_MOST_ROUNDS):
            more = self._more()
            if not more:
                return
            self._probe.known.update(more)
            self._probe.infer()
            self._folder = self._new_folder()

    def failed(self) -> set[Any]:
        """Returns the tensors, by `ref()`, of which wrong things are assumed."""
        found = set()
        for ref, reason in self.reasons.items():
            wanted = self._probe.known[ref]
            if ref.deref().op.type == "TensorListStack":
                wanted = wanted[1:]
            if ref.deref().op.type == "TensorArrayGatherV3":
                wanted = wanted[len(wanted) - len(self._element(reason) or wanted) :]
            held = [self._of_element(each, reason.is_many) for each in reason.tensors]
            if any(each != wanted for each in held):
                found.add(ref)
        return found

    def _new_folder(self) -> Folder:
        """Returns what works out values in the inference as it is now."""

        def lengths(tensor: tf.Tensor, mode: int) -> list[extents.Number] | None:
            dims = self._probe.dims(tensor)
            return None if dims is None else _numbers(dims)

        given = {ref: _constantly(dims) for ref, dims in self._probe.values.items()}
        return Folder(lengths, given, self._structure)

    def _more(self) -> dict[Any, Dims]:
        found: dict[Any, Dims] = {}
        for op in self._ops:
            for tensor in op.outputs:
                ref = tensor.ref()
                if tensor.dtype in kinds.HANDLES or tensor.dtype._is_ref_dtype:
                    continue
                if ref in self._probe.known or ref in self._refused:
                    continue
                dims = self._learned(op, tensor)
                if dims is not None:
                    found[ref] = dims
        return found

    def _learned(self, op: tf.Operation, tensor: tf.Tensor) -> Dims | None:
        if op.type == "Merge":
            return self._of_variable(op) if tensor.value_index == 0 else None
        if op.type == "StackPopV2":
            push = self._structure.push_of(op)
            return None if push is None else self._whole(push.inputs[1])
        if op.type in _OPENING and (op.type != "TensorListPopBack" or tensor.value_index):
            return self._of_list(op, tensor)
        if op.type in _BORDERS or _is_full(self._probe.imported(tensor)):
            return None
        return self._whole(tensor)

    def _of_variable(self, op: tf.Operation) -> Dims | None:
        """Returns what a loop's variable begins with."""
        back = [each for each in op.inputs if each.op.type == "NextIteration"]
        if len(back) != 1 or len(op.inputs) != 2 or back[0] is not op.inputs[1]:
            return None
        dims, later = self._whole(op.inputs[0]), self._probe.dims(op.inputs[1])
        if dims is None or (later is not None and not _agree(dims, later)):
            return None
        self.reasons[op.outputs[0].ref()] = _Reason([op.inputs[1]], False)
        return dims

    def _of_list(self, op: tf.Operation, tensor: tf.Tensor) -> Dims | None:
        """Returns what is read from a list or an array, as it is written elsewhere."""
        writes = self._writes_to(op)
        if not writes or len({_WRITES[each.type][1] for each in writes}) != 1:
            return None
        is_many = _WRITES[writes[0].type][1]
        reason = _Reason([each.inputs[_WRITES[each.type][0]] for each in writes], is_many)
        dims = self._element(reason)
        if dims is None:
            return None
        if op.type == "TensorListStack":
            dims = [self._number_in(op), *dims]
        elif op.type == "TensorArrayGatherV3":
            dims = [*(self._whole(op.inputs[1]) or [None]), *dims]
        self.reasons[tensor.ref()] = reason
        return dims

    def _element(self, reason: _Reason) -> Dims | None:
        held = (self._of_element(each, reason.is_many) for each in reason.tensors)
        return next((dims for dims in held if dims is not None), None)

    def _of_element(self, tensor: tf.Tensor, is_many: bool) -> Dims | None:
        return self._whole(tensor, int(is_many))

    def _number_in(self, op: tf.Operation) -> int | None:
        if op.get_attr("num_elements") >= 0:
            return op.get_attr("num_elements")
        sources = self._structure.list_sources(op.inputs[0])
        if len(sources) != 1 or sources[0].type != "TensorListReserve":
            return None
        number = self._folder.fold(sources[0].inputs[1])
        return None if number is None else _length(number.item())

    def _whole(self, tensor: tf.Tensor, first: int = 0) -> Dims | None:
        """Returns the dimensions of a tensor from one on, if all are known."""
        while True:
            dims = self._probe.dims(tensor)
            if dims is not None and _is_full(dims[first:]):
                return dims[first:]
            if tensor.op.type not in _PASSED:
                break
            tensor = tensor.op.inputs[0]
        if tensor.op.type not in _SHAPED:
            return None
        value = self._folder.fold(tensor.op.inputs[_SHAPED[tensor.op.type]])
        if value is None:
            return None
        found = [_length(each) for each in value.flat][first:]
        return found if _is_full(found) else None

    def _writes_to(self, op: tf.Operation) -> Sequence[tf.Operation]:
        if op.type.startswith(("TensorList", "Optional")):
            sources = self._structure.list_sources(op.inputs[0])
            return [write for each in sources for write in self._writes.get(each, ())]
        maker = _maker(op.inputs[0])
        while maker not in self._writes and maker.type == "TensorArrayGradV3":
            maker = _maker(maker.inputs[0])
        return self._writes.get(maker, ())

    def _all_writes(self) -> dict[tf.Operation, list[tf.Operation]]:
        """Returns what writes into each list and each array, by the operation that made it."""
        found: dict[tf.Operation, list[tf.Operation]] = {}
        for op in self._ops:
            if op.type in ("TensorListFromTensor", "OptionalFromValue"):
                makers: Sequence[tf.Operation] = [op]
            elif op.type in ("TensorListPushBack", "TensorListSetItem"):
                makers = self._structure.list_sources(op.inputs[0])
            elif op.type in _WRITES:
                makers = [_maker(op.inputs[0])]
            else:
                continue
            for maker in makers:
                found.setdefault(maker, []).append(op)
        return found


def _maker(handle: tf.Tensor) -> tf.Operation:
    while handle.op.type in _MAKERS:
        handle = handle.op.inputs[0]
    return handle.op


def _numbers(dims: Dims) -> list[extents.Number]:
    return [extents.unknown() if size is None else size for size in dims]


def _constantly(dims: Dims) -> Callable[[int], list[extents.Number]]:
    return lambda mode: _numbers(dims)


def _length(number: object) -> int | None:
    return number if isinstance(number, int) and number >= 0 else None


def _is_full(dims: Dims | None) -> bool:
    return dims is not None and None not in dims


def _agree(a: Dims, b: Dims) -> bool:
    return len(a) == len(b) and all(y is None or x == y for x, y in zip(a, b, strict=True))
