"""Which operations lie behind others in a graph, and which lie before them."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import functions

_WRITES = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)
_PASSING = ("Enter", "Identity", "Switch")
_JOINS = "Collective"  # what these give all workers have alike
_READS = ("VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableV2")


def executed_by(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches`, tensors or operations, are run."""
    return _behind(fetches, with_controls=True, ends=())


def made_from(fetches: Sequence[Any], ends: Container[tf.Operation] = ()) -> set[tf.Operation]:
    """Returns all operations whose values `fetches` are made from, themselves included.

    Args:
        fetches: Tensors or operations.
        ends: Operations behind which nobody looks.
    """
    return _behind(fetches, with_controls=False, ends=ends)


def _behind(
    fetches: Sequence[Any], with_controls: bool, ends: Container[tf.Operation]
) -> set[tf.Operation]:
    waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
    found: set = set()
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        if op not in ends:
            waiting.extend(tensor.op for tensor in op.inputs)
            if with_controls:
                waiting.extend(op.control_inputs)
    return found


def is_constant(tensor: tf.Tensor) -> bool:
    """Whether a tensor is made of constants alone."""
    behind = made_from([tensor])
    return all((op.inputs or op.type == "Const") and not op.op_def.is_stateful for op in behind)


def is_repeatable(
    fetches: Sequence[Any], ends: Container[tf.Operation] = (), may_read: bool = True
) -> bool:
    """Whether whoever computes `fetches` gets the same: nothing random or stateful is in them.

    Args:
        fetches: Tensors or operations.
        ends: Operations whose values are the same for all.
        may_read: Whether variables are.
    """
    reads = _READS if may_read else ()
    waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
    found: set = set()
    while waiting:
        op = waiting.pop()
        if op in found or op in ends or op.type.startswith(_JOINS):
            continue
        if op.op_def.is_stateful and op.type not in reads:
            return False
        found.add(op)
        waiting.extend(tensor.op for tensor in op.inputs)
    return True


def reached_from(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns `operations`, and all whose values depend on one of them."""
    return _followed(
        operations, lambda op: (user for tensor in op.outputs for user in tensor.consumers())
    )


def behind(operations: Iterable[tf.Operation], within: set) -> set[tf.Operation]:
    """Returns `operations`, and all within some others that run behind one of them.

    Args:
        operations: Of the graph.
        within: The operations among which is looked.
    """

    def users(op):
        readers = (user for tensor in op.outputs for user in tensor.consumers())
        return [user for user in (*op._control_outputs, *readers) if user in within]

    return _followed(operations, users)


def _followed(operations: Iterable[tf.Operation], users: Callable) -> set[tf.Operation]:
    """Returns `operations`, and their users, and the users of these, and so on."""
    found: set = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(users(op))
    return found


class Descent:
    """Tells which operations are made from some sources; each operation is asked once.

    Args:
        sources: Operations.
        ends: Operations behind which nobody looks, and which are made from no source. May
            grow, by operations that nobody has asked about.
    """

    def __init__(self, sources: Iterable[tf.Operation], ends: Container[tf.Operation] = ()):
        self._known = dict.fromkeys(sources, True)
        self._ends = ends

    def add(self, op: tf.Operation) -> None:
        """Adds a source, of whose users nobody has asked yet."""
        self._known[op] = True

    def __contains__(self, op: tf.Operation) -> bool:
        """Whether an operation's value depends on one of the sources."""
        if op not in self._known:
            self._learn(op)
        return self._known[op]

    def _learn(self, asked: tf.Operation) -> None:
        """Answers for an operation and for all unknown ones behind it; loops may be among them."""
        users: dict[tf.Operation, list] = {}
        found: list = []
        unknown, waiting = {asked}, [asked]
        while waiting:
            op = waiting.pop()
            for before in () if op in self._ends else {tensor.op for tensor in op.inputs}:
                if before in self._known:
                    if self._known[before]:
                        found.append(op)
                    continue
                users.setdefault(before, []).append(op)
                if before not in unknown:
                    unknown.add(before)
                    waiting.append(before)
        self._known.update(dict.fromkeys(unknown, False))
        while found:
            op = found.pop()
            if not self._known[op]:
                self._known[op] = True
                found.extend(users.get(op, ()))


def writes(variable: tf.Variable) -> list[tf.Operation]:
    """Returns the operations that change a resource variable; none of any other kind.

    Of a branch, a loop or a function that changes it, the operation that calls it is returned.
    """
    handle = getattr(variable, "handle", None)
    return [] if handle is None else list(_writing(handle))


def _writing(handle: tf.Tensor) -> Iterator[tf.Operation]:
    for op in handle.consumers():
        if op.type.startswith(_WRITES):
            yield op
        elif op.type in _PASSING:
            for tensor in op.outputs:
                yield from _writing(tensor)
        elif functions.is_call(op) and any(map(_writes_inside, _inside(op, handle))):
            yield op


def _inside(op: tf.Operation, handle: tf.Tensor) -> Iterator[tf.Tensor]:
    """Yields what a handle is called inside of the functions that an operation calls."""
    for body in functions.bodies(op) or ():
        for own, given in zip(body.inputs, body.arguments, strict=True):
            if given is handle:
                yield own


def _writes_inside(handle: tf.Tensor) -> bool:
    return next(_writing(handle), None) is not None
