"""K tensors become one on a device: sum, mean, weighted sum, concatenation.

Everything here takes tensors and gives tensors; nothing knows of towers but by their
position in a list. `IndexedSlices` stay sparse.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1


def on(device: str | None) -> contextlib.AbstractContextManager:
    """Enters a device; `""` and None leave the choice to whoever chose before."""
    return tf.device(device) if device else contextlib.nullcontext()


@contextlib.contextmanager
def alone_on(device: str, scope: str) -> Iterator[None]:
    """Enters a device and an absolute name scope; leaves control flow and its dependencies."""
    with tf1.control_dependencies(None), tf1.name_scope(scope), tf1.device(None), tf.device(device):
        yield


def device_of(value: Any) -> str:
    """Returns the device of a tensor or of IndexedSlices; `""` where none is named."""
    return (value.values if isinstance(value, tf.IndexedSlices) else value).device or ""


def copy_onto(value: Any, device: str | None) -> Any:
    """Copies a tensor, or a sparse, ragged or sliced one, onto a device."""
    with on(device):
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def sum_onto(tensors: Sequence[Any], device: str | None) -> Any:
    """Sums K tensors of one shape onto one device.

    Args:
        tensors: K >= 1 tensors or K IndexedSlices, each of shape [d1, ...], one dtype.
        device: Canonical device name, e.g. `/device:GPU:0`.

    Returns:
        One value of the same kind and shape on `device`. IndexedSlices keep duplicate
        indices, which whoever applies them adds up.

    Raises:
        TowerMismatchError: If kinds, dtypes or shapes are mixed; names each one's tower.
        TypeError: If they are bools, which have no sum.
    """
    tensors = require_alike(tensors)
    if len(tensors) == 1:
        return copy_onto(tensors[0], device)
    with on(device):
        if isinstance(tensors[0], tf.IndexedSlices):
            return _joined_slices(tensors)
        if tensors[0].dtype == tf.bool:
            raise TypeError("bool tensors have no sum; cast them to a number first.")
        return tf.add_n(tensors)


def mean_onto(tensors: Sequence[Any], device: str | None) -> Any:
    """Averages K tensors of one shape onto one device; integers are rounded down.

    Args:
        tensors: See `sum_onto`.
        device: See `sum_onto`.

    Returns:
        See `sum_onto`; the dtype stays what it is.

    Raises:
        TowerMismatchError: See `sum_onto`.
    """
    return divide_onto(sum_onto(tensors, device), len(tensors), device)


def divide_onto(value: Any, number: int, device: str | None) -> Any:
    """Divides a tensor, or the values of IndexedSlices, on a device; keeps the dtype."""
    if number == 1:
        return value
    with on(device):
        if isinstance(value, tf.IndexedSlices):
            divided = divide_onto(value.values, number, device)
            return tf.IndexedSlices(divided, value.indices, value.dense_shape)
        return value // number if value.dtype.is_integer else value / number


def as_dtype(number: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns a number as a tensor, all of whose digits count even in float64.

    NOTE: `tf.cast` makes a Python float a float32 first.
    """
    return tf.constant(number, dtype) if isinstance(number, float) else tf.cast(number, dtype)


def scaled(value: Any, factor: Any, device: str | None) -> Any:
    """Multiplies a floating tensor, or the values of IndexedSlices, on a device."""
    with on(device):
        if isinstance(value, tf.IndexedSlices):
            values = value.values * as_dtype(factor, value.values.dtype)
            return tf.IndexedSlices(values, value.indices, value.dense_shape)
        return value * as_dtype(factor, value.dtype)


def weighted_sum_onto(tensors: Sequence[Any], weights: Sequence[Any], device: str | None) -> Any:
    """Sums K tensors times K weights onto one device.

    Args:
        tensors: K tensors or IndexedSlices of one shape and dtype; integers become float32.
        weights: K floats, or float tensors of shape []. A weight of zero keeps out even
            NaN and infinity.
        device: Canonical device name.

    Raises:
        TowerMismatchError: See `sum_onto`.
    """
    tensors = require_alike(tensors)
    pairs = [
        (tensor, weight)
        for tensor, weight in zip(tensors, weights, strict=True)
        if not (isinstance(weight, (int, float)) and weight == 0)
    ] or [(tensors[0], tf.constant(0.0))]
    with on(device):
        return sum_onto([_weighted(tensor, weight) for tensor, weight in pairs], device)


def _weighted(value: Any, weight: Any) -> Any:
    if isinstance(weight, (int, float)) and weight == 1:
        return value
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_weighted(value.values, weight), value.indices, value.dense_shape)
    if value.dtype.is_integer:
        value = tf.cast(value, tf.float32)
    return tf.math.multiply_no_nan(value, as_dtype(weight, value.dtype))


