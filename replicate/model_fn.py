"""`replicate_model_fn`: one model_fn, run once per device, joined into one."""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import choices, types
from replicate import devices as device_names
from replicate.compat import keras
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import saver
from replicate.graph import batches, copied_state, ends, whole
from replicate.specs import evaluate, predict, summaries, train
from replicate.splitting import batches as splitting_batches
from replicate.splitting import single_tower, specs
from replicate.strategy import base, cloning, context, sharing, values, variables
from replicate.strategy.policies import one_device, parameter_server
from replicate.training import (
    beside_servers,
    joining,
    optimizer,
    statistics,
    step,
    synchronous,
    together,
    towers,
    whole_batch,
    whole_model,
    writes,
)

_log = logging.getLogger("replicate")


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

    Each batch is split over the devices; the model_fn runs once per device, on its part,
    with one set of variables; what the K runs return is joined into one EstimatorSpec.

    Args:
        model_fn: Any Estimator model_fn. It gets those of `features, labels, mode, params,
            config` that it names.
        optimizer_fn: Called once, with `params` if it names it; returns a
            `tf.compat.v1.train.Optimizer`, whose step becomes the train_op. None: the
            model_fn uses its own optimizers.
        devices: Device names, or how many; None: all GPUs, or the CPU where there is none.
        strategy: A `DistributionStrategy`, or the name of one; None: `"parameter_server"`.
        loss_reduction: `"sum"` or `"mean"`: how losses reduce their rows, whatever the model
            says; None: as the model itself reduces them.
        accumulate_steps: How many batches' gradients make one update; the global step
            counts batches.
        clip_global_norm: The largest global norm of the gradients, after reduction and
            accumulation; None: any.
        update_ops: Whose `UPDATE_OPS` run: the `"first"` tower's, `"all"` towers', or all
            with their moving averages averaged over rows, `"mean"`. None: the first tower's;
            with `"split"` there are no towers', and the model's own run.
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
    call = towers.ModelCall(options.model_fn, mode, params, config, predict.merge_predictions)
    factory = None
    if options.optimizer_fn is not None and mode == types.TRAIN:
        factory = optimizer.OptimizerFactory(options.optimizer_fn, params)
    before = saver.operation_names()
    if options.tower_building == "split":
        spec = _split(chosen, call, features, labels, factory, options, config)
    else:
        with chosen.scope(), _without_collector():
            across = _across(chosen, mode, config, (features, labels))
            spec = _build(chosen, call, features, labels, factory, options, across)
    if mode == types.TRAIN:
        spec = synchronous.with_hook(spec, factory and factory.made, config)
        if isinstance(chosen, parameter_server.ParameterServerStrategy):
            spec = beside_servers.begin(spec, chosen, config)
    towers_to_place = () if context.is_one_tower() else chosen.worker_devices
    return saver.make_exportable(spec, before, (features, labels), towers_to_place, config)


def _split(chosen, call, features, labels, factory, options: choices.Choices, config) -> Any:
    """Builds the model once, as on one device, and splits its graph over the devices.

    On one device nothing is split, and no operation is added.
    """
    lone = single_tower.SingleTowerStrategy(chosen)
    if chosen.is_single_tower:
        with lone.scope(), _without_collector():
            return whole_model.build(lone, call, features, labels, factory, options.step)
    with chosen.scope():
        across = _across(chosen, call.mode, config, (features, labels))
    given = ends.Input(features, labels)
    if across is not None:
        given = ends.joined(features, labels, across, call.mode == types.EVAL)
    with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
        if across is None:
            batch = splitting_batches.checked(features, labels)
        else:
            batch = splitting_batches.checked_of_worker(given, across, chosen.home)
    with lone.scope(), _without_collector():
        spec = whole_model.build(lone, call, batch.features, batch.labels, factory, options.step)
        mirrored = lone.mirrored
    numbers = options.random_numbers or "per_device"
    with _without_collector():
        spec = specs.split(spec, batch, chosen, numbers, mirrored)
    return spec if across is None else _together(spec, chosen, across, batch, options, given)


