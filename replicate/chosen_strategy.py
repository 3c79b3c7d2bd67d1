"""The strategy with which a model_fn is replicated: the one given, named, or meant.

The same name means the same in a cluster as on one machine, where the cluster has parameter
servers: these then keep what the parameter devices of the machine would.
"""

from collections.abc import Sequence

from replicate import devices as device_names
from replicate import errors, types
from replicate.compat.tensorflow import tf
from replicate.strategy import base, context, default
from replicate.strategy.policies import one_device, parameter_server


def of(
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
            f"strategy is a DistributionStrategy or one of {', '.join(base.NAMED)}; got "
            f"{strategy!r}."
        )
    has_servers = mode == types.TRAIN and bool(getattr(config, "num_ps_replicas", 0))
    if has_servers and not isinstance(strategy, parameter_server.ParameterServerStrategy):
        return _on_servers(strategy, devices, config)
    if isinstance(strategy, base.DistributionStrategy):
        return strategy.in_mode(mode, config)
    workers = device_names.resolve(devices)
    if len(workers) == 1 and strategy != "multi_worker":
        return one_device.OneDeviceStrategy(workers[0])
    name = strategy or "parameter_server"
    return base.NAMED[name].named(name, workers)


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
