"""`MirroredStrategy`: a copy of each variable on every worker device."""

from collections.abc import Sequence

from replicate import devices as device_names
from replicate import types
from replicate.graph import all_reduce
from replicate.strategy import base, cross_device


class MirroredStrategy(base.DistributionStrategy):
    """Keeps a copy of each variable with each tower, and updates all copies alike.

    Args:
        devices: The towers' devices, as `replicate_model_fn` takes them.
        cross_device_ops: How gradients are reduced to all devices. By default NCCL does so
            where all devices are GPUs and TensorFlow has it, else `ReductionToOneDevice`.
    """

    keeps_copies = True

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        cross_device_ops: cross_device.CrossDeviceOps | None = None,
    ):
        workers = device_names.resolve(devices)
        super().__init__(workers, workers)
        self._cross_device_ops = cross_device_ops or cross_device.best_for(workers)
        self._cross_device_ops.require(workers)

    def _batch_sum(
        self,
        columns: Sequence[Sequence[types.Gradient]],
        places: Sequence[Sequence[str]],
        has_rows: all_reduce.HasRows | None = None,
    ) -> list[list[types.Gradient]]:
        return self._cross_device_ops.batch_sum(columns, places, self._worker_devices, has_rows)
