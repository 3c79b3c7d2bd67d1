"""Which operations lie behind others in a graph, and which lie before them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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


def executed_by(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches`, tensors or operations, are run."""
    return _followed(
        [getattr(fetch, "op", fetch) for fetch in fetches],
        lambda op: [*(tensor.op for tensor in op.inputs), *op.control_inputs],
    )


def made_from(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations whose values `fetches` are made from, themselves included."""
    return _followed(
        [getattr(fetch, "op", fetch) for fetch in fetches],
        lambda op: [tensor.op for tensor in op.inputs],
    )


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


def _followed(operations: Iterable[tf.Operation], following: Callable) -> set[tf.Operation]:
    """Returns `operations`, those that follow them, those that follow these, and so on."""
    found: set = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(following(op))
    return found


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
