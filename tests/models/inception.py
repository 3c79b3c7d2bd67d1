"""A small Inception (Szegedy et al. 2015), as code for slim writes it.

Losses, penalties and updates of batch normalisation are in collections, found by whoever trains.
Gradients are clipped and multiplied one by one; the train_op is the loss, checked for what is not
finite, and averages of the weights follow it.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

SIDE, CLASSES = 5, 3


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of pictures, of which the last is not full."""
    numbers = np.random.RandomState(12)
    pictures = numbers.uniform(-1, 1, [rows, SIDE, SIDE, 2]).astype(np.float32)
    labels = numbers.randint(0, CLASSES, rows)
    return tf.data.Dataset.from_tensor_slices((pictures, labels)).batch(batch_size).repeat(2)


def penalty(weights):
    return 4e-3 * tf.nn.l2_loss(weights)


def conv2d(x, filters, size, scope, is_training):
    """A convolution with a penalty, batch normalisation and a summary of what is 0."""
    with tf1.variable_scope(scope):
        shape = [size, size, x.shape[-1], filters]
        weights = tf1.get_variable(
            "weights", shape, initializer=exactness.start, regularizer=penalty
        )
        x = tf.nn.conv2d(x, weights, 1, "SAME")
        x = tf1.layers.batch_normalization(
            x, momentum=0.9, epsilon=1e-3, training=is_training, fused=True, name="BatchNorm"
        )
        x = tf.nn.relu(x)
        tf1.summary.scalar("sparsity", tf.nn.zero_fraction(x))
        return x


def block(x, is_training):
    """Four branches side by side."""
    with tf1.variable_scope("Mixed"):
        small = conv2d(x, 2, 1, "Branch_0", is_training)
        wide = conv2d(conv2d(x, 2, 1, "Branch_1a", is_training), 2, 3, "Branch_1b", is_training)
        mean = conv2d(tf.nn.avg_pool2d(x, 3, 1, "SAME"), 2, 1, "Branch_2", is_training)
        largest = tf.nn.max_pool2d(x, 3, 1, "SAME")
        return tf.concat([small, wide, mean, largest], 3)


def logits_of(x, scope, is_training):
    """[B, CLASSES]: of the mean of all places, of which some are dropped."""
    with tf1.variable_scope(scope):
        x = tf1.layers.dropout(tf.reduce_mean(x, [1, 2]), 0.2, training=is_training)
        return tf1.layers.dense(x, CLASSES, kernel_initializer=exactness.start, name="Logits")


def create_train_op(total_loss):
    """Returns the loss, behind the step that it makes."""
    step = tf1.train.get_or_create_global_step()
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        total_loss = tf.identity(total_loss)
    rate = tf1.train.exponential_decay(0.05, step, 2, 0.94, staircase=True)
    optimizer = tf1.train.RMSPropOptimizer(rate, momentum=0.9, epsilon=1.0)
    pairs = []
    for gradient, weight in optimizer.compute_gradients(total_loss):
        multiplied = gradient * (10.0 if "AuxLogits" in weight.name else 1.0)
        pairs.append((tf.clip_by_norm(multiplied, 0.5), weight))
    stepped = optimizer.apply_gradients(pairs, step)
    average = tf1.train.ExponentialMovingAverage(0.9, step)
    with tf1.control_dependencies([stepped]):
        averaged = average.apply(tf1.trainable_variables())
    with tf1.control_dependencies([averaged]):
        return tf.debugging.check_numerics(total_loss, "the loss is not finite")


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    is_training = mode == "train"
    x = conv2d(features, 3, 3, "Conv2d_1a", is_training)
    aux = logits_of(x, "AuxLogits", is_training)
    logits = logits_of(block(x, is_training), "Logits", is_training)
    predictions = {"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions=predictions)
    targets = tf.one_hot(labels, CLASSES)
    tf1.losses.softmax_cross_entropy(targets, aux, weights=0.4, label_smoothing=0.1)
    tf1.losses.softmax_cross_entropy(targets, logits, label_smoothing=0.1)
    total_loss = tf1.losses.get_total_loss()
    if is_training:
        train_op = create_train_op(total_loss)
        return estimator.EstimatorSpec(mode, loss=total_loss, train_op=train_op)
    found = {
        "Accuracy": tf1.metrics.accuracy(labels, predictions["classes"]),
        "Recall_2": tf1.metrics.recall_at_k(labels[:, None], logits, 2),
    }
    return estimator.EstimatorSpec(mode, predictions, total_loss, eval_metric_ops=found)
