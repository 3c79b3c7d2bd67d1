"""What `replicate_model_fn` was told, and the strategy that is meant by it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from replicate import devices as device_names
from replicate import types
from replicate.specs import train
from replicate.strategy import base, context
from replicate.strategy.policies import mirrored, multi_worker, one_device, parameter_server
from replicate.training import step, towers

STRATEGIES = {
    "mirrored": mirrored.MirroredStrategy,
    "multi_worker": multi_worker.MultiWorkerStrategy,
    "one_device": lambda devices: one_device.OneDeviceStrategy(devices[0]),
    "parameter_server": parameter_server.LocalParameterServerStrategy,
    "round_robin": lambda devices: parameter_server.LocalParameterServerStrategy(
        devices, placement="round_robin"
    ),
    "balanced": lambda devices: parameter_server.LocalParameterServerStrategy(
        devices, placement="balanced"
    ),
}
_OVER_PROCESSES = "multi_worker"


@dataclasses.dataclass
class Choices:
    """The arguments of `replicate_model_fn`; see there."""

    model_fn: Callable
    optimizer_fn: Callable | None
    devices: Any
    strategy: Any
    reduction: types.Reduction | None
    step: step.GradientStep
    update_ops: str
    tower_building: str

    def __post_init__(self):
        """Refuses what no model can be built with."""
        self._kept: base.DistributionStrategy | None = None
        if not callable(self.model_fn):
            raise ValueError(
                f"model_fn must be a function; got {self.model_fn!r}. Pass the model_fn itself."
            )
        if self.optimizer_fn is not None and not callable(self.optimizer_fn):
            raise ValueError(
                "optimizer_fn must be a function that returns an optimizer; got "
                f"{self.optimizer_fn!r}. Write optimizer_fn=lambda: "
                f"{type(self.optimizer_fn).__name__}(...)."
            )
        towers.argument_names(self.model_fn)
        _require_one_of("update_ops", self.update_ops, train.UPDATE_OPS)
        _require_one_of("tower_building", self.tower_building, ("auto", "call", "clone"))
        if isinstance(self.strategy, str):
            _require_one_of("strategy", self.strategy, tuple(STRATEGIES))

    def chosen(self) -> base.DistributionStrategy:
        """Returns the strategy that was given, or makes the one that was named.

        NOTE: one that has a server of its own is made once.
        """
        if context.is_one_tower():
            return one_device.OneDeviceStrategy("/device:CPU:0")
        if self.strategy == _OVER_PROCESSES:
            self._kept = self._kept or STRATEGIES[_OVER_PROCESSES](self.devices)
            return self._kept
        return _strategy(self.strategy, self.devices)

    def told(self) -> list[str]:
        """Returns in words what workers must have been told alike."""
        return [
            f"model_fn={_name(self.model_fn)}",
            f"optimizer_fn={_name(self.optimizer_fn)}",
            f"loss_reduction={self.reduction}",
            *self.step.told(),
            f"update_ops={self.update_ops}",
        ]


def _name(function: Any) -> str:
    """Returns a function's name, which is the same in each process."""
    function = getattr(function, "func", function)  # of a functools.partial
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"


def _require_one_of(name: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        shown = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} is one of {shown}; got {value!r}. Choose one of these.")


def _strategy(strategy: Any, devices: Any) -> base.DistributionStrategy:
    if isinstance(strategy, base.DistributionStrategy):
        if devices is not None:
            raise ValueError(
                "A strategy brings its own devices: got devices and the strategy "
                f"{strategy!r}. Leave out devices, or name the strategy."
            )
        return strategy
    if strategy is not None and not isinstance(strategy, str):
        raise ValueError(
            f"strategy is a DistributionStrategy or one of {', '.join(STRATEGIES)}; got "
            f"{strategy!r}."
        )
    workers = device_names.resolve(devices)
    if len(workers) == 1:
        return one_device.OneDeviceStrategy(workers[0])
    return STRATEGIES[strategy or "parameter_server"](workers)
