"""Splits the graph of an EstimatorSpec over the devices of a strategy."""

import logging
from collections.abc import Iterator, Sequence

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import (
    batches,
    mirrored_variables,
    report,
    sliced_variables,
    slices,
    splitter,
)
from replicate.splitting.structure import replacing
from replicate.strategy import base

_log = logging.getLogger("replicate")

_HOOKS = {
    types.TRAIN: "training_hooks",
    types.EVAL: "evaluation_hooks",
    types.PREDICT: "prediction_hooks",
}

# The attributes by which export outputs keep what they were given.
_EXPORTED = ("_outputs", "_scores", "_classes", "_value")


def split(
    spec: types.EstimatorSpec,
    batch: batches.Batch,
    strategy: base.DistributionStrategy,
    numbers: str,
    variables: Sequence[tf.Variable] = (),
    *,
    is_optimized: bool = True,
    micro_batches: int = 1,
) -> types.EstimatorSpec:
    """Splits the graph of a spec, and returns the spec of what is run instead.

    Args:
        spec: The EstimatorSpec of one device.
        batch: What the model_fn was given.
        strategy: The strategy on whose devices it runs.
        numbers: See `replicate_model_fn`'s `random_numbers`.
        variables: Those that the strategy may have copies or slices of.
        is_optimized: Whether sessions optimize the graph.
        micro_batches: In how many parts each device computes its rows, in turn.
    """
    reason = _why_whole(batch)
    mirrored = variables if strategy.keeps_copies else ()
    slicing = _slicing(variables, strategy)
    if reason and not any(map(slicing.is_large, variables)):
        device = strategy.worker_devices[0]
        _log.info("The model's graph runs on one device, %s: %s.", device, reason)
        return spec
    spec = _with_updates(spec)
    groups = list(_groups(spec, batch.cluster is None))
    result = splitter.split_graph(
        batch.given,
        strategy.worker_devices,
        groups,
        home=strategy.home,
        random_numbers=numbers,
        static_rows=batch.total,
        cluster=batch.cluster,
        mirrored=mirrored,
        slicing=slicing,
        is_optimized=is_optimized,
        strategy=strategy,
        micro_batches=micro_batches,
    )
    mirrored_variables.list_copies(strategy, mirrored, result.copies, result.made)
    sliced_variables.list_slices(result.sliced, slicing)
    _tell(result, strategy)
    return _hooked(_replaced(spec, _moved(groups, result.fetch)), result)


def _hooked(spec: types.EstimatorSpec, result: splitter.Result) -> types.EstimatorSpec:
    """Returns a spec with hooks for what other hooks do to variables with copies or slices."""
    if result.copies:
        spec = _with_hook(spec, mirrored_variables.WritesHook(result.copies, result.made))
    if result.sliced.variables:
        spec = _with_hook(spec, sliced_variables.UsesHook(result.sliced))
    return spec


def sliced(
    spec: types.EstimatorSpec,
    variables: Sequence[tf.Variable],
    strategy: base.DistributionStrategy,
) -> types.EstimatorSpec:
    """Cuts large variables of a model on one device; returns the spec of what is run instead.

    Args:
        spec: The EstimatorSpec.
        variables: Those of which the strategy may have slices, on its parameter devices.
        strategy: The strategy.
    """
    slicing = _slicing(variables, strategy)
    if not any(map(slicing.is_large, variables)):
        return spec
    graph, spec = tf1.get_default_graph(), _with_updates(spec)
    cut = slices.Sliced(graph, slicing)
    moved = cut.lower()
    replacing.fetch_moved(graph, moved)
    sliced_variables.list_slices(cut, slicing)
    groups = list(_groups(spec, True))
    found = [[replacing.moved_to(moved, each) for each in group] for group in groups]
    return _with_hook(_replaced(spec, _moved(groups, found)), sliced_variables.UsesHook(cut))


def _slicing(
    variables: Sequence[tf.Variable], strategy: base.DistributionStrategy
) -> slices.Slicing:
    """Returns which variables a strategy wants to be cut."""
    if strategy.slice_bytes is None:
        return slices.NOTHING
    devices = strategy.parameter_devices
    return slices.Slicing(variables, strategy.slice_bytes, devices, strategy.home)


