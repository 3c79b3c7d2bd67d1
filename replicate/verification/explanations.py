"""Why towers that are calls of a model may differ from one device, and why a split graph may."""

from collections.abc import Iterator

from replicate import types
from replicate.verification import tracing

DRAWN = (
    "The model draws random numbers ({names}): the towers draw those of one device, and what "
    "depends on them is compared like all else."
)
RANDOM = (
    "The model draws random numbers ({names}); towers draw their own, so what depends on them "
    "is left out."
)
SPLIT = (
    "A graph that is split computes what one device computes: what differs is a fault of this "
    "package, or depends on what is outside of the graph, such as Python functions or the time."
)
LOSSES = {
    "mean": (
        "The loss of towers is the mean of their losses, weighted by rows, and so are gradients: "
        "one device's where a loss is such a mean of rows."
    ),
    "sum": (
        "The losses of towers are added, and so are gradients: one device's where a loss is such "
        "a sum of rows; a penalty on weights counts in each tower."
    ),
}
BATCH_NORMALIZATION = "Batch normalisation ({name}) normalises each tower's own rows."
UPDATE_OPS = (
    'UPDATE_OPS see the first tower\'s rows; update_ops="mean" averages batch statistics over '
    "all towers' rows."
)
PYTHON = "Python functions ({name}) run once in each tower, on its own rows."
OWN_ROWS = 'A tower sees no rows but its own; tower_building="split" gives one device\'s numbers.'

_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_STEPPED = (tracing.LOSS, tracing.WEIGHTS, tracing.SLOTS)


def of_towers(
    trace: tracing.Trace, what: str, reduction: types.Reduction, update_ops: str | None
) -> Iterator[str]:
    """Yields what makes towers that are calls of a model differ from one device.

    Args:
        trace: The model on one device.
        what: The kind of value that differs.
        reduction: How the towers' losses are joined.
        update_ops: Whose `UPDATE_OPS` run; None: the first tower's.
    """
    name = _batch_normalization(trace)
    if name is not None:
        yield BATCH_NORMALIZATION.format(name=name)
    if what in _STEPPED:
        yield LOSSES[reduction]
    if what == tracing.OTHERS and trace.has_updates and update_ops in (None, "first"):
        yield UPDATE_OPS
    called = sorted(op.name for op in trace.executed() if op.type in _PYTHON)
    if called:
        yield PYTHON.format(name=called[0])
    yield OWN_ROWS


def _batch_normalization(trace: tracing.Trace) -> str | None:
    """Returns the name of batch normalisation that takes a batch's own statistics; None: none."""
    executed = trace.executed()
    for op in sorted(executed, key=lambda op: op.name):
        is_fused = op.type.startswith("FusedBatchNorm") and "Grad" not in op.type
        if is_fused and op.get_attr("is_training"):
            return op.name
    moments = [op.name for op in executed if op.type == "SquaredDifference"]
    for variable in sorted(trace.variable_names):
        scope, _, name = variable.rpartition("/")
        layer = f"/{scope.rpartition('/')[2]}/"
        if name == "moving_variance:0" and any(
            layer in f"/{moment}" and "moments" in moment for moment in moments
        ):
            return scope
    return None
