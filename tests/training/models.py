"""A model with a dense and a sparse gradient, and batches that do not divide."""

import numpy as np

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1

ROWS = 11  # divides by neither 2 nor 4: shards differ by a row
_random = np.random.RandomState(7)


def batch(rows=ROWS):
    """Features x and ids, and labels of shape [rows, 1]."""
    features = {
        "x": _random.randn(rows, 3).astype(np.float32),
        "ids": _random.randint(0, 6, rows),
    }
    return features, _random.randn(rows, 1).astype(np.float32)


BATCHES = [batch() for _ in range(3)]


def weights():
    """Returns w and the table e."""
    w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
    e = tf1.get_variable("e", initializer=tf.constant([[0.1 * i - 0.2] for i in range(6)]))
    return w, e


def squares(features, labels):
    """Each row's squared error of x w + e[ids]."""
    w, e = weights()
    return tf.square(features["x"] @ w + tf.nn.embedding_lookup(e, features["ids"]) - labels)


def trains_with(train_op_of, loss_of=lambda *given: tf.reduce_mean(squares(*given))):
    """A model_fn whose train_op is made of its loss."""

    def model(features, labels, mode):
        loss = loss_of(features, labels)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op_of(loss))

    return model


def split(model, devices=2, **options):
    """The model_fn on that many logical CPU devices."""
    return model_fn.replicate_model_fn(model, devices=devices, **options)


# TensorFlow's own.
OPTIMIZERS = {
    "adadelta": lambda: tf1.train.AdadeltaOptimizer(1.0, epsilon=1e-3),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adagrad_da": lambda: tf1.train.AdagradDAOptimizer(0.1, tf1.train.get_global_step()),
    "adam": lambda: tf1.train.AdamOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
    "gradient_descent": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "proximal_adagrad": lambda: tf1.train.ProximalAdagradOptimizer(
        0.1, l2_regularization_strength=0.01
    ),
    "proximal_gradient_descent": lambda: tf1.train.ProximalGradientDescentOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.05, momentum=0.5),
    "rmsprop_centered": lambda: tf1.train.RMSPropOptimizer(0.05, centered=True),
}
