"""Which operations have effects, and what comes behind these."""

import collections
from collections.abc import Callable, Iterable

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import definitions, kinds
from replicate.splitting.structure import order as order_of

_MEASURES = ("Rank", "Shape", "ShapeN", "Size")
_MANY = 200


def has_effect(op: tf.Operation) -> bool:
    """Whether an operation, or a function that it calls, does more than make its outputs."""
    return _has(op, kinds.has_effect)


def changes_state(op: tf.Operation) -> bool:
    """Whether an operation has an effect other than to check values."""
    return _has(op, kinds.changes_state)


def _has(op: tf.Operation, of_kind: Callable[[str], bool]) -> bool:
    if definitions.is_call(op.type):
        return definitions.Functions(op.graph).has_effect(op.node_def, of_kind)
    return of_kind(op.type)


def behind_changes(graph: tf.Graph) -> set[tf.Operation]:
    """Returns the operations that change a state, or come after one that does."""
    ops = set(graph.get_operations())
    sources = [op for op in ops if changes_state(op)]
    return operations.behind(sources, ops) if sources else set()


def with_behind(graph: tf.Graph, given: Iterable[tf.Tensor]) -> order_of.Behind:
    """Returns the operations with effects, and those that come after one.

    Reading a tensor's shape does not count as coming after a check of its values, if something
    else reads the values: the check is made for that.

    Args:
        graph: The graph.
        given: The tensors of the batch; effects that they come after are over for all else.
    """
    ops = set(graph.get_operations())
    before = operations.executed_by(list(given))
    sources = [op for op in ops if op not in before and has_effect(op)]
    changing = [op for op in sources if changes_state(op)]
    changes = operations.behind(changing, ops) if changing else set()
    return order_of.Behind(changes, _behind_checks([op for op in sources if op not in changes]))


def _behind_checks(sources: Iterable[tf.Operation]) -> dict[tf.Operation, int]:
    """Returns operations that check values, and all behind them, with these checks as bits."""
    found: dict[tf.Operation, int] = {}
    waiting = collections.deque((op, 1 << n) for n, op in enumerate(sources))
    while waiting:
        op, bits = waiting.popleft()
        new = bits & ~found.get(op, 0)
        if not new:
            continue
        found[op] = found.get(op, 0) | new
        waiting.extend((user, new) for user in op._control_outputs)
        for tensor in op.outputs:
            users = tensor.consumers()
            others = [user for user in users if user.type not in _MEASURES]
            waiting.extend((user, new) for user in others or users)
    return found


def is_waited_for(control: tf.Operation) -> bool:
    """Whether a copy waits for an operation that runs once and comes after no effect.

    It waits for pivots, and for reads of tables, which may be written later. Reads and writes of
    variables are ordered by `reads_first`.
    """
    if control._get_control_flow_context() is not None:
        return True
    found: set[tf.Operation] = set()
    waiting = [control]
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        if op.type in kinds.READS_OF_TABLES or len(found) > _MANY:
            return True
        waiting.extend(op.control_inputs)
        if op.type in ("NoOp", "Identity", "Const"):
            waiting.extend(tensor.op for tensor in op.inputs)
    return False
