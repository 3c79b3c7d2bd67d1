"""Which rows each device computes on.

Rows stay in order: device k has the k-th run. Runs differ by at most one row, the longer ones come
first. A device without rows borrows one, since some kernels fail on none; what it makes of that one
counts for nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting.structure.nodes import Nodes, Reference


class Runs(NamedTuple):
    """The rows of a space on K devices; all numbers are int32, of shape [].

    Attributes:
        total: How many rows there are.
        begins: The K first rows.
        lengths: How many rows each of K devices has, with a borrowed one.
        has_rows: For K devices, whether each has rows of its own; None if it always has.
        sum: The sum of `lengths`, or None if it always is `total`.
    """

    total: Reference
    begins: Sequence[Reference]
    lengths: Sequence[Reference]
    has_rows: Sequence[Reference | None]
    sum: Reference | None

    @property
    def is_exact(self) -> bool:
        """Whether no device ever borrows a row."""
        return self.sum is None


def of_static(total: int, nodes: Nodes, num_devices: int, device: str) -> Runs:
    """Returns the runs of a batch whose size is static.

    Args:
        total: B >= 1.
        nodes: Where new operations are added.
        num_devices: K.
        device: Where the numbers are.
    """
    counts, bounds = static_counts(total, num_devices), static_bounds(total, num_devices)

    def number(value: int) -> Reference:
        return nodes.constant(np.int32(value), device)

    return Runs(
        number(total),
        [number(begin) for begin, _ in bounds],
        [number(end - begin) for begin, end in bounds],
        [None if count else nodes.constant(np.bool_(False), device) for count in counts],
        None if all(counts) else number(sum(end - begin for begin, end in bounds)),
    )


def static_counts(total: int, num_devices: int) -> list[int]:
    """Returns how many of B rows each of K devices has."""
    return [total // num_devices + (k < total % num_devices) for k in range(num_devices)]


def static_bounds(total: int, num_devices: int) -> list[tuple[int, int]]:
    """Returns for each of K devices its first row, and the row after its last one."""
    counts = static_counts(total, num_devices)
    begins = [sum(counts[:k]) if count else 0 for k, count in enumerate(counts)]
    return [(begin, begin + max(count, 1)) for begin, count in zip(begins, counts, strict=True)]


def of_dynamic(total: tf.Tensor, num_devices: int) -> Runs:
    """Returns the runs of a batch whose size is known when the graph runs.

    Args:
        total: B >= 1, int32, of shape [].
        num_devices: K.
    """
    numbers = np.arange(num_devices, dtype=np.int32)
    base, longer = total // num_devices, total % num_devices
    counts = base + tf.cast(tf.less(numbers, longer), tf.int32)
    has_rows = counts > 0
    begins = base * numbers + tf.minimum(numbers, longer)
    begins = tf.where(has_rows, begins, tf.zeros_like(begins))
    lengths = tf.maximum(counts, 1)
    return Runs(
        total,
        tf.unstack(begins, num_devices),
        tf.unstack(lengths, num_devices),
        [None, *tf.unstack(has_rows, num_devices)[1:]],
        tf.reduce_sum(lengths),
    )
