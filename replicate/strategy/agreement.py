"""Workers compare what they have built, and begin with the same values of all variables."""

import zlib
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives


def begin(across: collectives.Across, batch: Any = None) -> list[tf.Operation]:
    """Returns what all workers' sessions run first, once the first worker has its values.

    Args:
        across: Joins what workers bring.
        batch: What workers must have alike of their batches, such as a static size.
    """
    across = across.apart("start")
    variables = [
        member
        for variable in tf1.global_variables()
        for member in getattr(variable, "members", (variable,))
    ]
    checks = _compared(across, _built(variables, batch))
    with tf1.control_dependencies(checks):
        brought = [_value(variable, across) for variable in variables]
    found = across.from_first(brought)
    return [
        variable.assign(value, read_value=False)
        for variable, value in zip(variables, found, strict=True)
        if not across.is_first
    ] + [value.op for value in found]


def _value(variable: Any, across: collectives.Across) -> tf.Tensor:
    if across.is_first or not variable.shape.is_fully_defined():
        return tf.identity(variable.read_value())
    return tf.identity(variable.initial_value) if _is_text(variable) else _zeros(variable)


def _is_text(variable: Any) -> bool:
    return variable.dtype.base_dtype == tf.string


def _zeros(variable: Any) -> tf.Tensor:
    with tf.device(variable.device):
        return tf.zeros(variable.shape, variable.dtype.base_dtype)


def _built(variables: Sequence[Any], batch: Any) -> dict[str, str]:
    """Returns what workers must have alike."""
    named = [f"{v.name} {v.shape} {v.dtype.base_dtype.name}" for v in variables]
    return {
        "the version of TensorFlow": tf.__version__,
        "the batch": str(batch),
        "the variables": "\n".join(named),
    }


def _compared(across: collectives.Across, built: dict[str, str]) -> list[tf.Operation]:
    """Returns checks that all workers have built the same."""
    own = tf.constant([zlib.crc32(text.encode()) for text in built.values()], tf.int64)
    (largest,) = across.max([own])
    (negated,) = across.max([-own])
    checks = []
    for n, (name, text) in enumerate(built.items()):
        is_same = tf.equal(largest[n], -negated[n])
        shown = text if len(text) < 300 else f"{text[:300]}…"
        told = (
            f"All workers of a cluster run the same model: they differ in {name}. Worker "
            f"{across.options.position} has: {shown}. Start all with the same config and packages."
        )
        checks.append(tf.debugging.Assert(is_same, [told], summarize=1))
    return checks
