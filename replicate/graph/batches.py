"""Nests of features and labels become K shards and their row counts.

Rows stay in order: tower i gets the i-th run of n_i rows, and shards differ by at most
one row, the longer ones first. Where there are fewer rows than towers, a tower without
rows gets the batch's first row on loan, and n_i = 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat.tensorflow import tf, tf1


class Batch(NamedTuple):
    """A batch, split.

    Attributes:
        features: K nests of features.
        labels: K nests of labels.
        row_counts: K numbers n_i of rows; ints, or int64 tensors of shape [].
        weights: K parts n_i / B; floats, or float32 tensors of shape [].
        has_rows: K truths n_i > 0; bools, or bool tensors of shape [].
    """

    features: list
    labels: list
    row_counts: list
    weights: list
    has_rows: list


class _Leaf(NamedTuple):
    path: str
    value: Any
    rows: int | None


def split_batch(features: Any, labels: Any, num_towers: int) -> Batch:
    """Splits features and labels for K towers.

    Args:
        features: Nest of dense, sparse and ragged tensors of shape [B, ...]. Scalars and
            None go to every tower whole.
        labels: Likewise, or None.
        num_towers: K >= 1. One tower gets what came, and no operation is added.

    Raises:
        BatchError: If leaves disagree on B, or none has rows; names both. Leaves found to
            disagree only at run time end in an `InvalidArgumentError`.
    """
    if num_towers == 1:
        return Batch([features], [labels], [None], [1.0], [True])
    features, labels = _as_tensors(features), _as_tensors(labels)
    leaves = [*_leaves("features", features), *_leaves("labels", labels)]
    batched = [leaf for leaf in leaves if _is_batched(leaf.value)]
    if not batched:
        raise errors.BatchError(
            "Splitting a batch needs a tensor with a batch dimension; features and labels have "
            f"{[leaf.path for leaf in leaves]}, all scalars. Batch the dataset of the input_fn."
        )
    total = _static_rows(batched)
    if total is None:
        total = _checked_rows(batched)
    starts, counts = _runs(total, num_towers)
    shard = _Shards(total, starts, counts)
    return Batch(
        [shard.of(features, i) for i in range(num_towers)],
        [shard.of(labels, i) for i in range(num_towers)],
        counts,
        [_part(count, total) for count in counts],
        [count > 0 for count in counts],
    )


def _as_tensors(nest: Any) -> Any:
    """Turns arrays and numbers into tensors, and keeps None."""

    def leaf(value):
        if value is None or isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
            return value
        return tf.convert_to_tensor(value)

    return tf.nest.map_structure(leaf, nest)


def _leaves(root: str, nest: Any) -> list[_Leaf]:
    """Lists the leaves that are not None, each with its path."""
    found: list[_Leaf] = []

    def visit(path, value):
        if value is None:
            return
        if isinstance(value, dict):
            for key in value:
                visit(f"{path}[{key!r}]".replace("'", '"'), value[key])
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for key in value._fields:
                visit(f"{path}.{key}", getattr(value, key))
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                visit(f"{path}[{i}]", item)
        else:
            rows = value.shape[0] if value.shape.rank else None
            found.append(_Leaf(path, value, rows))

    visit(root, nest)
    return found


def _is_batched(value: Any) -> bool:
    return value is not None and value.shape.rank != 0


def _static_rows(batched: Sequence[_Leaf]) -> int | None:
    """Returns B where all leaves say so before anything runs; refuses disagreement."""
    known = [leaf for leaf in batched if leaf.rows is not None]
    for leaf in known:
        if leaf.rows != known[0].rows:
            raise errors.BatchError(
                f"All of a batch's tensors need the same first dimension: {known[0].path} has "
                f"{known[0].rows} rows, {leaf.path} has {leaf.rows}. Check the input_fn."
            )
        if leaf.rows == 0:
            raise errors.BatchError(
                f"A batch needs at least one row; {leaf.path} has none. Check the input_fn."
            )
    return known[0].rows if len(known) == len(batched) else None


def _checked_rows(batched: Sequence[_Leaf]) -> tf.Tensor:
    """Returns B as an int64 tensor that fails to run where leaves disagree."""
    counts = [_rows_of(leaf.value) for leaf in batched]
    checks = [
        tf1.assert_positive(
            counts[0], message=f"A batch needs at least one row; {batched[0].path} has none."
        )
    ]
    for leaf, count in zip(batched[1:], counts[1:], strict=True):
        text = (
            "All of a batch's tensors need the same first dimension: "
            f"{leaf.path} differs from {batched[0].path}. Check the input_fn."
        )
        checks.append(tf1.assert_equal(count, counts[0], message=text))
    with tf1.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(counts[0], name="rows")


def _rows_of(value: Any) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    return tf.shape(value, out_type=tf.int64)[0]


def _runs(total: Any, num_towers: int) -> tuple[list, list]:
    """Returns the first row and the number of rows of each tower."""
    quotient, remainder = total // num_towers, total % num_towers
    if isinstance(total, int):
        counts = [quotient + (i < remainder) for i in range(num_towers)]
        return [sum(counts[:i]) for i in range(num_towers)], counts
    extra = [tf.cast(remainder > i, tf.int64) for i in range(num_towers)]
    counts = [quotient + item for item in extra]
    starts = [quotient * i + tf.minimum(remainder, i) for i in range(num_towers)]
    return starts, counts


def _part(count: Any, total: Any) -> Any:
    if isinstance(total, int):
        return count / total
    return tf.cast(count, tf.float32) / tf.cast(total, tf.float32)


class _Shards:
    """Cuts one tower's rows out of a leaf.

    Args:
        total: B.
        starts: K first rows.
        counts: K numbers of rows, 0 for a tower that borrows.
    """

    def __init__(self, total: Any, starts: Sequence[Any], counts: Sequence[Any]):
        self._is_static = isinstance(total, int)
        if self._is_static:
            self._starts = [s if n else 0 for s, n in zip(starts, counts, strict=True)]
            self._sizes = [max(n, 1) for n in counts]
        else:
            zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
            pairs = list(zip(starts, counts, strict=True))
            self._starts = [tf.where(n > 0, s, zero) for s, n in pairs]
            self._sizes = [tf.maximum(n, one) for n in counts]

    def of(self, nest: Any, tower_id: int) -> Any:
        """Returns tower `tower_id`'s rows of each leaf."""
        start, size = self._starts[tower_id], self._sizes[tower_id]
        return tf.nest.map_structure(lambda value: _cut(value, start, size), nest)


