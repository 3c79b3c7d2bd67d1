"""Towers made by hand: a function of slices of a batch, beside the function of all rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import whole

ROWS = 7
COUNTS = (3, 2, 2)
WIDTH = 3


def batch(rows: int = ROWS, *inner: int) -> np.ndarray:
    """Rows of numbers in [0.1, 1), of which roots and logarithms may be taken."""
    return np.random.RandomState(rows).uniform(0.1, 1.0, [rows, *(inner or (WIDTH,))])


class Towers:
    """K towers of a function, in the current graph.

    Args:
        make: From the tensors of a part of the batch to a tensor, or a nest of them.
        arrays: The batch: tensors of B rows.
        counts: How many rows each tower has; one without any borrows the first row.
        is_static: Whether shapes tell how many rows there are.
        make_whole: What one device makes, where that is another graph; None: the same.
        unknown_inner: Whether a dynamic graph knows the rows' own shapes neither.

    Attributes:
        columns: For each tensor of the nest, K of them.
        expected: What the function makes of all rows.
        warned: What the callback was told: names of tensors and reasons.
    """

    def __init__(
        self,
        make: Callable,
        arrays: Sequence[np.ndarray] | None = None,
        counts: Sequence[int] = COUNTS,
        is_static: bool = False,
        make_whole: Callable | None = None,
        unknown_inner: bool = False,
    ):
        self.arrays = [batch(sum(counts))] if arrays is None else list(arrays)
        self.make_whole = make_whole or make
        self.is_static = is_static
        self.warned: list[tuple] = []
        self.partners: dict = {}

        def shape(array):
            inner = [None] * (array.ndim - 1) if unknown_inner else array.shape[1:]
            return array.shape if is_static else [None, *inner]

        self.holders = [tf1.placeholder(array.dtype, shape(array)) for array in self.arrays]
        self.feed = dict(zip(self.holders, self.arrays, strict=True))
        self.given = [self._cut(i, counts) for i in range(len(counts))]
        self.devices = [f"/device:CPU:{i}" for i in range(len(counts))]
        found = []
        for i, (given, device) in enumerate(zip(self.given, self.devices, strict=True)):
            with tf1.name_scope(f"tower_{i}/" if i else "model/"), tf.device(device):
                found.append(make(*given))
        with tf1.name_scope("one_device/"):
            self.expected = self.make_whole(*self.holders)
        self.columns = list(zip(*map(tf.nest.flatten, found), strict=True))
        partner = self._partner() if is_static else None
        self.whole = whole.Whole(self._rows(counts), partner, self._warn)

    def _cut(self, i: int, counts: Sequence[int]) -> list[tf.Tensor]:
        begin, end = (sum(counts[:i]), sum(counts[: i + 1])) if counts[i] else (0, 1)
        if not self.is_static:
            begin, end = (
                tf1.placeholder_with_default(bound, [], name="bound") for bound in (begin, end)
            )
        return [holder[begin:end] for holder in self.holders]

    def _rows(self, counts: Sequence[int]) -> whole.Rows:
        weights, has_rows = [n / sum(counts) for n in counts], [n > 0 for n in counts]
        if not self.is_static:
            counts = [tf.constant(n, tf.int32) for n in counts]
            weights = [tf.constant(weight, tf.float64) for weight in weights]
            has_rows = [tf1.placeholder_with_default(has, []) for has in has_rows]
        return whole.Rows(self.given, counts, weights, has_rows, self.devices, "/device:CPU:7")

    def _partner(self) -> Callable:
        """Builds the graph of the whole batch; returns what finds partners there by name."""
        graph = tf.Graph()
        with graph.as_default():
            holders = [tf1.placeholder(array.dtype, array.shape) for array in self.arrays]
            with tf1.name_scope("model/"):
                self.make_whole(*holders)
        self.partners = {own.ref(): all_ for own, all_ in zip(self.given[0], holders, strict=True)}

        def partner(tensor: tf.Tensor) -> tf.Tensor | None:
            if tensor.ref() in self.partners:
                return self.partners[tensor.ref()]
            try:
                found = graph.get_tensor_by_name(tensor.name)
            except (KeyError, ValueError):
                return None
            return found if found.op.type == tensor.op.type else None

        return partner

    def _warn(self, tensor: tf.Tensor, reason: str) -> None:
        self.warned.append((tensor.name, reason))

    @property
    def column(self) -> tuple:
        """K tensors, where the function makes one."""
        (column,) = self.columns
        return column

    def values(self, session: tf1.Session, declared: str | None = None) -> tuple[Any, Any]:
        """Returns what the towers' tensors come to, joined, and what one device has."""
        joined = [self.whole.value(column, declared) for column in self.columns]
        return session.run([joined, tf.nest.flatten(self.expected)], self.feed)

    def require_exact(self, session: tf1.Session) -> None:
        """Requires the joined values to be one device's, up to reassociation."""
        for found, expected in zip(*self.values(session), strict=True):
            assert found.dtype == expected.dtype
            tolerance = 1e-6 if found.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(found, expected, tolerance, tolerance)
