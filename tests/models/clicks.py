"""Whether an advertisement is clicked: linear columns beside layers, as code of 2018 writes it.

Texts in hashed, listed and crossed columns; bags of words of any length; numbers in buckets; two
optimizers, each of its own part of the variables.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

PLACES, SCREENS = ["lima", "oslo", "quito", "rome"], ["large", "small"]


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of which the last is not full."""
    numbers = np.random.RandomState(17)
    features = {
        "reader": numbers.choice([f"reader {n}" for n in range(9)], rows),
        "place": numbers.choice([*PLACES, ""], rows),
        "screen": numbers.choice(SCREENS, rows),
        "words": numbers.choice(["", "red", "blue", "green"], [rows, 3]),
        "hour": numbers.uniform(0, 24, rows).astype(np.float32),
    }
    clicks = numbers.randint(0, 2, rows)
    return tf.data.Dataset.from_tensor_slices((features, clicks)).batch(batch_size).repeat(2)


def columns() -> tuple[list, list]:
    """Returns the columns with linear weights, and those below the layers."""
    column = tf.feature_column
    reader = column.categorical_column_with_hash_bucket("reader", 100)
    words = column.categorical_column_with_hash_bucket("words", 50)
    place = column.categorical_column_with_vocabulary_list("place", PLACES, num_oov_buckets=1)
    screen = column.categorical_column_with_vocabulary_list("screen", SCREENS)
    hour = column.numeric_column("hour", normalizer_fn=tf.math.log1p)
    times = column.bucketized_column(column.numeric_column("hour"), [6.0, 12.0, 18.0])
    crossed = column.crossed_column(["place", "screen"], 30)
    start = tf1.constant_initializer(0.1)
    embedded = [
        column.embedding_column(each, 4, combiner, initializer=start)
        for each, combiner in ((reader, "mean"), (words, "sqrtn"), (times, "sum"))
    ]
    wide = [reader, words, place, screen, times, crossed]
    return wide, [*embedded, column.indicator_column(place), column.indicator_column(screen), hour]


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    wide, deep = columns()
    with tf1.variable_scope("wide"):
        logits = tf1.feature_column.linear_model(features, wide)
    with tf1.variable_scope("deep"):
        x = tf1.feature_column.input_layer(features, deep)
        for units in (8, 4):
            x = tf1.layers.dense(x, units, tf.nn.relu, kernel_initializer=exactness.start)
            x = tf1.layers.batch_normalization(x, training=mode == "train")
        logits += tf1.layers.dense(x, 1, kernel_initializer=exactness.start)
    chances = tf.sigmoid(logits)
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions={"chance": chances[:, 0]})
    labels = tf.cast(labels[:, None], tf.float32)
    loss = tf1.losses.sigmoid_cross_entropy(labels, logits)
    if mode == "eval":
        found = {"auc": tf1.metrics.auc(labels, chances), "loss": tf1.metrics.mean(loss)}
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
    step = tf1.train.get_or_create_global_step()
    with tf.control_dependencies(tf1.get_collection("update_ops")):
        gradients = tf1.train.FtrlOptimizer(0.05).minimize(
            loss, var_list=tf1.trainable_variables("wide")
        )
        rest = tf1.train.AdagradOptimizer(0.05).minimize(
            loss, step, var_list=tf1.trainable_variables("deep")
        )
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(gradients, rest))
