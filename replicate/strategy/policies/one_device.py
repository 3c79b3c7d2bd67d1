"""`OneDeviceStrategy`: one tower on one device."""

import contextlib
from collections.abc import Mapping, Sequence

from replicate import devices, types
from replicate.strategy import base, context
from replicate.strategy.towers import lockstep
from replicate.strategy.towers import tower as towers
from replicate.strategy.variables import values


class OneDeviceStrategy(base.DistributionStrategy, names=("one_device",)):
    """Runs one tower on one device, with its variables there as well.

    Nothing is split, reduced or copied. The tower runs in the caller's thread.

    Args:
        device: The device, in any usual spelling.
    """

    def __init__(self, device: str):
        place = devices.resolve([device])
        super().__init__(place, place)

    @classmethod
    def named(cls, name: str, devices: Sequence[str]) -> "OneDeviceStrategy":
        """See base class."""
        del name
        return cls(devices[0])

    def run_towers(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: Mapping[str, types.Nest] | None = None,
        **options: object,
    ) -> list[types.Nest]:
        """See base class."""
        del options  # a single tower shares nothing
        share = context.share()
        tower = context.TowerContext(self, 0, share)
        with self._noted(), towers.entered(tower, share), self._tower_device(0):
            return [
                fn(
                    *values.select_tower(0, tuple(args)),
                    **values.select_tower(0, dict(kwargs or {})),
                )
            ]

    def _noted(self) -> contextlib.AbstractContextManager[None]:
        """Returns what adds to the notes of an exception that passes."""
        return lockstep.noted(0, 1)

    def _places(self, kwargs: types.Arguments) -> Sequence[str]:
        return ("",)
