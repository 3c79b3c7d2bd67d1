"""A tower's part of the batch, as code sees it that divides by the number of towers.

Under mean a tower of n_i rows weighs n_i / B. Code written for `tf.distribute` scales
its loss by dividing by the number of replicas, which is the same where all towers hold
as many rows. Here the division itself gives the tower's weight, in all cases, and what
was multiplied by it can be told from what was not.
"""

import operator
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import reductions


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


def carries_weight(tensor: Any, marks: Sequence[tf.Operation]) -> bool:
    """Whether a tower's weight is a factor of its loss or gradient already.

    Args:
        tensor: A tensor or IndexedSlices of the tower.
        marks: The operations that hold its weight.
    """
    return operation_of(tensor) in reached_by(marks)


def operation_of(tensor: Any) -> tf.Operation:
    """Returns the operation that makes a tensor, or the values of IndexedSlices."""
    return (tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor).op


def reached_by(marks: Sequence[tf.Operation]) -> set:
    """Returns the operations whose values depend on one of `marks`."""
    reached: set = set()
    waiting = list(marks)
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            waiting.extend(user for tensor in op.outputs for user in tensor.consumers())
    return reached


class TowerCount:
    """K, for code that divides a loss by the number of replicas.

    Dividing a tensor, or 1, gives the tower's part. In all else this is the integer K.

    Args:
        count: K.
        weight: This tower's part, a float or a float64 tensor of shape [].
        marks: See `Weight`.
    """

    def __init__(self, count: int, weight: Any, marks: list):
        self._count = count
        self._weight = weight
        self._marks = marks
        self.was_divided_by = False

    def __rtruediv__(self, numerator):
        if isinstance(numerator, (int, float)) and numerator != 1:
            return numerator / self._count  # rows or a rate per tower, not a part of a loss
        self.was_divided_by = True
        return Weight(self._weight, self._marks) * numerator

    def __index__(self):
        return self._count

    __int__ = __index__

    def __float__(self):
        return float(self._count)

    def __hash__(self):
        return hash(self._count)

    def __bool__(self):
        return self._count != 0

    def __repr__(self):
        return repr(self._count)

    def __eq__(self, other):
        return self._count == other


def _add_arithmetic(cls):
    """Gives `TowerCount` the other operators of an integer."""
    for name in ("lt", "le", "gt", "ge", "add", "sub", "mul", "floordiv", "mod", "pow", "truediv"):
        op = getattr(operator, name)
        setattr(cls, f"__{name}__", lambda self, other, op=op: op(self._count, other))
        if name not in ("lt", "le", "gt", "ge", "truediv"):
            setattr(cls, f"__r{name}__", lambda self, other, op=op: op(other, self._count))


_add_arithmetic(TowerCount)


def _count_as_tensor(value, dtype=None, name=None, as_ref=False):
    del as_ref
    if dtype is not None and not dtype.is_integer:
        # NOTE: what follows a refusal is __rtruediv__, which a tensor's division needs.
        raise TypeError("the number of towers is an integer")
    return tf.constant(int(value), dtype or tf.int32, name=name or "num_towers")


tf.register_tensor_conversion_function(TowerCount, _count_as_tensor)
