"""`TowerOptimizer`: marks the optimizers of a model_fn, as code of old may do."""

from collections.abc import Callable
from typing import Any

from replicate import types
from replicate.compat import keras
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import context
from replicate.training import step


def required(made: object, giver: str) -> tf1.train.Optimizer:
    """Returns an optimizer of version 1; refuses all else.

    Args:
        made: What should be one.
        giver: What has returned it.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(made, tf1.train.Optimizer):
        return made
    advice = "Return an instance, such as tf.compat.v1.train.AdamOptimizer(0.001)."
    if keras.is_of("Optimizer", made):
        advice += (
            " An optimizer of Keras goes into the model_fn; only the legacy ones of Keras 2 work, "
            "such as tf_keras.optimizers.legacy.Adam."
        )
    raise TypeError(f"{giver} must return a tf.compat.v1.train.Optimizer; got {made!r}. {advice}")


class TowerOptimizer(tf1.train.Optimizer):
    """Reduces the towers' gradients, and applies the wrapped optimizer once.

    Optimizers in a replicated model_fn do so without it. With it, the wrapped optimizer's
    whole `apply_gradients` runs once, on the reduced gradients, as on one device: needed
    for `SyncReplicasOptimizer`, and for optimizers that clip or check in there. Where
    nothing is replicated, and in all else, it is the wrapped optimizer.

    Args:
        optimizer_or_fn: A `tf.compat.v1.train.Optimizer`, or what returns one when called
            without arguments: a class, a partial, a function. Called on first use, once.
    """

    def __init__(self, optimizer_or_fn: tf1.train.Optimizer | Callable[[], tf1.train.Optimizer]):
        if keras.is_of("Optimizer", optimizer_or_fn):
            required(optimizer_or_fn, "TowerOptimizer's function")
        if not isinstance(optimizer_or_fn, tf1.train.Optimizer) and not callable(optimizer_or_fn):
            raise TypeError(
                "TowerOptimizer takes a tf.compat.v1.train.Optimizer, or a function that returns "
                f"one; got {type(optimizer_or_fn).__name__}: {optimizer_or_fn!r}. Write "
                "TowerOptimizer(tf.compat.v1.train.AdamOptimizer(0.001))."
            )
        super().__init__(use_locking=False, name="TowerOptimizer")
        self._optimizer_or_fn = optimizer_or_fn

    @property
    def optimizer(self) -> tf1.train.Optimizer:
        """The wrapped optimizer.

        Raises:
            TypeError: If the function returned something else.
        """
        if not isinstance(self._optimizer_or_fn, tf1.train.Optimizer):
            self._optimizer_or_fn = required(self._optimizer_or_fn(), "TowerOptimizer's function")
        return self._optimizer_or_fn

    def compute_gradients(
        self, loss: tf.Tensor | Callable[[], tf.Tensor], *args: Any, **kwargs: Any
    ) -> list[tuple[types.Gradient | None, tf.Variable]]:
        """See base class. In a tower, they are that tower's own."""
        return self.optimizer.compute_gradients(loss, *args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: context.Pairs,
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """See base class. In a tower, the towers meet; the update happens once.

        Raises:
            RuntimeError: If called across towers.
            TowerMismatchError: If the towers do not bring the same variables.
        """
        mode = context.current()
        if mode is None or mode.strategy.is_default or mode.copies is not None:
            return self.optimizer.apply_gradients(grads_and_vars, global_step, name)
        meeting = step.GradientStep() if mode.share is None else mode.share.step
        return meeting.apply_gradients(self.optimizer, grads_and_vars, global_step, name)

    def get_name(self) -> str:
        """See base class."""
        return self.optimizer.get_name()

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """See base class."""
        return self.optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """See base class."""
        return self.optimizer.get_slot_names()

    def variables(self) -> list[tf.Variable]:
        """See base class."""
        return self.optimizer.variables()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)
