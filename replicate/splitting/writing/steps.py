"""Steps of rows, [T * n] in one dimension, become [T, n], and one dimension again."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting.states import Rows, Steps
from replicate.splitting.structure.nodes import Reference

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers


class Reshapes:
    """Writes reshapes of values with steps; other values stay as they are.

    Args:
        written: The writer.
        rank_of: Returns the rank of a tensor.
    """

    def __init__(self, written: "writers.Writer", rank_of: Callable[[tf.Tensor], int]):
        self._nodes = written.nodes
        self._home = written.home
        self._facts = written.analysis.facts
        self._rank_of = rank_of

    def layout(self, tensor: tf.Tensor, state: Rows) -> tuple[int, int, int | None]:
        """Returns the rank, the axis of rows, and the entries of each; of steps that are apart."""
        rank = self._rank_of(tensor)
        if isinstance(state.space, Steps):
            return rank + 1, state.axis + 1, 1
        return rank, state.axis, self._facts.multiple(tensor, state.axis)

    def apart(
        self, value: Reference, number: Reference, tensor: tf.Tensor, state: Rows
    ) -> Reference:
        """Returns [..., T, n, ...] of a value of shape [..., T * n, ...].

        Args:
            value: Some rows of a tensor.
            number: n, int32.
            tensor: The tensor.
            state: Its state.
        """
        if not isinstance(state.space, Steps):
            return value
        rank, axis, dtype = self._rank_of(tensor), state.axis, tensor.dtype
        lengths = self._lengths(value, dtype, [*range(axis + 1), *range(axis, rank)])
        steps = self._nodes.add("FloorDiv", [lengths, number], self._home, T=tf.int32)
        lengths = self._chosen(axis + 1, rank + 1, number, lengths)
        return self._reshaped(value, dtype, self._chosen(axis, rank + 1, steps, lengths))

    def together(self, value: Reference, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns [..., T * n, ...] of a value of shape [..., T, n, ...]; see `apart`."""
        if not isinstance(state.space, Steps):
            return value
        rank, axis, dtype = self._rank_of(tensor), state.axis, tensor.dtype
        behind = range(axis + 2, rank + 1)
        steps = self._lengths(value, dtype, [*range(axis + 1), *behind])
        rows = self._lengths(value, dtype, [*range(axis), axis + 1, *behind])
        both = self._nodes.add("Mul", [steps, rows], self._home, T=tf.int32)
        return self._reshaped(value, dtype, self._chosen(axis, rank, both, steps))

    def _lengths(self, value: Reference, dtype: tf.DType, axes: Sequence[int]) -> str:
        """Returns some lengths of a value, int32."""
        shape = self._nodes.add("Shape", [value], self._home, T=dtype, out_type=tf.int32)
        places = self._nodes.constant(np.array(axes, np.int32), self._home)
        zero = self._nodes.constant(np.int32(0), self._home)
        kinds = {"Tparams": tf.int32, "Tindices": tf.int32, "Taxis": tf.int32}
        return self._nodes.add("GatherV2", [shape, places, zero], self._home, **kinds)

    def _chosen(self, place: int, number: int, there: Reference, others: Reference) -> str:
        """Returns numbers of which one is from other ones."""
        mask = self._nodes.constant(np.arange(number) == place, self._home)
        return self._nodes.add("SelectV2", [mask, there, others], self._home, T=tf.int32)

    def _reshaped(self, value: Reference, dtype: tf.DType, lengths: Reference) -> str:
        kinds = {"T": dtype, "Tshape": tf.int32}
        return self._nodes.add("Reshape", [value, lengths], self._home, **kinds)
