"""Why towers may differ from one device: what is known to, seen in the graph of one device."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from replicate.compat.tensorflow import tf
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
    """Returns the sentence on rows that meet rows, where a tensor has two dimensions of rows.

    Args:
        make_trace: Builds the model of one device on batches of so many rows, all shapes
            static: dimensions that differ between two of them are rows.
        row_count: B.
    """
    try:
        one, other = make_trace(row_count).graph, make_trace(row_count + 1).graph
    except Exception:  # noqa: BLE001 - a model that cannot be built so, whatever it raises
        return None
    given = {op.name: op for op in other.get_operations()}
    for op in one.get_operations():
        twin = given.get(op.name)
        if twin is None or twin.type != op.type or op.type in _SHAPELESS:
            continue
        before = max((_row_dimensions(*pair) for pair in _pairs(op.inputs, twin.inputs)), default=0)
        after = max(
            (_row_dimensions(*pair) for pair in _pairs(op.outputs, twin.outputs)), default=0
        )
        if after > 1 and before < 2:
            return ROWS_MEET.format(name=op.name, kind=op.type)
    return None


_SHAPELESS = ("Placeholder", "VarHandleOp", "VariableV2", "ReadVariableOp")


def _pairs(one, other) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    return zip(one, other, strict=False)


def _row_dimensions(one: tf.Tensor, other: tf.Tensor) -> int:
    """Counts the dimensions that differ between the same tensor of two batch sizes."""
    if one.shape.rank is None or one.shape.rank != other.shape.rank:
        return 0
    pairs = zip(one.shape.as_list(), other.shape.as_list(), strict=True)
    return sum(size != twin for size, twin in pairs)
