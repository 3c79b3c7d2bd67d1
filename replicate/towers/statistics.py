"""Batch statistics: tower-local variables of which a training step writes one copy, or all.

Moving averages of batch normalization are such variables. Where the first tower's
updates alone run, the first copy is the statistic: checkpoints hold it, and the other
towers' copies, which nothing writes, do not dilute it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations, reductions
from replicate.strategy import context
from replicate.strategy.variables import variables

Columns: TypeAlias = list[list[tf.Tensor]]
"""Of each variable what its K copies hold, or are given; None: nothing."""

Join: TypeAlias = Callable[[Columns], Columns]


def join(
    made: Iterable[tf.Variable],
    running: Sequence[types.Fetch],
    update_ops: str,
    later: Sequence[types.Fetch],
) -> tf.Operation | None:
    """Lets tower-local variables hold what `update_ops` says, once a step is done.

    Args:
        made: The variables that the towers made.
        running: What a training step runs: its train_op and its loss.
        update_ops: `"first"`, `"all"` or `"mean"`.
        later: Update operations of later towers, which under `"first"` count for nothing even
            where a step runs them, as it does where gradients wait for them.

    Returns:
        An operation that runs after the step; None where there is nothing to do.
    """
    local = [variable for variable in made if isinstance(variable, variables.TowerLocalVariable)]
    executed = operations.executed_by(running) if local else set()
    if update_ops == "mean":
        return rewritten(_written(local, executed), running, _means)
    counting = executed - operations.executed_by(later if update_ops == "first" else [])
    used = []
    for variable in local:
        members = variable.members[1:]
        if update_ops == "first" and _is_statistic(variable):
            variable.follow_first()
            if any(op in executed for member in members for op in member.handle.consumers()):
                used.append(variable)
        elif not any(op in counting for member in members for op in operations.writes(member)):
            variable.follow_first()
    if update_ops == "first":
        return rewritten(used, running, _firsts)
    if all(has is True for has in context.required_share().parts.has_rows):
        return None
    return rewritten(_written(local, executed), running, _without_rows)


def _is_statistic(variable: variables.TowerLocalVariable) -> bool:
    return variable.aggregation == variables.MEAN and variable.dtype.is_floating


def _written(
    local: Sequence[tf.Variable], executed: set[tf.Operation]
) -> list[variables.TowerLocalVariable]:
    """Returns the statistics that a step writes."""
    return [
        variable
        for variable in local
        if _is_statistic(variable)
        and any(op in executed for copy in variable.members for op in operations.writes(copy))
    ]


def rewritten(
    found: Sequence[variables.TowerLocalVariable], running: Sequence[types.Fetch], join: Join
) -> tf.Operation | None:
    """Gives the copies of variables what they make together once something has run.

    Args:
        found: The variables.
        running: What has run by then.
        join: Takes what the copies hold; returns what they are given, or None.
    """
    if not found:
        return None
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        columns = [[tf.identity(copy.read_value()) for copy in item.members] for item in found]
    with tf1.control_dependencies([copy for column in columns for copy in column]):
        return tf1.group(
            *[
                copy.assign(value, read_value=False)
                for variable, column in zip(found, join(columns), strict=True)
                for copy, value in zip(variable.members, column, strict=True)
                if value is not None
            ]
        )


def _firsts(columns: Columns) -> Columns:
    return [[None, *[column[0]] * (len(column) - 1)] for column in columns]


def _without_rows(columns: Columns) -> Columns:
    """Gives the copies of towers without rows the mean of the others', so as to count not."""
    has_rows, joined = context.required_share().parts.has_rows, []
    for column in columns:
        kept = tf.add_n(reductions.mask_rows(column, has_rows))
        number = tf.add_n([tf.cast(has, kept.dtype) for has in has_rows])
        mean = tf.math.divide_no_nan(kept, number)
        pairs = zip(column, has_rows, strict=True)
        joined.append([None if has is True else tf.where(has, own, mean) for own, has in pairs])
    return joined


def _means(columns: Columns) -> Columns:
    """Gives all copies their mean, weighted by rows, of all workers."""
    share = context.required_share()
    means = [
        reductions.weighted_sum_onto(column, *share.parts, column[0].device) for column in columns
    ]
    return [[mean] * len(share.parts.weights) for mean in share.workers.totals(means)]
