"""A small DeepFM (Guo et al. 2017), as published code for click rates writes it.

Ids of several fields, with values; tags of which a row has some; a hashed column of
`tf.feature_column`. Two optimizers: Ftrl for what is linear, Adagrad for the rest.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

IDS, TAGS, FIELDS, WIDTH = 9, 6, 3, 4


def examples(rows: int) -> tuple[dict, np.ndarray]:
    """Returns rows of ids with values, and clicks; a row has one to three tags."""
    numbers = np.random.RandomState(3)
    tags = [numbers.choice(TAGS, numbers.randint(1, 4)) for _ in range(rows)]
    places = [[row, i] for row, found in enumerate(tags) for i in range(len(found))]
    features = {
        "ids": numbers.randint(0, IDS, [rows, FIELDS]),
        "values": numbers.uniform(-1, 1, [rows, FIELDS]).astype(np.float32),
        "tags": tf1.SparseTensorValue(places, np.concatenate(tags), [rows, 3]),
        "site": numbers.choice(["a", "b", "c"], rows),
    }
    return features, numbers.randint(0, 2, rows).astype(np.float32)


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of which the last is not full."""
    features, clicks = examples(rows)
    features["tags"] = tf.SparseTensor(*features["tags"])
    return tf.data.Dataset.from_tensor_slices((features, clicks)).batch(batch_size).repeat(2)


def weights(name, shape):
    return tf1.get_variable(name, shape, initializer=exactness.start)


def linear_part(features):
    """[B]: what ids and columns say, each for itself."""
    with tf1.variable_scope("linear"):
        site = tf.feature_column.categorical_column_with_hash_bucket("site", 5)
        of_columns = tf1.feature_column.linear_model({"site": features["site"]}, [site])
        of_ids = tf.nn.embedding_lookup(weights("ids", [IDS]), features["ids"])
        of_ids = tf.reduce_sum(of_ids * features["values"], 1)
        return of_ids + tf.squeeze(of_columns, 1)


def embedded(features):
    """[B, FIELDS + 1, WIDTH]: each field's vector, and the mean of the tags'."""
    found = tf.nn.embedding_lookup(weights("embedding", [IDS, WIDTH]), features["ids"])
    found = found * features["values"][:, :, None]
    tags = tf.nn.embedding_lookup_sparse(
        weights("tags", [TAGS, WIDTH]), features["tags"], None, combiner="sqrtn"
    )
    return tf.concat([found, tags[:, None, :]], 1)


def second_order(fields):
    """[B]: products of all pairs of fields, half of (sum of squares - square of sums)."""
    square_of_sum = tf.square(tf.reduce_sum(fields, 1))
    sum_of_squares = tf.reduce_sum(tf.square(fields), 1)
    return 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, 1)


def deep_part(fields):
    """[B]: two layers on the fields side by side."""
    x = tf.reshape(fields, [-1, (FIELDS + 1) * WIDTH])
    for width in (6, 4):
        x = tf1.layers.dense(x, width, tf.nn.relu, kernel_initializer=exactness.start)
    return tf.squeeze(tf1.layers.dense(x, 1, kernel_initializer=exactness.start), 1)


def train_op_of(loss):
    """Lets two optimizers step, each with the variables of its scope."""
    of_linear = tf1.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, "linear")
    of_deep = tf1.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, "deep")
    ftrl = tf1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001)
    adagrad = tf1.train.AdagradOptimizer(0.05)
    return tf.group(
        ftrl.minimize(loss, var_list=of_linear, global_step=tf1.train.get_global_step()),
        adagrad.minimize(loss, var_list=of_deep),
    )


def model_fn(features, labels, mode, params):
    """A model_fn for an Estimator on one device."""
    linear = linear_part(features)
    with tf1.variable_scope("deep"):
        fields = embedded(features)
        logits = linear + second_order(fields) + deep_part(fields)
    clicked = tf.sigmoid(logits)
    predictions = {"prob": clicked}
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions=predictions)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=labels)
    penalized = [v for v in tf1.trainable_variables() if "embedding" in v.name]
    loss = tf.reduce_mean(losses) + params["l2"] * tf.add_n([tf.nn.l2_loss(v) for v in penalized])
    if mode == "train":
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op_of(loss))
    found = {
        "auc": tf1.metrics.auc(labels, clicked),
        "accuracy": tf1.metrics.accuracy(labels, tf.round(clicked)),
        "clicks": tf1.metrics.mean(labels),
        "log_loss": tf1.metrics.mean(losses),
    }
    return estimator.EstimatorSpec(mode, predictions, loss, eval_metric_ops=found)
