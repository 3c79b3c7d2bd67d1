"""Batches outside of a graph: cut, and put into another order.

A leaf is an array, a `SparseTensorValue`, a `RaggedTensorValue` or None; a batch is the
list of its leaves, features first, as `tf.nest` lists them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate import errors
from replicate.compat.tensorflow import tf1

_SPARSE = tf1.SparseTensorValue
_RAGGED = tf1.ragged.RaggedTensorValue


class Round(NamedTuple):
    """Batches that a model sees one after the other, from the same start.

    Attributes:
        label: What they are, for people, e.g. `cut to 5 rows`.
        batches: One or more, each of them a list of leaves.
    """

    label: str
    batches: list


def row_count(batch: Sequence) -> int:
    """Returns B, the number of rows of a batch.

    Raises:
        BatchError: If leaves disagree on it, or it is 0, or none has rows.
    """
    counts = {_count(value) for value in batch if value is not None} - {None}
    if len(counts) != 1 or 0 in counts:
        shown = " and ".join(map(str, sorted(counts))) or "no"
        raise errors.BatchError(
            "Features and labels need one and the same number of rows, 1 or more; got "
            f"{shown} rows. Check the input_fn."
        )
    return counts.pop()


def _count(value: Any) -> int | None:
    """Returns how many rows a leaf has; None for a scalar, which has none."""
    if isinstance(value, _SPARSE):
        return int(value.dense_shape[0])
    if isinstance(value, _RAGGED):
        return len(value.row_splits) - 1
    return len(value) if np.ndim(value) else None


def take(value: Any, index: Sequence[int]) -> Any:
    """Returns the rows of a leaf that an index names, in its order; scalars and None stay."""
    index = np.asarray(index, np.int64)
    if value is None or _count(value) is None:
        return value
    if isinstance(value, _SPARSE):
        return _take_sparse(value, index)
    if isinstance(value, _RAGGED):
        return _take_ragged(value, index)
    return np.asarray(value)[index]


def _take_sparse(value: Any, index: np.ndarray) -> Any:
    parts = [np.flatnonzero(value.indices[:, 0] == old) for old in index]
    entries = np.concatenate([np.zeros(0, np.int64), *parts])
    indices = value.indices[entries]
    indices[:, 0] = np.repeat(np.arange(len(index)), [len(part) for part in parts])
    shape = np.array([len(index), *value.dense_shape[1:]], np.int64)
    return _SPARSE(indices, value.values[entries], shape)


def _take_ragged(value: Any, index: np.ndarray) -> Any:
    begins, ends = value.row_splits[index], value.row_splits[index + 1]
    runs = [np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)]
    inner = take(value.values, np.concatenate([np.zeros(0, np.int64), *runs]))
    splits = np.concatenate([[0], np.cumsum(ends - begins)])
    return _RAGGED(inner, splits.astype(value.row_splits.dtype))


def rounds(batches: Sequence[list], num_towers: int, repeats: int) -> list[Round]:
    """Returns the batches as they come, then cut to the sizes at which splits go wrong.

    Args:
        batches: As they come.
        num_towers: K.
        repeats: How many batches a round of cut ones has.
    """
    made = [Round("as they come", [list(batch) for batch in batches])]
    smallest = min(row_count(batch) for batch in batches)
    for size in cut_sizes(smallest, num_towers):
        cut = [[take(leaf, range(size)) for leaf in batch] for batch in batches[:repeats]]
        made.append(Round(f"cut to {size} row{'' if size == 1 else 's'}", cut))
    return made


def cut_sizes(row_count: int, num_towers: int) -> list[int]:
    """Returns sizes below B: one that K does not divide, fewer than K, one row."""
    uneven = [size for size in range(1, row_count) if size % num_towers]
    wanted = [*uneven[-1:], num_towers - 1, 1]
    return sorted({size for size in wanted if 1 <= size < row_count}, reverse=True)


def reordered(batch: Sequence, order: Sequence[int]) -> list:
    """Returns a batch with its rows in another order."""
    return [take(leaf, order) for leaf in batch]