def _together(spec, strategy, across, batch, options: choices.Choices, given: ends.Input) -> Any:
    """Lets workers begin alike, and run each step together."""
    total = batch.total if isinstance(batch.total, int) else "of any size"
    compared = {"the batch": [str(total)], "the options of replicate_model_fn": options.told()}
    spec = together.run_all(spec, across)
    return together.begin(spec, strategy, across, compared, given.farewell)


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


def _build(strategy, call, features, labels, factory, options: choices.Choices, across: Any) -> Any:
    """Splits the batch, builds the towers, and joins their specs."""
    given = ends.Input(features, labels)
    if across is not None:
        # NOTE: an Estimator gives each worker's graph the same seed.
        copied_state.count_from(tf1.get_default_graph(), strategy.first_tower)
        given = ends.joined(features, labels, across, call.mode == types.EVAL)
    features, labels = given.features, given.labels
    # NOTE: in a scope of its own, so that no name of the model's variables is taken.
    with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
        batch = batches.split_batch(
            features, labels, strategy.num_towers, across, given.numbers, given.checks
        )
    reductions = keras.loss_reductions(towers.keras_reduction)
    with reductions, keras.output_names(towers.is_of_one_batch):
        spec = _build_on(strategy, call, batch, (features, labels), factory, options, across)
    return spec if across is None else _together(spec, strategy, across, batch, options, given)


def _build_on(strategy, call, batch, given, factory, options: choices.Choices, across: Any) -> Any:
    """Builds the towers on the parts of a batch, and joins their specs."""
    join = _joining(strategy, call, batch, given, options, across)
    join.step.is_silent = factory is not None
    share = context.Share(tuple(batch.weights), tuple(batch.has_rows), join, across)
    creations = sharing.Creations(strategy.num_towers)
    copier = _cloning(strategy, batch, share, options)
    with context.entered(context.current()._replace(share=share)):
        built = towers.build(
            strategy,
            call,
            values.PerDevice(batch.features),
            values.PerDevice(batch.labels),
            factory,
            creations,
            join,
            copier,
            options.update_ops,
        )
        spec = _join(join, call.mode, built, creations, options)
        if not join.whole.rows.is_single:
            scope = tf.get_current_name_scope()
            plain = f"{scope}/" if scope else ""
            copies = join.whole.copies()
            behind = sharing.AGAIN if copier is not None and copier.is_late else ""
            later = [f"{plain}tower_{i}/{behind}" for i in range(1, len(built))]
            find = summaries.by_name([plain, *later]) if copies is None else copies.column
            summaries.make_whole(join.whole, find)
        return spec


def _cloning(strategy, batch, share, options: choices.Choices) -> cloning.Cloning | None:
    """Returns what copies later towers from the first one, where all may build the same."""
    if strategy.num_towers == 1 or options.tower_building == "call":
        return None
    is_required = options.tower_building == "clone"
    nests = list(zip(batch.features, batch.labels, strict=True))
    if isinstance(batch.total, int) and len(set(batch.row_counts)) > 1:
        counts = ", ".join(map(str, batch.row_counts))
        reason = f"they have {counts} rows, which a static batch writes into their graphs"
        if is_required:
            raise copied_state.refusal(reason)
        _log.info("The model is called for each of %d towers: %s.", strategy.num_towers, reason)
        return None
    return cloning.Cloning(strategy.worker_devices, nests, share, is_required)


def _joining(
    strategy, call, batch, given, options: choices.Choices, across: Any
) -> joining.Joining:
    """Returns what joins the towers of a batch."""
    rows = whole.Rows(
        [_given(*nests) for nests in zip(batch.features, batch.labels, strict=True)],
        batch.row_counts,
        batch.weights,
        batch.has_rows,
        strategy.worker_devices,
        strategy.parameter_devices[0],
        *_layout(batch.features[0], batch.labels[0]),
        across,
    )
    partner, total = None, _total_to_trace(rows, batch, options)
    if total is not None:
        partner = whole_batch.WholeBatch(
            call,
            *given,
            lambda: one_device.OneDeviceStrategy("/device:CPU:0"),
            strategy.all_towers,
            total,
            tf1.get_default_graph()._names_in_use,
            (batch.features[0], batch.labels[0]),
        )
    return joining.Joining(rows, partner, options.reduction, options.step, call.mode)


