"""The table: every model that several devices must train as one does, by name."""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

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
    parts,
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
        statics: With which static batches (True, False) it can be built.
    """

    step: Callable
    optimizer_fn: Callable | None = None
    tolerance: tuple[float, float] = running.TOLERANCE
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    statics: Sequence[bool] = (True, False)

    def __call__(self, features, labels, mode):
        """The model_fn."""
        found = self.step(features, labels, losses.Weights())
        loss, train_op = found if isinstance(found, tuple) else (found, tf1.no_op())
        return exactness.spec_of(mode, loss, train_op=train_op)

    def fits(self, setting: running.Setting) -> bool:
        """Whether it can be built in a setting."""
        return setting.is_static in self.statics

    def require_exact(self, setting: running.Setting) -> None:
        """Requires K devices to be one device, and losses to be numbers."""
        options = {"tolerance": self.tolerance, **self.options}
        found = running.require_exact(self, setting, optimizer_fn=self.optimizer_fn, **options)
        assert np.isfinite([fetched["loss"] for fetched in found.fetched]).all()


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


def clip(loss):
    """As BERT's code does; the norm is below that of every gradient, so that it binds."""
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1e-3)
    return running.apply(zip(gradients, trained, strict=True))


def with_keras(loss):
    optimizer = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.5)
    optimizer.iterations = tf1.train.get_global_step()
    return tf1.group(optimizer.get_updates(loss, tf1.trainable_variables()))


WAYS = (
    None,  # an optimizer_fn
    lambda loss: running.momentum().minimize(loss, tf1.train.get_global_step()),
    clip,
    with_keras,
)


def stepping(case: losses.Case, way: Callable | None) -> Model:
    """A model of a loss, whose step is made inside, or by an optimizer_fn (None)."""

    def step(f, y, v):
        loss = case.loss(f, y, v)
        return loss if way is None else (loss, way(loss))

    # Reassociation alone. TensorFlow computes some losses in float32, whatever it is given.
    tolerance = running.TOLERANCE if case.dtype == np.float64 else running.SINGLE
    optimizer_fn = running.adam if way is None else None
    return Model(step, optimizer_fn, tolerance, statics=case.statics)


NETWORKS = models_of(networks)
STEPS = models_of(gradients) | models_of(writes) | optimizers.STEPS
MEETINGS = models_of(meetings) | {name: over(network) for name, network in NETWORKS.items()}
PARTS = models_of(parts)
del PARTS["made_in_functions_and_trained"]  # which makes its step
AS_ONE_DEVICE = {"random_numbers": "one_device"}
MODELS = {
    **{name: Model(step) for name, step in STEPS.items()},
    **{name: Model(loss, running.momentum) for name, loss in MEETINGS.items()},
    **{
        name: Model(loss, running.momentum, running.SINGLE, AS_ONE_DEVICE)
        for name, loss in models_of(idioms).items()
    },
    **{
        f"{name}, {kind}": stepping(losses.Case(loss), way)
        for name, loss in PARTS.items()
        for kind, way in (("with an optimizer_fn", None), ("with its own optimizer", WAYS[1]))
    },
    "made in functions and trained": Model(parts.made_in_functions_and_trained),
    **{
        f"an optimizer_fn's that {name}": Model(optimizers.loss, optimizer_fn)
        for name, optimizer_fn in optimizers.OPTIMIZERS.items()
    },
}
# Nobody says whether it is a mean or a sum.
LOSSES = {
    name: stepping(case, WAYS[(i + i // len(WAYS)) % len(WAYS)])
    for i, (name, case) in enumerate(CASES.items())
}
# Some of each kind, and those that ask the strategy in force.
QUICK_LOSSES = {
    *("sum", "sum by params", "learned task weights", "quotient", "mean of kept tokens"),
    *("perplexity of kept tokens", "sparsity", "a penalty of all weights of layers"),
    *("adversarial unit length", "two inner steps", "gradient penalty of a loop"),
    *("tf.losses collected", "a scaled penalty", *penalties.REDUCED),
    *(name for name in CASES if name.startswith("Keras ")),
    *(name for name in libraries.COUNTS if "replicas" in name or "average" in name),
}
FEW = [setting for setting in running.SETTINGS if setting.devices < 8]


def in_turn(models: dict, settings: Sequence[running.Setting], turn: int = 0) -> Iterable:
    """Yields parameters: each model in the setting whose turn it is; after the first one thorough.

    Args:
        models: The models by name.
        settings: The settings.
        turn: How often the models had a turn.
    """
    for i, (name, model) in enumerate(models.items()):
        fitting = [setting for setting in settings if model.fits(setting)]
        setting = fitting[(i + 3 * turn) % len(fitting)]
        marks = [pytest.mark.thorough] if turn else []
        yield pytest.param(model, setting, marks=marks, id=f"{name}-{setting}")


def in_two_turns(models: dict, thorough: Collection[str]) -> Iterable:
    """Yields parameters: each model in two settings, in quick tests in one, of few devices."""
    quick = {name: model for name, model in models.items() if name not in thorough}
    yield from in_turn(quick, FEW)
    yield from in_turn({name: models[name] for name in thorough}, FEW, 2)
    yield from in_turn(models, running.SETTINGS, 1)
