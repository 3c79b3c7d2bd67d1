"""A tower's part of the batch: under mean a tower of n_i rows weighs n_i / B.

What was multiplied by a weight can be told from what was not; see `contributions`.
"""

import contextlib
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, values


def in_tower_graph() -> contextlib.AbstractContextManager:
    """Leaves the graph of a function, whose caller then depends on what is made here."""
    inside = hasattr(tf1.get_default_graph(), "outer_graph")
    return tf.init_scope() if inside else contextlib.nullcontext()


class Weight:
    """A scalar that takes the dtype of what it is multiplied with.

    Args:
        value: A float, or a float64 tensor of shape [].
        marks: The list to which each operation that holds the weight is added.
        factor: A number that the weight is multiplied by.
    """

    def __init__(self, value: Any, marks: list, factor: float = 1.0):
        self._value = value
        self._marks = marks
        self._factor = factor

    def as_tensor(self, dtype=None, name=None, as_ref=False) -> tf.Tensor:
        """Returns the scalar as a tensor of `dtype`."""
        del as_ref, name
        with in_tower_graph():
            made = reductions.as_dtype(self._value, dtype or tf.float32)
            factor = reductions.as_dtype(self._factor, made.dtype)
            made = tf.identity(made * factor, name="tower_weight")
            if not tf.executing_eagerly():
                self._marks.append(made.op)
        return made

    def __mul__(self, other):
        if isinstance(other, (int, float)):
            return Weight(self._value, self._marks, self._factor * other)
        return other * self.as_tensor(other.dtype)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self * (1.0 / other)

    def __float__(self):
        if isinstance(self._value, float):
            return self._value * self._factor
        raise TypeError(
            "A tower's weight is known only when the graph runs: the batch size is dynamic. "
            "Multiply a tensor by it."
        )


tf.register_tensor_conversion_function(Weight, Weight.as_tensor)


def weighted(share: context.Share, value: Any) -> values.PerDevice | None:
    """Multiplies a value of each tower by the tower's part of the batch.

    Args:
        share: The towers' parts of the batch.
        value: Anything.

    Returns:
        What adds up to the mean over rows; None where `value` is not one floating tensor
        for each of the towers.
    """
    if not isinstance(value, values.PerDevice) or len(value.values) != len(share.weights):
        return None
    parts = [
        part if isinstance(part, tf.IndexedSlices) else tf.convert_to_tensor(part)
        for part in value.values
    ]
    if not all(part.dtype.is_floating for part in parts):
        return None
    scaled = [
        reductions.scaled(part, weight, reductions.device_of(part))
        for part, weight in zip(parts, share.weights, strict=True)
    ]
    return values.PerDevice(scaled, value.devices)
