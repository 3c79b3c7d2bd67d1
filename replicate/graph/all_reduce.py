"""K x N tensors become K x N sums: all-reduce over K devices.

The K rows are devices, the N columns are tensors: `rows[k][n]` lives on device k. Each
function returns copies that are equal to the last bit on all devices, because each sum
is made once and then copied.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions


def to_one_device(rows: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[list]:
    """Sums each column on one device, and copies it to all.

    Args:
        rows: K x N dense tensors; a column has one shape and dtype.
        devices: K canonical device names. Column n is summed on device n modulo K, which
            spreads the work.

    Returns:
        K x N copies.
    """
    summed: list[list] = [[] for _ in devices]
    for n, column in enumerate(zip(*rows, strict=True)):
        first = reductions.sum_onto(column, devices[n % len(devices)])
        for k, device in enumerate(devices):
            summed[k].append(reductions.copy_onto(first, device))
    return summed


def hierarchical_copy(
    rows: Sequence[Sequence[Any]], devices: Sequence[str], group_size: int
) -> list[list]:
    """Sums in groups of near devices first, then over the groups, and copies back.

    Args:
        rows: K x N dense tensors.
        devices: K canonical device names; neighbours in the list are near.
        group_size: How many devices are near each other.

    Returns:
        K x N copies. Between groups one tensor travels each way per group.
    """
    starts = range(0, len(devices), group_size)
    groups = [range(start, min(start + group_size, len(devices))) for start in starts]
    summed: list[list] = [[] for _ in devices]
    for n, column in enumerate(zip(*rows, strict=True)):
        leaders = [group[n % len(group)] for group in groups]
        partial = [
            reductions.sum_onto([column[k] for k in group], devices[leader])
            for group, leader in zip(groups, leaders, strict=True)
        ]
        total = reductions.sum_onto(partial, devices[leaders[n % len(groups)]])
        for group, leader in zip(groups, leaders, strict=True):
            near = reductions.copy_onto(total, devices[leader])
            for k in group:
                summed[k].append(reductions.copy_onto(near, devices[k]))
    return summed


def ring(rows: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[list]:
    """Sums around a ring: each device sends as much as it holds, however many there are.

    Each tensor is cut into K chunks. Chunk c travels K - 1 steps and is added up on its
    way, then K - 1 steps more as the finished sum.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", Journal of Parallel and Distributed Computing 69, 2009.

    Args:
        rows: K x N dense tensors.
        devices: K canonical device names, in the order of the ring.

    Returns:
        K x N copies.
    """
    columns = [_ring_column(column, devices) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def nccl(rows: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[list]:
    """Sums with NVIDIA's collective library, between GPUs of this process.

    Args:
        rows: K x N dense tensors.
        devices: K canonical names of GPUs.

    Returns:
        K x N copies.
    """
    summed: list[list] = [[] for _ in devices]
    for column in zip(*rows, strict=True):
        key = f"replicate_{tf1.get_default_graph().unique_name('nccl')}"
        for k, (tensor, device) in enumerate(zip(column, devices, strict=True)):
            with tf.device(device):
                summed[k].append(
                    tf.raw_ops.NcclAllReduce(
                        input=tensor, reduction="sum", num_devices=len(devices), shared_name=key
                    )
                )
    return summed


def _ring_column(column: Sequence[Any], devices: Sequence[str]) -> list:
    count = len(devices)
    if count == 1:
        return list(column)
    chunks = []
    for tensor, device in zip(column, devices, strict=True):
        with tf.device(device):
            chunks.append(_chunks(tensor, count))
    finished: list[list] = [[None] * count for _ in devices]
    for c in range(count):
        running = chunks[c][c]
        for step in range(1, count):
            k = (c + step) % count
            with tf.device(devices[k]):
                running = running + chunks[k][c]
        for step in range(count):
            k = (c - 1 + step) % count
            running = reductions.copy_onto(running, devices[k])
            finished[k][c] = running
    whole = []
    for tensor, device, parts in zip(column, devices, finished, strict=True):
        with tf.device(device):
            joined = tf.reshape(tf.concat(parts, 0), tf.shape(tensor))
            whole.append(tf.ensure_shape(joined, tensor.shape))
    return whole


def _chunks(tensor: Any, count: int) -> list:
    """Cuts a flattened tensor into `count` parts that differ by at most one element."""
    flat = tf.reshape(tensor, [-1])
    if tensor.shape.is_fully_defined():
        size = tensor.shape.num_elements()
        return tf.split(flat, [size // count + (i < size % count) for i in range(count)])
    size = tf.size(flat)
    return [flat[size * i // count : size * (i + 1) // count] for i in range(count)]


class Packing:
    """Lets small tensors of one dtype share transfers.

    Args:
        example: One row: N dense tensors, with the shapes of every row.
        pack_bytes: A tensor of up to this many bytes shares; 0: none does.
    """

    def __init__(self, example: Sequence[Any], pack_bytes: int):
        self._shapes = [tensor.shape for tensor in example]
        self._alone, self._packs = [], {}
        for n, tensor in enumerate(example):
            if pack_bytes > 0 and self._is_small(tensor, pack_bytes):
                self._packs.setdefault(tensor.dtype, []).append(n)
            else:
                self._alone.append(n)

    @staticmethod
    def _is_small(tensor: Any, pack_bytes: int) -> bool:
        shape = tensor.shape
        if not shape.is_fully_defined() or tensor.dtype in (tf.string, tf.variant, tf.resource):
            return False
        return shape.num_elements() * tensor.dtype.size <= pack_bytes

    def pack(self, row: Sequence[Any], device: str) -> list:
        """Returns fewer tensors that hold a row's N."""
        packed = [row[n] for n in self._alone]
        with tf.device(device):
            for members in self._packs.values():
                packed.append(tf.concat([tf.reshape(row[n], [-1]) for n in members], 0))
        return packed

    def unpack(self, packed: Sequence[Any], device: str) -> list:
        """Returns the row's N tensors again."""
        row: list = [None] * len(self._shapes)
        for n, tensor in zip(self._alone, packed, strict=False):
            row[n] = tensor
        with tf.device(device):
            for members, flat in zip(self._packs.values(), packed[len(self._alone) :], strict=True):
                sizes = [math.prod(self._shapes[n].as_list()) for n in members]
                for n, part in zip(members, tf.split(flat, sizes), strict=True):
                    row[n] = tf.reshape(part, self._shapes[n])
        return row


