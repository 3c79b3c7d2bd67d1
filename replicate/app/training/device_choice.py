"""Where the towers of a config are: devices that exist, a cluster's task, and its strategy."""

from collections.abc import Callable
from typing import Any

from replicate import devices, errors
from replicate.app.config import config, sections
from replicate.strategy import base
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.policies import multi_worker, parameter_server

_MAX_LISTED = 4  # devices
OPTIONS = (  # of `replicate_model_fn`, by the names that a config has for them
    "strategy",
    "loss_reduction",
    "accumulate_steps",
    "micro_batches",
    "clip_global_norm",
    "update_ops",
    "tower_building",
    "random_numbers",
)
_COMPARED = {*OPTIONS, "model_fn", "optimizer", "params", "seed", "train"}


def chosen(wanted: sections.Devices) -> list[str] | None:
    """Returns canonical names of devices that exist; None where TensorFlow is to choose.

    Raises:
        DeviceError: If this machine lacks one of them.
    """
    if wanted == "auto":
        return None
    if isinstance(wanted, dict):
        if "cpu" in wanted:
            return list(devices.make_logical_cpus(wanted["cpu"]))
        wanted = tuple(f"/device:GPU:{index}" for index in range(wanted["gpu"]))
    names = list(devices.resolve(wanted, warn_of_missing=False))
    missing = [name for name in names if devices.is_missing(name)]
    if missing:
        raise errors.DeviceError(
            f"devices: must be devices of this machine; it has no {', '.join(missing)}, it has "
            f"{', '.join(devices.local_devices())}. Use devices: auto, or {{cpu: n}} for n "
            "logical CPU devices."
        )
    return names


def devices_of(settings: config.Config) -> list[str]:
    """Returns the device of each tower, as CPU:0; makes logical ones.

    Raises:
        DeviceError: If this machine lacks a device.
    """
    names = devices.resolve(chosen(settings.devices), warn_of_missing=False)
    if settings.strategy_name == "one_device":
        names = names[:1]
    return [name.replace("/device:", "") for name in names]


def task_of(settings: config.Config) -> clusters.Cluster:
    """Returns the cluster of `TF_CONFIG`, of which this process is a task.

    Raises:
        ConfigError: If `TF_CONFIG` is malformed, or the config is none for such a cluster.
    """
    found = clusters.of()
    settings.require_cluster(found.size, len(found.servers))
    return found


def strategy_of(
    settings: config.Config,
    task: clusters.Cluster,
    start: int | None = None,
    is_stopping: Callable[[], bool] | None = None,
) -> base.DistributionStrategy | None:
    """Returns the strategy of a cluster's task, or with slices; None where its name says enough.

    Args:
        settings: The config.
        task: The task; one that is alone trains and evaluates without others.
        start: The step that its training begins at, which all workers must have alike: passes over
            the input go on from there, in each worker by itself.
        is_stopping: Tells whether its training is asked to stop.

    Raises:
        DeviceError: If this machine lacks a device.
    """
    wanted = chosen(settings.devices)
    options = settings.cluster
    cluster = task._replace(is_stopping=is_stopping)
    compared = _compared(settings)
    if task.servers:
        return parameter_server.ParameterServerStrategy.taking_over(
            settings.strategy_name,
            devices.resolve(wanted),
            cluster,
            options.timeout,
            compared,
            settings.slice_bytes,
        )
    if task.is_together or settings.strategy_name == "multi_worker":
        if start is not None:
            compared["model_dir, its last checkpoint"] = f"step {start}"
        return multi_worker.MultiWorkerStrategy(
            wanted,
            cluster,
            options.timeout,
            options.communication,
            compared,
            options.pack_bytes,
        )
    if settings.slice_bytes is not None:
        return parameter_server.LocalParameterServerStrategy(
            wanted, placement=str(settings.strategy_name), slice_bytes=settings.slice_bytes
        )
    return None


def _compared(settings: config.Config) -> dict[str, Any]:
    """Returns the keys that all workers must have alike, and their values.

    Where a file or a folder is may differ between machines.
    """
    whole = settings.model_dump(mode="json", include=_COMPARED)
    train = whole.pop("train") or {}
    compared = {f"train.{key}": train.get(key) for key in ("steps", "epochs", "mixed_precision")}
    for key, value in (train.get("input") or {}).items():
        if key not in ("file", "cache", "prefetch"):
            compared[f"train.input.{key}"] = value
    return {**whole, **compared}


def text_of(settings: config.Config, task: clusters.Cluster = clusters.ALONE) -> str:
    """Returns how many towers there are, where, and who keeps the variables, for people.

    Raises:
        DeviceError: If this machine lacks a device.
    """
    names = shown = devices_of(settings)
    if len(shown) > _MAX_LISTED:
        shown = [*shown[:2], "...", shown[-1]]
    towers = f"{len(names)} tower{'' if len(names) == 1 else 's'} on {', '.join(shown)}"
    if task.servers:
        servers = len(task.servers)
        kept = f"{servers} parameter server{'' if servers == 1 else 's'}"
        return f"{task.size} worker{'' if task.size == 1 else 's'} of {towers} ({kept})"
    if task.size > 1:
        return f"{task.size} workers of {towers} (multi_worker)"
    strategy = settings.strategy_name or "parameter_server"
    return towers if len(names) == 1 else f"{towers} ({strategy})"
