"""The Estimator that a config describes: replicated model_fn, devices, session settings."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from replicate import errors, estimator, model_fn, types
from replicate.app.config import config, functions
from replicate.app.runs import checkpoints
from replicate.app.training import device_choice, optimizers, predictions
from replicate.compat import estimator as compat_estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.console import failures
from replicate.strategy import base
from replicate.strategy.cluster import cluster as clusters

ModelFn: TypeAlias = Callable[..., estimator.EstimatorSpec]
"""An Estimator's model_fn; names what it wants of features, labels, mode, params, config."""

_SEEDS = 2**32  # as many as NumPy takes


class Described(NamedTuple):
    """What a config says of its Estimator, loaded.

    Attributes:
        model_fn: The model_fn, not replicated.
        optimizer_fn: See `replicate_model_fn`.
        devices: Canonical names of devices that exist; None where TensorFlow is to choose.
        options: Further options of `replicate_model_fn`.
        params: For the model_fn.
        config: The RunConfig.
    """

    model_fn: ModelFn
    optimizer_fn: optimizers.OptimizerFn | None
    devices: list[str] | None
    options: dict[str, Any]
    params: dict[str, Any]
    config: estimator.RunConfig


def describe(
    settings: config.Config,
    task: clusters.Cluster = clusters.ALONE,
    strategy: base.DistributionStrategy | None = None,
) -> Described:
    """Loads what a config names; makes its logical devices.

    Args:
        settings: The config.
        task: Which part of a training this process has.
        strategy: Of `device_choice.strategy_of`; None: the one that the config names.

    Raises:
        DeviceError: If this machine lacks a device.
        RunError: If a function cannot be found.
    """
    # Before anything can start TensorFlow's runtime.
    chosen = device_choice.chosen(settings.devices)
    if settings.seed is not None:
        # NOTE: a graph's seed does not reach initial values of layers: Keras draws a seed for each.
        tf.keras.utils.set_random_seed(settings.seed % _SEEDS)
    optimizer_fn = optimizers.optimizer_fn(settings.optimizer)
    strategy = device_choice.strategy_of(settings, task) if strategy is None else strategy
    run_config = _run_config(settings, task, strategy)
    is_halved = settings.train is not None and settings.train.mixed_precision
    if is_halved and optimizer_fn is not None:  # else the config is refused
        kind = optimizers.kind_for(device_choice.devices_of(settings))
        optimizer_fn = optimizers.halved(optimizer_fn, run_config.session_config, kind)
    fn = functions.load(settings.model_fn, "model_fn")
    fields = config.Config.model_fields
    options = {name: getattr(settings, name) for name in device_choice.OPTIONS}
    options = {name: one for name, one in options.items() if one != fields[name].default}
    if strategy is not None:  # it brings its own devices
        chosen, options = None, {**options, "strategy": strategy}
    return Described(fn, optimizer_fn, chosen, options, dict(settings.params), run_config)


def build(
    described: Described,
    amend: Callable[..., estimator.EstimatorSpec] = lambda spec, config: spec,
    keys: Sequence[str] = (),
    checkpoint: str | None = None,
) -> estimator.Estimator:
    """Returns the Estimator of what a config describes.

    Args:
        described: That.
        amend: Adds to the spec of training; is given it and the RunConfig.
        keys: The predictions that are wanted, which the model must have.
        checkpoint: The path of what will be restored; None: the newest checkpoint.
    """
    replicated = model_fn.replicate_model_fn(
        described.model_fn, described.optimizer_fn, described.devices, **described.options
    )

    def inspected(
        features: types.Nest, labels: types.Nest, mode: str, params: Any, config: types.RunConfig
    ) -> estimator.EstimatorSpec:
        with _naming_labels(labels, mode):
            spec = replicated(features, labels, mode, params=params, config=config)
        checkpoints.require_shapes(config.model_dir, tf1.get_default_graph(), checkpoint)
        if mode == estimator.ModeKeys.PREDICT and isinstance(spec.predictions, Mapping):
            predictions.require_keys(keys, spec.predictions)
        is_trained = mode == estimator.ModeKeys.TRAIN
        return amend(spec, config) if is_trained else spec

    return estimator.Estimator(inspected, params=described.params, config=described.config)


@contextlib.contextmanager
def _naming_labels(labels: types.Nest, mode: str) -> Iterator[None]:
    """Says that there are no labels, where model_fn fails and that may be the reason."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as e:
        is_ours = isinstance(e, errors.ReplicateError)
        if is_ours or labels is not None or mode == estimator.ModeKeys.PREDICT:
            raise
        section = "train" if mode == estimator.ModeKeys.TRAIN else "eval"
        raise errors.RunError(
            f"{section}.input: must give labels if model_fn needs them; it gives none, and "
            f"model_fn failed: {failures.located(e)} Name the label there, e.g. label: y; a "
            "function must return (features, labels)."
        ) from e


def _run_config(
    settings: config.Config, task: clusters.Cluster, strategy: base.DistributionStrategy | None
) -> estimator.RunConfig:
    run, training = settings.run, settings.train
    session_config = tf1.ConfigProto(
        allow_soft_placement=run.allow_soft_placement,
        log_device_placement=run.log_device_placement,
        intra_op_parallelism_threads=run.intra_op_parallelism_threads or 0,
        inter_op_parallelism_threads=run.inter_op_parallelism_threads or 0,
    )
    session_config.gpu_options.allow_growth = run.gpu_allow_growth
    if run.per_process_gpu_memory_fraction:
        session_config.gpu_options.per_process_gpu_memory_fraction = (
            run.per_process_gpu_memory_fraction
        )
    steps = {}
    if training is not None:
        steps = {
            "save_summary_steps": training.save_summary_steps,
            "keep_checkpoint_max": training.keep_checkpoint_max,
            "log_step_count_steps": training.log_every_steps,
        }
        saved_every = training.save_checkpoints_steps or settings.evaluated_every
        if training.save_checkpoints_secs:
            steps["save_checkpoints_secs"] = training.save_checkpoints_secs
        elif saved_every:
            steps["save_checkpoints_steps"] = saved_every
    if strategy is not None:
        strategy.configure(session_config)
    return compat_estimator.run_config(
        task.as_environment(),
        model_dir=settings.model_dir,
        tf_random_seed=settings.seed,
        session_config=session_config,
        **steps,
    )
