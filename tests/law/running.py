"""Runs what a model_fn does beside its loss, in double precision, on one device and on towers."""

from collections.abc import Callable

from replicate.compat.tensorflow import tf1
from tests import exactness
from tests.law import losses

STRATEGIES = ("parameter_server", "round_robin", "mirrored")
TOLERANCE = (1e-9, 1e-11)  # reassociation alone
SINGLE = (1e-5, 1e-6)  # in float32


def batches(*sizes: int, is_static: bool = False) -> list:
    """Returns batches of so many rows, padded to lengths of their own where they may be."""
    return [losses.batch(rows, i, 4 if is_static else 3 + i % 3) for i, rows in enumerate(sizes)]


def training(step: Callable) -> Callable:
    """A model_fn that trains.

    Args:
        step: From features, labels and weights to a loss and a train_op.
    """

    def model(features, labels, mode):
        loss, train_op = step(features, labels, losses.Weights())
        return exactness.spec_of(mode, loss, train_op=train_op)

    return model


def require_exact(model: Callable, given: list | None = None, *args, **options) -> exactness.Run:
    """Requires three towers, if not told otherwise, to be one device to `TOLERANCE`."""
    options = {"devices": 3, "tolerance": TOLERANCE, **options}
    if given is None:
        is_static = options.get("is_static", False)
        given = batches(*((5,) * 3 if is_static else (7, 5, 2)), is_static=is_static)
    return exactness.require_one_device(model, given, *args, **options)


def descend():
    return tf1.train.GradientDescentOptimizer(0.1)


def adam():
    return tf1.train.AdamOptimizer(0.05, epsilon=0.01)


def momentum():
    return tf1.train.MomentumOptimizer(0.05, 0.9)


def apply(pairs, optimizer: tf1.train.Optimizer | None = None):
    """Applies pairs of gradients and variables, and counts the step."""
    return (optimizer or adam()).apply_gradients(list(pairs), tf1.train.get_global_step())


def trained(v: losses.Weights) -> list:
    """Returns the variables that are made so far, as a model finds them."""
    assert len(v.variables) == len(tf1.trainable_variables())
    return tf1.trainable_variables()
