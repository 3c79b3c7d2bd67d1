"""How values are summed over towers to several devices at once.

Each way takes N columns of K tensors, one per worker device, and gives each column's
sum on each of its destinations. Small tensors may share a transfer
(`pack_bytes`), and floating tensors may travel in fewer bits (`transfer_dtype`).
"""

import math
from collections.abc import Sequence

from replicate import devices as device_names
from replicate import errors, types
from replicate.compat.tensorflow import tf
from replicate.graph import all_reduce, packing, reductions

_TRANSFER_DTYPES = (None, tf.float16, tf.bfloat16)


class CrossDeviceOps:
    """A way to reduce, and the options that all ways share.

    Args:
        pack_bytes: Tensors of up to this many bytes are made end to end, and all that one device
            sends to another at once shares a transfer; 0: each tensor travels alone. What is not
            reduced to all devices always shares transfers.
        transfer_dtype: `tf.float16` or `tf.bfloat16` for floating tensors on their way;
            None: their own. Halves the bytes, and rounds; what is too large for them becomes
            infinite, as a sum above 65,504 does in float16.

    Raises:
        ValueError: If an option has no such value.
    """

    _algorithm: all_reduce.Algorithm  # sums K x N dense tensors to K x N copies
    _is_spread = False  # whether it sums each tensor on one device

    def __init__(self, pack_bytes: int = 0, transfer_dtype: tf.DType | None = None):
        dtype = None if transfer_dtype is None else tf.as_dtype(transfer_dtype)
        if dtype not in _TRANSFER_DTYPES:
            raise ValueError(
                f"transfer_dtype is tf.float16, tf.bfloat16 or None; got {transfer_dtype!r}."
            )
        if pack_bytes < 0:
            raise ValueError(f"pack_bytes counts bytes, 0 or more; got {pack_bytes}.")
        self._pack_bytes = pack_bytes
        self._transfer_dtype = dtype

    def require(self, devices: Sequence[str]) -> None:
        """Refuses devices that this way cannot serve."""

    def batch_sum(
        self,
        columns: Sequence[Sequence[types.Gradient]],
        places: Sequence[Sequence[str]],
        workers: Sequence[str],
        has_rows: all_reduce.HasRows | None = None,
    ) -> list[list[types.Gradient]]:
        """Sums N columns.

        Args:
            columns: N lists of K tensors or IndexedSlices.
            places: N tuples of destination devices.
            workers: The K worker devices.
            has_rows: K bools, or bool tensors of shape []: what counts in a sum; None: all.

        Returns:
            N lists of copies, one per destination.
        """
        copies: dict[int, list[types.Gradient]] = {}
        together = [
            n
            for n, (parts, place) in enumerate(zip(columns, places, strict=True))
            if tuple(place) == tuple(workers) and len(parts) == len(workers)
            if not all_reduce.is_sparse(parts)
        ]
        if together:
            rows = [list(row) for row in zip(*[columns[n] for n in together], strict=True)]
            summed = self._summed(rows, workers, has_rows)
            copies.update(zip(together, map(list, zip(*summed, strict=True)), strict=True))
        alone = [n for n in range(len(columns)) if n not in copies]
        others, targets = [columns[n] for n in alone], [places[n] for n in alone]
        reduced = all_reduce.batch_sum_onto(others, workers, targets, has_rows)
        copies.update(zip(alone, reduced, strict=True))
        return [copies[n] for n in range(len(columns))]

    def _summed(
        self, rows: all_reduce.Rows, workers: Sequence[str], has_rows: all_reduce.HasRows | None
    ) -> list[list[tf.Tensor]]:
        """Sums K x N dense tensors to K x N copies, packed and narrowed on their way."""
        for tensor in rows[0] if len(workers) > 1 else ():
            reductions.require_sum(tensor.dtype)
        most = packing.even_share(rows[0], len(workers)) if self._is_spread else math.inf
        plan = packing.Packing(rows, self._pack_bytes, most)
        counts = has_rows or [True] * len(workers)
        packed = [plan.pack(*each) for each in zip(rows, workers, counts, strict=True)]
        wire = all_reduce.Wire(self._transfer_dtype, self._pack_bytes > 0)
        summed = self._algorithm(packed, workers, wire)
        return [plan.unpack(row, device) for row, device in zip(summed, workers, strict=True)]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(pack_bytes={self._pack_bytes}, "
            f"transfer_dtype={getattr(self._transfer_dtype, 'name', None)!r})"
        )


class ReductionToOneDevice(CrossDeviceOps):
    """Sums each tensor, or pack, on one device and copies the sum to all; see `CrossDeviceOps`.

    The devices share that work evenly.
    """

    _algorithm = staticmethod(all_reduce.to_one_device)
    _is_spread = True


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Sums among near devices first, then between the groups; see `CrossDeviceOps`.

    Args:
        group_size: How many neighbours in the list of devices are near each other.
        pack_bytes: See base class.
        transfer_dtype: See base class.
    """

    def __init__(
        self, group_size: int = 4, pack_bytes: int = 0, transfer_dtype: tf.DType | None = None
    ):
        super().__init__(pack_bytes, transfer_dtype)
        if group_size < 1:
            raise ValueError(f"group_size counts devices, 1 or more; got {group_size}.")
        self._group_size = group_size

    def _algorithm(
        self, rows: all_reduce.Rows, devices: Sequence[str], wire: all_reduce.Wire
    ) -> list[list[tf.Tensor]]:
        return all_reduce.hierarchical_copy(rows, devices, self._group_size, wire)


class RingAllReduce(CrossDeviceOps):
    """Sums around a ring of the devices; see `CrossDeviceOps` and `all_reduce.ring`."""

    _algorithm = staticmethod(all_reduce.ring)


class NcclAllReduce(CrossDeviceOps):
    """Lets NVIDIA's library sum between GPUs; see `CrossDeviceOps`."""

    _algorithm = staticmethod(all_reduce.nccl)

    def require(self, devices: Sequence[str]) -> None:
        """Refuses devices that are no GPUs.

        Raises:
            DeviceError: Names them.
        """
        others = [name for name in devices if not _is_gpu(name)]
        if others:
            raise errors.DeviceError(
                f"NcclAllReduce works between GPUs only; got {others}. Use RingAllReduce or "
                "ReductionToOneDevice there."
            )


def _is_gpu(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).device_type == "GPU"


def best_for(devices: Sequence[str]) -> CrossDeviceOps:
    """Returns NCCL where all devices are GPUs that exist, else `ReductionToOneDevice`."""
    gpus = set(device_names.local_devices("GPU"))
    has_nccl = len(devices) > 1 and all(_is_gpu(d) and d in gpus for d in devices)
    if has_nccl and tf.test.is_built_with_cuda():
        return NcclAllReduce(packing.SMALL_BYTES)
    return ReductionToOneDevice(packing.SMALL_BYTES)