def transferred(
    rows: Sequence[Sequence[Any]],
    devices: Sequence[str],
    algorithm: Callable,
    pack_bytes: int = 0,
    transfer_dtype: tf.DType | None = None,
) -> list[list]:
    """Runs an all-reduce on packed tensors, and in another dtype.

    Args:
        rows: K x N dense tensors.
        devices: K canonical device names.
        algorithm: Takes K x M tensors and the devices; returns K x M sums.
        pack_bytes: Tensors of up to this many bytes share a transfer.
        transfer_dtype: What floating tensors are cast to on their way; None: nothing.

    Returns:
        K x N sums in their own dtypes.
    """
    dtypes = [tensor.dtype for tensor in rows[0]]
    sent = [
        _cast_row(row, device, transfer_dtype) for row, device in zip(rows, devices, strict=True)
    ]
    packing = Packing(sent[0], pack_bytes)
    packed = [packing.pack(row, device) for row, device in zip(sent, devices, strict=True)]
    summed = algorithm(packed, devices)
    received = [packing.unpack(row, device) for row, device in zip(summed, devices, strict=True)]
    return [
        _restore_row(row, device, dtypes) for row, device in zip(received, devices, strict=True)
    ]


def _cast_row(row: Sequence[Any], device: str, dtype: tf.DType | None) -> list:
    if dtype is None:
        return list(row)
    with tf.device(device):
        return [tf.cast(t, dtype) if t.dtype.is_floating else t for t in row]


def _restore_row(row: Sequence[Any], device: str, dtypes: Sequence[tf.DType]) -> list:
    with tf.device(device):
        return [
            t if t.dtype == dtype else tf.cast(t, dtype)
            for t, dtype in zip(row, dtypes, strict=True)
        ]
