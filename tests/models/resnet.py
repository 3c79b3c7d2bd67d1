"""A small ResNet (He et al. 2016) that is evaluated with averages of its weights.

As code for image classification writes it: updates of batch normalisation ahead of the step, an
average of all weights and statistics behind it, and a Saver in a Scaffold that restores the
averages in place of what was trained.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

SIDE, CLASSES = 4, 3


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of pictures, of which the last is not full."""
    numbers = np.random.RandomState(7)
    pictures = numbers.uniform(-1, 1, [rows, SIDE, SIDE, 2]).astype(np.float32)
    labels = numbers.randint(0, CLASSES, rows)
    return tf.data.Dataset.from_tensor_slices((pictures, labels)).batch(batch_size).repeat(2)


def normalized(x, is_training, name):
    """Normalises by the statistics of all rows and places."""
    layer = tf.keras.layers.BatchNormalization(momentum=0.9, name=name)
    x = layer(x, training=is_training)
    for update in layer.updates:
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return x


def convolved(x, filters, size, name, strides=1):
    return tf1.layers.conv2d(
        x,
        filters,
        size,
        strides,
        padding="same",
        use_bias=False,
        name=name,
        kernel_initializer=exactness.start,
    )


def logits_of(pictures, is_training):
    """Two layers, the second with a way around it, and the mean of all places."""
    x = tf.nn.relu(normalized(convolved(pictures, 3, 3, "stem"), is_training, "stem_bn"))
    around = convolved(x, 4, 1, "projection", strides=2)
    x = normalized(convolved(x, 4, 3, "block", strides=2), is_training, "block_bn")
    x = tf.reduce_mean(tf.nn.relu(x + around), [1, 2])
    return tf1.layers.dense(x, CLASSES, name="logits", kernel_initializer=exactness.start)


def averaged_variables():
    """Returns what is averaged: all weights, and the statistics of the batches."""
    statistics = [v for v in tf1.global_variables() if "moving_" in v.name]
    return tf1.trainable_variables() + statistics


def train_op_of(loss, average):
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.exponential_decay(0.1, step, 2, 0.9, staircase=True)
    optimizer = tf1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True)
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        stepped = optimizer.minimize(loss, step)
    with tf1.control_dependencies([stepped]):
        return average.apply(averaged_variables())


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    logits = logits_of(features, mode == "train")
    average = tf1.train.ExponentialMovingAverage(0.5)
    scaffold = None
    if mode != "train":
        restored = average.variables_to_restore(averaged_variables())
        scaffold = tf1.train.Scaffold(saver=tf1.train.Saver(restored))
    predictions = {"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions=predictions, scaffold=scaffold)
    targets = tf.one_hot(labels, CLASSES)
    loss = tf1.losses.softmax_cross_entropy(targets, logits, label_smoothing=0.1)
    decayed = [v for v in tf1.trainable_variables() if "bn" not in v.name]
    loss += 0.001 * tf.add_n([tf.nn.l2_loss(v) for v in decayed])
    if mode == "train":
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op_of(loss, average))
    found = {
        "accuracy": tf1.metrics.accuracy(labels, predictions["classes"]),
        "top_2": tf1.metrics.mean(tf.cast(tf.nn.in_top_k(labels, logits, 2), tf.float32)),
    }
    return estimator.EstimatorSpec(
        mode, predictions, loss, eval_metric_ops=found, scaffold=scaffold
    )
