"""K tensors become one on a device: sum, mean, weighted sum, concatenation.

Everything here takes tensors and gives tensors; nothing knows of towers but by their
position in a list. `IndexedSlices` stay sparse.
"""

import contextlib
from collections.abc import Iterator, Sequence

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1

_AGGREGATIONS = {
    tf.distribute.ReduceOp.SUM: tf.VariableAggregation.SUM,
    tf.distribute.ReduceOp.MEAN: tf.VariableAggregation.MEAN,
}

SCOPE = "replicate_reduce/"  # of what reduces over towers: no name of the model's is taken


def aggregation_of(reduce_op: types.NamedReduction) -> tf.VariableAggregation:
    """Returns the aggregation for a `tf.distribute.ReduceOp`, its name, or an aggregation.

    Raises:
        ValueError: If it is neither a sum nor a mean.
    """
    if isinstance(reduce_op, str):
        reduce_op = getattr(tf.distribute.ReduceOp, reduce_op.upper(), reduce_op)
    found = _AGGREGATIONS.get(reduce_op, reduce_op)
    if found not in _AGGREGATIONS.values():
        raise ValueError(
            f"A reduction is SUM or MEAN; got {reduce_op!r}. Pass tf.VariableAggregation.SUM or "
            ".MEAN (in strategy.extended: tf.distribute.ReduceOp, or its name)."
        )
    return found


def on(device: str | None) -> contextlib.AbstractContextManager[object]:
    """Enters a device; `""` and None leave the choice to whoever chose before."""
    return tf.device(device) if device else contextlib.nullcontext()


@contextlib.contextmanager
def alone_on(device: str, scope: str) -> Iterator[None]:
    """Enters a device and an absolute name scope; leaves control flow and its dependencies."""
    with tf1.control_dependencies(None), tf1.name_scope(scope), tf1.device(None), tf.device(device):
        yield


def device_of(value: types.Gradient) -> str:
    """Returns the device of a tensor or of IndexedSlices; `""` where none is named."""
    return (value.values if isinstance(value, tf.IndexedSlices) else value).device or ""


def copy_onto(value: types.Nest, device: str | None) -> types.Nest:
    """Copies a tensor, or a sparse, ragged or sliced one, onto a device."""
    with on(device):
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def sum_onto(tensors: Sequence[types.Gradient], device: str | None) -> types.Gradient:
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
            indices = [each.indices for each in tensors]
            dtype = tf.int64 if len({each.dtype for each in indices}) > 1 else indices[0].dtype
            shapes = [each.dense_shape for each in tensors if each.dense_shape is not None]
            return tf.IndexedSlices(
                tf.concat([each.values for each in tensors], 0),
                tf.concat([tf.cast(each, dtype) for each in indices], 0),
                shapes[0] if shapes else None,
            )
        require_sum(tensors[0].dtype)
        return tf.add_n(tensors)


def require_sum(dtype: tf.DType) -> None:
    """Refuses bools, which have no sum."""
    if dtype == tf.bool:
        raise TypeError("bool tensors have no sum; cast them to a number first.")


def divide_onto(value: types.Gradient, number: int, device: str | None) -> types.Gradient:
    """Divides a tensor, or the values of IndexedSlices, on a device; keeps the dtype."""
    if number == 1:
        return value
    with on(device):
        if isinstance(value, tf.IndexedSlices):
            divided = divide_onto(value.values, number, device)
            return tf.IndexedSlices(divided, value.indices, value.dense_shape)
        return value // number if value.dtype.is_integer else value / number