def _cut(value: Any, start: Any, size: Any) -> Any:
    """Returns rows [start, start + size) of one leaf."""
    if not _is_batched(value):
        return value
    if isinstance(value, tf.SparseTensor):
        shape = value.dense_shape
        first = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(shape[1:])], 0)
        wanted = tf.concat([[tf.cast(size, tf.int64)], shape[1:]], 0)
        cut = tf.sparse.slice(value, first, wanted)
        known = tf.TensorShape([size if isinstance(size, int) else None]).concatenate(value.shape[1:])
        return _with_static_shape(cut, known)
    cut = value[start : start + size]
    if isinstance(value, tf.Tensor) and value.shape.rank is not None:
        cut = tf.ensure_shape(cut, [size if isinstance(size, int) else None, *value.shape[1:]])
    return cut


def _with_static_shape(value: tf.SparseTensor, shape: tf.TensorShape) -> tf.SparseTensor:
    """Keeps what is known of a sparse tensor's shape, where TensorFlow can hold it."""
    if not shape.is_fully_defined():
        return value
    return tf.SparseTensor(value.indices, value.values, tf.constant(shape.as_list(), tf.int64))


def take_rows(nest: Any, count: Any) -> Any:
    """Returns the first rows of each leaf that has rows.

    Args:
        nest: Nest of dense, sparse and ragged tensors.
        count: How many rows at most: an int, or an int64 tensor of shape [].
    """

    def leaf(value):
        if not _is_batched(value):
            return value
        if isinstance(value, tf.SparseTensor):
            rows = tf.minimum(value.dense_shape[0], tf.cast(count, tf.int64))
            return _cut(value, 0, rows)
        return value[:count]

    return tf.nest.map_structure(leaf, _as_tensors(nest))