def _with_hook(spec: types.EstimatorSpec, hook: tf1.train.SessionRunHook) -> types.EstimatorSpec:
    """Returns a spec with one more hook, for what hooks before it do to variables."""
    key = _HOOKS[spec.mode]
    return spec._replace(**{key: (*(getattr(spec, key) or ()), hook)})


def _why_whole(batch: batches.Batch) -> str:
    """Returns why a batch cannot be split; empty if it can."""
    if not batch.given and batch.cluster is None:
        return (
            "only dense tensors whose rank is known, sparse and ragged ones are split, and the "
            "batch has none"
        )
    return "the batch has one row" if batch.total == 1 else ""


def _moved(
    groups: Sequence[Sequence[types.Fetch]], fetch: Sequence[Sequence[types.Fetch]]
) -> dict[int, types.Fetch]:
    """Returns what is run in place of tensors and operations, by the `id` of these."""
    moved: dict[int, types.Fetch] = {}
    pairs = [pair for each in zip(groups, fetch, strict=True) for pair in zip(*each, strict=True)]
    for before, after in pairs:
        if after is not before:
            moved[id(before)] = after
            if isinstance(before, tf.Tensor):
                after.set_shape(before.shape)
    return moved


def _with_updates(spec: types.EstimatorSpec) -> types.EstimatorSpec:
    """Returns a spec in which metrics' updates are tensors and operations.

    An assignment returns a variable: reading that is reading it after the assignment.
    """
    metrics = {
        name: (value, tf.convert_to_tensor(update) if isinstance(update, tf.Variable) else update)
        for name, (value, update) in (spec.eval_metric_ops or {}).items()
    }
    return spec._replace(eval_metric_ops=metrics)


def _groups(spec: types.EstimatorSpec, is_alone: bool) -> Iterator[list[types.Fetch]]:
    """Yields what is run of a spec, in lists of what is run together.

    Args:
        spec: The EstimatorSpec.
        is_alone: Whether there is one worker. Otherwise predictions are left out: no step asks
            for them, and to gather them would take time.
    """
    metrics = list((spec.eval_metric_ops or {}).values())
    exported = [vars(output) for output in (spec.export_outputs or {}).values()]
    scaffold = spec.scaffold
    runs = [
        [spec.loss, spec.train_op, [update for _, update in metrics]],
        [spec.predictions, exported] if is_alone else [],
        [value for value, _ in metrics],
        [tf1.get_collection(tf1.GraphKeys.SUMMARIES), getattr(scaffold, "_summary_op", None)],
    ]
    for run in runs:
        leaves = tf.nest.flatten(run, expand_composites=True)
        found = [leaf for leaf in leaves if isinstance(leaf, (tf.Tensor, tf.Operation))]
        graph = tf1.get_default_graph()
        found = [leaf for leaf in found if leaf.graph is graph]
        if found:
            yield list({id(leaf): leaf for leaf in found}.values())


def _replaced(spec: types.EstimatorSpec, moved: dict[int, types.Fetch]) -> types.EstimatorSpec:
    """Returns a spec with what is run in place of what the model_fn returned."""

    def new(leaf: types.Nest) -> types.Nest:
        return moved.get(id(leaf), leaf)

    def nest(value: types.Nest) -> types.Nest:
        if value is None:
            return None
        return tf.nest.map_structure(new, value, expand_composites=True)

    for output in (spec.export_outputs or {}).values():
        for name in _EXPORTED:
            if getattr(output, name, None) is not None:
                setattr(output, name, nest(getattr(output, name)))
    return spec._replace(
        loss=nest(spec.loss),
        predictions=nest(spec.predictions),
        train_op=new(spec.train_op),
        eval_metric_ops={
            name: (nest(value), new(update))
            for name, (value, update) in (spec.eval_metric_ops or {}).items()
        },
    )


def _tell(result: splitter.Result, strategy: base.DistributionStrategy) -> None:
    """Reports what is split, and what is whole and why."""
    report.tell(result)
    if result.held:
        _log.info("%s", report.told_of_held(result))
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", report.of(result, strategy.num_towers))
