"""Which operations lie behind others in a graph, and which lie before them."""

import collections
from collections.abc import Container, Iterable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf

_WRITES = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_RANDOM = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_VARIABLES = ("VarHandleOp", "VariableV2", "VariableShape", "VarIsInitializedOp", *_READS)


def executed_by(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches`, tensors or operations, are run."""
    return _behind(fetches, with_controls=True)


def made_from(fetches: Sequence[Any], ends: Sequence[str] = ()) -> set[tf.Operation]:
    """Returns all operations whose values `fetches` are made from, themselves included.

    Args:
        fetches: Tensors or operations.
        ends: Types of operations behind which nobody looks.
    """
    return _behind(fetches, with_controls=False, ends=ends)


def _behind(
    fetches: Sequence[Any], with_controls: bool, ends: Sequence[str] = ()
) -> set[tf.Operation]:
    waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
    found: set = set()
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        if op.type not in ends:
            waiting.extend(tensor.op for tensor in op.inputs)
            if with_controls:
                waiting.extend(op.control_inputs)
    return found


def is_made_from(tensor: tf.Tensor, operations: Container[tf.Operation]) -> bool:
    """Whether a tensor's value depends on one of `operations`; the nearest are tried first."""
    seen = {tensor.op}
    waiting = collections.deque(seen)
    while waiting:
        op = waiting.popleft()
        if op in operations:
            return True
        before = {source.op for source in op.inputs} - seen
        seen |= before
        waiting.extend(before)
    return False


def reached_from(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns `operations`, and all whose values depend on one of them."""
    reached: set = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            waiting.extend(user for tensor in op.outputs for user in tensor.consumers())
    return reached


def varying(
    graph: tf.Graph, *given: Iterable[tf.Operation], with_random: bool = True
) -> set[tf.Operation]:
    """Returns the operations of a graph whose values are not made of its weights alone.

    Made of weights alone is what depends on variables and constants, and on nothing else:
    not on the batch, on random numbers, on a placeholder or on any other state. A variable
    that is read after it was written in the same step counts as other state.

    Args:
        graph: A graph.
        *given: The operations that make the batch, which may well be constants.
        with_random: Whether random numbers count as other state, or as constants that have
            the shape they are given.
    """
    stateful: dict[str, bool] = {}
    sources = set().union(*given)
    for op in graph.get_operations():
        kind = op.type
        if kind not in stateful:
            stateful[kind] = op.op_def.is_stateful or kind in _PLACEHOLDERS
            if kind in _RANDOM and not with_random:
                stateful[kind] = False
        if stateful[kind] and (kind not in _VARIABLES or _was_written_before(op)):
            sources.add(op)
    return reached_from(sources)


def writes(variable: tf.Variable) -> list[tf.Operation]:
    """Returns the operations that change a resource variable; none of any other kind."""
    handle = getattr(variable, "handle", None)
    users = [] if handle is None else handle.consumers()
    return [op for op in users if op.type.startswith(_WRITES)]


def _was_written_before(read: tf.Operation) -> bool:
    """Whether a read of a variable waits for a write to it."""
    if read.type not in _READS:
        return False
    handle = read.inputs[0]
    return any(
        op.type.startswith(_WRITES) and any(tensor is handle for tensor in op.inputs)
        for op in read.control_inputs
    )
