"""The optimizer step of one tower.

The step itself is in `step`: the towers meet, their gradients are reduced, and the
optimizer updates every copy of every variable, then the non-slot variables and the
global step, once. An optimizer inside a model_fn and one made by `optimizer_fn` take
this same way.
"""

import contextlib
import inspect
from collections.abc import Iterator, Sequence

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, operations
from replicate.strategy import context
from replicate.training import step as steps
from replicate.training import tower_optimizer

# What each variable has: its initializer, and a value and a truth that sessions ask for.
_OF_EVERY_VARIABLE = (
    "Assign",
    "AssignVariableOp",
    "ReadVariableOp",
    "Identity",
    "VarIsInitializedOp",
)


class OptimizerFactory:
    """Makes the optimizer once, in whichever tower asks first.

    Args:
        optimizer_fn: Returns a `tf.compat.v1.train.Optimizer`; gets `params` if it names it.
            None: there is none to make.
        params: The model's params.

    Attributes:
        made: The optimizer, once a tower has asked.
    """

    def __init__(self, optimizer_fn: types.OptimizerFn | None, params: object):
        self._optimizer_fn = optimizer_fn
        self._params = params
        self.made: tf1.train.Optimizer | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is an optimizer to make."""
        return self._optimizer_fn is not None

    def get(self) -> tf1.train.Optimizer:
        """Returns the optimizer.

        Raises:
            RuntimeError: If there is none to make.
            TypeError: If `optimizer_fn` returned something else.
        """
        if self._optimizer_fn is None:
            raise RuntimeError("The model_fn uses its own optimizers; no optimizer_fn was given.")
        if self.made is None:
            made = self._optimizer_fn(**arguments(self._optimizer_fn, self._params))
            made = tower_optimizer.required(made, "optimizer_fn")
            if isinstance(made, tower_optimizer.TowerOptimizer):
                made = made.optimizer
            self.made = made
        return self.made

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Leaves out the steps of optimizers that a model_fn makes beside this one, if given."""
        mode = context.current()
        if self.is_given:
            share = context.required_share()._replace(step=steps.LeftOut())
            mode = context.required()._replace(share=share)
        with context.entered(mode):
            yield


def arguments(optimizer_fn: types.OptimizerFn, params: object) -> dict[str, object]:
    """Returns what an optimizer_fn is called with: params, if it names them."""
    try:
        names = inspect.signature(optimizer_fn).parameters
    except (TypeError, ValueError):  # a builtin that hides its signature
        return {}
    return {"params": params} if "params" in names else {}


def forget_unused(specs: Sequence[types.EstimatorSpec], runs: Sequence[types.Fetch]) -> None:
    """Takes variables that the model_fn's own optimizers have made out of all collections.

    They are not trained, are made behind the loss, and are used by the model_fn's own step at most.

    Args:
        specs: What the model_fn returned, once or for each tower; its train_op is not run.
        runs: What is run in its place.
    """
    summaries = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
    running = operations.executed_by([*runs, *_tensors(specs[0]), *summaries])
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


def _tensors(spec: types.EstimatorSpec) -> list[types.Fetch]:
    """Returns what a spec has beside its step."""
    metrics = list((spec.eval_metric_ops or {}).values())
    leaves = tf.nest.flatten([spec.loss, spec.predictions, metrics], expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, (tf.Tensor, tf.Operation))]


def _is_forgotten(
    variable: tf.Variable, replaced: set[tf.Operation], running: set[tf.Operation]
) -> bool:
    """Whether nothing uses a variable but the step that is replaced, and what initializes it."""
    members = operations.copies_of(variable)
    users = {user for member in members for user in member.op.outputs[0].consumers()}
    others = {user for user in users - replaced if user.type not in _OF_EVERY_VARIABLE}
    is_read = any(t.consumers() for user in users - replaced for t in user.outputs)
    return not users & running and not others and not is_read


def minimize(optimizer: tf1.train.Optimizer, loss: tf.Tensor) -> tf.Operation:
    """Builds a tower's part of the optimizer step; all towers meet in it.

    The optimizer's `apply_gradients` runs once, on the reduced gradients.

    Args:
        optimizer: The optimizer, the same one in every tower.
        loss: This tower's loss, of shape [].

    Returns:
        The operation that reduces all towers' gradients and updates the model once.

    Raises:
        ValueError: If no variable has a gradient.
    """
    pairs = optimizer.compute_gradients(loss)
    if all(gradient is None for gradient, _ in pairs):
        raise ValueError(
            "The loss must depend on a trainable variable: none of "
            f"{[variable.name for _, variable in pairs]} has a gradient of {loss.name}. Check "
            "the model_fn for operations without gradients."
        )
    global_step = tf1.train.get_or_create_global_step()
    return context.required_share().step.apply_gradients(optimizer, pairs, global_step)
