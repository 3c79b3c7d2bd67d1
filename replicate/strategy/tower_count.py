"""The number of towers, for code that divides a loss by the number of replicas.

Code written for `tf.distribute` scales its loss so, which is right where all towers hold as
many rows. Here the division itself gives the tower's weight, in all cases.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.graph import ancestry, reductions
from replicate.strategy import weights


def settle(products: Sequence[tuple], marks: list) -> bool:
    """Lets what is divided by a number times K be divided by it over the tower's weight.

    A product with K alone does not tell: a loss is multiplied by K as well, by code that
    wants the sum over replicas.

    Args:
        products: The products of one tower, each with its denominator and its mark.
        marks: The tower's marks, to which those of the denominators in use are added.

    Returns:
        Whether something is divided by one of the products.
    """
    is_used = False
    for product, denominator, mark in products:
        for user in product.consumers():
            if not _divides(user, product):
                continue
            for i, tensor in enumerate(user.inputs):
                if tensor.op is product.op:
                    user._update_input(i, denominator)
            marks.append(mark)
            is_used = True
    return is_used


def _divides(user: tf.Operation, tensor: tf.Tensor) -> bool:
    """Whether an operation divides by a tensor, or by one that is nearly the same."""
    if user.type in ("RealDiv", "DivNoNan"):
        return user.inputs[1].op is tensor.op and user.inputs[0].op is not tensor.op
    if user.type not in ("Identity", "Cast", "Maximum"):
        return False
    made = user.outputs[0]
    return any(_divides(later, made) for later in made.consumers())


@tfc.dispatch.register_dispatchable_type
class TowerCount:
    """K, for code that divides a loss by the number of replicas, or by rows times K.

    Dividing a tensor, or 1, gives the tower's part. A number of rows in a tensor times K
    is the whole batch's; K as a floating tensor is what divides by the tower's part. In
    all else this is the integer K.

    Args:
        count: K.
        weight: This tower's part, a float or a float64 tensor of shape [].
        marks: See `weights.Weight`.
        products: The list to which each floating product with K is added, with what takes
            its place where something is divided by it.
        root: The count that this one is a multiple of.
    """

    def __init__(self, count: int, weight: Any, marks: list, products: list, root: Any = None):
        self._count = count
        self._weight = weight
        self._marks = marks
        self._products = products
        self._root = root or self
        self.gave_weight = False

    def __rtruediv__(self, numerator):
        if isinstance(numerator, (int, float)) and numerator != 1:
            return numerator / self._count  # rows or a rate per tower, not a part of a loss
        return self._given() * numerator

    def _given(self) -> weights.Weight:
        self._root.gave_weight = True
        return weights.Weight(self._weight, self._marks)

    def __mul__(self, other):
        if isinstance(other, int) and other > 0:
            weight = self._weight / other
            return TowerCount(self._count * other, weight, self._marks, self._products, self._root)
        return tf.multiply(other, self) if tf.is_tensor(other) else other * self._count

    __rmul__ = __mul__

    def as_denominator(self, dtype: tf.DType, rows: tf.Tensor | None = None) -> tf.Tensor:
        """Returns what divides a sum over this tower's rows as its weight would multiply it.

        Args:
            dtype: Of the result.
            rows: What K is multiplied by: a number of this tower's rows, or the like.

        Returns:
            1 over the weight, times the rows; shape [].
        """
        whole, mark = self._over_weight(dtype, rows)
        self._marks.append(mark)
        self._root.gave_weight = True
        return whole

    def _over_weight(self, dtype: tf.DType, rows: tf.Tensor | None) -> tuple:
        """Returns 1 over the weight, times `rows`, and the operation that holds the weight."""
        with weights.in_tower_graph():
            weight = reductions.as_dtype(self._weight, tf.float64)
            whole = tf.where(weight > 0, 1.0 / weight, tf.cast(self._count, tf.float64))
            whole = tf.identity(whole, name="over_towers")
        mark = whole.op
        if rows is not None:
            whole *= tf.cast(rows, tf.float64)
        return tf.cast(tf.round(whole) if dtype.is_integer else whole, dtype), mark

    def settle(self) -> None:
        """Looks for what has been divided by a product with K; see the room's."""
        if settle(self._products, self._marks):
            self._root.gave_weight = True

    def combined(self, api: Callable, tensor: tf.Tensor, is_right: bool) -> tf.Tensor:
        """Returns `api(tensor, K)`, of an elementwise function of TensorFlow; or `api(K, tensor)`.

        Args:
            api: The function.
            tensor: The other argument.
            is_right: Whether K is the second one.
        """
        # NOTE: TensorFlow wraps some of these functions; their names alone are what they were.
        name = getattr(api, "__name__", "")
        if name == "multiply" and counts_rows(tensor):
            return self.as_denominator(tensor.dtype, tensor)
        if name == "multiply" and tensor.dtype.is_floating:
            return self._product(api, tensor)
        if name in _DIVISIONS and is_right and tensor.dtype.is_floating:
            return self._given() * tensor
        number = tf.constant(self._count, tensor.dtype)
        return api(tensor, number) if is_right else api(number, tensor)

    def _product(self, api: Callable, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor times K, and notes what takes its place as a denominator."""
        product = api(tensor, tf.constant(self._count, tensor.dtype))
        if not tf.executing_eagerly() and tensor.shape.rank == 0:
            self._products.append((product, *self._over_weight(tensor.dtype, tensor)))
        return product

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

    def __format__(self, form):
        return format(self._count, form)

    def __eq__(self, other):
        return self._count == other


_DIVISIONS = ("truediv", "divide", "div", "div_no_nan", "realdiv", "real_div")


def counts_rows(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a count of something in the batch, and not in a variable."""
    if tf.executing_eagerly() or tensor.shape.rank != 0:
        return False
    counted = tensor.op.inputs[0] if tensor.op.type == "Cast" else tensor
    if not counted.dtype.is_integer:
        return False
    behind = ancestry.made_from([counted], ends=("Shape", "ShapeN", "Size"))
    return all(op.type != "VarHandleOp" for op in behind)


def _add_arithmetic(cls):
    """Gives `TowerCount` the other operators of an integer."""
    for name in ("lt", "le", "gt", "ge", "add", "sub", "floordiv", "mod", "pow", "truediv"):
        op = getattr(operator, name)
        setattr(cls, f"__{name}__", lambda self, other, op=op: op(self._count, other))
        if name not in ("lt", "le", "gt", "ge", "truediv"):
            setattr(cls, f"__r{name}__", lambda self, other, op=op: op(other, self._count))


_add_arithmetic(TowerCount)


def _count_as_tensor(value, dtype=None, name=None, as_ref=False):
    del as_ref
    if dtype is not None and dtype.is_floating:
        return value.as_denominator(dtype)
    return tf.constant(int(value), dtype or tf.int32, name=name or "num_towers")


tf.register_tensor_conversion_function(TowerCount, _count_as_tensor)


@tf.experimental.dispatch_for_binary_elementwise_apis(tf.Tensor, TowerCount)
def _tensor_and_count(api, x, y):
    return y.combined(api, x, is_right=True)


@tf.experimental.dispatch_for_binary_elementwise_apis(tf.RaggedTensor, TowerCount)
def _ragged_and_count(api, x, y):
    return x.with_flat_values(y.combined(api, x.flat_values, is_right=True))


@tf.experimental.dispatch_for_binary_elementwise_apis(TowerCount, tf.Tensor)
def _count_and_tensor(api, x, y):
    return x.combined(api, y, is_right=False)


@tf.experimental.dispatch_for_api(tf.cast, {"x": TowerCount})
def _cast_count(x, dtype, name=None):
    dtype = tf.as_dtype(dtype)
    if not dtype.is_floating:
        return tf.cast(int(x), dtype, name)
    return x.as_denominator(dtype)
