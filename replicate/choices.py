"""What `replicate_model_fn` was told, and the strategy that is meant by it.

The same name of a strategy means the same in a cluster as on one machine, where the cluster has
parameter servers: these then keep what the parameter devices of the machine would.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicate import devices as device_names
from replicate import errors, types
from replicate.compat import keras
from replicate.compat.tensorflow import tf
from replicate.strategy import base, context, default
from replicate.strategy.policies import mirrored, multi_worker, one_device, parameter_server
from replicate.towers import building
from replicate.training import model, optimizer, step, tower_optimizer

_ONE_COPY = parameter_server.LocalParameterServerStrategy

NAMED: Mapping[str, Callable[[Sequence[str]], base.DistributionStrategy]] = {
    "parameter_server": _ONE_COPY,
    "round_robin": functools.partial(_ONE_COPY, placement="round_robin"),
    "balanced": functools.partial(_ONE_COPY, placement="balanced"),
    "mirrored": mirrored.MirroredStrategy,
    "one_device": lambda devices: one_device.OneDeviceStrategy(devices[0]),
    "multi_worker": multi_worker.MultiWorkerStrategy,
}
"""Of each name that `replicate_model_fn` takes what makes the strategy, given its devices."""


@dataclasses.dataclass
class Choices:
    """The arguments of `replicate_model_fn`; see there."""

    model_fn: types.ModelFn
    optimizer_fn: types.OptimizerFn | None
    devices: Sequence[str] | int | None
    strategy: base.DistributionStrategy | str | None
    reduction: types.Reduction | None
    step: step.GradientStep
    update_ops: str | None
    tower_building: str | None = None
    random_numbers: str | None = None
    micro_batches: int = 1

    def __post_init__(self) -> None:
        """Refuses what no model can be built with."""
        if keras.is_of("Layer", self.model_fn):
            raise ValueError(
                f"model_fn must be a function; got the Keras model {self.model_fn!r}. Compile it "
                "as a model of Keras 2 (tf_keras) with an optimizer such as "
                "tf_keras.optimizers.legacy.Adam, call replicate.estimator.install(), and pass "
                "tf.keras.estimator.model_to_estimator(model).model_fn."
            )
        if not callable(self.model_fn):
            raise ValueError(
                f"model_fn must be a function; got {self.model_fn!r}. Pass the model_fn itself."
            )
        if keras.is_of("Optimizer", self.optimizer_fn):
            tower_optimizer.required(self.optimizer_fn, "optimizer_fn")
        if self.optimizer_fn is not None and not callable(self.optimizer_fn):
            raise ValueError(
                "optimizer_fn must be a function, of no arguments or of params, that returns an "
                f"optimizer; got {self.optimizer_fn!r}. Write e.g. optimizer_fn=lambda: "
                "tf.compat.v1.train.AdamOptimizer(0.001)."
            )
        model.argument_names(self.model_fn)
        step.require_positive("micro_batches", self.micro_batches, int)
        _require_one_of("update_ops", self.update_ops, (None, *building.UPDATE_OPS))
        _require_one_of("tower_building", self.tower_building, (None, "split", "call"))
        _require_one_of("random_numbers", self.random_numbers, (None, "one_device", "per_device"))
        has_towers = self.reduction is not None or self.update_ops is not None
        self.tower_building = self.tower_building or ("call" if has_towers else "split")
        self._refuse_mixed()
        if isinstance(self.strategy, str):
            _require_one_of("strategy", self.strategy, tuple(NAMED))
        with contextlib.suppress(errors.DeviceError):  # refused where the model is built
            device_names.resolve(self.devices, warn_of_missing=False)  # servers may start before

    def _refuse_mixed(self) -> None:
        """Refuses options that only the other way of building has."""
        is_split = self.tower_building == "split"
        of_towers = {"loss_reduction": self.reduction, "update_ops": self.update_ops}
        for name, value in of_towers.items() if is_split else ():
            if value is not None:
                raise ValueError(
                    'tower_building="split" computes what one device computes, and '
                    f"{name} is about towers: got {name}={value!r} with it. Leave out one of them."
                )
        if not is_split and getattr(self.strategy, "slice_bytes", None) is not None:
            raise ValueError(
                "slice_bytes cuts variables of a graph that is split, and towers have whole ones: "
                f"got {self.strategy!r} with tower_building={self.tower_building!r}. Leave out one "
                "of them."
            )
        if not is_split and self.micro_batches > 1:
            raise ValueError(
                'micro_batches splits one device\'s graph further, and tower_building="call" has '
                f"none: got micro_batches={self.micro_batches} with it. Leave out what chooses "
                "towers, or use accumulate_steps with smaller batches."
            )
        if not is_split and self.random_numbers is not None:
            raise ValueError(
                'random_numbers says how tower_building="split" draws: got random_numbers='
                f"{self.random_numbers!r} with tower_building={self.tower_building!r}. Leave out "
                "one of them."
            )

    @property
    def names_devices(self) -> bool:
        """Whether devices were asked for, and not left to be found."""
        return self.devices is not None or isinstance(self.strategy, base.DistributionStrategy)

    @property
    def names_params(self) -> bool:
        """Whether the model_fn or the optimizer_fn names `params`."""
        optimizer_fn = self.optimizer_fn
        is_in_model_fn = "params" in model.argument_names(self.model_fn)
        return is_in_model_fn or (
            optimizer_fn is not None and bool(optimizer.arguments(optimizer_fn, {"params": None}))
        )

    def chosen(self, mode: str, config: types.RunConfig | None) -> base.DistributionStrategy:
        """Returns the strategy that was given, or makes the one that was named.

        Args:
            mode: The Estimator's mode.
            config: The RunConfig, or None.
        """
        if self.strategy == "multi_worker" and not context.is_one_tower():
            return strategy_of(self._over_processes, None, mode, config)
        return strategy_of(self.strategy, self.devices, mode, config)

    @functools.cached_property
    def _over_processes(self) -> base.DistributionStrategy:
        """The strategy that has a server of its own, and so is made once."""
        devices = device_names.resolve(self.devices)
        return multi_worker.MultiWorkerStrategy(devices)

    def told(self) -> list[str]:
        """Returns in words what workers must have been told alike."""
        return [
            f"model_fn={_name(self.model_fn)}",
            f"optimizer_fn={_name(self.optimizer_fn)}",
            f"loss_reduction={self.reduction}",
            *self.step.told(),
            f"update_ops={self.update_ops}",
            f"tower_building={self.tower_building}",
            f"random_numbers={self.random_numbers}",
            f"micro_batches={self.micro_batches}",
        ]


def strategy_of(
    strategy: base.DistributionStrategy | str | None,
    devices: Sequence[str] | int | None,
    mode: str,
    config: types.RunConfig | None,
) -> base.DistributionStrategy:
    """Returns the strategy that was given, or makes the one that was named.

    Args:
        strategy: A `DistributionStrategy`, the name of one, or None.
        devices: See `replicate_model_fn`.
        mode: The Estimator's mode.
        config: The RunConfig, or None.

    Raises:
        ConfigError: If it cannot be used in the cluster of the RunConfig.
        ValueError: If there is no such strategy, or devices are given beside one.
    """
    _refuse_others()
    if context.is_one_tower():
        return one_device.OneDeviceStrategy("/device:CPU:0")
    if isinstance(strategy, base.DistributionStrategy):
        if devices is not None:
            raise ValueError(
                "A strategy brings its own devices: got devices and the strategy "
                f"{strategy!r}. Leave out devices, or name the strategy."
            )
    elif strategy is not None and not isinstance(strategy, str):
        raise ValueError(
            f"strategy is a DistributionStrategy or one of {', '.join(NAMED)}; got {strategy!r}."
        )
    has_servers = mode == types.TRAIN and bool(getattr(config, "num_ps_replicas", 0))
    if has_servers and not isinstance(strategy, parameter_server.ParameterServerStrategy):
        return _on_servers(strategy, devices, config)
    if isinstance(strategy, base.DistributionStrategy):
        return strategy.in_mode(mode, config)
    workers = device_names.resolve(devices)
    if len(workers) == 1 and strategy != "multi_worker":
        return one_device.OneDeviceStrategy(workers[0])
    return NAMED[strategy or "parameter_server"](workers)


def _on_servers(
    strategy: base.DistributionStrategy | str | None,
    devices: Sequence[str] | int | None,
    config: types.RunConfig,
) -> base.DistributionStrategy:
    """Returns the strategy of a chief or worker of a cluster with parameter servers."""
    if config.task_type not in ("chief", "master", "worker"):
        raise errors.ConfigError(
            "Towers compute in the chief and the workers of a cluster; this process is "
            f"{config.task_type}:{config.task_id} by TF_CONFIG. Call train_and_evaluate, which "
            "knows what each task does."
        )
    task = {"type": config.task_type, "index": config.task_id}
    environment = {"cluster": config.cluster_spec.as_dict(), "task": task}
    take_over = parameter_server.ParameterServerStrategy.taking_over
    made = None
    if not isinstance(strategy, base.DistributionStrategy):
        made = take_over(strategy, device_names.resolve(devices), environment)
    if made is None:
        raise errors.ConfigError(
            "In a cluster with parameter servers these keep the variables, and workers share "
            f"them: got strategy={strategy!r}, and TF_CONFIG has {config.num_ps_replicas} in its "
            "job ps. Use strategy='parameter_server' (the default), 'round_robin' or 'balanced', "
            "or replicate.ParameterServerStrategy, which take no parameter_device; for a copy "
            "with each worker leave the job ps out and use 'multi_worker'."
        )
    return made


def _refuse_others() -> None:
    """Refuses to build towers inside the replicas of a strategy that is not ours."""
    if tf.distribute.has_strategy() and not default.has_distribution_strategy():
        raise ValueError(
            "replicate_model_fn takes a model to many devices, and no other strategy does: the "
            f"model_fn was called under {type(tf.distribute.get_strategy()).__name__}. Leave out "
            "train_distribute and eval_distribute of RunConfig, or replicate_model_fn."
        )


def _name(function: types.Function | None) -> str:
    """Returns a function's name, which is the same in each process."""
    kind: Any = getattr(function, "func", function)  # of a functools.partial
    kind = kind if hasattr(kind, "__qualname__") else type(kind)
    return f"{kind.__module__}.{kind.__qualname__}"


def _require_one_of(name: str, value: object, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        shown = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} is one of {shown}; got {value!r}. Choose one of these.")
