"""K tensors become one on a device: sum, mean, weighted sum, concatenation.

Everything here takes tensors and gives tensors; nothing knows of towers but by their
position in a list. `IndexedSlices` stay sparse.
"""

from collections.abc import Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf


def copy_onto(value: Any, device: str) -> Any:
    """Copies a tensor or IndexedSlices onto a device; `""` leaves the choice open."""
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def sum_onto(tensors: Sequence[Any], device: str) -> Any:
    """Sums K tensors of one shape onto one device.

    Args:
        tensors: K >= 1 tensors or K IndexedSlices, each of shape [d1, ...], one dtype.
        device: Canonical device name, e.g. `/device:GPU:0`.

    Returns:
        One value of the same kind and shape on `device`. IndexedSlices keep duplicate
        indices, which whoever applies them adds up.

    Raises:
        TowerMismatchError: If kinds, dtypes or shapes are mixed; names each one's tower.
    """
    tensors = _of_one_kind(tensors)
    if len(tensors) == 1:
        return copy_onto(tensors[0], device)
    with tf.device(device):
        if isinstance(tensors[0], tf.IndexedSlices):
            return _stacked(tensors)
        if tensors[0].dtype == tf.bool:
            raise TypeError("bool tensors have no sum; cast them to a number first.")
        return tf.add_n(tensors)


def mean_onto(tensors: Sequence[Any], device: str) -> Any:
    """Averages K tensors of one shape onto one device; see `sum_onto`."""
    summed = sum_onto(tensors, device)
    return summed if len(tensors) == 1 else scaled(summed, 1.0 / len(tensors), device)


def scaled(value: Any, factor: Any, device: str) -> Any:
    """Multiplies a tensor, or the values of IndexedSlices, on a device."""
    with tf.device(device):
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(
                value.values * tf.cast(factor, value.values.dtype), value.indices, value.dense_shape
            )
        if value.dtype.is_integer:
            return tf.cast(tf.cast(value, tf.float64) * tf.cast(factor, tf.float64), value.dtype)
        return value * tf.cast(factor, value.dtype)


def weighted_sum_onto(tensors: Sequence[Any], weights: Sequence[Any], device: str) -> Any:
    """Sums K tensors times K weights onto one device.

    Args:
        tensors: K tensors or IndexedSlices of one shape and floating dtype.
        weights: K floats, or float tensors of shape []. A weight of zero keeps out even
            NaN and infinity.
        device: Canonical device name.
    """
    tensors = _of_one_kind(tensors)
    weighted = []
    for tensor, weight in zip(tensors, weights, strict=True):
        if isinstance(weight, float):
            weighted.append(tf.zeros_like(tensor) if weight == 0 else _times(tensor, weight))
            continue
        (masked,) = mask_rows([tensor], [weight > 0])
        weighted.append(_times(masked, weight))
    return sum_onto(weighted, device)


def _times(value: Any, weight: Any) -> Any:
    return value if isinstance(weight, float) and weight == 1.0 else scaled(value, weight, "")


def mask_rows(tensors: Sequence[Any], has_rows: Sequence[Any]) -> list:
    """Replaces by zeros what towers without rows bring.

    Args:
        tensors: K tensors or IndexedSlices.
        has_rows: K bools, or bool tensors of shape [].
    """
    return [
        value if keep is True else _where(keep, value)
        for value, keep in zip(tensors, has_rows, strict=True)
    ]


def _where(keep: Any, value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_where(keep, value.values), value.indices, value.dense_shape)
    return tf.zeros_like(value) if keep is False else tf.where(keep, value, tf.zeros_like(value))


def concat_onto(values: Sequence[Any], device: str) -> Any:
    """Concatenates K values along axis 0 onto one device.

    Args:
        values: K dense, sparse or ragged tensors that agree in all other dimensions
            (sparse: the largest of each).
        device: Canonical device name.

    Raises:
        TowerMismatchError: If kinds or dtypes are mixed, or the values are scalars.
    """
    values = [v if isinstance(v, tf.SparseTensor) else _as_tensor(v) for v in values]
    _require_same("kind", [_kind(value) for value in values])
    _require_same("dtype", [value.dtype.name for value in values])
    if _kind(values[0]) == "tensor" and values[0].shape.rank == 0:
        raise errors.TowerMismatchError(
            "What towers predict is joined row by row and needs a batch dimension; got the "
            f"scalar {values[0].name}. Give it the shape [batch]."
        )
    with tf.device(device):
        if len(values) == 1:
            return values[0]
        if isinstance(values[0], tf.SparseTensor):
            return tf.sparse.concat(0, values, expand_nonconcat_dims=True)
        return tf.concat(values, 0)


def deduplicate(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the rows of equal index, so that each index stands once."""
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _stacked(slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    kind = tf.int64 if any(item.indices.dtype == tf.int64 for item in slices) else tf.int32
    return tf.IndexedSlices(
        tf.concat([item.values for item in slices], 0),
        tf.concat([tf.cast(item.indices, kind) for item in slices], 0),
        slices[0].dense_shape,
    )


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (tf.IndexedSlices, tf.RaggedTensor, tf.Tensor)):
        return value
    return tf.convert_to_tensor(value)


def _kind(value: Any) -> str:
    if isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        return type(value).__name__
    return "tensor"


def _of_one_kind(tensors: Sequence[Any]) -> list:
    """Refuses what cannot be added: other kinds, dtypes, or shapes."""
    tensors = [_as_tensor(tensor) for tensor in tensors]
    _require_same("kind", [_kind(tensor) for tensor in tensors])
    _require_same("dtype", [tensor.dtype.name for tensor in tensors])
    if _kind(tensors[0]) == "tensor":
        for i, tensor in enumerate(tensors):
            if not tensor.shape.is_compatible_with(tensors[0].shape):
                _require_same("shape", [str(t.shape) for t in (tensors[0], tensor)], (0, i))
    return tensors


def _require_same(what: str, found: Sequence[str], tower_ids: Sequence[int] | None = None) -> None:
    tower_ids = range(len(found)) if tower_ids is None else tower_ids
    for tower, item in zip(tower_ids, found, strict=True):
        if item != found[0]:
            raise errors.TowerMismatchError(
                f"Values of all towers must agree to be joined: tower {tower} has the {what} "
                f"{item}, tower 0 has {found[0]}. Look for a branch on the tower."
            )
