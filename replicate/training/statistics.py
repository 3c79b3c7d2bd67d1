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
            for write in _writes(member):
                if write in lone and not own.isdisjoint(ancestry.made_from([write])):
                    raise errors.TowerMismatchError(
                        "An optimizer must meet the other towers before it updates the model: "
                        f"tower 1 updates {variable.name} by itself ({write.name}). Wrap the "
                        "optimizer in replicate.TowerOptimizer, or give it as optimizer_fn."
                    )


def average(
    made: Iterable[Any], share: context.Share, running: Sequence[Any], of_rowless: bool = False
) -> tf.Operation | None:
    """Averages the copies of each batch statistic over towers, weighted by rows.

    Args:
        made: The variables that the towers made.
        share: The towers' parts of the batch.
        running: What a training step runs: its train_op and its loss.
        of_rowless: Whether the mean goes only to towers without rows, whose copies nothing
            else updates.

    Returns:
        An operation that runs after the step and gives the copies the mean; None where
        there is nothing to do.
    """
    towers = [i for i, has in enumerate(share.has_rows) if has is not True or not of_rowless]
    executed = ancestry.executed_by(running)
    statistics = [
        variable
        for variable in made
        if isinstance(variable, variables.TowerLocalVariable)
        and variable.dtype.is_floating
        and any(write in executed for member in variable.members for write in _writes(member))
    ]
    if not statistics or not towers:
        return None
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        averaged = [_average(variable, share, towers, of_rowless) for variable in statistics]
        return tf1.group(*averaged)


def _average(
    variable: Any, share: context.Share, towers: Sequence[int], of_rowless: bool
) -> tf.Operation:
    members = variable.members
    copies = [tf.identity(member.read_value()) for member in members]
    with tf1.control_dependencies(copies):
        mean = reductions.weighted_sum_onto(copies, share.weights, members[0].device)
        written = []
        for i in towers:
            keeps = of_rowless and share.has_rows[i]
            value = mean if keeps is False else tf.where(keeps, copies[i], mean)
            written.append(members[i].assign(value, read_value=False))
        return tf1.group(*written)


def _writes(member: Any) -> list[tf.Operation]:
    """Returns the operations that change a resource variable."""
    return [op for op in member.handle.consumers() if op.type.startswith(ancestry.WRITES)]
