"""Batch statistics: tower-local variables of which a training step writes one copy, or all.

Moving averages of batch normalization are such variables. Where the first tower's
updates alone run, the first copy is the statistic: checkpoints hold it, and the other
towers' copies, which nothing writes, do not dilute it.
"""

from collections.abc import Iterable, Sequence

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations, reductions
from replicate.strategy import context
from replicate.strategy.variables import variables


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
        return _averaged(local, executed, running)
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
    if update_ops == "all":
        return _without_rows(local, executed, running)
    if not used:
        return None
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        return tf1.group(*[_spread_first(variable) for variable in used])


def _is_statistic(variable: variables.TowerLocalVariable) -> bool:
    return variable.aggregation == variables.MEAN and variable.dtype.is_floating


def _spread_first(variable: variables.TowerLocalVariable) -> tf.Operation:
    value = variable.members[0].read_value()
    return tf1.group(*[copy.assign(value, read_value=False) for copy in variable.members[1:]])


def _without_rows(
    local: Sequence[tf.Variable], executed: set[tf.Operation], running: Sequence[types.Fetch]
) -> tf.Operation | None:
    """Gives the statistics of towers without rows the mean of the others', so as to count not."""
    share = context.required_share()
    towers = [i for i, has in enumerate(share.parts.has_rows) if has is not True]
    found = _written(local, executed) if towers else []
    if not found:
        return None
    copies = _values_after(found, running)
    with tf1.control_dependencies([copy for column in copies for copy in column]):
        written = []
        for variable, column in zip(found, copies, strict=True):
            kept = reductions.mask_rows(column, share.parts.has_rows)
            number = tf.add_n([tf.cast(has, variable.dtype) for has in share.parts.has_rows])
            mean = tf.math.divide_no_nan(tf.add_n(kept), number)
            for i in towers:
                value = tf.where(share.parts.has_rows[i], column[i], mean)
                written.append(variable.members[i].assign(value, read_value=False))
        return tf1.group(*written)


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


def _values_after(
    found: Sequence[variables.TowerLocalVariable], running: Sequence[types.Fetch]
) -> list[list[tf.Tensor]]:
    """Returns the values of all copies once a step is done."""
    with tf1.control_dependencies([getattr(item, "op", item) for item in running]):
        return [[tf.identity(c.read_value()) for c in variable.members] for variable in found]


def _averaged(
    local: Sequence[tf.Variable], executed: set[tf.Operation], running: Sequence[types.Fetch]
) -> tf.Operation | None:
    """Gives all copies of the statistics that a step writes their mean, weighted by rows."""
    found = _written(local, executed)
    if not found:
        return None
    share = context.required_share()
    copies = _values_after(found, running)
    with tf1.control_dependencies([copy for column in copies for copy in column]):
        means = [
            reductions.weighted_sum_onto(column, share.parts.weights, variable.members[0].device)
            for variable, column in zip(found, copies, strict=True)
        ]
        means = share.workers.totals(means)
        return tf1.group(
            *[
                member.assign(mean, read_value=False)
                for variable, mean in zip(found, means, strict=True)
                for member in variable.members
            ]
        )
