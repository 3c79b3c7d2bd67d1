"""What is compared: the model on one device, and over K towers."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replicate import devices as device_names
from replicate import errors, estimator, model_fn, types
from replicate.compat.tensorflow import tf, tf1
from replicate.verification import inputs


def worker_devices(devices: Any, strategy: Any) -> tuple[str, ...]:
    """Returns the canonical names of the towers' devices.

    Raises:
        DeviceError: If one of them does not exist: nothing can run there.
    """
    given = getattr(strategy, "worker_devices", None)
    if given is None:
        given = device_names.resolve(devices, warn_of_missing=False)
        given = given[:1] if strategy == "one_device" else given
    missing = [name for name in given if device_names.is_missing(name)]
    if missing:
        raise errors.DeviceError(
            "verify runs the towers, on devices that exist; this machine has no "
            f"{', '.join(missing)}, it has {', '.join(device_names.local_devices())}. Name "
            "others, or call replicate.devices.make_logical_cpus(n) before TensorFlow starts."
        )
    return tuple(given)


def session_config(config: Any) -> tf1.ConfigProto:
    """Returns settings under which every tower's device exists; threads and memory as given."""
    made = tf1.ConfigProto()
    given = getattr(config, "session_config", None)
    if given is not None:
        made.CopyFrom(given)
    made.allow_soft_placement = True
    made.device_count["CPU"] = len(device_names.local_devices("CPU"))
    made.graph_options.rewrite_options.disable_meta_optimizer = True  # the graph as it was built
    return made


def run_config(config: Any, model_dir: str) -> Any:
    """Returns the config for model_fns, with a model_dir in which they may write."""
    if config is None:
        return estimator.RunConfig(model_dir=model_dir, session_config=session_config(None))
    if not hasattr(config, "replace"):
        return config
    return config.replace(model_dir=model_dir, session_config=session_config(config))


def plain(
    model: Callable, optimizer_fn: Callable | None, device: str, params: Any, config: Any
) -> Callable:
    """Returns the model as one device builds it, by TensorFlow alone.

    Args:
        model: A model_fn.
        optimizer_fn: As for `replicate_model_fn`; its optimizer steps inside the model,
            together with `UPDATE_OPS`.
        device: Where to build it.
        params: For the model_fn.
        config: Likewise.

    Returns:
        A function of features, labels and mode that returns an EstimatorSpec.
    """

    def build(features, labels, mode):
        with tf.device(device):
            spec = _call(model, features, labels, mode, params, config)
            if optimizer_fn is None or mode != types.TRAIN:
                return spec
            optimizer = optimizer_fn(**inputs.named(optimizer_fn, {"params": params}))
            step = optimizer.minimize(spec.loss, global_step=tf1.train.get_global_step())
            updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
            return spec._replace(train_op=tf1.group(step, *updates))

    return build


def _call(model: Callable, features, labels, mode, params, config) -> Any:
    given = {"labels": labels, "mode": mode, "params": _copied(params), "config": config}
    given = inputs.named(model, given)
    if labels is not None and "labels" not in given:
        raise ValueError(
            "A model_fn that gets labels must take them: the input_fn gave labels, and "
            f"{model!r} takes {list(inspect.signature(model).parameters)}. Add the argument "
            "`labels`, or let the input_fn return features alone."
        )
    spec = model(features=features, **given)
    return spec.as_estimator_spec() if hasattr(spec, "as_estimator_spec") else spec


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever a user's class raises
        return value


def replicated(
    model: Callable,
    optimizer_fn: Callable | None,
    devices: Sequence[str] | int | None,
    options: dict,
    params: Any,
    config: Any,
) -> Callable:
    """Returns the model over towers, as a function of features, labels and mode."""
    made = model_fn.replicate_model_fn(model, optimizer_fn, devices, **options)

    def build(features, labels, mode):
        return made(features, labels, mode, params=params, config=config)

    return build


class Sides(NamedTuple):
    """Functions of features, labels and mode that return an EstimatorSpec.

    Attributes:
        one: One device, by TensorFlow alone.
        alone: One device through `replicate_model_fn`, where TensorFlow alone cannot say what
            the numbers are: options that only replication has, an optimizer that the
            model_fn makes beside that of `optimizer_fn`, partitioners.
        towers: K towers.
        is_through_replication: Whether `alone` is what towers are compared with in training.
        joined: Of towers that are calls of the model: how their losses are joined, and whose
            `UPDATE_OPS` run. None: the towers are one device's graph, split.
    """

    one: Callable
    alone: Callable
    towers: Callable
    is_through_replication: bool
    joined: tuple[types.Reduction, str | None] | None

    @property
    def is_split(self) -> bool:
        """Whether the towers are one device's graph, split."""
        return self.joined is None


def sides(
    model: Callable,
    optimizer_fn: Callable | None,
    devices: Any,
    options: dict,
    workers: Sequence[str],
    **arguments: Any,
) -> Sides:
    """Returns what is compared; options are checked here.

    A graph that is split draws what one device draws, so that this is compared as well.
    """
    reduction, update_ops = options.get("loss_reduction"), options.get("update_ops")
    joined = None
    if options.get("tower_building") == "call" or reduction is not None or update_ops is not None:
        joined = (types.reduction_from("mean" if reduction is None else reduction), update_ops)
    else:
        options = {**options, "random_numbers": "one_device"}
    on_one = {name: value for name, value in options.items() if name != "strategy"}
    return Sides(
        plain(model, optimizer_fn, workers[0], **arguments),
        replicated(model, optimizer_fn, [workers[0]], on_one, **arguments),
        replicated(model, optimizer_fn, devices, options, **arguments),
        options.get("accumulate_steps", 1) != 1 or options.get("clip_global_norm") is not None,
        joined,
    )
