"""`OneDeviceStrategy`: one tower on one device."""

from replicate import devices
from replicate.strategy import base


class OneDeviceStrategy(base.DistributionStrategy):
    """Runs one tower on one device, with its variables there as well.

    Nothing is split, reduced or copied. The tower runs in the caller's thread.

    Args:
        device: The device, in any usual spelling.
    """

    def __init__(self, device: str):
        place = devices.resolve([device])
        super().__init__(place, place)
