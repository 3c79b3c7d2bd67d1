"""The optimizer of an `optimizer_fn`, and what those of the model_fn leave behind beside it."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, operations
from replicate.training import tower_optimizer

# What each variable has: its initializer, and a value and a truth that sessions ask for.
_OF_EVERY_VARIABLE = (
    "Assign",
    "AssignVariableOp",
    "ReadVariableOp",
    "Identity",
    "VarIsInitializedOp",
)


def made_by(optimizer_fn: types.OptimizerFn, params: object) -> tf1.train.Optimizer:
    """Returns the optimizer that an `optimizer_fn` makes.

    Args:
        optimizer_fn: Returns a `tf.compat.v1.train.Optimizer`; gets `params` if it names it.
        params: The model's params.

    Raises:
        TypeError: If it returned something else.
    """
    made = optimizer_fn(**arguments(optimizer_fn, {"params": params}))
    made = tower_optimizer.required(made, "optimizer_fn")
    return made.optimizer if isinstance(made, tower_optimizer.TowerOptimizer) else made


def arguments(function: types.Function, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of some arguments that a function names and has not been given."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin that hides its signature
        return {}
    bound = getattr(function, "keywords", {})  # of a functools.partial
    return {name: one for name, one in offered.items() if name in names and name not in bound}


def forget_unused(specs: Sequence[types.EstimatorSpec], runs: Sequence[types.Fetch]) -> None:
    """Takes variables that the model_fn's own optimizers have made out of all collections.

    They are not trained, are made behind the loss, and are used by the model_fn's own step at most.

    Args:
        specs: What the model_fn returned, once or for each tower; its train_op is not run.
        runs: What is run in its place.
    """
    summaries = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
    metrics = list((specs[0].eval_metric_ops or {}).values())
    held = [specs[0].loss, specs[0].predictions, metrics]
    leaves = tf.nest.flatten(held, expand_composites=True)
    kept = [leaf for leaf in leaves if isinstance(leaf, (tf.Tensor, tf.Operation))]
    running = operations.executed_by([*runs, *kept, *summaries])
    replaced = operations.executed_by([spec.train_op for spec in specs]) - running
    unused = [
        variable
        for variable in tf1.global_variables()
        if not variable.trainable
        and variable.op._id > specs[0].loss.op._id
        and _is_forgotten(variable, replaced, running)
    ]
    graph = tf1.get_default_graph()
    for key in graph.get_all_collection_keys() if unused else ():
        isolation.remove(graph, key, unused)


def _is_forgotten(
    variable: tf.Variable, replaced: set[tf.Operation], running: set[tf.Operation]
) -> bool:
    """Whether nothing uses a variable but the step that is replaced, and what initializes it."""
    members = operations.copies_of(variable)
    users = {user for member in members for user in member.op.outputs[0].consumers()}
    others = {user for user in users - replaced if user.type not in _OF_EVERY_VARIABLE}
    is_read = any(t.consumers() for user in users - replaced for t in user.outputs)
    return not users & running and not others and not is_read
