"""A small SimCLR (Chen et al. 2020), as published code pretrains it.

A row holds two views of a picture, one behind the other in its channels. The model sees all views
at once, normalises over them, and contrasts each with all others of the batch. A supervised head
learns beside it from what is encoded, without a gradient back. The optimizer is LARS.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

SIDE, CHANNELS, CLASSES, WIDTH = 4, 2, 3, 4


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of pairs of views, of which the last is not full."""
    numbers = np.random.RandomState(11)
    pictures = numbers.uniform(-1, 1, [rows, SIDE, SIDE, CHANNELS]).astype(np.float32)
    noise = numbers.normal(0, 0.3, [2, *pictures.shape]).astype(np.float32)
    views = np.concatenate([pictures + noise[0], pictures + noise[1]], -1)
    labels = numbers.randint(0, CLASSES, rows)
    return tf.data.Dataset.from_tensor_slices((views, labels)).batch(batch_size).repeat(2)


class Lars(tf1.train.Optimizer):
    """Momentum whose rate follows each weight's norm (You et al. 2017); norms and biases as is."""

    def __init__(self, rate, momentum=0.9, decay=1e-3, trust=0.1):
        super().__init__(False, "LARS")
        self._rate, self._momentum, self._decay, self._trust = rate, momentum, decay, trust

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See base class."""
        stepped = [self._step(*pair) for pair in grads_and_vars if pair[0] is not None]
        return tf.group(*stepped, global_step.assign_add(1), name=name)

    def _step(self, gradient, weight):
        with tf1.variable_scope(weight.op.name, reuse=tf1.AUTO_REUSE):
            zeros = tf1.zeros_initializer()
            speed = tf1.get_variable("Momentum", weight.shape, initializer=zeros, trainable=False)
        rate = self._rate
        if "bn" not in weight.name and "bias" not in weight.name:
            gradient += self._decay * weight
            length, steepness = tf.norm(weight), tf.norm(gradient)
            ratio = self._trust * length / steepness
            rate *= tf.where(length * steepness > 0.0, ratio, tf.ones_like(ratio))
        speed_now = self._momentum * speed + rate * gradient
        return tf.group(speed.assign(speed_now), weight.assign(weight - speed_now))


def normalized(x, is_training, name, center=True):
    return tf1.layers.batch_normalization(
        x, momentum=0.9, training=is_training, center=center, name=name
    )


def dense(x, width, name):
    return tf1.layers.dense(x, width, use_bias=False, kernel_initializer=exactness.start, name=name)


def encoded(pictures, is_training):
    """[B, WIDTH]: what a network of one layer finds anywhere in the pictures."""
    x = tf1.layers.conv2d(
        pictures, WIDTH, 3, use_bias=False, kernel_initializer=exactness.start, name="stem"
    )
    return tf.reduce_mean(tf.nn.relu(normalized(x, is_training, "stem_bn")), [1, 2])


def projected(x, is_training):
    """[B, WIDTH]: what is contrasted, of length 1."""
    with tf1.variable_scope("head_contrastive"):
        x = tf.nn.relu(normalized(dense(x, WIDTH, "nl_0"), is_training, "bn_0"))
        x = normalized(dense(x, WIDTH, "nl_1"), is_training, "bn_1", center=False)
        return tf.math.l2_normalize(x, -1)


def add_contrastive_loss(hidden, temperature=0.5):
    """Adds the losses of both views; returns similarities and where each view's partner is."""
    first, second = tf.split(hidden, 2, 0)
    rows = tf.shape(first)[0]
    partners = tf.one_hot(tf.range(rows), 2 * rows)
    itself = 1e9 * tf.one_hot(tf.range(rows), rows)

    def similar(one, other):
        return tf.matmul(one, other, transpose_b=True) / temperature

    across = similar(first, second)
    seen_by_first = tf.concat([across, similar(first, first) - itself], 1)
    seen_by_second = tf.concat([similar(second, first), similar(second, second) - itself], 1)
    tf1.losses.softmax_cross_entropy(partners, seen_by_first)
    tf1.losses.softmax_cross_entropy(partners, seen_by_second)
    return across, partners


def train_op_of(loss):
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.cosine_decay(0.1, step, 10)
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        return Lars(rate).minimize(loss, step)


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    is_training = mode == "train"
    views = tf.split(features, 2, -1)
    found = encoded(tf.concat(views, 0), is_training)
    with tf1.variable_scope("head_supervised"):
        first = tf.stop_gradient(found)[: tf.shape(features)[0]]
        logits = dense(first, CLASSES, "linear")
    predictions = {"encoded": first, "classes": tf.argmax(logits, 1)}
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions=predictions)
    across, partners = add_contrastive_loss(projected(found, is_training))
    tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = tf1.losses.get_total_loss()
    if is_training:
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op_of(loss))
    rows = tf.shape(across)[0]
    found = {
        "contrastive_top_1": tf1.metrics.accuracy(tf.argmax(partners, 1), tf.argmax(across, 1)),
        "contrastive_mean": tf1.metrics.mean(tf.linalg.diag_part(across)),
        "label_top_1": tf1.metrics.accuracy(labels, predictions["classes"]),
        "rows": tf1.metrics.mean(rows),
    }
    return estimator.EstimatorSpec(mode, predictions, loss, eval_metric_ops=found)