def as_dtype(number: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns a number as a tensor, all of whose digits count even in float64.

    NOTE: `tf.cast` makes a Python float a float32 first.
    """
    return tf.constant(number, dtype) if isinstance(number, float) else tf.cast(number, dtype)


def scaled(value: types.Gradient, factor: float | tf.Tensor, device: str | None) -> types.Gradient:
    """Multiplies a floating tensor, or the values of IndexedSlices, on a device."""
    with on(device):
        if isinstance(value, tf.IndexedSlices):
            values = value.values * as_dtype(factor, value.values.dtype)
            return tf.IndexedSlices(values, value.indices, value.dense_shape)
        return value * as_dtype(factor, value.dtype)


def weighted_sum_onto(
    tensors: Sequence[tf.Tensor],
    weights: Sequence[float | tf.Tensor],
    has_rows: Sequence[bool | tf.Tensor],
    device: str | None,
) -> tf.Tensor:
    """Sums K floating tensors times K weights onto one device; of towers without rows, nothing."""
    pairs = zip(mask_rows(tensors, has_rows), weights, strict=True)
    return sum_onto([scaled(tensor, weight, device) for tensor, weight in pairs], device)


def mask_rows(
    tensors: Sequence[types.Gradient], has_rows: Sequence[bool | tf.Tensor]
) -> list[types.Gradient]:
    """Replaces by zeros what towers without rows bring; of IndexedSlices, nothing is left.

    Args:
        tensors: K tensors or IndexedSlices.
        has_rows: K bools, or bool tensors of shape [].

    Returns:
        K values, each on the device where it was.
    """
    return [masked([value], keep)[0] for value, keep in zip(tensors, has_rows, strict=True)]


def masked(tensors: Sequence[types.Gradient], counts: bool | tf.Tensor) -> list[types.Gradient]:
    """Returns tensors of one device if they count, else zeros; of IndexedSlices, nothing.

    Args:
        tensors: N tensors or IndexedSlices.
        counts: A bool, or a bool tensor of shape [].
    """
    if counts is True:
        return list(tensors)
    found: list[types.Gradient] = []
    zeros: dict[tf.DType, tf.Tensor] = {}
    for value in map(_as_tensor, tensors):
        with on(device_of(value)):
            if isinstance(value, tf.IndexedSlices):
                # NOTE: a slice of zeros would still count as touched in a lazy optimizer.
                limit = 0 if counts is False else tf.where(counts, tf.size(value.indices), 0)
                rows, indices = value.values[:limit], value.indices[:limit]
                found.append(tf.IndexedSlices(rows, indices, value.dense_shape))
            elif counts is False:
                found.append(tf.zeros_like(value))
            else:
                if value.dtype not in zeros:
                    zeros[value.dtype] = tf.zeros([], value.dtype)
                found.append(tf.where(counts, value, zeros[value.dtype]))
    return found


def concat_onto(values: Sequence[types.Rows], device: str | None) -> types.Rows:
    """Concatenates K values along axis 0 onto one device.

    Args:
        values: K dense, sparse or ragged tensors that agree in all other dimensions
            (sparse: the largest of each).
        device: Canonical device name.

    Returns:
        One value of the same kind.

    Raises:
        TowerMismatchError: If kinds, dtypes or inner shapes are mixed.
    """
    tensors = [_as_tensor(value) for value in values]
    _require_same("kind", [_kind(tensor) for tensor in tensors])
    _require_same("dtype", [tensor.dtype.name for tensor in tensors])
    if len(tensors) == 1:
        return copy_onto(tensors[0], device)
    if _kind(tensors[0]) == "tensor":
        _require_same_shapes([tensor.shape[1:] for tensor in tensors], "shape of a row")
    with on(device):
        if isinstance(tensors[0], tf.SparseTensor):
            return tf.sparse.concat(0, tensors, expand_nonconcat_dims=True)
        return tf.concat(tensors, 0)


def deduplicate(slices: types.Gradient) -> types.Gradient:
    """Sums the rows of equal index, so that each index stands once; a tensor has none."""
    if not isinstance(slices, tf.IndexedSlices):
        return slices
    with on(slices.values.device):
        indices, positions = tf.unique(slices.indices)
        values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _as_tensor(value: types.Gradient | types.Rows | None) -> types.Gradient | types.Rows:
    if isinstance(value, (tf.Tensor, tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        return value
    return tf.convert_to_tensor(value)


def _kind(value: types.Gradient | types.Rows) -> str:
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        return type(value).__name__
    return "tensor"


def require_alike(
    tensors: Sequence[types.Gradient | types.Rows],
) -> list[types.Gradient | types.Rows]:
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


def _mismatch(tower: int, what: str, found: object, first: object) -> errors.TowerMismatchError:
    return errors.TowerMismatchError(
        f"Values of all towers must agree to be joined: tower {tower} has the {what} "
        f"{found}, tower 0 has {first}. Look for a branch on the tower."
    )
