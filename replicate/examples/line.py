"""A line, y = 3 x: the smallest model, which the guides in docs/ train.

x: float32 [1], 1/64 ... 63/64
y: float32 [1], 3 x
"""

from collections.abc import Mapping

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

_ROWS = 63
_LEARNING_RATE = 0.1
_MOMENTUM = 0.9


def model_fn(
    features: Mapping[str, tf.Tensor], labels: tf.Tensor | None, mode: str
) -> "estimator.EstimatorSpec":
    """Fits a line, by an optimizer of its own.

    Args:
        features: `x`, [batch, 1].
        labels: [batch, 1]; None in PREDICT.
        mode: One of `ModeKeys`.
    """
    y = tf1.layers.dense(features["x"], 1, name="line")
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"y": y})
    loss = tf1.losses.mean_squared_error(labels, y)
    optimizer = tf1.train.MomentumOptimizer(_LEARNING_RATE, _MOMENTUM)
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    metrics = {"error": tf1.metrics.mean_absolute_error(labels, y)}
    return estimator.EstimatorSpec(mode, {"y": y}, loss, train_op, metrics)


def rows() -> tf.data.Dataset:
    """Returns the rows, once and in order."""
    x = np.arange(1, _ROWS + 1, dtype=np.float32)[:, np.newaxis] / (_ROWS + 1)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 3 * x))


def input_fn() -> tf.data.Dataset:
    """Returns the rows for ever, in batches of 7."""
    return rows().shuffle(_ROWS).repeat().batch(7)
