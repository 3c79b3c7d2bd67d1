"""What is compared: the model on one device, and over K towers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate import devices as device_names
from replicate import errors, estimator, model_fn, types
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import base
from replicate.strategy.towers import lockstep
from replicate.training import model as models
from replicate.verification import runs


def worker_devices(
    devices: Sequence[str] | int | None, strategy: base.DistributionStrategy | str | None
) -> tuple[str, ...]:
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
            "verify runs the towers, so their devices must exist; this machine has no "
            f"{', '.join(missing)}, but {', '.join(device_names.local_devices())}. Name "
            "others, or call replicate.devices.make_logical_cpus(n) before TensorFlow starts."
        )
    return tuple(given)


def run_config(config: types.RunConfig | None, model_dir: str) -> types.RunConfig:
    """Returns the config for model_fns and sessions.

    Args:
        config: A `RunConfig`; None: that of an Estimator.
        model_dir: Where model_fns may write.
    """
    config = estimator.RunConfig() if config is None else config
    settings = tf1.ConfigProto()
    settings.CopyFrom(config.session_config or settings)
    settings.allow_soft_placement = True
    settings.graph_options.rewrite_options.disable_meta_optimizer = True  # graphs run as built
    return config.replace(model_dir=model_dir, session_config=settings)


class Sides(NamedTuple):
    """What is compared, as functions that build it.

    Attributes:
        one: One device, by TensorFlow alone.
        alone: One device through `replicate_model_fn`, where TensorFlow alone cannot say what
            the numbers are: options that only replication has, or an optimizer that the model_fn
            makes beside that of `optimizer_fn`.
        towers: K towers.
        is_through_replication: Whether `alone` is what towers are compared with in training.
        is_split: Whether the towers are one device's graph, split; else calls of the model.
        reduction: How the losses of such calls are joined.
    """

    one: runs.Build
    alone: runs.Build
    towers: runs.Build
    is_through_replication: bool
    is_split: bool
    reduction: types.Reduction


def sides(
    function: types.ModelFn,
    optimizer_fn: types.OptimizerFn | None,
    devices: Sequence[str] | int | None,
    options: dict[str, Any],
    workers: Sequence[str],
    *,
    params: Any,
    config: types.RunConfig,
) -> Sides:
    """Returns what is compared; options are checked here.

    A graph that is split draws what one device draws, so that this is compared as well.

    Args:
        function: The model_fn.
        optimizer_fn: As for `replicate_model_fn`.
        devices: The towers', as `replicate_model_fn` takes them.
        options: Its other ones.
        workers: The canonical names of the devices.
        params: For the model_fn.
        config: Likewise.
    """
    reduction = options.get("loss_reduction")
    is_call = options.get("tower_building") == "call"
    is_split = not is_call and reduction is None and options.get("update_ops") is None
    if is_split:
        options = {**options, "random_numbers": "one_device"}

    def one(features: types.Nest, labels: types.Nest, mode: str) -> types.EstimatorSpec:
        model = models.Model(function, optimizer_fn, mode, params, config)
        # Variables are of the kind that strategies make: what reads them has a place in a step.
        creator = tf.variable_creator_scope(
            lambda make, **how: make(**{**how, "use_resource": True})
        )
        with tf.device(workers[0]), creator, lockstep.explained():
            return _stepped(model, model(features, labels))

    def replicated(devices: Sequence[str] | int | None, options: dict[str, Any]) -> runs.Build:
        made = model_fn.replicate_model_fn(function, optimizer_fn, devices, **options)
        return lambda features, labels, mode: made(features, labels, mode, params, config)

    return Sides(
        one,
        replicated([workers[0]], {**options, "strategy": None, "micro_batches": 1}),
        replicated(devices, options),
        options.get("accumulate_steps", 1) != 1 or options.get("clip_global_norm") is not None,
        is_split,
        types.reduction_from("mean" if reduction is None else reduction),
    )


def _stepped(model: models.Model, spec: types.EstimatorSpec) -> types.EstimatorSpec:
    """Returns a spec whose train_op is the step of `optimizer_fn`, if that is given."""
    if model.optimizer is None:
        return spec
    step = model.optimizer.minimize(spec.loss, global_step=tf1.train.get_global_step())
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    return spec._replace(train_op=tf1.group(step, *updates))
