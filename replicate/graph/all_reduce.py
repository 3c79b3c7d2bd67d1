"""K x N tensors become K x N sums, or N: reductions of many tensors over K devices.

The K rows are devices, the N columns are tensors: `rows[k][n]` lives on device k. Copies
are equal to the last bit on all devices, because each sum is made once and then copied.
Sums are made in the tensors' own dtype, whatever they travel in.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import packing, reductions

Rows: TypeAlias = Sequence[Sequence[types.Gradient]]
"""K x N tensors: those of device k are `rows[k]`."""


class Wire(NamedTuple):
    """How a tensor travels between devices.

    Attributes:
        dtype: What wider floating tensors are cast to on their way, if they are.
    """

    dtype: tf.DType | None = None

    def narrows(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor travels in fewer bits than it has."""
        return (
            self.dtype is not None
            and tensor.dtype.is_floating
            and tensor.dtype.size > self.dtype.size
        )

    def send(self, tensor: tf.Tensor, source: str | None, target: str | None) -> tf.Tensor:
        """Returns the tensor as `target` receives it from `source`, in its own dtype."""
        if source == target or not self.narrows(tensor):
            return tensor
        with reductions.on(source):
            narrow = tf.cast(tensor, self.dtype)
        with reductions.on(target):
            return tf.cast(narrow, tensor.dtype)

    def spread(
        self, tensor: tf.Tensor, source: str | None, targets: Sequence[str]
    ) -> list[tf.Tensor]:
        """Returns one copy per target, all of them equal, the source's own included."""
        if not self.narrows(tensor):
            return [reductions.copy_onto(tensor, target) for target in targets]
        with reductions.on(source):
            narrow = tf.cast(tensor, self.dtype)
        copies = []
        for target in targets:
            with reductions.on(target):
                copies.append(tf.cast(narrow, tensor.dtype))
        return copies


PLAIN = Wire()

Algorithm: TypeAlias = Callable[[Rows, Sequence[str], Wire], list[list[tf.Tensor]]]
"""Takes K x M tensors, the K devices and how tensors travel; returns K x M sums."""


def transferred(
    rows: Rows,
    devices: Sequence[str],
    algorithm: Algorithm,
    pack_bytes: int = 0,
    transfer_dtype: tf.DType | None = None,
) -> list[list[tf.Tensor]]:
    """Runs an all-reduce on packed tensors, which travel in another dtype.

    Args:
        rows: K x N dense tensors; a column has one shape and dtype.
        devices: K canonical device names.
        algorithm: Makes the sums.
        pack_bytes: Tensors of up to this many bytes share a transfer.
        transfer_dtype: What wider floating tensors are cast to on their way, if they are.

    Returns:
        K x N sums in their own dtypes and shapes.

    Raises:
        TowerMismatchError: If the dtypes or shapes of a column differ.
    """
    plan = packing.Packing(rows, pack_bytes)
    packed = [plan.pack(row, device) for row, device in zip(rows, devices, strict=True)]
    summed = algorithm(packed, devices, Wire(transfer_dtype))
    return [plan.unpack(row, device) for row, device in zip(summed, devices, strict=True)]


def batch_sum_onto(
    rows: Rows,
    sources: Sequence[str],
    places: Sequence[str],
    pack_bytes: int = 0,
    over_workers: Callable[[list[types.Gradient]], list[types.Gradient]] = list,
) -> list[types.Gradient]:
    """Sums N columns, each onto a place of its own.

    Args:
        rows: K x N tensors or IndexedSlices.
        sources: K canonical names of the devices that hold the rows.
        places: N canonical names of the devices that get the sums.
        pack_bytes: Dense tensors of up to this many bytes that go to one place share a
            transfer.
        over_workers: Takes the sums of this worker's rows, still packed, and returns those of
            all workers.

    Returns:
        N sums in their own dtypes and shapes. IndexedSlices keep duplicate indices.

    Raises:
        TowerMismatchError: If the kinds, dtypes or shapes of a column differ.
    """
    columns = list(zip(*rows, strict=True))
    sparse = [n for n, column in enumerate(columns) if _is_sparse(column)]
    together: dict[str, list[int]] = {}
    for n in sorted(set(range(len(columns))) - set(sparse)):
        together.setdefault(places[n], []).append(n)
    plans, summed = [], [reductions.sum_onto(columns[n], places[n]) for n in sparse]
    for place, members in together.items():
        part = [[row[n] for n in members] for row in rows]
        plan = packing.Packing(part, pack_bytes)
        packed = [plan.pack(row, source) for row, source in zip(part, sources, strict=True)]
        summed += [_sum(column, sources, place, PLAIN) for column in zip(*packed, strict=True)]
        plans.append((place, members, plan))
    found = iter(over_workers(summed))
    sums = {n: next(found) for n in sparse}
    for place, members, plan in plans:
        packed = [next(found) for _ in plan.packs]
        sums.update(zip(members, plan.unpack(packed, place), strict=True))
    return [sums[n] for n in range(len(columns))]


def _is_sparse(column: Sequence[types.Gradient]) -> bool:
    return any(isinstance(tensor, tf.IndexedSlices) for tensor in column)


def _sum(column: Sequence[tf.Tensor], sources: Sequence[str], place: str, wire: Wire) -> tf.Tensor:
    """Sums one column of dense tensors onto a place."""
    parts = [wire.send(t, source, place) for t, source in zip(column, sources, strict=True)]
    return reductions.sum_onto(parts, place)


