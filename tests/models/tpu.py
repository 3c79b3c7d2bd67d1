"""A model written for TPUs, which runs on anything: TPUEstimatorSpec, a host call, eval_metrics.

Batches have a known size, as TPUs want them; what the host writes down is fed by tensors of
one row, and metrics are made by a function of tensors.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

WIDTH, CLASSES = 4, 3


def input_fn(params) -> tf.data.Dataset:
    """Full batches only, of `params["batch_size"]` rows."""
    numbers = np.random.RandomState(8)
    features = {"x": numbers.uniform(-1, 1, [21, WIDTH]).astype(np.float32)}
    labels = numbers.randint(0, CLASSES, 21).astype(np.int32)
    given = tf.data.Dataset.from_tensor_slices((features, labels))
    return given.batch(params["batch_size"], drop_remainder=True).repeat(2)


def written_by_host(directory):
    """Returns the function that writes down what it is fed, each of one row."""

    def host_call_fn(step, loss, rate):
        with tf.summary.create_file_writer(directory, max_queue=1).as_default():
            with tf.summary.record_if(True):
                tf.summary.write("host/loss", loss[0], step=step[0])
                tf.summary.write("host/rate", rate[0], step=step[0])
                return tf1.summary.all_v2_summary_ops()

    return host_call_fn


def metric_fn(labels, logits, losses):
    """Returns the metrics, as the host makes them of all rows."""
    return {
        "accuracy": tf1.metrics.accuracy(labels, tf.argmax(logits, 1)),
        "recall_at_2": tf1.metrics.recall_at_k(tf.cast(labels, tf.int64), logits, 2),
        "mean_loss": tf1.metrics.mean(losses),
    }


def model_fn(features, labels, mode, params):
    """A model_fn for a TPUEstimator; `params` holds the batch size, and where the host writes."""
    spec = estimator.v1.tpu.TPUEstimatorSpec
    x = tf1.layers.dense(features["x"], 6, tf.nn.relu, kernel_initializer=exactness.start)
    logits = tf1.layers.dense(x, CLASSES, kernel_initializer=exactness.start)
    if mode == "infer":
        return spec(mode, predictions={"probabilities": tf.nn.softmax(logits)})
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_sum(losses) / params["batch_size"]
    if mode == "eval":
        return spec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits, losses]))
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.polynomial_decay(0.1, step, 10)
    train_op = tf1.train.RMSPropOptimizer(rate, momentum=0.9, epsilon=0.1).minimize(loss, step)
    fed = [tf.reshape(tensor, [1]) for tensor in (step, loss, rate)]
    return spec(
        mode, loss=loss, train_op=train_op, host_call=(written_by_host(params["host_dir"]), fed)
    )
