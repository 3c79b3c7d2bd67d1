"""`replicate_model_fn`: a model_fn of one device on many, by splitting its graph or by towers."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from replicate import choices, progress, types
from replicate import devices as device_names
from replicate.compat import collector
from replicate.compat.tensorflow import tf
from replicate.console import failures, messages
from replicate.exporting import saver
from replicate.graph import batches
from replicate.splitting import batches as splitting_batches
from replicate.splitting import single_tower, specs
from replicate.strategy import base, context
from replicate.strategy.cluster import ends, synchronous
from replicate.towers import building
from replicate.training import model as models
from replicate.training import row_counts, step


def replicate_model_fn(
    model_fn: types.ModelFn,
    optimizer_fn: types.OptimizerFn | None = None,
    devices: Sequence[str] | int | None = None,
    *,
    strategy: base.DistributionStrategy | str | None = None,
    loss_reduction: types.NamedReduction | None = None,
    accumulate_steps: int = 1,
    micro_batches: int = 1,
    clip_global_norm: float | None = None,
    update_ops: str | None = None,
    tower_building: str | None = None,
    random_numbers: str | None = None,
) -> "ReplicatedModelFn":
    """Runs a single-device model_fn on many devices, with the same results.

    The model_fn is called once, on the whole batch, and builds one device's graph, which is
    split by rows over the devices; variables lie where the strategy puts them.

    Args:
        model_fn: Any Estimator model_fn. It gets those of `features, labels, mode, params,
            config` that it names.
        optimizer_fn: Called once, with `params` if it names it; returns a
            `tf.compat.v1.train.Optimizer`, whose step becomes the train_op. None: the
            model_fn uses its own optimizers.
        devices: Device names, or how many; None: all GPUs, or, where there is none, all CPUs that
            `make_logical_cpus` made, or the CPU.
        strategy: A `DistributionStrategy`, or the name of one; None: `"parameter_server"`.
        loss_reduction: How losses and gradients of towers are joined: `"sum"`, or `"mean"` by
            rows. None: there are no towers, or `"mean"`.
        accumulate_steps: How many batches' gradients make one update; the global step
            counts batches.
        micro_batches: In how many parts each device computes its rows, one behind the other, so
            that a batch larger than memory fits; with `"split"`. The numbers stay one device's.
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
    given = choices.Choices(
        model_fn,
        optimizer_fn,
        devices,
        strategy,
        None if loss_reduction is None else types.reduction_from(loss_reduction),
        step.GradientStep(accumulate_steps, clip_global_norm),
        update_ops,
        tower_building,
        random_numbers,
        micro_batches,
    )

    return ReplicatedModelFn(given)


class ReplicatedModelFn:
    """The model_fn that `replicate_model_fn` returns.

    Args:
        options: What `replicate_model_fn` was given.
    """

    def __init__(self, options: choices.Choices):
        self._options = options

    @property
    def names_params(self) -> bool:
        """Whether the model_fn or the optimizer_fn names `params`, which an Estimator may ask."""
        return self._options.names_params

    def strategy(self, mode: str, config: types.RunConfig | None) -> base.DistributionStrategy:
        """Returns the strategy in a mode, for `estimator.train_and_evaluate`."""
        return self._options.chosen(mode, config)

    def __call__(
        self,
        features: types.Nest,
        labels: types.Nest,
        mode: str,
        params: object = None,
        config: types.RunConfig | None = None,
    ) -> types.EstimatorSpec:
        """Builds the spec that the Estimator sees."""
        try:
            return self._built(features, labels, mode, params, config)
        except Exception as error:  # noqa: BLE001 - it is raised again
            shown = _from_user_on(error.__traceback__)
            raise error.with_traceback(shown)  # noqa: B904 - it is the same exception

    def _built(
        self,
        features: types.Nest,
        labels: types.Nest,
        mode: str,
        params: object,
        config: types.RunConfig | None,
    ) -> types.EstimatorSpec:
        options = self._options
        strategy = options.chosen(mode, config)
        used = [*strategy.worker_devices, *strategy.parameter_devices]
        is_served = saver.is_served((features, labels))
        if is_served:  # it may run on another machine
            used = [device for device in used if "/device:CPU:" in device]
        elif not context.is_one_tower():
            towers, keepers = strategy.worker_devices, strategy.parameter_devices
            named = options.names_devices, options.micro_batches
            messages.tell(device_names.described(towers, keepers, *named))
        model = models.Model(options.model_fn, options.optimizer_fn, mode, params, config)
        build = _split if options.tower_building == "split" else _call_towers
        is_whole = options.micro_batches == 1 or context.is_one_tower()
        build = _alone if strategy.is_single_tower and is_whole else build
        with collector.paused():
            call = _Call(options, strategy, model, features, labels, config, is_served)
            spec, joined = build(call)
        if mode == types.TRAIN:
            spec = synchronous.with_hook(spec, model.optimizer, config)
        spec = strategy.begin_session(spec, config, joined)
        device_names.require(used)
        spec = progress.added(spec, mode)
        if not strategy.is_single_tower:
            row_counts.watch(features, labels)
        return saver.make_exportable(spec, (features, labels), config)


