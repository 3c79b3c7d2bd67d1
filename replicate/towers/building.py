"""K calls of a model_fn, one for each tower, and what they return made one."""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate import errors, types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, batches, ends
from replicate.strategy import base, context, default
from replicate.strategy.towers import sharing
from replicate.strategy.variables import values, variables
from replicate.towers import metrics, predictions, statistics
from replicate.training import model_call
from replicate.training import optimizer as optimizers
from replicate.training import step as steps

_log = logging.getLogger("replicate")

UPDATE_OPS = ("first", "all", "mean")

_SEEDS = 1 << 20  # of a worker's graph, before those of the next worker's


class Rules(NamedTuple):
    """How towers' values are joined.

    Attributes:
        reduction: `"sum"` or `"mean"`: of losses and gradients.
        update_ops: `"first"`, `"all"` or `"mean"`: whose `UPDATE_OPS` run.
        step: What is done with gradients before the update.
    """

    reduction: str
    update_ops: str
    step: steps.GradientStep


class Tower(NamedTuple):
    """What one call of the model_fn left behind.

    Attributes:
        spec: The EstimatorSpec that the model_fn returned.
        train_op: The optimizer step, where `optimizer_fn` made one; else None.
        update_ops: What the tower added to the collection `UPDATE_OPS`.
    """

    spec: Any
    train_op: Any
    update_ops: tuple


def build(
    strategy: base.DistributionStrategy,
    call: model_call.ModelCall,
    given: ends.Input,
    factory: optimizers.OptimizerFactory | None,
    rules: Rules,
    across: Any = None,
) -> tuple[Any, Any]:
    """Splits a batch, calls the model_fn for each tower, and makes one EstimatorSpec.

    Args:
        strategy: Runs the towers; its scope is entered.
        call: The model_fn.
        given: Features and labels.
        factory: Makes the optimizer in mode TRAIN; None: the model_fn uses its own.
        rules: How towers' values are joined.
        across: Joins what workers bring, a `graph.collectives.Across`; None: there is one.

    Returns:
        The spec, and B: an int, or an int32 tensor of shape [].

    Raises:
        TowerMismatchError: If the towers did not build the same model.
    """
    if across is not None:
        _skip_seeds(tf1.get_default_graph(), strategy.first_tower)
    # NOTE: in a scope of its own, so that no name of the model's variables is taken.
    with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
        batch = batches.split_batch(
            given.features,
            given.labels,
            strategy.num_towers,
            across,
            given.numbers,
            given.checks,
        )
    share = context.Share(
        tuple(batch.weights),
        tuple(batch.has_rows),
        rules.step,
        rules.reduction,
        across,
        is_gathered=call.mode == types.EVAL,
    )
    creations = sharing.Creations(strategy.num_towers)
    with context.entered(context.current()._replace(share=share)), model_call.surroundings():
        towers = _call(strategy, call, batch, factory, creations)
        _require_same_variables(towers, creations)
        if factory is None:
            _refuse_queues(strategy, creations)
        spec = _merged(strategy, call.mode, towers, creations, rules)
        _refuse_lone_writes(strategy, creations, spec)
        return spec, batch.total


def _skip_seeds(graph: tf.Graph, first_tower: int) -> None:
    """Lets a worker's operations draw other numbers than those of the workers before it.

    NOTE: an Estimator gives each worker's graph the same seed.
    """
    seeds = tfc.random_seed._graph_to_seed_dict
    seeds[graph] = (seeds.get(graph, 0) + first_tower * _SEEDS) % (1 << 31)


def _call(strategy, call, batch: batches.Batch, factory, creations) -> list[Tower]:
    """Calls the model_fn for each tower; optimizers let the towers meet."""

    def tower_fn(features, labels):
        tower = default.get_tower_context()
        before = set(map(id, tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)))
        with optimizers.left_out() if factory is not None else contextlib.nullcontext():
            spec = call(features, labels)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        train_op = None
        if factory is not None:
            train_op = optimizers.minimize(factory.get(), spec.loss)
        _log.info("Built tower %d of %d on %s.", tower.tower_id, strategy.all_towers, tower.device)
        own = tuple(update for update in updates if id(update) not in before)
        return Tower(spec, train_op, own)

    given = (values.PerDevice(batch.features), values.PerDevice(batch.labels))
    return strategy.run_towers(tower_fn, given, every_collection=True, creations=creations)


def _merged(strategy, mode: str, towers: Sequence[Tower], creations, rules: Rules) -> Any:
    """Returns one spec of K; whatever is not joined is the first tower's."""
    first = towers[0].spec
    specs = [tower.spec for tower in towers]
    if mode != types.TRAIN and strategy.is_single_tower:
        return first
    if mode == types.PREDICT:
        return first._replace(
            predictions=predictions.merge(strategy, [s.predictions for s in specs], "predictions"),
            export_outputs=predictions.merge_export_outputs(
                strategy, [s.export_outputs for s in specs]
            ),
        )
    merged = first._replace(loss=predictions.joined(strategy, [s.loss for s in specs]))
    if mode == types.EVAL:
        return merged._replace(
            predictions=predictions.merge(strategy, [s.predictions for s in specs], "predictions"),
            eval_metric_ops=metrics.merge(specs, creations.all()),
        )
    return _with_step(merged, towers, creations.all(), rules)