def _total_to_trace(rows: whole.Rows, batch, options: choices.Choices) -> int | None:
    """Returns on how many rows the model is built once more to see them; None: on none.

    On one device any other number of rows than its own shows which dimensions are rows.
    """
    if not rows.is_single:
        number = 1 if rows.across is None else rows.across.size
        is_known = isinstance(batch.total, int) and number * batch.total > 1
        return number * batch.total if is_known else None
    lengths = {tensor.shape[0] for tensor in _given(batch.features, batch.labels)}
    is_static = bool(lengths) and None not in lengths
    return 2 * max(lengths) if is_static and options.step.is_accumulated else None


def _given(*nests: Any) -> list[tf.Tensor]:
    """Returns the dense tensors of nests which have rows."""
    leaves = tf.nest.flatten(nests, expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf) and leaf.shape.rank != 0]


def _layout(*nests: Any) -> tuple[list, list]:
    """Returns what says where sparse and ragged tensors have their values, and the shapes."""
    leaves = tf.nest.flatten(nests)
    sparse = [leaf for leaf in leaves if isinstance(leaf, tf.SparseTensor)]
    ragged = [leaf for leaf in leaves if isinstance(leaf, tf.RaggedTensor)]
    splits = [splits for leaf in ragged for splits in leaf.nested_row_splits]
    return [leaf.indices for leaf in sparse] + splits, [leaf.dense_shape for leaf in sparse]


def _join(join, mode, built, creations, options: choices.Choices) -> Any:
    """Joins the towers' specs."""
    update_ops = options.update_ops
    if mode == types.TRAIN:
        spec = train.merge_train(built, join, update_ops)
        running = (spec.train_op, spec.loss)
        updates = built[0].update_ops if update_ops == "first" else ()
        if options.optimizer_fn is not None:
            shown = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
            optimizer.leave_out(built[0].of_optimizers, [*running, *shown])
        writes.refuse_lone(creations, join, running, updates)
        writes.order(creations, join, running)
        return _with_statistics(spec, built, creations.all(), join.whole.rows, update_ops)
    if join.whole.rows.is_single:
        return built[0].spec
    first = built[0].spec
    join.notices.given(first.predictions)
    for output in (first.export_outputs or {}).values():
        join.notices.given(list(vars(output).values()))
    if mode == types.EVAL:
        metrics = [list((tower.spec.eval_metric_ops or {}).values()) for tower in built]
        losses = [tower.spec.loss for tower in built]
        writes.refuse_lone(creations, join, _given_out(built) + tf.nest.flatten([metrics, losses]))
        metric_variables = [
            variable
            for variable in creations.all()
            if isinstance(variable, variables.TowerLocalVariable)
            and towers.is_metric_variable(variable)
        ]
        return evaluate.merge_evaluate(built, join, metric_variables)
    writes.refuse_lone(creations, join, _given_out(built))
    return predict.merge_predict(built, join.whole)


def _given_out(built: Sequence[towers.Tower]) -> list[tf.Tensor]:
    """Returns what all towers predict."""
    leaves = tf.nest.flatten([tower.spec.predictions for tower in built], expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf)]


def _with_statistics(spec: Any, built: list, made: list, rows: whole.Rows, update_ops: str) -> Any:
    """Keeps batch statistics one: the first tower's, or the mean over towers.

    Under "all" each tower has its own; one without rows takes the others' mean, so that it
    does not count in theirs.
    """
    running = (spec.train_op, spec.loss)
    if update_ops != "first" and not rows.is_single:
        averaged = statistics.average(made, rows, running, of_rowless=update_ops == "all")
        if averaged is not None:
            spec = spec._replace(train_op=tf.group(spec.train_op, averaged))
            if update_ops == "mean":
                return spec
    later = built[1:] if update_ops == "first" else []
    updates = [op for tower in later for op in tower.update_ops]
    settled = statistics.settle(made, running, updates, is_first=update_ops == "first")
    return spec if settled is None else spec._replace(train_op=tf.group(spec.train_op, settled))