def _from_user_on(traceback: TracebackType | None) -> TracebackType | None:
    """Returns what a traceback has behind our frames that lead to code of the user's, if any."""
    found = behind = traceback and traceback.tb_next
    while found is not None and failures.is_ours(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    is_wanted = os.environ.get("REPLICATE_DEBUG") == "1"
    return behind if found is None or is_wanted else found


class _Call(NamedTuple):
    """One call of a replicated model_fn.

    Attributes:
        options: What `replicate_model_fn` was given.
        strategy: The strategy that is meant by that.
        model: The user's model_fn.
        features: The features.
        labels: The labels.
        config: The RunConfig, or None.
        is_served: Whether the features are a server's.
    """

    options: choices.Choices
    strategy: base.DistributionStrategy
    model: models.Model
    features: types.Nest
    labels: types.Nest
    config: types.RunConfig | None
    is_served: bool

    @property
    def is_exported(self) -> bool:
        """Whether the graph is exported, and trains nothing."""
        return self.is_served and self.model.mode != types.TRAIN


def _alone(call: _Call) -> tuple[types.EstimatorSpec, ends.Input]:
    """Builds the model on its one device; no operation is added, but for slices on servers."""
    options = call.options
    lone = single_tower.SingleTowerStrategy(call.strategy)
    share = context.Share(batches.WHOLE, options.step.of_graph(True), options.reduction or "mean")
    with lone.scope():
        spec = models.whole(lone, call.model, call.features, call.labels, share)
        variables = () if call.is_exported else lone.variables
    spec = specs.sliced(spec, variables, call.strategy)
    return spec, _together(call, ends.Input(call.features, call.labels), None)


def _split(call: _Call) -> tuple[types.EstimatorSpec, ends.Input]:
    """Builds the model once, as on one device, and splits its graph over the devices."""
    lone = single_tower.SingleTowerStrategy(call.strategy)
    share = context.Share(batches.WHOLE, call.options.step.of_graph(True))
    given = _given(call)
    with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
        batch = splitting_batches.checked(given, call.strategy.home)
    with lone.scope():
        spec = models.whole(lone, call.model, batch.features, batch.labels, share)
        variables = () if call.is_exported else lone.variables
    numbers = call.options.random_numbers or "per_device"
    spec = specs.split(
        spec,
        batch,
        call.strategy,
        numbers,
        variables,
        is_optimized=_is_optimized(call.config),
        micro_batches=call.options.micro_batches,
    )
    return spec, _together(call, given, batch.total)


def _is_optimized(config: types.RunConfig | None) -> bool:
    """Whether the sessions of a config optimize their graphs, as they do by default."""
    told = getattr(config, "session_config", None)
    return told is None or not told.graph_options.rewrite_options.disable_meta_optimizer


def _call_towers(call: _Call) -> tuple[types.EstimatorSpec, ends.Input]:
    """Calls the model once for each tower, and joins what the towers return."""
    options = call.options
    with call.strategy.scope():
        given = _given(call)
        share = context.Share(
            batches.WHOLE,
            options.step.of_graph(False),
            options.reduction or "mean",
            is_exported=call.is_exported,
        )
        update_ops = options.update_ops or "first"
        spec, total = building.build(call.strategy, call.model, given, share, update_ops)
    return spec, _together(call, given, total)


def _given(call: _Call) -> ends.Input:
    """Returns a worker's features and labels."""
    mode = call.model.mode
    with call.strategy.scope():
        workers = call.strategy.workers_in(mode, call.config, call.is_served)
    return ends.joined(call.features, call.labels, workers, mode == types.EVAL)


def _together(call: _Call, given: ends.Input, total: int | tf.Tensor | None) -> ends.Input:
    """Returns what workers run together, and must have alike."""
    compared = {f"the option {line.partition('=')[0]}": line for line in call.options.told()}
    if not given.workers.is_alone:
        compared["the batch"] = str(total) if isinstance(total, int) else "of any size"
    return given._replace(compared=compared)
