"""K calls of a model_fn, one for each tower, and what they return made one."""

import logging
from collections.abc import Sequence

from replicate import errors, types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, operations
from replicate.strategy import base, context, default
from replicate.strategy.cluster import ends
from replicate.strategy.towers import sharing
from replicate.strategy.variables import values, variables
from replicate.towers import metrics, predictions, statistics
from replicate.training import model as models

_log = logging.getLogger("replicate")

UPDATE_OPS = ("first", "all", "mean")

_SEEDS = 1 << 20  # of a worker's graph, before those of the next worker's


def build(
    strategy: base.DistributionStrategy,
    model: models.Model,
    given: ends.Input,
    share: context.Share,
    update_ops: str,
) -> tuple[types.EstimatorSpec, int | tf.Tensor]:
    """Splits a batch, calls the model_fn for each tower, and makes one EstimatorSpec.

    Args:
        strategy: Runs the towers; its scope is entered.
        model: The model_fn.
        given: Features and labels.
        share: How towers' values are joined.
        update_ops: `"first"`, `"all"` or `"mean"`: whose `UPDATE_OPS` run.

    Returns:
        The spec, and B: an int, or an int32 tensor of shape [].

    Raises:
        TowerMismatchError: If the towers did not build the same model.
    """
    workers = given.workers
    _skip_seeds(tf1.get_default_graph(), workers.position * strategy.num_towers)
    # NOTE: in a scope of its own, so that no name of the model's variables is taken.
    with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
        batch = batches.split_batch(
            given.features,
            given.labels,
            strategy.num_towers,
            workers,
            given.numbers,
            given.checks,
        )
    is_gathered = model.mode == types.EVAL
    share = share._replace(parts=batch.parts, workers=workers, is_gathered=is_gathered)
    creations = sharing.Creations(strategy.num_towers)
    with models.entered(share):
        towers = _call(strategy, model, batch, creations)
        _require_same_variables(towers, creations)
        if model.optimizer_fn is None:
            _refuse_queues(strategy, creations)
        spec = _merged(strategy, model, towers, creations, update_ops)
        _refuse_lone_writes(strategy, creations, spec)
        return spec, batch.total


def _skip_seeds(graph: tf.Graph, first_tower: int) -> None:
    """Lets a worker's operations draw other numbers than those of the workers before it.

    NOTE: an Estimator gives each worker's graph the same seed.
    """
    seeds = tfc.random_seed._graph_to_seed_dict
    seeds[graph] = (seeds.get(graph, 0) + first_tower * _SEEDS) % (1 << 31)


def _call(
    strategy: base.DistributionStrategy,
    model: models.Model,
    batch: batches.Batch,
    creations: sharing.Creations,
) -> list[models.Tower]:
    """Calls the model_fn for each tower; optimizers let the towers meet."""

    def tower_fn(features: types.Nest, labels: types.Nest) -> models.Tower:
        built, tower = model.tower(features, labels), default.required_tower_context()
        _log.info("Built tower %d of %d on %s.", tower.tower_id, strategy.all_towers, tower.device)
        return built

    given = (values.PerDevice(batch.features), values.PerDevice(batch.labels))
    return strategy.run_towers(tower_fn, given, every_collection=True, creations=creations)


def _merged(
    strategy: base.DistributionStrategy,
    model: models.Model,
    towers: Sequence[models.Tower],
    creations: sharing.Creations,
    update_ops: str,
) -> types.EstimatorSpec:
    """Returns one spec of K; whatever is not joined is the first tower's."""
    first = towers[0].spec
    specs = [tower.spec for tower in towers]
    if model.mode != types.TRAIN and strategy.is_single_tower:
        return first
    if model.mode == types.PREDICT:
        return first._replace(
            predictions=predictions.merge(strategy, [s.predictions for s in specs], "predictions"),
            export_outputs=predictions.merge_export_outputs(
                strategy, [s.export_outputs for s in specs]
            ),
        )
    merged = first._replace(loss=predictions.joined(strategy, [s.loss for s in specs]))
    if model.mode == types.EVAL:
        return merged._replace(
            predictions=predictions.merge(strategy, [s.predictions for s in specs], "predictions"),
            eval_metric_ops=metrics.merge(specs, creations.all()),
        )
    updating = towers[:1] if update_ops == "first" else towers
    if update_ops == "first" and model.optimizer_fn is None:
        updating = []  # a model_fn with an optimizer of its own runs what it wants
    train_op = model.step(towers, [op for tower in updating for op in tower.update_ops])
    later = [op for tower in towers[1:] for op in tower.update_ops]
    running = (train_op, merged.loss)
    joined = statistics.join(creations.all(), running, update_ops, later)
    return merged._replace(train_op=train_op if joined is None else tf.group(train_op, joined))


def _require_same_variables(towers: Sequence[models.Tower], creations: sharing.Creations) -> None:
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


def _uses(tower: models.Tower, variable: tf.Variable) -> bool:
    """Whether what a tower returned depends on a variable that it did not ask for.

    A layer that is made once and kept outside of the model_fn has its variables in every
    tower, though the first alone asked for them.
    """
    handles = {member.handle.op for member in operations.copies_of(variable)}
    spec = tower.spec
    returned = [t for t in tf.nest.flatten([spec.loss, spec.predictions]) if tf.is_tensor(t)]
    return not handles.isdisjoint(operations.made_from(returned))


def _refuse_queues(strategy: base.DistributionStrategy, creations: sharing.Creations) -> None:
    """Refuses towers of which each has what gathers gradients of several workers."""
    for i in range(1, strategy.num_towers):
        if any(op.type.endswith("ConditionalAccumulator") for op in creations.operations(i)):
            raise errors.TowerMismatchError(
                "Towers bring their gradients to one SyncReplicasOptimizer: tower "
                f"{i} has one of its own, which nothing would reach. Wrap the optimizer in "
                "replicate.TowerOptimizer, or give it as optimizer_fn."
            )


def _refuse_lone_writes(
    strategy: base.DistributionStrategy, creations: sharing.Creations, spec: types.EstimatorSpec
) -> None:
    """Refuses a step in which a tower writes by itself what all towers share.

    Methods of the variables that towers make refuse it themselves. What is given a handle cannot,
    nor can variables that were there before, as the global step.
    """
    metrics_of = list((spec.eval_metric_ops or {}).values())
    returned = [spec.train_op, spec.loss, spec.predictions, metrics_of]
    leaves = tf.nest.flatten(returned, expand_composites=True)
    executed = operations.executed_by([leaf for leaf in leaves if leaf is not None])
    shared = {id(v): v for v in [*creations.all(), *tf1.global_variables()]}
    for i in range(1, strategy.num_towers):
        made = creations.operations(i)
        for variable in shared.values():
            if isinstance(variable, variables.TowerLocalVariable):
                continue
            for member in operations.copies_of(variable):
                for op in operations.writes(member):
                    if op in made and op in executed:
                        raise _refusal(variable, op, i)


def _refusal(variable: tf.Variable, op: tf.Operation, tower_id: int) -> errors.TowerMismatchError:
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
