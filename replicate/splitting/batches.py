"""The batch as a split graph is given it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import batches, rows
from replicate.splitting.splitter import Given


class Batch(NamedTuple):
    """A batch, checked.

    Attributes:
        features: The features, whole.
        labels: The labels, whole.
        given: The tensors with rows.
        total: B where it is static; None: it is known in a run.
    """

    features: Any
    labels: Any
    given: Sequence[Given]
    total: int | None


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
    cut = len(tf.nest.flatten(features))
    given = [
        Given(leaf)
        for leaf in leaves
        if isinstance(leaf, tf.Tensor) and rows.is_batched(leaf) and leaf.shape.rank is not None
    ]
    return Batch(
        tf.nest.pack_sequence_as(features, leaves[:cut]),
        tf.nest.pack_sequence_as(labels, leaves[cut:]),
        given,
        total if isinstance(total, int) else None,
    )
