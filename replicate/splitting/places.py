"""What runs once lies where it moves the fewest bytes: what is made of a gradient, by its variable.

Where variables are on several devices, their updates are as well. What a model or an optimizer
makes of gradients and weights in between, as a norm, a clipped gradient or a decayed weight, may be
anywhere: it is put where most of what it reads and makes is. Nothing else of it changes. What a
model places, what is in a loop or a branch, and what has an effect stays where it is.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import kinds, order
from replicate.splitting.structure.nodes import Reference
from replicate.splitting.writing import writer as writers
from replicate.strategy import base


def choose(written: writers.Writer, strategy: base.DistributionStrategy) -> None:
    """Puts operations that run once where they move the fewest bytes.

    Args:
        written: The writer, of a graph of which nothing is added yet.
        strategy: Knows which operations may move.
    """
    devices = {op: written.device_of(op) for op in written.run_whole}
    if len(set(devices.values())) > 1:
        _Places(written, strategy, devices).choose()


class _Places:
    """Where the operations of a graph are that run once.

    Args:
        written: The writer.
        strategy: See `choose`.
        devices: The devices of these operations.
    """

    def __init__(
        self,
        written: writers.Writer,
        strategy: base.DistributionStrategy,
        devices: dict[tf.Operation, str],
    ):
        self._graph = written.nodes.graph
        self._strategy = strategy
        self._moved: set[str] = set()
        self._devices = devices
        self._home = written.home
        self._joined = written.changes.joined
        self._made = {(op, n): reference for op, n, reference in written.changes.inputs}
        self._readers_of: Mapping[Reference, list[tf.Operation]] = collections.defaultdict(list)
        for op in devices:
            for reference in self._inputs(op):
                self._readers_of[_key(reference)].append(op)
        self._beside = {each: operations.colocated_with(each) for each in devices}
        self._names = {op.name for op in devices}
        self._asked = {name for found in self._beside.values() for name in found}
        self._movable = {op for op in devices if self._may_move(op)}

    def choose(self) -> None:
        """See the function."""
        found = order.ordered(self._devices.keys(), {})
        for op in reversed(found):  # to what reads it; what it reads will follow
            self._move(op, lambda source: source not in self._movable)
        for op in found:  # to what it reads
            self._move(op, lambda source: True)
        others = (op for op in self._graph.get_operations() if op not in self._devices)
        for op in others if self._moved else ():
            if not self._moved.isdisjoint(operations.colocated_with(op)):
                op._clear_attr("_class")

    def _may_move(self, op: tf.Operation) -> bool:
        if op.op_def.is_stateful or op._get_control_flow_context() is not None:
            return False
        # NOTE: it may be beside what does not run once, as a clipped gradient is beside one that
        # has copies. Then that was placed, not this.
        beside = self._beside[op]
        is_asked = op.name in self._asked or any(name in self._names for name in beside)
        if is_asked or self._devices[op] != self._home:
            return False
        if not all(map(self._strategy.may_move, beside or [op.name])):
            return False
        read = [tensor.dtype for tensor in op.inputs]
        is_plain = not any(dtype in kinds.HANDLES or dtype._is_ref_dtype for dtype in read)
        return is_plain and len(op.outputs) == 1 and op.outputs[0].dtype.is_floating

    def _inputs(self, op: tf.Operation) -> list[Reference]:
        return [self._made.get((op, n), tensor) for n, tensor in enumerate(op.inputs)]

    def _readers(self, op: tf.Operation) -> Sequence[str]:
        """Returns where an operation's output is read."""
        found = [reader for tensor in op.outputs for reader in self._readers_of[_key(tensor)]]
        return list(dict.fromkeys(map(self._devices.__getitem__, found)))

    def _sources(
        self, op: tf.Operation, reference: Reference, counts: Callable[[tf.Operation], bool]
    ) -> Iterable[str]:
        """Returns where an input is; what joins parts is wherever others read it."""
        if not isinstance(reference, str):
            source = reference.op
            return [self._devices.get(source, self._home)] if counts(source) else []
        if reference not in self._joined:
            return [self._home]
        others = [each for each in self._readers_of[reference] if each is not op and counts(each)]
        return {self._devices[each] for each in others}

    def _move(self, op: tf.Operation, counts: Callable[[tf.Operation], bool]) -> None:
        """Puts an operation where most bytes are that it reads or makes.

        Args:
            op: The operation.
            counts: Of what it reads, whether it is to be beside that.
        """
        if op not in self._movable:
            return
        held: dict[str, float] = collections.defaultdict(float)
        for place in self._readers(op):
            held[place] += _size(op.outputs[0])
        for tensor, reference in zip(op.inputs, self._inputs(op), strict=True):
            for place in self._sources(op, reference, counts):
                held[place] += _size(tensor)
        chosen = max([self._devices[op], *held], key=lambda place: held.get(place, 0.0))
        if chosen != self._devices[op]:
            self._devices[op] = chosen
            self._moved.add(op.name)
            op._clear_attr("_class")
            op._set_device(chosen)


def _key(reference: Reference) -> Reference:
    return reference if isinstance(reference, str) else reference.ref()


def _size(tensor: tf.Tensor) -> float:
    number = tensor.shape.num_elements()
    return 0.0 if number is None else float(number * tensor.dtype.size)
