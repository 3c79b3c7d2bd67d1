"""The Estimator that a config describes: replicated model_fn, devices, session settings."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replicate import devices, errors, estimator, model_fn
from replicate.app.cluster import tasks, tf_config
from replicate.app.config import config, functions
from replicate.app.console import failures
from replicate.app.runs import checkpoints
from replicate.app.training import metrics, mixed_precision, optimizers, predictions, towers
from replicate.compat.tensorflow import tf, tf1

__all__ = ["Described", "build", "describe"]

_SEEDS = 2**32  # as many as NumPy takes


def build(
    settings: config.Config,
    watch: Callable[[tf.Tensor, Any], Sequence[Any]] | None = None,
    keys: Sequence[str] | None = None,
    checkpoint: str | None = None,
    note_optimizer: Callable[[Any], None] = lambda made: None,
    task: tasks.Task = tasks.ALONE,
    strategy: Any = None,
    save: Callable[[Any, Any], Sequence[Any]] = lambda spec, config: (),
) -> Any:
    """Returns the Estimator of a config.

    Args:
        settings: The config.
        watch: Makes training hooks from the reduced loss and the batch's features.
        keys: The predictions that are wanted, which the model must have; None: any.
        checkpoint: The path of what will be restored; None: the newest checkpoint.
        note_optimizer: Is called with each optimizer that the config's function makes.
        task: Which part of a training this process has.
        strategy: Of `towers.strategy_of`; None: the one that the config names.
        save: Makes the chief's hooks from the spec of training and the RunConfig.
    """
    described = describe(settings, task, strategy)
    optimizer_fn = described.optimizer_fn
    if optimizer_fn is not None:
        optimizer_fn = _noted(optimizer_fn, note_optimizer)
    replicated = model_fn.replicate_model_fn(
        described.model_fn, optimizer_fn, described.devices, **described.options
    )
    return estimator.Estimator(
        _inspected(replicated, watch, save, keys, checkpoint),
        params=described.params,
        config=described.config,
    )


class Described(NamedTuple):
    """What a config says of its Estimator, loaded.

    Attributes:
        model_fn: The model_fn, not replicated.
        optimizer_fn: See `replicate_model_fn`.
        devices: Canonical names of devices that exist; None where TensorFlow is to choose.
        options: Further options of `replicate_model_fn`.
        params: For the model_fn.
        config: The `RunConfig`.
    """

    model_fn: Callable[..., Any]
    optimizer_fn: Callable[..., Any] | None
    devices: list[str] | None
    options: dict[str, Any]
    params: dict[str, Any]
    config: Any


def describe(
    settings: config.Config, task: tasks.Task = tasks.ALONE, strategy: Any = None
) -> Described:
    """Loads what a config names; makes its logical devices.

    Args:
        settings: The config.
        task: Which part of a training this process has.
        strategy: Of `towers.strategy_of`; None: the one that the config names.

    Raises:
        DeviceError: If this machine lacks a device.
        RunError: If a function cannot be found.
    """
    chosen = towers.chosen(settings.devices)  # before anything can start TensorFlow's runtime
    _seed(settings.seed)
    optimizer_fn = optimizers.optimizer_fn(settings.optimizer)
    strategy = towers.strategy_of(settings, task) if strategy is None else strategy
    run_config = _run_config(settings, task, strategy)
    if settings.train is not None and settings.train.mixed_precision:
        kind = mixed_precision.kind_for(towers.devices_of(settings))
        optimizer_fn = mixed_precision.scaled(optimizer_fn, kind)
        mixed_precision.set_rewrite(run_config.session_config, kind)
    fn = functions.load(settings.model_fn, "model_fn")
    if settings.eval is not None:
        fn = metrics.with_reductions(fn, settings.eval.metric_reductions)
    options = _options(settings)
    return Described(
        fn,
        optimizer_fn,
        chosen if strategy is None else None,  # a strategy brings its own
        options if strategy is None else {**options, "strategy": strategy},
        dict(settings.params),
        run_config,
    )


def _seed(seed: int | None) -> None:
    """Makes drawn numbers the same in each run; initial values of layers are Keras's to draw.

    NOTE: a graph's seed does not reach them: Keras draws a seed of its own for each.
    """
    if seed is not None:
        tf.keras.utils.set_random_seed(seed % _SEEDS)


def _options(settings: config.Config) -> dict[str, Any]:
    """Returns the options of `replicate_model_fn` that are not at their default."""
    names = (
        "strategy",
        "loss_reduction",
        "accumulate_steps",
        "clip_global_norm",
        "update_ops",
        "tower_building",
        "random_numbers",
    )
    fields = config.Config.model_fields
    given = {name: getattr(settings, name) for name in names}
    return {name: one for name, one in given.items() if one != fields[name].default}


def _noted(optimizer_fn: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    """Returns an optimizer function that tells what it makes."""

    @functools.wraps(optimizer_fn)
    def noted(*args: Any, **kwargs: Any) -> Any:
        made = optimizer_fn(*args, **kwargs)
        note(made)
        return made

    return noted


def _inspected(
    replicated: Callable[..., Any],
    watch: Callable[[tf.Tensor, Any], Sequence[Any]] | None,
    save: Callable[[Any, Any], Sequence[Any]],
    keys: Sequence[str] | None,
    checkpoint: str | None,
) -> Any:
    """Returns a model_fn that also hooks the reduced loss and checks predictions' names."""

    def inspected(features, labels, mode, params, config):
        with _naming_labels(labels, mode):
            spec = replicated(features, labels, mode, params=params, config=config)
        checkpoints.require_shapes(config.model_dir, tf1.get_default_graph(), checkpoint)
        if mode == estimator.ModeKeys.TRAIN and watch is not None:
            hooks = (*spec.training_hooks, *watch(spec.loss, features))
            of_chief = (*spec.training_chief_hooks, *save(spec, config))
            return spec._replace(training_hooks=hooks, training_chief_hooks=of_chief)
        if mode == estimator.ModeKeys.PREDICT and isinstance(spec.predictions, Mapping):
            predictions.require_keys(keys, spec.predictions)
        return spec

    return inspected


@contextlib.contextmanager
def _naming_labels(labels: Any, mode: str) -> Iterator[None]:
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
            f"model_fn failed: {failures.located(e)} Name the label there, e.g. label: y."
        ) from e


def _run_config(settings: config.Config, task: tasks.Task, strategy: Any) -> Any:
    run, training = settings.run, settings.train
    session_config = tf1.ConfigProto(
        allow_soft_placement=run.allow_soft_placement,
        log_device_placement=run.log_device_placement,
        intra_op_parallelism_threads=run.intra_op_parallelism_threads or 0,
        inter_op_parallelism_threads=run.inter_op_parallelism_threads or 0,
    )
    session_config.device_count["CPU"] = len(devices.local_devices("CPU"))
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
            **_checkpoint_interval(settings),
        }
    if strategy is not None:
        strategy.configure(session_config)
    with tf_config.said(task.environment):
        return estimator.RunConfig(
            model_dir=settings.model_dir,
            tf_random_seed=settings.seed,
            session_config=session_config,
            **steps,
        )


def _checkpoint_interval(settings: config.Config) -> dict[str, int]:
    training = settings.train
    if training.save_checkpoints_secs:
        return {"save_checkpoints_secs": training.save_checkpoints_secs}
    every = training.save_checkpoints_steps
    if every is None and settings.eval is not None:
        every = settings.eval.every_steps
    return {"save_checkpoints_steps": every} if every else {}
