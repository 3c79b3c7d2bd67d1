"""Why towers may differ from one device: what is known to, seen in the graph of one device."""

import contextlib
import logging
from collections.abc import Callable, Container, Iterator

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry
from replicate.verification import tracing

BATCH_NORMALIZATION = (
    "Batch normalisation ({name}) normalises each tower's own rows; "
    "tf.keras.layers.BatchNormalization(synchronized=True) takes the whole batch's statistics."
)
ROWS_MEET = (
    "Rows meet other rows in {name} ({kind}): a tower sees no other tower's rows, as a "
    "contrastive loss or in-batch negatives would need. Let such a model run on one device."
)
RANDOM = (
    "The model draws random numbers ({names}); towers draw their own, so what depends on them "
    "is left out."
)
DRAWN = (
    "The model draws random numbers ({names}): the towers draw those of one device, and what "
    "depends on them is compared like all else."
)
SPLIT = (
    "A graph that is split computes what one device computes: what differs is a fault of this "
    "package, or depends on what is outside of the graph, such as Python functions or the time."
)
UPDATE_OPS = (
    'UPDATE_OPS see the first tower\'s rows; update_ops="mean" averages batch statistics over '
    "all towers' rows."
)


def warned(text: str) -> str:
    """Returns the sentence on a warning that building the towers gave."""
    return f"Warned while the towers were built: {text}"


@contextlib.contextmanager
def warnings_kept(kept: list[str]) -> Iterator[None]:
    """Keeps the texts of this package's warnings, each once, in place of logging them."""
    log = logging.getLogger("replicate")
    keeper = _Keeper(kept)
    before = log.propagate, list(log.handlers), log.disabled, log.level
    log.propagate, log.handlers, log.disabled = False, [keeper], False
    log.setLevel(min(log.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        log.propagate, log.handlers, log.disabled = before[:3]
        log.setLevel(before[3])


class _Keeper(logging.Handler):
    """Puts warnings into a list."""

    def __init__(self, kept: list[str]):
        super().__init__(logging.WARNING)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        """See base class."""
        text = record.getMessage()
        if text not in self._kept:
            self._kept.append(text)


def batch_normalization(trace: tracing.Trace) -> str | None:
    """Returns the sentence on batch normalisation where a batch's own statistics are used."""
    executed = trace.executed()
    for op in sorted(executed, key=lambda op: op.name):
        is_fused = op.type.startswith("FusedBatchNorm") and "Grad" not in op.type
        if is_fused and op.get_attr("is_training"):
            return BATCH_NORMALIZATION.format(name=op.name)
    scopes = [
        name.rpartition("/")[0] for name in trace.variable_names if "/moving_variance:" in name
    ]
    moments = {op.name for op in executed if op.type == "SquaredDifference"}
    for scope in sorted(scopes):
        layer = scope.rpartition("/")[2]
        if any(f"/{layer}/" in f"/{name}" and "moments" in name for name in moments):
            return BATCH_NORMALIZATION.format(name=scope)
    return None


def rows_that_meet(make_trace: Callable[[int], tracing.Trace], row_count: int) -> str | None:
    """Returns the sentence on rows that meet rows, and the first operation where they do.

    They do where a tensor has two dimensions of rows, as the product of all rows with all
    rows, and where a number without rows that is made from the batch flows into one with
    rows, as a mean that is subtracted from each.

    Args:
        make_trace: Builds the model of one device on batches of so many rows, all shapes
            static: dimensions that differ between two of them are rows.
        row_count: B.
    """
    try:
        trace, other = make_trace(row_count), make_trace(row_count + 1)
    except Exception:  # noqa: BLE001 - a model that cannot be built so, whatever it raises
        return None
    twins = {op.name: op for op in other.graph.get_operations()}
    forward = ancestry.made_from(list(trace.outputs.values()))
    batch = ancestry.reached_from(trace.given)
    for op in trace.graph.get_operations():
        twin = twins.get(op.name)
        is_same = twin is not None and twin.type == op.type
        if op in forward and op in batch and is_same and _lets_meet(op, twin, batch):
            return ROWS_MEET.format(name=op.name, kind=op.type)
    return None


def _lets_meet(op: tf.Operation, twin: tf.Operation, batch: Container[tf.Operation]) -> bool:
    before = [_row_dimensions(*pair) for pair in zip(op.inputs, twin.inputs, strict=False)]
    after = [_row_dimensions(*pair) for pair in zip(op.outputs, twin.outputs, strict=False)]
    if None in before or None in after or not any(after):
        return False
    if max(after) > 1:
        return max(before, default=0) < 2
    return any(
        count == 0 and tensor.dtype.is_floating and tensor.op in batch
        for count, tensor in zip(before, op.inputs, strict=False)
    )


def _row_dimensions(one: tf.Tensor, other: tf.Tensor) -> int | None:
    """Counts the dimensions that differ between the same tensor of two batch sizes."""
    if one.shape.rank is None or one.shape.rank != other.shape.rank:
        return None
    pairs = zip(one.shape.as_list(), other.shape.as_list(), strict=True)
    return sum(size != twin for size, twin in pairs)
