"""`replicate_model_fn`: a model_fn of one device on many, by splitting its graph or by towers."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import choices, types
from replicate import devices as device_names
from replicate.compat.tensorflow import tf
from replicate.exporting import saver
from replicate.graph import ends
from replicate.splitting import batches as splitting_batches
from replicate.splitting import single_tower, specs
from replicate.strategy import base, context
from replicate.strategy.policies import parameter_server
from replicate.towers import building
from replicate.training import (
    beside_servers,
    model_call,
    optimizer,
    step,
    synchronous,
    together,
    whole_model,
)


def replicate_model_fn(
    model_fn: Callable,
    optimizer_fn: Callable | None = None,
    devices: Sequence[str] | int | None = None,
    *,
    strategy: base.DistributionStrategy | str | None = None,
    loss_reduction: Any = None,
    accumulate_steps: int = 1,
    clip_global_norm: float | None = None,
    update_ops: str | None = None,
    tower_building: str | None = None,
    random_numbers: str | None = None,
) -> Callable:
    """Takes a model_fn written for one device to many.

    The model_fn is called once, on the whole batch, and builds one device's graph, which is
    split by rows over the devices; variables lie where the strategy puts them.

    Args:
        model_fn: Any Estimator model_fn. It gets those of `features, labels, mode, params,
            config` that it names.
        optimizer_fn: Called once, with `params` if it names it; returns a
            `tf.compat.v1.train.Optimizer`, whose step becomes the train_op. None: the
            model_fn uses its own optimizers.
        devices: Device names, or how many; None: all GPUs, or the CPU where there is none.
        strategy: A `DistributionStrategy`, or the name of one; None: `"parameter_server"`.
        loss_reduction: How losses and gradients of towers are joined: `"sum"`, or `"mean"` by
            rows. None: there are no towers, or `"mean"`.
        accumulate_steps: How many batches' gradients make one update; the global step
            counts batches.
        clip_global_norm: The largest global norm of the gradients, after reduction and
            accumulation; None: any.
        update_ops: Whose `UPDATE_OPS` run: the `"first"` tower's, `"all"` towers', or all
            with their moving averages averaged over rows, `"mean"`. None: there are no towers,
            or `"first"`.
        tower_building: `"split"` calls the model_fn once, on the whole batch, and splits one
            device's graph by rows: one device's numbers for every model. `"call"` calls it once
            per tower, for models that know of towers. None: `"call"` where `loss_reduction` or
            `update_ops` is given, else `"split"`.
        random_numbers: With `"split"`: `"one_device"` draws what one device draws; `"per_device"`
            lets each device draw its own; None: the latter.

    Returns:
        A model_fn with the parameters `(features, labels, mode, params=None, config=None)`.

    Raises:
        ValueError: If an option has no such value.
        DeviceError: If a device does not exist; when the model_fn is called.
    """
    options = choices.Choices(
        model_fn,
        optimizer_fn,
        devices,
        strategy,
        None if loss_reduction is None else types.reduction_from(loss_reduction),
        step.GradientStep(accumulate_steps, clip_global_norm),
        update_ops,
        tower_building,
        random_numbers,
    )

    def replicated_model_fn(features, labels, mode, params=None, config=None):
        return _replicate(options, features, labels, mode, params, config)

    replicated_model_fn.strategy = options.chosen  # for `estimator.train_and_evaluate`
    return replicated_model_fn


def _replicate(options: choices.Choices, features, labels, mode, params, config) -> Any:
    """Builds the spec that the Estimator sees."""
    chosen = options.chosen(mode, config)
    if getattr(config, "session_config", None) is not None and not config.master:
        used = dict.fromkeys([*chosen.worker_devices, *chosen.parameter_devices])
        device_names.look_in_session(list(used), config.session_config)
    call = model_call.ModelCall(options.model_fn, mode, params, config)
    factory = None
    if options.optimizer_fn is not None and mode == types.TRAIN:
        factory = optimizer.OptimizerFactory(options.optimizer_fn, params)
    before = saver.operation_names()
    build = _split if options.tower_building == "split" else _call
    build = _alone if chosen.is_single_tower else build
    with _without_collector():
        spec = build(chosen, call, features, labels, factory, options, config)
    if mode == types.TRAIN:
        spec = synchronous.with_hook(spec, factory and factory.made, config)
        if isinstance(chosen, parameter_server.ParameterServerStrategy):
            spec = beside_servers.begin(spec, chosen, config)
    devices = () if context.is_one_tower() else chosen.worker_devices
    return saver.make_exportable(spec, before, (features, labels), devices, config)


def _alone(chosen, call, features, labels, factory, options: choices.Choices, config) -> Any:
    """Builds the model on its one device; no operation is added."""
    del config
    lone = single_tower.SingleTowerStrategy(chosen)
    share = context.Share((1.0,), (True,), options.step.alone(), options.reduction or "mean")
    with lone.scope():
        return whole_model.build(lone, call, features, labels, factory, share)


def _split(chosen, call, features, labels, factory, options: choices.Choices, config) -> Any:
    """Builds the model once, as on one device, and splits its graph over the devices."""
    lone = single_tower.SingleTowerStrategy(chosen)
    share = context.Share((1.0,), (True,), options.step.alone())
    given, across = _given(chosen, call.mode, features, labels, config)
    with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
        if across is None:
            batch = splitting_batches.checked(features, labels)
        else:
            batch = splitting_batches.checked_of_worker(given, across, chosen.home)
    with lone.scope():
        spec = whole_model.build(lone, call, batch.features, batch.labels, factory, share)
        mirrored = lone.mirrored
    numbers = options.random_numbers or "per_device"
    spec = specs.split(spec, batch, chosen, numbers, mirrored)
    if across is None:
        return spec
    return _together(spec, chosen, across, batch.total, options, given.farewell)


def _call(chosen, call, features, labels, factory, options: choices.Choices, config) -> Any:
    """Calls the model once for each tower, and joins what the towers return."""
    with chosen.scope():
        given, across = _given(chosen, call.mode, features, labels, config)
        rules = building.Rules(options.reduction or "mean", options.update_ops, options.step)
        spec, total = building.build(chosen, call, given, factory, rules, across)
        if across is None:
            return spec
        return _together(spec, chosen, across, total, options, given.farewell)


def _given(strategy, mode: str, features, labels, config) -> tuple[ends.Input, Any]:
    """Returns a worker's features and labels, and what joins it with others."""
    with strategy.scope():
        across = _across(strategy, mode, config, (features, labels))
    if across is None:
        return ends.Input(features, labels), None
    return ends.joined(features, labels, across, mode == types.EVAL), across


def _together(spec, strategy, across, total, options: choices.Choices, farewell) -> Any:
    """Lets workers begin alike, and run each step together."""
    total = total if isinstance(total, int) else "of any size"
    compared = {"the batch": [str(total)], "the options of replicate_model_fn": options.told()}
    spec = together.run_all(spec, across)
    return together.begin(spec, strategy, across, compared, farewell)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Lets Python look for no garbage in circles.

    A graph only grows while it is built. Yet by its growth each object of it would be looked at
    again and again: a tenth of the time that eight towers take.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _across(strategy: base.DistributionStrategy, mode: str, config: Any, nest: Any) -> Any:
    """Returns what joins this worker with others; None where it is alone.

    Predictions are each worker's own. An evaluation is, too, if it is in a session of its own.
    """
    across = strategy.across()
    if across is not None:
        strategy.start()  # sessions of all modes may be in it
    if across is not None and mode == types.TRAIN:
        strategy.require_session(config)
    is_joined_evaluation = mode == types.EVAL and getattr(config, "evaluation_master", "")
    if mode == types.TRAIN or is_joined_evaluation:
        return across
    if across is not None and not strategy.is_chief:
        together.require_worker_alone(strategy.cluster.name, config, saver.is_served(nest))
    return None
