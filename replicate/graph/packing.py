"""Many small tensors share one transfer: flat and end to end, then cut again."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import reductions


class Packing:
    """Which of N tensors travel together.

    Args:
        rows: K x N dense tensors; a column has one shape and dtype.
        pack_bytes: A tensor of up to this many bytes shares its transfer with others of its
            dtype; 0: none does. A tensor whose shape only a run tells travels alone.

    Attributes:
        packs: The numbers of the columns that share a transfer: one list for each.
    """

    def __init__(self, rows: Sequence[Sequence[Any]], pack_bytes: int):
        columns = [reductions.require_alike(column) for column in zip(*rows, strict=True)]
        self._shapes = [_static_shape(column) for column in columns]
        sharing: dict = {}
        for n, column in enumerate(columns):
            if self._is_small(n, column[0].dtype, pack_bytes):
                sharing.setdefault(column[0].dtype, []).append(n)
        self.packs = [members for members in sharing.values() if len(members) > 1]
        packed = {n for members in self.packs for n in members}
        self._alone = [n for n in range(len(columns)) if n not in packed]

    def _is_small(self, n: int, dtype: tf.DType, pack_bytes: int) -> bool:
        if pack_bytes <= 0 or not self._shapes[n].is_fully_defined() or dtype.size <= 0:
            return False
        return self._shapes[n].num_elements() * dtype.size <= pack_bytes

    def pack(self, row: Sequence[Any], device: str | None) -> list:
        """Returns M <= N tensors that hold a row's N, packed on the row's device."""
        packed = [row[n] for n in self._alone]
        with reductions.on(device):
            for members in self.packs:
                packed.append(end_to_end(*(row[n] for n in members)))
        return packed

    def unpack(self, packed: Sequence[Any], device: str | None) -> list:
        """Returns a row's N tensors again, on the row's device."""
        row: list = [None] * len(self._shapes)
        for n, tensor in zip(self._alone, packed[: len(self._alone)], strict=True):
            row[n] = tensor
        for members, flat in zip(self.packs, packed[len(self._alone) :], strict=True):
            for n, part in zip(members, self.cut(members, flat, device), strict=True):
                row[n] = part
        return row

    def cut(self, members: Sequence[int], flat: Any, device: str | None) -> list:
        """Returns the tensors of one pack again, on a device."""
        sizes = [self._shapes[n].num_elements() for n in members]
        with reductions.on(device):
            shapes = {tuple(self._shapes[n].as_list()): None for n in members}
            shapes = {shape: tf.constant(shape, tf.int32) for shape in shapes}
            parts = zip(members, tf.split(flat, sizes), strict=True)
            return [
                part if len(shape) == 1 else tf.reshape(part, shapes[shape])
                for shape, part in ((tuple(self._shapes[n].as_list()), part) for n, part in parts)
            ]


def end_to_end(*tensors: tf.Tensor) -> tf.Tensor:
    """Returns tensors of one dtype, flat, one after the other."""
    flat = tf.constant([-1])
    vectors = [t if t.shape.rank == 1 else tf.reshape(t, flat) for t in tensors]
    return tf.concat(vectors, 0)


def _static_shape(column: Sequence[tf.Tensor]) -> tf.TensorShape:
    """Returns a column's shape where every tower knows it; else an unknown one."""
    shapes = [tensor.shape for tensor in column]
    known = all(shape.is_fully_defined() for shape in shapes)
    return shapes[0] if known else tf.TensorShape(None)
