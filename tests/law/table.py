"""The table of the law: every loss, and every model that trains, by name."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import (
    gradients,
    idioms,
    libraries,
    losses,
    meetings,
    networks,
    optimizers,
    penalties,
    running,
    writes,
)

GROUPS = (
    losses.PLAIN,
    losses.MASKS,
    losses.TAILS,
    losses.STATISTICS,
    penalties.PENALTIES,
    penalties.GRADIENTS,
    penalties.REDUCED,
)
CASES = libraries.LIBRARIES | libraries.COUNTS
CASES |= {name: losses.Case(loss) for group in GROUPS for name, loss in group.items()}


class Model(NamedTuple):
    """A model that trains.

    Attributes:
        step: From features, labels and weights to a loss and a train_op, or to a loss alone.
        optimizer_fn: Makes the step of a loss alone.
        tolerance: Relative and absolute.
        options: Of `replicate_model_fn`.
    """

    step: Callable
    optimizer_fn: Callable | None = None
    tolerance: tuple[float, float] = running.TOLERANCE
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it

    def __call__(self, features, labels, mode):
        """The model_fn."""
        found = self.step(features, labels, losses.Weights())
        loss, train_op = found if isinstance(found, tuple) else (found, tf1.no_op())
        return exactness.spec_of(mode, loss, train_op=train_op)

    def require_exact(self, setting: running.Setting) -> exactness.Run:
        """Requires K devices to be one device."""
        options = {"tolerance": self.tolerance, **self.options}
        return running.require_exact(self, setting, optimizer_fn=self.optimizer_fn, **options)


def models_of(module: Any) -> dict[str, Callable]:
    """Returns the models of a module by name: they are its public functions."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__
        if not name.startswith("_")
    }


def over(network: Callable) -> Callable:
    """A loss of what a network makes."""
    return lambda f, y, v: tf.reduce_mean(tf.square(network(f, y) - y["y"]))


NETWORKS = models_of(networks)
STEPS = models_of(gradients) | models_of(writes) | optimizers.STEPS
LOSSES = models_of(meetings) | {name: over(network) for name, network in NETWORKS.items()}
AS_ONE_DEVICE = {"random_numbers": "one_device"}
MODELS = {
    **{name: Model(step) for name, step in STEPS.items()},
    **{name: Model(loss, running.momentum) for name, loss in LOSSES.items()},
    **{
        name: Model(loss, running.momentum, running.SINGLE, AS_ONE_DEVICE)
        for name, loss in models_of(idioms).items()
    },
}
