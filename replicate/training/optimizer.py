"""The optimizer step of one tower.

The step itself is in `step`: the towers meet, their gradients are reduced, and the
optimizer updates every copy of every variable, then the non-slot variables and the
global step, once. An optimizer inside a model_fn and one made by `optimizer_fn` take
this same way.
"""

import inspect
from collections.abc import Callable
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import context
from replicate.training import tower_optimizer


class OptimizerFactory:
    """Makes the optimizer once, in whichever tower asks first.

    Args:
        optimizer_fn: Returns a `tf.compat.v1.train.Optimizer`; gets `params` if it names it.
        params: The model's params.
    """

    def __init__(self, optimizer_fn: Callable, params: Any):
        self._optimizer_fn = optimizer_fn
        self._params = params
        self._made = None

    def get(self) -> tf1.train.Optimizer:
        """Returns the optimizer.

        Raises:
            TypeError: If `optimizer_fn` returned something else.
        """
        if self._made is None:
            made = self._optimizer_fn(**self._arguments())
            if not isinstance(made, tf1.train.Optimizer):
                raise TypeError(
                    "optimizer_fn must return a tf.compat.v1.train.Optimizer; got "
                    f"{type(made).__name__}: {made!r}. Return an instance, such as "
                    "tf.compat.v1.train.AdamOptimizer(0.001)."
                )
            if isinstance(made, tower_optimizer.TowerOptimizer):
                made = made.optimizer
            self._made = made
        return self._made

    def _arguments(self) -> dict:
        try:
            names = inspect.signature(self._optimizer_fn).parameters
        except (TypeError, ValueError):  # a builtin that hides its signature
            return {}
        return {"params": self._params} if "params" in names else {}


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
