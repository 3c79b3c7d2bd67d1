"""Batch statistics: tower-local variables of which a training step writes one copy.

Moving averages of batch normalization are such variables. Where the first tower's
updates alone run, the first copy is the statistic: checkpoints hold it, and the other
towers' copies, which nothing writes, do not dilute it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, reductions
from replicate.strategy import context, variables

_WRITES = ("Assign", "ResourceScatter")
_UPDATES = (*_WRITES, "ResourceApply", "ResourceSparseApply")


def settle(made: Iterable[Any], running: Sequence[Any], updates: Sequence[Any] = ()) -> None:
    """Lets the first copy of each batch statistic stand for it.

    Args:
        made: The variables that the towers made.
        running: What a training step runs: its train_op and its loss.
        updates: Update operations of later towers that count for nothing even where a
            step runs them, as it does where gradients wait for them.
    """
    local = [variable for variable in made if isinstance(variable, variables.TowerLocalVariable)]
    if not local:
        return
    executed = ancestry.executed_by(running) - ancestry.executed_by(updates)
    for variable in local:
        later = [write for member in variable.members[1:] for write in _writes(member)]
        if not any(write in executed for write in later):
            variable.follow_first()


def refuse_lone_updates(towers: Sequence[Any], made: Iterable[Any], rows: Any) -> None:
    """Refuses optimizers that update the model in each tower, without meeting the others.

    Args:
        towers: K towers.
        made: The variables that the towers made.
        rows: The second tower's features and labels: what depends on them is its own.

    Raises:
        TowerMismatchError: Names the first variable that a tower updates by itself.
    """
    first, second = (ancestry.executed_by([tower.spec.train_op]) for tower in towers[:2])
    lone = second - first
    own = {t.op for t in tf.nest.flatten(rows, expand_composites=True) if tf.is_tensor(t)}
    for variable in made:
        if not variable.trainable:
            continue
        for member in getattr(variable, "members", (variable,)):
            for write in member.handle.consumers():
                if write not in lone or not write.type.startswith(_UPDATES):
                    continue
                if not own.isdisjoint(ancestry.made_from([write])):
                    raise errors.TowerMismatchError(
                        "An optimizer must meet the other towers before it updates the model: "
                        f"tower 1 updates {variable.name} by itself ({write.name}). Wrap the "
                        "optimizer in replicate.TowerOptimizer, or give it as optimizer_fn."
                    )


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
    executed = ancestry.executed_by(running)
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