def mask_rows(tensors: Sequence[Any], has_rows: Sequence[Any]) -> list:
    """Replaces by zeros what towers without rows bring; of IndexedSlices, nothing is left.

    Args:
        tensors: K tensors or IndexedSlices.
        has_rows: K bools, or bool tensors of shape [].

    Returns:
        K values, each on the device where it was.
    """
    return [
        value if keep is True else _masked(value, keep)
        for value, keep in zip(tensors, has_rows, strict=True)
    ]


def _masked(value: Any, keep: Any) -> Any:
    value = _as_tensor(value)
    with on(value.device):
        if isinstance(value, tf.IndexedSlices):
            # NOTE: a slice of zeros would still count as touched in a lazy optimizer.
            limit = 0 if keep is False else tf.where(keep, tf.size(value.indices), 0)
            return tf.IndexedSlices(value.values[:limit], value.indices[:limit], value.dense_shape)
        zeros = tf.zeros_like(value)
        return zeros if keep is False else tf.where(keep, value, zeros)


def concat_onto(values: Sequence[Any], device: str | None) -> Any:
    """Concatenates K values along axis 0 onto one device.

    Args:
        values: K dense, sparse or ragged tensors that agree in all other dimensions
            (sparse: the largest of each); or K times None.
        device: Canonical device name.

    Returns:
        One value of the same kind; None where all are None.

    Raises:
        TowerMismatchError: If kinds, dtypes or inner shapes are mixed, or the values are
            scalars.
    """
    if all(value is None for value in values):
        return None
    values = [_as_tensor(value) for value in values]
    _require_same("kind", [_kind(value) for value in values])
    _require_same("dtype", [value.dtype.name for value in values])
    if len(values) == 1:
        return copy_onto(values[0], device)
    if _kind(values[0]) == "tensor":
        _require_rows(values)
    with on(device):
        if isinstance(values[0], tf.SparseTensor):
            return tf.sparse.concat(0, values, expand_nonconcat_dims=True)
        return tf.concat(values, 0)


def _require_rows(tensors: Sequence[tf.Tensor]) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.shape.rank == 0:
            raise errors.TowerMismatchError(
                "What towers return is joined row by row, and a scalar has no rows; tower "
                f"{i} returned {tensor!r}. Give it the shape [batch]."
            )
    _require_same_shapes([tensor.shape[1:] for tensor in tensors], "shape of a row")


def deduplicate(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the rows of equal index, so that each index stands once."""
    with on(slices.values.device):
        indices, positions = tf.unique(slices.indices)
        values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _joined_slices(slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    index_dtypes = {item.indices.dtype for item in slices}
    dtype = tf.int64 if len(index_dtypes) > 1 else slices[0].indices.dtype
    shapes = [item.dense_shape for item in slices if item.dense_shape is not None]
    return tf.IndexedSlices(
        tf.concat([item.values for item in slices], 0),
        tf.concat([tf.cast(item.indices, dtype) for item in slices], 0),
        shapes[0] if shapes else None,
    )


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (tf.Tensor, tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        return value
    return tf.convert_to_tensor(value)


def _kind(value: Any) -> str:
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        return type(value).__name__
    return "tensor"


def require_alike(tensors: Sequence[Any]) -> list:
    """Returns K values as tensors; refuses mixed kinds, dtypes or shapes.

    Raises:
        TowerMismatchError: Names the first tower that differs from tower 0.
    """
    tensors = [_as_tensor(tensor) for tensor in tensors]
    _require_same("kind", [_kind(tensor) for tensor in tensors])
    _require_same("dtype", [tensor.dtype.name for tensor in tensors])
    if _kind(tensors[0]) == "tensor":
        _require_same_shapes([tensor.shape for tensor in tensors], "shape")
    return tensors


def _require_same_shapes(shapes: Sequence[tf.TensorShape], what: str) -> None:
    for tower, shape in enumerate(shapes):
        if not shape.is_compatible_with(shapes[0]):
            raise _mismatch(tower, what, shape, shapes[0])


def _require_same(what: str, found: Sequence[str]) -> None:
    for tower, item in enumerate(found):
        if item != found[0]:
            raise _mismatch(tower, what, item, found[0])


def _mismatch(tower: int, what: str, found: Any, first: Any) -> errors.TowerMismatchError:
    return errors.TowerMismatchError(
        f"Values of all towers must agree to be joined: tower {tower} has the {what} "
        f"{found}, tower 0 has {first}. Look for a branch on the tower."
    )
