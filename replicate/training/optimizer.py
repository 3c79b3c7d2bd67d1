"""The optimizer step of one tower.

The step itself is in `step`: the towers meet, their gradients are reduced, and the
optimizer updates every copy of every variable, then the non-slot variables and the
global step, once. An optimizer inside a model_fn and one made by `optimizer_fn` take
this same way.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, isolation
from replicate.strategy import context
from replicate.training import tower_optimizer


class OptimizerFactory:
    """Makes the optimizer once, in whichever tower asks first.

    Args:
        optimizer_fn: Returns a `tf.compat.v1.train.Optimizer`; gets `params` if it names it.
        params: The model's params.

    Attributes:
        made: The optimizer; None until a tower has asked.
    """

    def __init__(self, optimizer_fn: Callable, params: Any):
        self._optimizer_fn = optimizer_fn
        self._params = params
        self.made: tf1.train.Optimizer | None = None

    def get(self) -> tf1.train.Optimizer:
        """Returns the optimizer.

        Raises:
            TypeError: If `optimizer_fn` returned something else.
        """
        if self.made is None:
            made = self._optimizer_fn(**self._arguments())
            if not isinstance(made, tf1.train.Optimizer):
                raise TypeError(
                    "optimizer_fn must return a tf.compat.v1.train.Optimizer; got "
                    f"{type(made).__name__}: {made!r}. Return an instance, such as "
                    "tf.compat.v1.train.AdamOptimizer(0.001)."
                )
            if isinstance(made, tower_optimizer.TowerOptimizer):
                made = made.optimizer
            self.made = made
        return self.made

    def _arguments(self) -> dict:
        try:
            names = inspect.signature(self._optimizer_fn).parameters
        except (TypeError, ValueError):  # a builtin that hides its signature
            return {}
        return {"params": self._params} if "params" in names else {}


def leave_out(made: Sequence[Any], running: Sequence[Any]) -> None:
    """Takes variables of an optimizer that is not run out of all collections.

    Args:
        made: What a model_fn made once it had taken gradients.
        running: What a training step runs; what it uses stays.
    """
    executed = ancestry.executed_by(running) if made else set()
    graph = tf1.get_default_graph()
    unused = [
        variable
        for variable in made
        if not any(
            user in executed
            for member in getattr(variable, "members", (variable,))
            for user in member.handle.consumers()
        )
    ]
    for key in graph.get_all_collection_keys() if unused else ():
        isolation.remove(graph, key, unused)


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
    step = context.current().share.joiner.step
    return step.apply_gradients(optimizer, pairs, global_step)
