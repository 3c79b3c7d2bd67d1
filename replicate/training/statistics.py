"""Batch statistics: tower-local variables of which a training step writes one copy.

Moving averages of batch normalization are such variables. Where the first tower's
updates alone run, the first copy is the statistic: checkpoints hold it, and the other
towers' copies, which nothing writes, do not dilute it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, variables

_WRITES = ("Assign", "ResourceScatter")


def settle(made: Iterable[Any], running: Sequence[Any]) -> None:
    """Lets the first copy of each batch statistic stand for it.

    Args:
        made: The variables that the towers made.
        running: What a training step runs: its train_op and its loss.
    """
    local = [variable for variable in made if isinstance(variable, variables.TowerLocalVariable)]
    if not local:
        return
    executed = _ancestors(running)
    for variable in local:
        later = [write for member in variable.members[1:] for write in _writes(member)]
        if not any(write in executed for write in later):
            variable.follow_first()


def average(
    made: Iterable[Any], share: context.Share, running: Sequence[Any]
) -> tf.Operation | None:
    """Averages the copies of each batch statistic over towers, weighted by rows.

    Args:
        made: The variables that the towers made.
        share: The towers' parts of the batch.
        running: What a training step runs: its train_op and its loss.

    Returns:
        An operation that runs after the step and gives every copy the mean; None where
        there is no such variable.
    """
    executed = _ancestors(running)
    statistics = [
        variable
        for variable in made
        if isinstance(variable, variables.TowerLocalVariable)
        and variable.dtype.is_floating
        and any(write in executed for member in variable.members for write in _writes(member))
    ]
    if not statistics:
        return None
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        return tf1.group(*[_average(variable, share) for variable in statistics])


def _average(variable: Any, share: context.Share) -> tf.Operation:
    members = variable.members
    copies = [tf.identity(member.read_value()) for member in members]
    with tf1.control_dependencies(copies):
        mean = reductions.weighted_sum_onto(copies, share.weights, members[0].device)
        return tf1.group(*[member.assign(mean, read_value=False) for member in members])


def _writes(member: Any) -> list[tf.Operation]:
    """Returns the operations that assign to a resource variable."""
    return [op for op in member.handle.consumers() if op.type.startswith(_WRITES)]


def _ancestors(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches` are run."""
    waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
    found: set = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
            waiting.extend(op.control_inputs)
    return found
