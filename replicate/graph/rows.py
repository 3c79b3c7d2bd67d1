"""Runs of rows of one tensor, be it dense, sparse or ragged.

Rows lie along axis 0. A bound is a Python int, or an int32 or int64 tensor of shape [];
with Python ints the static shape says how many rows there are.
"""

from typing import TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf

Bound: TypeAlias = int | tf.Tensor

KINDS = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)


def is_batched(value: types.Rows | None) -> bool:
    """Whether a tensor has rows: all but None and scalars; an unknown rank counts as yes."""
    return value is not None and value.shape.rank != 0


def static_count(value: types.Rows) -> int | None:
    """Returns how many rows a tensor has, or None where only a run tells."""
    # NOTE: under TensorFlow 1's behavior a shape holds Dimensions, not ints and None.
    return tf.compat.dimension_value(value.shape[0]) if value.shape.rank else None


def count(value: types.Rows) -> tf.Tensor:
    """Returns how many rows a tensor has when run: int32, shape []."""
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    return tf.shape(value)[0]


def cut(value: types.Rows, begin: Bound, end: Bound) -> types.Rows:
    """Returns the rows from `begin` up to `end`.

    Args:
        value: Dense, sparse or ragged tensor of shape [B, ...].
        begin: First row.
        end: The row after the last one; begin <= end <= B.

    Returns:
        The same kind of tensor, of shape [end - begin, ...]. Sparse indices count from the
        new first row.
    """
    if isinstance(value, tf.SparseTensor):
        return _cut_sparse(value, begin, end)
    if isinstance(value, tf.RaggedTensor):
        return _cut_ragged(value, begin, end)
    return value[begin:end]


def kept(value: types.Rows, has_rows: bool | tf.Tensor) -> types.Rows:
    """Returns all rows, or none; `has_rows` is a bool, or a bool tensor of shape []."""
    if has_rows is True:
        return value
    return cut(value, 0, 0 if has_rows is False else tf.where(has_rows, count(value), 0))


def _cut_sparse(value: tf.SparseTensor, begin: Bound, end: Bound) -> tf.SparseTensor:
    first, size = tf.cast(begin, tf.int64), tf.cast(end - begin, tf.int64)
    inner = value.dense_shape[1:]
    part = tf.sparse.slice(
        value, tf.concat([[first], tf.zeros_like(inner)], 0), tf.concat([[size], inner], 0)
    )
    is_known = isinstance(begin, int) and isinstance(end, int)
    size = tf.constant(end - begin, tf.int64) if is_known else size
    return tf.SparseTensor(part.indices, part.values, sparse_shape(value, size))


def sparse_shape(value: tf.SparseTensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the shape of `size` rows; what is known of the other dimensions stays known.

    NOTE: a `sparse_placeholder` alone knows its static shape; tensors made from it do not.
    """
    known = value.shape
    if known.rank is None:
        return tf.concat([[size], value.dense_shape[1:]], 0)
    known = known.as_list()
    inner = [
        value.dense_shape[i] if known[i] is None else tf.constant(known[i], tf.int64)
        for i in range(1, len(known))
    ]
    return tf.stack([size, *inner])


def _cut_ragged(value: tf.RaggedTensor, begin: Bound, end: Bound) -> tf.RaggedTensor:
    """Cuts the outermost partition, then the run of its values that belongs to it.

    NOTE: TensorFlow's own slicing turns a uniform dimension into a ragged one, and
    forgets the number of rows.
    """
    if value.uniform_row_length is not None:
        length = tf.get_static_value(value.uniform_row_length)
        if length is None or not (isinstance(begin, int) and isinstance(end, int)):
            begin = tf.cast(begin, value.row_splits.dtype)
            end = tf.cast(end, value.row_splits.dtype)
        length = value.uniform_row_length if length is None else int(length)
        return tf.RaggedTensor.from_uniform_row_length(
            cut(value.values, begin * length, end * length),
            length,
            nrows=end - begin,
            validate=False,
        )
    splits = value.row_splits[begin : end + 1]
    return tf.RaggedTensor.from_row_splits(
        cut(value.values, splits[0], splits[-1]), splits - splits[0], validate=False
    )
