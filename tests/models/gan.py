"""A GAN (Goodfellow et al. 2014) that trains in hooks, as libraries for Estimators have it.

The train_op only counts; what trains each network is run by a hook of its own, with a batch of
its own. What a generator is given comes with the batch, so that every run draws the same.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

NOISE, POINTS = 3, 4


class TrainInTurn(tf1.train.SessionRunHook):
    """Runs an operation some times ahead of each step."""

    def __init__(self, train_op, times: int = 1):
        self._train_op = train_op
        self._times = times

    def before_run(self, run_context):
        for _ in range(self._times):
            run_context.session.run(self._train_op)


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of which the last is not full; noise is the features, what is real the labels."""
    numbers = np.random.RandomState(6)
    noise = numbers.normal(size=[rows, NOISE]).astype(np.float32)
    real = numbers.uniform(-1, 1, [rows, POINTS]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((noise, real)).batch(batch_size).repeat(9)


def dense(x, width, name, activation=None):
    return tf1.layers.dense(x, width, activation, name=name, kernel_initializer=exactness.start)


def generator(noise):
    with tf1.variable_scope("Generator"):
        return dense(dense(noise, 5, "hidden", tf.nn.leaky_relu), POINTS, "out", tf.tanh)


def discriminator(points):
    with tf1.variable_scope("Discriminator", reuse=tf1.AUTO_REUSE):
        return dense(dense(points, 6, "hidden", tf.nn.leaky_relu), 1, "out")


def cross_entropy(logits, is_real):
    labels = tf.ones_like(logits) * is_real
    return tf1.losses.sigmoid_cross_entropy(labels, logits)


def trained(loss, scope):
    """Returns the operation that trains a network by its loss."""
    variables = tf1.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, scope)
    return tf1.train.AdamOptimizer(0.02, beta1=0.5, epsilon=0.01, name=f"{scope}Adam").minimize(
        loss, var_list=variables
    )


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    made = generator(features)
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions={"made": made})
    of_made, of_real = discriminator(made), discriminator(labels)
    generator_loss = cross_entropy(of_made, 1.0)
    discriminator_loss = cross_entropy(of_real, 0.9) + cross_entropy(of_made, 0.0)
    loss = generator_loss + discriminator_loss
    if mode == "eval":
        found = {
            "generator_loss": tf1.metrics.mean(generator_loss),
            "discriminator_loss": tf1.metrics.mean(discriminator_loss),
            "fooled": tf1.metrics.mean(tf.cast(of_made > 0.0, tf.float32)),
        }
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
    hooks = [
        TrainInTurn(trained(discriminator_loss, "Discriminator"), times=2),
        TrainInTurn(trained(generator_loss, "Generator")),
    ]
    count = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=count.op, training_hooks=hooks)
