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
from replicate.graph import packing, placement, reductions

Rows: TypeAlias = Sequence[Sequence[types.Gradient]]
"""K x N tensors: those of device k are `rows[k]`."""


HasRows: TypeAlias = Sequence[bool | tf.Tensor]
"""K bools, or bool tensors of shape []: whether a device has rows, and so counts."""


class Wire(NamedTuple):
    """How a tensor travels between devices.

    Attributes:
        dtype: What wider floating tensors are cast to on their way, if they are.
        is_shared: Whether tensors that one device sends to another at once share a transfer.
    """

    dtype: tf.DType | None = None
    is_shared: bool = False

    def narrows(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor travels in fewer bits than it has."""
        return (
            self.dtype is not None
            and tensor.dtype.is_floating
            and tensor.dtype.size > self.dtype.size
        )

    def send(
        self, tensors: Sequence[tf.Tensor], source: str | None, target: str | None
    ) -> list[tf.Tensor]:
        """Returns tensors as `target` receives them from `source`, in their own dtypes."""
        if source == target:
            return list(tensors)
        narrow = self._narrowed(tensors, source)
        return self._widened(self._sent(narrow, source, target), tensors, target)

    def spread(
        self, tensors: Sequence[tf.Tensor], source: str | None, targets: Sequence[str]
    ) -> list[list[tf.Tensor]]:
        """Returns one copy of tensors per target, all of them equal, the source's own included."""
        narrow = self._narrowed(tensors, source)
        copies = []
        for target in targets:
            found = self._widened(self._sent(narrow, source, target), tensors, target)
            copies.append([reductions.copy_onto(tensor, target) for tensor in found])
        return copies

    def _sent(
        self, tensors: Sequence[tf.Tensor], source: str | None, target: str | None
    ) -> list[tf.Tensor]:
        return packing.sent(tensors, source, target) if self.is_shared else list(tensors)

    def _narrowed(self, tensors: Sequence[tf.Tensor], source: str | None) -> list[tf.Tensor]:
        with reductions.on(source):
            return [tf.cast(t, self.dtype) if self.narrows(t) else t for t in tensors]

    def _widened(
        self, narrow: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor], target: str | None
    ) -> list[tf.Tensor]:
        with reductions.on(target):
            pairs = zip(narrow, tensors, strict=True)
            return [tf.cast(t, own.dtype) if self.narrows(own) else t for t, own in pairs]


PLAIN = Wire()
_SHARED = Wire(is_shared=True)

Algorithm: TypeAlias = Callable[[Rows, Sequence[str], Wire], list[list[tf.Tensor]]]
"""Takes K x M tensors, the K devices and how tensors travel; returns K x M sums."""


def batch_sum_onto(
    columns: Sequence[Sequence[types.Gradient]],
    sources: Sequence[str],
    places: Sequence[Sequence[str]],
    has_rows: HasRows | None = None,
    over_workers: Callable[[list[types.Gradient]], list[types.Gradient]] | None = None,
) -> list[list[types.Gradient]]:
    """Sums N columns, each onto places of its own: on the first, and copied to the others.

    In a graph dense tensors that one device sends to another share transfers.

    Args:
        columns: N lists of tensors or IndexedSlices, a tensor for each source; others are summed
            as they are.
        sources: K canonical names of the devices that hold them.
        places: For each column the canonical names of the devices that get its sum.
        has_rows: K bools, or bool tensors of shape []: what counts; None: all.
        over_workers: Takes the sums of this worker's rows, and returns those of all workers,
            where they were; None: there is one worker.

    Returns:
        N lists of copies, one for each place, in their own dtypes and shapes. IndexedSlices keep
        duplicate indices.

    Raises:
        TowerMismatchError: If the kinds, dtypes or shapes of a column differ.
    """
    alone: list[int] = []
    together: dict[tuple[str, ...], list[int]] = {}
    for n, column in enumerate(columns):
        is_alone = len(column) != len(sources) or is_sparse(column)
        (alone if is_alone else together.setdefault(tuple(places[n]), [])).append(n)
    summed = [_sum_alone(columns[n], places[n][0], has_rows) for n in alone]
    for targets, members in together.items():
        rows = zip(*(reductions.require_alike(columns[n]) for n in members), strict=True)
        counted = [
            reductions.masked(row, counts)
            for row, counts in zip(rows, has_rows or [True] * len(sources), strict=True)
        ]
        summed += _sums(counted, sources, targets[0], _SHARED)
    found = iter(summed if over_workers is None else over_workers(summed))
    sums: dict[int, list[types.Gradient]] = {}
    for n in alone:
        whole = next(found)
        sums[n] = [whole, *(reductions.copy_onto(whole, place) for place in places[n][1:])]
    for targets, members in together.items():
        own = [next(found) for _ in members]
        copies = [own, *_SHARED.spread(own, targets[0], targets[1:])]
        sums.update(zip(members, map(list, zip(*copies, strict=True)), strict=True))
    return [sums[n] for n in range(len(columns))]