def to_one_device(rows: Rows, devices: Sequence[str], wire: Wire = PLAIN) -> list[list[tf.Tensor]]:
    """Sums each column on one device, and copies it to all.

    Args:
        rows: K x N dense tensors; a column has one shape and dtype.
        devices: K canonical device names. Column n is summed on device n modulo K, which
            spreads the work.
        wire: How tensors travel.

    Returns:
        K x N copies.
    """
    columns = []
    for n, column in enumerate(zip(*rows, strict=True)):
        home = devices[n % len(devices)]
        columns.append(wire.spread(_sum(column, devices, home, wire), home, devices))
    return _by_device(columns, devices)


def hierarchical_copy(
    rows: Rows, devices: Sequence[str], group_size: int, wire: Wire = PLAIN
) -> list[list[tf.Tensor]]:
    """Sums in groups of near devices first, then over the groups, and copies back.

    Args:
        rows: K x N dense tensors.
        devices: K canonical device names; neighbours in the list are near.
        group_size: How many devices are near each other.
        wire: How tensors travel.

    Returns:
        K x N copies. Between groups one tensor travels each way per group.
    """
    starts = range(0, len(devices), group_size)
    groups = [range(start, min(start + group_size, len(devices))) for start in starts]
    columns = []
    for n, column in enumerate(zip(*rows, strict=True)):
        leaders = [devices[group[n % len(group)]] for group in groups]
        partial = [
            _sum([column[k] for k in group], [devices[k] for k in group], leader, wire)
            for group, leader in zip(groups, leaders, strict=True)
        ]
        home = leaders[n % len(groups)]
        near = wire.spread(_sum(partial, leaders, home, wire), home, leaders)
        columns.append(
            [
                copy
                for group, leader, total in zip(groups, leaders, near, strict=True)
                for copy in wire.spread(total, leader, [devices[k] for k in group])
            ]
        )
    return _by_device(columns, devices)


def ring(rows: Rows, devices: Sequence[str], wire: Wire = PLAIN) -> list[list[tf.Tensor]]:
    """Sums around a ring: each device sends as much as it holds, however many there are.

    Each tensor is cut into K chunks. Chunk c travels K - 1 steps and is added up on its
    way, then K - 1 steps more as the finished sum.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", Journal of Parallel and Distributed Computing 69, 2009.

    Args:
        rows: K x N dense tensors.
        devices: K canonical device names, in the order of the ring.
        wire: How tensors travel.

    Returns:
        K x N copies.
    """
    columns = [_ring_column(column, devices, wire) for column in zip(*rows, strict=True)]
    return _by_device(columns, devices)


def nccl(rows: Rows, devices: Sequence[str], wire: Wire = PLAIN) -> list[list[tf.Tensor]]:
    """Sums with NVIDIA's collective library, between GPUs of this process.

    Args:
        rows: K x N dense tensors.
        devices: K canonical names of GPUs.
        wire: How tensors travel. NOTE: the library also adds in that dtype.

    Returns:
        K x N copies.
    """
    columns = []
    for column in zip(*rows, strict=True):
        key = f"replicate_{tf1.get_default_graph().unique_name('nccl')}"
        copies = []
        for tensor, device in zip(column, devices, strict=True):
            with tf.device(device):
                sent = tf.cast(tensor, wire.dtype) if wire.narrows(tensor) else tensor
                total = tf.raw_ops.NcclAllReduce(
                    input=sent, reduction="sum", num_devices=len(devices), shared_name=key
                )
                copies.append(tf.cast(total, tensor.dtype))
        columns.append(copies)
    return _by_device(columns, devices)


def _by_device(
    columns: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> list[list[tf.Tensor]]:
    """Turns N columns of K copies into K rows of N."""
    return [[column[k] for column in columns] for k in range(len(devices))]


def _ring_column(
    column: Sequence[tf.Tensor], devices: Sequence[str], wire: Wire
) -> list[tf.Tensor]:
    count = len(devices)
    if count == 1:
        return list(column)
    chunks = []
    for tensor, device in zip(column, devices, strict=True):
        with tf.device(device):
            chunks.append(_chunks(tensor, count))
    finished: list[list[tf.Tensor]] = [[None] * count for _ in devices]
    for c in range(count):
        order = [(c + step) % count for step in range(count)]
        running = chunks[c][c]
        for before, k in itertools.pairwise(order):
            running = wire.send(running, devices[before], devices[k])
            with tf.device(devices[k]):
                running = running + chunks[k][c]
        _pass_on(running, c, [order[-1], *order[:-1]], devices, wire, finished)
    whole = []
    for tensor, device, parts in zip(column, devices, finished, strict=True):
        with tf.device(device):
            joined = tf.reshape(tf.concat(parts, 0), tf.shape(tensor))
            joined.set_shape(tensor.shape)
            whole.append(joined)
    return whole


def _pass_on(
    total: tf.Tensor,
    c: int,
    order: Sequence[int],
    devices: Sequence[str],
    wire: Wire,
    finished: list[list[tf.Tensor]],
) -> None:
    """Hands a finished chunk from device to device, rounded once where it is narrowed."""
    dtype = total.dtype
    if wire.narrows(total):
        with tf.device(devices[order[0]]):
            total = tf.cast(total, wire.dtype)
    for k in order:
        total = reductions.copy_onto(total, devices[k])
        with tf.device(devices[k]):
            finished[k][c] = tf.cast(total, dtype)


def _chunks(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Cuts a flattened tensor into `count` parts that differ by at most one element."""
    flat = tf.reshape(tensor, [-1])
    if tensor.shape.is_fully_defined():
        size = tensor.shape.num_elements()
        return tf.split(flat, [size // count + (i < size % count) for i in range(count)])
    size = tf.size(flat, out_type=tf.int64)
    return [flat[size * i // count : size * (i + 1) // count] for i in range(count)]
