"""Models that know of towers, and what one device makes of each tower's rows."""

import numpy as np

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

STRATEGIES = ["round_robin", "mirrored"]  # variables on several devices, and on each
WIDTH = 3


def batch(rows, seed=0):
    """Features of shape [rows, WIDTH], and labels of [rows, 1], in float64."""
    numbers = np.random.RandomState(seed)
    return numbers.uniform(-1, 1, [rows, WIDTH]), numbers.uniform(-1, 1, [rows, 1])


def shards(given, num_towers):
    """Returns each tower's rows: as many for each, and one more for the first ones."""
    return list(zip(*(np.array_split(array, num_towers) for array in given), strict=True))


def descend():
    return tf1.train.GradientDescentOptimizer(0.5)


def start(shape, dtype=None, partition_info=None):
    del partition_info
    return tf.reshape(tf.cast(tf.range(1, 1 + np.prod(shape, dtype=int)), dtype), shape) / 7


def linear(features, labels, mode, scale=0.0):
    """The mean squared error of a matrix product, and a penalty on the weights."""
    w = tf1.get_variable("w", [WIDTH, 1], tf.float64, start)
    found = features @ w
    loss = scale * tf.nn.l2_loss(w)
    if labels is not None:
        loss += tf.reduce_mean(tf.square(found - labels))
    return exactness.spec_of(mode, loss, {"y": found})


def called(model, optimizer_fn=descend, devices=3, **options):
    """Returns a model that is called for each tower."""
    options = {"tower_building": "call", **options}
    return model_fn.replicate_model_fn(model, optimizer_fn, devices, **options)
