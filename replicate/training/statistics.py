"""Batch statistics: tower-local variables of which a training step writes one copy.

Moving averages of batch normalization are such variables. Where the first tower's
updates alone run, the first copy is the statistic: checkpoints hold it, and the other
towers' copies, which nothing writes, do not dilute it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, reductions, whole
from replicate.strategy import variables


def settle(
    made: Iterable[Any], running: Sequence[Any], updates: Sequence[Any] = (), is_first: bool = False
) -> tf.Operation | None:
    """Lets the first copy of each batch statistic stand for it.

    Args:
        made: The variables that the towers made.
        running: What a training step runs: its train_op and its loss.
        updates: Update operations of later towers that count for nothing even where a
            step runs them, as it does where gradients wait for them.
        is_first: Whether the first tower's rows make the statistics, whatever else runs.

    Returns:
        An operation that runs after the step and gives the later towers the first one's
        statistics, of those that they use; None where they use none.
    """
    local = [variable for variable in made if isinstance(variable, variables.TowerLocalVariable)]
    if not local:
        return None
    executed = ancestry.executed_by(running)
    counting = executed - ancestry.executed_by(updates)
    used = []
    for variable in local:
        later = variable.members[1:]
        if is_first and _is_statistic(variable):
            variable.follow_first()
            if any(op in executed for member in later for op in member.handle.consumers()):
                used.append(variable)
        elif not any(op in counting for member in later for op in ancestry.writes(member)):
            variable.follow_first()
    if not used:
        return None
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        return tf1.group(*[_spread_first(variable) for variable in used])


def _is_statistic(variable: variables.TowerLocalVariable) -> bool:
    return variable.aggregation == variables.MEAN and variable.dtype.is_floating


def _spread_first(variable: variables.TowerLocalVariable) -> tf.Operation:
    value = variable.members[0].read_value()
    return tf1.group(*[copy.assign(value, read_value=False) for copy in variable.members[1:]])


def average(
    made: Iterable[Any], rows: whole.Rows, running: Sequence[Any], of_rowless: bool = False
) -> tf.Operation | None:
    """Averages the copies of each batch statistic over towers, weighted by rows.

    Args:
        made: The variables that the towers made.
        rows: The towers' rows.
        running: What a training step runs: its train_op and its loss.
        of_rowless: Whether the mean goes only to towers without rows, whose copies nothing
            else updates.

    Returns:
        An operation that runs after the step and gives the copies the mean; None where
        there is nothing to do.
    """
    towers = [i for i, has in enumerate(rows.has_rows) if has is not True or not of_rowless]
    executed = ancestry.executed_by(running)
    statistics = [
        variable
        for variable in made
        if isinstance(variable, variables.TowerLocalVariable)
        and _is_statistic(variable)
        and any(write in executed for copy in variable.members for write in ancestry.writes(copy))
    ]
    if not statistics or not towers:
        return None
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        return _averaged(statistics, rows, towers, of_rowless)


def _averaged(
    statistics: Sequence[Any], rows: whole.Rows, towers: Sequence[int], of_rowless: bool
) -> tf.Operation:
    copies = [[tf.identity(c.read_value()) for c in variable.members] for variable in statistics]
    with tf1.control_dependencies([copy for column in copies for copy in column]):
        means = [
            reductions.weighted_sum_onto(column, rows.weights, variable.members[0].device)
            for variable, column in zip(statistics, copies, strict=True)
        ]
        means = means if rows.across is None else rows.across.totals(means)
        written = []
        for variable, column, mean in zip(statistics, copies, means, strict=True):
            for i in towers:
                keeps = of_rowless and rows.has_rows[i]
                value = mean if keeps is False else tf.where(keeps, column[i], mean)
                written.append(variable.members[i].assign(value, read_value=False))
        return tf1.group(*written)
