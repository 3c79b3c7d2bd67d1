"""The batch as it is given to a split graph."""

from collections.abc import Sequence
from typing import NamedTuple

from replicate import errors, types
from replicate.compat.tensorflow import tf
from replicate.graph import batches, collectives, reductions, rows
from replicate.splitting.writing import inputs, workers
from replicate.strategy.cluster import ends


class Batch(NamedTuple):
    """A batch, checked.

    Attributes:
        features: The features, whole.
        labels: The labels, whole.
        given: The tensors with rows.
        total: All workers' B if it is static, or None if only a run tells.
        cluster: The workers, if there are several.
    """

    features: types.Nest
    labels: types.Nest
    given: Sequence[types.Rows]
    total: int | None
    cluster: workers.WorkerBatch | None = None


def checked(given: ends.Input, home: str) -> Batch:
    """Returns a batch whose tensors agree on the number of rows, and stand for all workers'.

    Args:
        given: Features and labels: nests of dense, sparse and ragged tensors of shape [B, ...].
            Scalars and None are whole on every device.
        home: Where workers join what they bring.

    Raises:
        BatchError: If tensors disagree on B (names both), or none has rows; or if there are several
            workers, and the rank of a tensor is unknown. What only a run can tell ends in an
            `InvalidArgumentError` there.
    """
    leaves, total = batches.checked_leaves(given.features, given.labels, given.checks)
    if isinstance(given.workers, collectives.CollectiveWorkers):
        return _of_workers(given, given.workers, leaves, total, home)
    leaves = [inputs.numbered(leaf) if inputs.is_known_ragged(leaf) else leaf for leaf in leaves]
    with_rows = [leaf for leaf in leaves if _has_rows(leaf) or inputs.is_known_ragged(leaf)]
    features, labels = _packed(given, leaves)
    return Batch(features, labels, with_rows, total if isinstance(total, int) else None)


def _of_workers(
    given: ends.Input,
    all_workers: collectives.CollectiveWorkers,
    leaves: list[types.Rows | None],
    total: int | tf.Tensor,
    home: str,
) -> Batch:
    """Returns a worker's batch, whose tensors stand for those of all workers."""
    is_static = isinstance(total, int)
    number = total if is_static or given.numbers is None else given.numbers.own
    total = total * all_workers.size if is_static else None
    makers = {
        tf.SparseTensor: lambda found: _widened(found, total, all_workers),
        tf.RaggedTensor: lambda found: ragged_of_all(found, number, all_workers),
    }
    for kind, make in makers.items():
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, kind)]
        with reductions.alone_on(home, collectives.SCOPE):
            found = make([leaves[n] for n in places]) if places else []
        for n, leaf in zip(places, found, strict=True):
            leaves[n] = leaf
    own, lone = {}, []
    for n, leaf in enumerate(leaves):
        if not isinstance(leaf, tf.Tensor):
            continue
        if leaf.shape.rank is None:
            raise errors.BatchError(
                f"Workers' rows are one batch, and {leaf.name} has an unknown rank. Set its shape "
                "in the input_fn, for example with tensor.set_shape or tf.ensure_shape."
            )
        if not leaf.shape.rank:
            lone.append(leaf)
            continue
        # It is never run: whatever reads it gets the rows of all workers.
        whole = tf.concat([leaf] * all_workers.size, 0) if is_static else tf.identity(leaf)
        own[whole.ref()] = leaf
        leaves[n] = whole
    features, labels = _packed(given, leaves)
    with_rows = [leaf for leaf in leaves if _has_rows(leaf)]
    cluster = workers.WorkerBatch(all_workers, number, own, lone, _next_number(), given.checks)
    return Batch(features, labels, with_rows, total, cluster)


def _widened(
    values: Sequence[tf.SparseTensor], total: int | None, workers: collectives.CollectiveWorkers
) -> list[tf.SparseTensor]:
    """Returns sparse tensors of a worker that are as wide as the widest of all workers.

    Args:
        values: The worker's own.
        total: How many rows all workers have, if the graph knows it.
        workers: The workers.
    """
    shapes = workers.max([value.dense_shape for value in values])
    found = []
    for value, shape in zip(values, shapes, strict=True):
        known = [None, *value.shape.as_list()[1:]]
        inner = [shape[n] if known[n] is None else known[n] for n in range(1, len(known))]
        number = value.dense_shape[0] if total is None else total
        wide = tf.stack([tf.cast(size, tf.int64) for size in (number, *inner)])
        found.append(tf.SparseTensor(value.indices, value.values, wide))
    return found


def ragged_of_all(
    values: Sequence[tf.RaggedTensor], number: rows.Bound, workers: collectives.CollectiveWorkers
) -> list[tf.RaggedTensor]:
    """Returns all workers' ragged tensors, one worker's rows behind the other's.

    Args:
        values: The worker's own.
        number: How many rows the worker has: an int, or int32 of shape [].
        workers: The workers.
    """
    cut = [rows.cut(value, 0, tf.cast(number, value.row_splits.dtype)) for value in values]
    parts = [[*each.nested_row_lengths(), each.flat_values] for each in cut]
    flat = [part for each in parts for part in each]
    whole = iter(workers.rows_of_all(flat, [0] * len(flat)))
    found = []
    for each in parts:
        *lengths, inner = [next(whole) for _ in each]
        lengths[0].set_shape([number * workers.size if isinstance(number, int) else None])
        found.append(tf.RaggedTensor.from_nested_row_lengths(inner, lengths, validate=False))
    return found


def _packed(
    given: ends.Input, leaves: Sequence[types.Rows | None]
) -> tuple[types.Nest, types.Nest]:
    """Returns features and labels made of other leaves."""
    cut = len(tf.nest.flatten(given.features))
    return (
        tf.nest.pack_sequence_as(given.features, leaves[:cut]),
        tf.nest.pack_sequence_as(given.labels, leaves[cut:]),
    )


def _has_rows(leaf: types.Rows | None) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.SparseTensor)) and bool(leaf.shape.rank)


def _next_number() -> int:
    """Returns the number of the graph's next operation."""
    return tf.no_op()._id
