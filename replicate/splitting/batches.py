"""The batch as a split graph is given it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat.tensorflow import tf
from replicate.graph import batches
from replicate.splitting.splitter import Given
from replicate.splitting.writing import gathering, inputs, workers
from replicate.strategy.cluster import ends


class Batch(NamedTuple):
    """A batch, checked.

    Attributes:
        features: The features, whole.
        labels: The labels, whole.
        given: The tensors with rows.
        total: B where it is static, all workers'; None: it is known in a run.
        cluster: Whose rows these are, where there are several workers.
    """

    features: Any
    labels: Any
    given: Sequence[Given]
    total: int | None
    cluster: workers.Workers | None = None


def checked(features: Any, labels: Any) -> Batch:
    """Returns a batch whose tensors agree on the number of rows.

    Args:
        features: Nest of dense, sparse and ragged tensors of shape [B, ...]. Scalars and None
            are whole on every device.
        labels: Likewise, or None.

    Raises:
        BatchError: If tensors disagree on B (names both), or none has rows. What is known only
            in a run ends in an `InvalidArgumentError` there.
    """
    leaves, total = batches.checked_leaves(features, labels)
    leaves = [inputs.numbered(leaf) if inputs.is_known_ragged(leaf) else leaf for leaf in leaves]
    cut = len(tf.nest.flatten(features))
    given = [Given(leaf) for leaf in leaves if _has_rows(leaf) or inputs.is_known_ragged(leaf)]
    return Batch(
        tf.nest.pack_sequence_as(features, leaves[:cut]),
        tf.nest.pack_sequence_as(labels, leaves[cut:]),
        given,
        total if isinstance(total, int) else None,
    )


def checked_of_worker(given: ends.Input, home: str) -> Batch:
    """Returns a worker's batch, whose tensors stand for those of all workers.

    Args:
        given: The worker's features and labels; see `checked`.
        home: Where workers join what they bring.

    Raises:
        BatchError: See `checked`; or if the rank of a tensor is not known.
    """
    all_workers = given.workers
    leaves, total = batches.checked_leaves(given.features, given.labels, given.checks)
    is_static = isinstance(total, int)
    number = total if is_static or given.numbers is None else given.numbers.own
    total = total * all_workers.size if is_static else None
    makers = {
        tf.SparseTensor: lambda found: gathering.widened(found, total, all_workers, home),
        tf.RaggedTensor: lambda found: gathering.whole(found, number, all_workers, home),
    }
    for kind, make in makers.items():
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, kind)]
        for n, leaf in zip(places, make([leaves[n] for n in places]), strict=True):
            leaves[n] = leaf
    dense = [n for n, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor)]
    own = {}
    for n in dense:
        leaf = leaves[n]
        if leaf.shape.rank is None:
            raise errors.BatchError(
                f"Workers' rows are one batch, and {leaf.name} has an unknown rank. Set its shape "
                "in the input_fn, for example with tensor.set_shape or tf.ensure_shape."
            )
        if leaf.shape.rank:
            # It is never run: whoever reads it is given the rows of all workers.
            leaves[n] = tf.concat([leaf] * all_workers.size, 0) if is_static else tf.identity(leaf)
            own[leaves[n].ref()] = leaf
    lone = [leaves[n] for n in dense if not leaves[n].shape.rank]
    given_leaves = [leaf for leaf in leaves if _has_rows(leaf)]
    cut = len(tf.nest.flatten(given.features))
    return Batch(
        tf.nest.pack_sequence_as(given.features, leaves[:cut]),
        tf.nest.pack_sequence_as(given.labels, leaves[cut:]),
        [Given(leaf) for leaf in given_leaves],
        total,
        workers.Workers(all_workers, number, own, lone, _next_number(), given.checks),
    )


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.SparseTensor)) and bool(leaf.shape.rank)


def _next_number() -> int:
    """Returns the number of the graph's next operation."""
    return tf.no_op()._id
