"""What a model of the corpus is, and the batches that it is given."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses

MODELS: dict[str, "Model"] = {}
EXACT = (1e-9, 1e-11)  # reassociation alone
SINGLE = (2e-4, 2e-5)  # in float32
F64 = tf.float64


def batch(rows: int, step: int, is_static: bool) -> tuple[dict, dict]:
    """Returns features and labels: those of the law's losses, pictures, ids, bags of ids."""
    length = 4 if is_static else 3 + step % 3
    features, labels = losses.batch(rows, step, length)
    numbers = np.random.RandomState(1000 + 10 * rows + step)
    bags = numbers.randint(0, 6, [rows, 3])
    bags[:, 1:][numbers.uniform(size=[rows, 2]) < 0.5] = -1
    features |= {
        "images": numbers.uniform(-1, 1, [rows, 6, 6, 2]),
        "ids": numbers.randint(0, 6, [rows, 2]),
        "bags": bags,
        "other": numbers.uniform(-1, 1, [rows, losses.WIDTH]),
        "lengths": np.asarray(features["is_token"].sum(1), np.int32),
        "words": numbers.choice(["a", "b", "c", "d"], [rows, 2]).astype(object),
        "group": numbers.randint(0, 3, rows),
    }
    return features, labels


class Model(NamedTuple):
    """A model.

    Attributes:
        build: From features and labels to a loss, other tensors by name and, where the model
            trains by itself, what makes a step: an operation, or several that are run in turn.
        batch: From a number of rows, a step and whether its size is known to features and labels.
        optimizer: Makes the optimizer, where `build` gives no step.
        tolerance: Relative and absolute.
        statics: With which static batches (True, False) it can be built.
        sizes: The numbers of rows that it can be given.
        split: The kinds of operations that must be split, all of those before the gradients.
        gradients: The kinds of operations of gradients that must be split.
    """

    build: Callable[[Any, Any], tuple]
    batch: Callable = batch
    optimizer: Callable = lambda: tf1.train.GradientDescentOptimizer(0.1)
    tolerance: tuple[float, float] = EXACT
    statics: Sequence[bool] = (False, True)
    sizes: Sequence[int] = (7, 2, 1)
    split: Sequence[str] = ()
    gradients: Sequence[str] = ()


def model(function: Callable | None = None, *, to: dict = MODELS, **options) -> Callable:
    """Adds a function to the corpus, or to other models, by its name."""
    if function is None:
        return lambda function: model(function, to=to, **options)
    to[function.__name__] = Model(function, **options)
    return function


def adam():
    return tf1.train.AdamOptimizer(0.05, epsilon=0.01)


def weight(name: str, *shape: int) -> tf.Tensor:
    """Returns a new variable's value."""
    return tf1.get_variable(name, shape, F64, exactness.start).read_value()


def hidden(x: tf.Tensor, width: int = 4, name: str = "hidden") -> tf.Tensor:
    """A layer: [..., D] to [..., width]."""
    return tf.tanh(tf.tensordot(x, weight(name, int(x.shape[-1]), width), 1))


def count(x: tf.Tensor) -> tf.Tensor:
    """The number of rows."""
    return tf.cast(tf.shape(x)[0], F64)
