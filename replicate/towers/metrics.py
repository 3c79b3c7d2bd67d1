"""K towers' metrics become one, over every row.

Each tower has metric variables of its own, found in the log of what the towers made.
After all towers' updates, what towers 1 to K - 1 have gathered moves into the first
tower's variables, from which its value tensors read.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, operations, reductions
from replicate.strategy import context
from replicate.strategy.variables import variables

_Gathered: TypeAlias = tuple[list[tf.Tensor], Callable[..., tf.Operation]]
"""What all workers are to add up, and what writes a metric's variable with their sums."""


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
    with tf1.control_dependencies(updates):
        moved = _gather(gathered)
    merged = tf1.group(*moved, *updates, name="merge_metrics")
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


def _gather(metric_variables: Sequence[variables.TowerLocalVariable]) -> list[tf.Operation]:
    """Moves what all copies of metrics' variables have gathered into the first ones.

    What a tower without rows has gathered is dropped. NOTE: some metrics write to a copy's handle,
    where the variable cannot refuse it.

    Returns:
        Operations after which the first copies hold the aggregates. Run again without an update in
        between, they change nothing.
    """
    share = context.required_share()
    gathered = [_gathered(variable, share) for variable in metric_variables]
    parts = [part for own, _ in gathered for part in own]
    totals = iter(share.workers.totals(parts) if parts else parts)
    return [finish(*(next(totals) for _ in own)) for own, finish in gathered]


def _gathered(variable: variables.TowerLocalVariable, share: context.Share) -> _Gathered:
    """Gathers what the copies of one variable hold."""
    numeric = variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_complex
    copies = [tf.identity(member.read_value()) for member in variable.members]
    if variable.reduction is not None:
        return _reduced(variable, variable.reduction, copies, share)
    if variable.aggregation == variables.MEAN:
        return _averaged(variable, copies, share)
    if variable.aggregation == variables.SUM and numeric:
        return _added(variable, copies, share)
    return [], tf1.no_op


def _reduced(
    variable: variables.TowerLocalVariable,
    reduction: Callable[[list[tf.Tensor]], tf.Tensor],
    copies: Sequence[tf.Tensor],
    share: context.Share,
) -> _Gathered:
    with _beside(variable, copies):
        kept = [
            copy if has is True else tf.where(has, copy, tf.identity(member.initial_value))
            for copy, member, has in zip(
                copies, variable.members, share.parts.has_rows, strict=True
            )
        ]
        moved = _move(variable.members, reduction(share.workers.all(kept)))
    return [], lambda: moved


def _averaged(
    variable: variables.TowerLocalVariable, copies: Sequence[tf.Tensor], share: context.Share
) -> _Gathered:
    with _beside(variable, copies):
        counted = tf.add_n([tf.cast(has, copies[0].dtype) for has in share.parts.has_rows])
        total = tf.add_n(reductions.mask_rows(copies, share.parts.has_rows))

    def write(total: tf.Tensor, counted: tf.Tensor) -> tf.Operation:
        with _beside(variable, copies):
            mean = total / counted
            return tf1.group(*[copy.assign(mean, read_value=False) for copy in variable.members])

    return [total, counted], write


def _added(
    variable: variables.TowerLocalVariable, copies: Sequence[tf.Tensor], share: context.Share
) -> _Gathered:
    members, has_rows = variable.members, share.parts.has_rows
    with _beside(variable, copies):
        starts = [tf.identity(member.initial_value) for member in members[1:]]
        gathered = [copy - start for copy, start in zip(copies[1:], starts, strict=True)]
        gathered = reductions.mask_rows(gathered, has_rows[1:])
        if share.workers.is_alone:
            moved = _move(members, tf.add_n([copies[0], *gathered]))
            return [], lambda: moved
        before = _before(variable)
        start = tf.identity(members[0].initial_value)
        own = reductions.mask_rows([copies[0] - start - before], has_rows[:1])
        increment = tf.add_n([*own, *gathered])

    def write(increment: tf.Tensor) -> tf.Operation:
        with _beside(variable, copies):
            total = before + increment
            with tf1.control_dependencies([total]):
                noted = before.assign(total, read_value=False)
            return tf1.group(noted, _move(members, start + total))

    return [increment], write


@contextlib.contextmanager
def _beside(variable: variables.TowerLocalVariable, copies: Sequence[tf.Tensor]) -> Iterator[None]:
    """Enters the device of the first copy, once all copies have been read."""
    with tf1.control_dependencies(copies), tf.device(variable.members[0].device):
        yield


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


def _move(members: Sequence[tf.Variable], total: tf.Tensor) -> tf.Operation:
    """Gives the first copy the total, and the others what they began with."""
    moved = [members[0].assign(total, read_value=False)]
    for member in members[1:]:
        moved.append(member.assign(member.initial_value, read_value=False))
    return tf1.group(*moved)
