"""K towers' metrics become one, over every row.

Each tower has metric variables of its own, found in the log of what the towers made.
After all towers' updates, what towers 1 to K - 1 have gathered moves into the first
tower's variables, from which its value tensors read.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, operations, reductions
from replicate.strategy import context
from replicate.strategy.variables import variables
from replicate.towers import statistics

_Join: TypeAlias = tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]
"""What all workers are to add up, and what makes of their sums what a variable's copies are given.
"""


def metric_reduction(variable: tf.Variable, fn: Callable[[list[tf.Tensor]], tf.Tensor]) -> None:
    """Names how the towers' copies of a metric's variable become one.

    To be called in the model_fn for a metric whose variable is neither a sum nor a
    mean, such as a running maximum. Does nothing where the model is not replicated.

    Args:
        variable: A local variable that the model_fn made.
        fn: Gets the list of the K copies' tensors and returns one tensor of their shape.
            It must give back what one copy holds when the others hold the initial value.

    Raises:
        ValueError: If `fn` cannot be called.
    """
    if not callable(fn):
        raise ValueError(
            f"metric_reduction needs a function of the towers' tensors; got {fn!r}. Pass one, "
            "such as lambda tensors: tf.reduce_max(tf.stack(tensors), 0)."
        )
    if isinstance(variable, variables.TowerLocalVariable):
        variable.reduce_by(fn)


def merge(
    specs: Sequence[types.EstimatorSpec], made: Sequence[tf.Variable]
) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Returns the first tower's metrics, whose updates gather every tower's rows.

    Args:
        specs: The towers' K specs of mode EVAL; their `context.Share` is entered.
        made: The variables that the towers made.

    Raises:
        TowerMismatchError: If towers have different metrics.
    """
    names = [list(spec.eval_metric_ops or {}) for spec in specs]
    for i, found in enumerate(names):
        if sorted(found) != sorted(names[0]):
            differing = sorted(set(found) ^ set(names[0]))
            raise errors.TowerMismatchError(
                f"Every tower must return the same metrics: tower {i} returned {sorted(found)}, "
                f"tower 0 returned {sorted(names[0])}; they differ in {differing[0]!r}. Look for "
                "a branch on the tower."
            )
    updates = [op for spec in specs for _, op in (spec.eval_metric_ops or {}).values()]
    gathered = [
        variable
        for variable in made
        if isinstance(variable, variables.TowerLocalVariable) and is_metric_variable(variable)
    ]
    assumed = [v for v in gathered if v.is_assumed_sum and v.reduction is None]
    _require_sums(assumed, updates)
    joined = statistics.rewritten(gathered, updates, functools.partial(_joined, gathered))
    merged = tf1.group(*[] if joined is None else [joined], *updates, name="merge_metrics")
    metrics = {}
    for name, (value, _) in (specs[0].eval_metric_ops or {}).items():
        if isinstance(value, variables.DistributedVariable):
            value = tf.identity(value.members[0].read_value())
        metrics[name] = value, merged
    return metrics


def is_metric_variable(variable: tf.Variable) -> bool:
    """Whether a variable is in the collections of local or metric variables."""
    listed = (item for key in isolation.LOCAL for item in tf1.get_collection(key))
    return any(variable is item for item in listed)


def _require_sums(
    assumed: Sequence[variables.TowerLocalVariable], updates: Sequence[types.Fetch]
) -> None:
    """Refuses variables that did not say how to join their copies, and hold no sums."""
    executed = operations.executed_by(updates)
    for variable in assumed:
        for member in variable.members:
            for write in operations.writes(member):
                if write in executed and write.type == "AssignVariableOp" and not _adds(write):
                    raise ValueError(
                        "What towers' copies of a metric's variable hold is added up; "
                        f"{variable.name} is assigned, and not added to ({write.name}). Say how "
                        "to join the copies: replicate.metric_reduction(variable, lambda copies: "
                        "tf.reduce_max(tf.stack(copies), 0)), or give it an aggregation."
                    )


def _adds(write: tf.Operation) -> bool:
    """Whether an assignment gives a variable its own value and something added to it."""
    handle, value = write.inputs[0], write.inputs[1]
    while value.op.type in ("Identity", "SelectV2"):  # a tower without rows selects
        value = value.op.inputs[0 if value.op.type == "Identity" else 1]
    addends = list(value.op.inputs)[: 1 if value.op.type == "Sub" else None]
    return value.op.type in ("AddV2", "Add", "AddN", "Sub") and any(
        _reads(tensor, handle) for tensor in addends
    )


def _reads(tensor: tf.Tensor, handle: tf.Tensor) -> bool:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp" and tensor.op.inputs[0] is handle


def _joined(
    gathered: Sequence[variables.TowerLocalVariable], columns: statistics.Columns
) -> statistics.Columns:
    """Moves what all copies of metrics' variables have gathered into the first ones.

    What a tower without rows has gathered is dropped. NOTE: some metrics write to a copy's handle,
    where the variable cannot refuse it.

    Args:
        gathered: The variables.
        columns: What their copies hold.

    Returns:
        What the copies are given: the first ones the aggregates. Given again without an update in
        between, it changes nothing.
    """
    share = context.required_share()
    joins = [_join(*each, share) for each in zip(gathered, columns, strict=True)]
    parts = [part for own, _ in joins for part in own]
    totals = iter(share.workers.totals(parts) if parts else parts)
    return [finish(*(next(totals) for _ in own)) for own, finish in joins]


def _join(
    variable: variables.TowerLocalVariable, copies: Sequence[tf.Tensor], share: context.Share
) -> _Join:
    members, has_rows, dtype = variable.members, share.parts.has_rows, variable.dtype
    starts = [member.initial_value for member in members[1:]]
    with tf.device(members[0].device):
        if variable.reduction is not None:
            kept = [
                copy if has is True else tf.where(has, copy, tf.identity(member.initial_value))
                for copy, member, has in zip(copies, members, has_rows, strict=True)
            ]
            size = share.workers.size
            lengths = [tf.fill([size], len(kept))]
            (rows,) = share.workers.rows_of_all([tf.stack(kept)], [0], lengths)
            reduced = variable.reduction(tf.unstack(rows, size * len(kept)))
            return [], lambda: [reduced, *starts]
        if variable.aggregation == variables.MEAN:
            counted = tf.add_n([tf.cast(has, dtype) for has in has_rows])
            total = tf.add_n(reductions.mask_rows(copies, has_rows))
            return [total, counted], lambda total, counted: [total / counted] * len(members)
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
        if variable.aggregation != variables.SUM or not is_number:
            return [], lambda: [None] * len(members)
        added = [copy - start for copy, start in zip(copies[1:], starts, strict=True)]
        added = reductions.mask_rows(added, has_rows[1:])
        if share.workers.is_alone:
            total = tf.add_n([copies[0], *added])
            return [], lambda: [total, *starts]
        before, start = _before(variable), tf.identity(members[0].initial_value)
        own = reductions.mask_rows([copies[0] - start - before], has_rows[:1])

        def with_others(increment: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(members[0].device):
                total = before + increment
                with tf1.control_dependencies([before.assign(total, read_value=False)]):
                    return [start + total, *starts]

        return [tf.add_n([*own, *added])], with_others


def _before(variable: variables.TowerLocalVariable) -> tf.Variable:
    """Returns what keeps by how much all workers together have added to a first copy."""
    first = variable.members[0]
    name = f"{first.op.name}/workers"
    return tf1.Variable(
        lambda: tf.zeros(first.shape, first.dtype),  # made late, where nothing is waited for
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        name=name,
        use_resource=True,
    )