def is_sparse(column: Sequence[types.Gradient]) -> bool:
    """Whether some of a column are IndexedSlices."""
    return any(isinstance(tensor, tf.IndexedSlices) for tensor in column)


def _sum_alone(
    column: Sequence[types.Gradient], place: str, has_rows: HasRows | None
) -> types.Gradient:
    if has_rows is not None and len(has_rows) == len(column):
        column = reductions.mask_rows(column, has_rows)
    return reductions.sum_onto(column, place)


def _sums(rows: Rows, sources: Sequence[str], place: str, wire: Wire) -> list[tf.Tensor]:
    """Sums K x N dense tensors onto a place."""
    brought = [wire.send(row, source, place) for row, source in zip(rows, sources, strict=True)]
    return [reductions.sum_onto(column, place) for column in zip(*brought, strict=True)]


def to_one_device(rows: Rows, devices: Sequence[str], wire: Wire = PLAIN) -> list[list[tf.Tensor]]:
    """Sums each column on one device, and copies it to all.

    Args:
        rows: K x N dense tensors; a column has one shape and dtype.
        devices: K canonical device names. Each column is summed on the one that has summed the
            fewest bytes so far, which spreads the work.
        wire: How tensors travel.

    Returns:
        K x N copies.
    """
    choose = placement.balanced_by_bytes(devices)
    members: dict[str, list[int]] = {}
    for n, tensor in enumerate(rows[0]):
        members.setdefault(choose(tensor.shape, tensor.dtype), []).append(n)
    found: list[list[tf.Tensor]] = [list(row) for row in rows]
    for home, columns in members.items():
        sums = _sums([[row[n] for n in columns] for row in rows], devices, home, wire)
        for own, copies in zip(found, wire.spread(sums, home, devices), strict=True):
            for n, copy in zip(columns, copies, strict=True):
                own[n] = copy
    return found


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
            _sums([[column[k]] for k in group], [devices[k] for k in group], leader, wire)
            for group, leader in zip(groups, leaders, strict=True)
        ]
        home = leaders[n % len(groups)]
        near = wire.spread(_sums(partial, leaders, home, wire), home, leaders)
        columns.append(
            [
                copy
                for group, leader, total in zip(groups, leaders, near, strict=True)
                for (copy,) in wire.spread(total, leader, [devices[k] for k in group])
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
        totals, copies = [], []
        for tensor, device in zip(column, devices, strict=True):
            with tf.device(device):
                is_narrow = wire.narrows(tensor)
                sent = tf.cast(tensor, wire.dtype) if is_narrow else packing.carried(tensor)
                total = tf.raw_ops.NcclAllReduce(
                    input=sent, reduction="sum", num_devices=len(devices), shared_name=key
                )
                totals.append(total)
        # NOTE: each waits for all others: whoever wants one device's copy must run all of them.
        with tf.device(devices[0]), tf1.control_dependencies(totals):
            done = tf.no_op()
        for tensor, total, device in zip(column, totals, devices, strict=True):
            with tf.device(device), tf1.control_dependencies([done]):
                copies.append(tf.identity(packing.restored(total, tensor)))
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
            (running,) = wire.send([running], devices[before], devices[k])
            with tf.device(devices[k]):
                running = running + chunks[k][c]
        total, is_narrow = running, wire.narrows(running)
        if is_narrow:  # rounded once
            with tf.device(devices[order[-1]]):
                total = tf.cast(running, wire.dtype)
        for k in (order[-1], *order[:-1]):
            total = reductions.copy_onto(total, devices[k])
            with tf.device(devices[k]):
                finished[k][c] = tf.cast(total, running.dtype)
    whole = []
    for tensor, device, parts in zip(column, devices, finished, strict=True):
        with tf.device(device):
            joined = tf.reshape(tf.concat(parts, 0), tf.shape(tensor))
            joined.set_shape(tensor.shape)
            whole.append(joined)
    return whole


def _chunks(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Cuts a flattened tensor into `count` parts that differ by at most one element."""
    flat = tf.reshape(tensor, [-1])
    if tensor.shape.is_fully_defined():
        size = tensor.shape.num_elements()
        return tf.split(flat, [size // count + (i < size % count) for i in range(count)])
    size = tf.size(flat, out_type=tf.int64)
    return [flat[size * i // count : size * (i + 1) // count] for i in range(count)]