def _with_step(spec: Any, towers: Sequence[Tower], made: Sequence[Any], rules: Rules) -> Any:
    """Returns a spec with the step of all towers, and what runs beside it."""
    first = towers[0]
    running = towers[:1] if rules.update_ops == "first" else towers
    updates = [update for tower in running for update in tower.update_ops]
    if first.train_op is None:
        if rules.update_ops == "first":
            updates = []  # a model_fn with an optimizer of its own has said what runs
        runs = [spec.train_op, *updates]
    else:
        runs = [first.train_op, *updates]
        optimizers.forget_unused([tower.spec for tower in towers], runs)
    runs = list(dict.fromkeys(runs))
    train_op = runs[0] if len(runs) == 1 else tf1.group(*runs, name="train")
    later = [op for tower in towers[1:] for op in tower.update_ops]
    joined = statistics.join(made, (train_op, spec.loss), rules.update_ops, later)
    return spec._replace(train_op=train_op if joined is None else tf.group(train_op, joined))


def _require_same_variables(towers: Sequence[Tower], creations: sharing.Creations) -> None:
    """Refuses towers that left out a variable that the first one made for its model."""
    for i, tower in enumerate(towers[1:], 1):
        missing = [
            request
            for request, variable in creations.untaken(i)
            if metrics.is_metric_variable(variable)
            or (request.trainable and not _uses(tower, variable))
        ]
        if missing:
            raise errors.TowerMismatchError(
                "Every tower must create the same variables in the same order: tower "
                f"{i} did not create {missing[0]}, and does not use it; tower 0 did. "
                "Look for a branch on the tower."
            )


def _uses(tower: Tower, variable: Any) -> bool:
    """Whether what a tower returned depends on a variable that it did not ask for.

    A layer that is made once and kept outside of the model_fn has its variables in every
    tower, though the first alone asked for them.
    """
    handles = {member.handle.op for member in getattr(variable, "members", (variable,))}
    spec = tower.spec
    returned = [t for t in tf.nest.flatten([spec.loss, spec.predictions]) if tf.is_tensor(t)]
    return not handles.isdisjoint(ancestry.made_from(returned))


def _refuse_queues(strategy: Any, creations: sharing.Creations) -> None:
    """Refuses towers of which each has what gathers gradients of several workers."""
    for i in range(1, strategy.num_towers):
        if any(op.type.endswith("ConditionalAccumulator") for op in creations.operations(i)):
            raise errors.TowerMismatchError(
                "Towers bring their gradients to one SyncReplicasOptimizer: tower "
                f"{i} has one of its own, which nothing would reach. Wrap the optimizer in "
                "replicate.TowerOptimizer, or give it as optimizer_fn."
            )


def _refuse_lone_writes(strategy: Any, creations: sharing.Creations, spec: Any) -> None:
    """Refuses a step in which a tower writes by itself what all towers share.

    Methods of the variables that towers make refuse it themselves. What is given a handle cannot,
    nor can variables that were there before, as the global step.
    """
    metrics_of = list((spec.eval_metric_ops or {}).values())
    returned = [spec.train_op, spec.loss, spec.predictions, metrics_of]
    leaves = tf.nest.flatten(returned, expand_composites=True)
    executed = ancestry.executed_by([leaf for leaf in leaves if leaf is not None])
    shared = {id(v): v for v in [*creations.all(), *tf1.global_variables()]}
    for i in range(1, strategy.num_towers):
        made = creations.operations(i)
        for variable in shared.values():
            if isinstance(variable, variables.TowerLocalVariable):
                continue
            for member in getattr(variable, "members", (variable,)):
                for op in ancestry.writes(member):
                    if op in made and op in executed:
                        raise _refusal(variable, op, i)


def _refusal(variable: Any, op: tf.Operation, tower_id: int) -> errors.TowerMismatchError:
    if variable.trainable:
        return errors.TowerMismatchError(
            "An optimizer must meet the other towers before it updates the model: tower "
            f"{tower_id} updates {variable.name} by itself ({op.name}). Wrap the optimizer "
            "in replicate.TowerOptimizer, or give it as optimizer_fn."
        )
    return errors.TowerMismatchError(
        "A variable that all towers share is written once per step, for all of them: tower "
        f"{tower_id} writes {variable.name} by itself ({op.name}). Make it with "
        "aggregation=tf.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, or let the model be "
        'one device\'s: tower_building="split".'
    )
