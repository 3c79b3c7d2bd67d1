"""Makes sparse and ragged tensors of a worker those of all workers, before a model sees them."""

from collections.abc import Sequence

from replicate.compat.tensorflow import tf
from replicate.graph import collectives, reductions, rows
from replicate.splitting.writing import levels


def widened(
    values: Sequence[tf.SparseTensor],
    total: int | None,
    workers: collectives.CollectiveWorkers,
    home: str,
) -> list[tf.SparseTensor]:
    """Returns sparse tensors that are as wide as the widest of all workers.

    Args:
        values: The worker's own.
        total: How many rows all workers have, if the graph knows it.
        workers: The workers.
        home: Where they join what they bring.
    """
    if not values:
        return []
    with reductions.alone_on(home, collectives.SCOPE):
        shapes = workers.max([value.dense_shape for value in values])
        found = []
        for value, shape in zip(values, shapes, strict=True):
            known = [None, *value.shape.as_list()[1:]]
            inner = [shape[n] if known[n] is None else known[n] for n in range(1, len(known))]
            number = value.dense_shape[0] if total is None else total
            wide = tf.stack([tf.cast(size, tf.int64) for size in (number, *inner)])
            found.append(tf.SparseTensor(value.indices, value.values, wide))
        return found


def whole(
    values: Sequence[tf.RaggedTensor],
    number: rows.Bound,
    workers: collectives.CollectiveWorkers,
    home: str,
) -> list[tf.RaggedTensor]:
    """Returns all workers' ragged tensors, one worker's rows behind the other's.

    Args:
        values: The worker's own.
        number: How many rows the worker has: an int, or int32 of shape [].
        workers: The workers.
        home: Where they join what they bring.
    """
    if not values:
        return []
    with reductions.alone_on(home, collectives.SCOPE):
        own = [_parts(value, number) for value in values]
        parts = [part for each in own for part in each]
        brought = tf.stack([tf.shape(part)[0] for part in parts])
        lengths = tf.unstack(workers.table(brought), len(parts), axis=1)
        found = iter(levels.gathered(parts, lengths, workers))
        total = number * workers.size if isinstance(number, int) else None
        return [_ragged([next(found) for _ in each], total) for each in own]


def _parts(value: tf.RaggedTensor, number: rows.Bound) -> list[tf.Tensor]:
    """Returns the lengths of a worker's rows, and their values."""
    own = rows.cut(value, 0, tf.cast(number, value.row_splits.dtype))
    return [*own.nested_row_lengths(), own.flat_values]


def _ragged(parts: list[tf.Tensor], total: int | None) -> tf.RaggedTensor:
    *lengths, values = parts
    lengths[0].set_shape([total])
    return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
