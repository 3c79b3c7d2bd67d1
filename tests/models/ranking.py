"""A ranking model, as published code writes it: lists of documents, padded, for each query.

Losses are per list, over pairs or over the whole list, with masks of padding and weights of
lists, and are divided by how many pairs or lists count.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

FEATURES = 4


def examples(rows: int) -> tuple[dict, np.ndarray]:
    """Returns queries with between one and five documents, and grades, -1 where padded."""
    numbers = np.random.RandomState(2)
    sizes = numbers.randint(1, 6, rows)
    longest = sizes.max()
    grades = numbers.randint(0, 4, [rows, longest]).astype(np.float32)
    grades[np.arange(longest) >= sizes[:, None]] = -1.0
    features = {
        "documents": numbers.uniform(-1, 1, [rows, longest, FEATURES]).astype(np.float32),
        "weight": numbers.choice([0.5, 1.0, 3.0], [rows, 1]).astype(np.float32),
    }
    return features, grades


def input_fn(batch_size: int = 7, rows: int = 19) -> tf.data.Dataset:
    """Batches of which the last is not full."""
    return tf.data.Dataset.from_tensor_slices(examples(rows)).batch(batch_size).repeat(2)


def scores_of(documents):
    """[B, L]: each document's score."""
    hidden = tf1.layers.dense(documents, 5, tf.nn.tanh, kernel_initializer=exactness.start)
    return tf.squeeze(tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start), 2)


def pairwise(scores, grades, weight):
    """Logistic losses of the pairs that are in order, over the number of them."""
    is_valid = grades >= 0.0
    both = tf.logical_and(is_valid[:, :, None], is_valid[:, None, :])
    is_pair = tf.logical_and(both, grades[:, :, None] > grades[:, None, :])
    of_pair = tf.cast(is_pair, tf.float32) * weight[:, :, None]
    losses = tf.nn.softplus(-(scores[:, :, None] - scores[:, None, :]))
    return tf1.losses.compute_weighted_loss(losses, of_pair)


def listwise(scores, grades, weight):
    """Cross entropies of lists, over the weights of those that hold any grade."""
    is_valid = grades >= 0.0
    logits = tf.where(is_valid, scores, tf.math.log(1e-10) * tf.ones_like(scores))
    given = tf.where(is_valid, grades, tf.zeros_like(grades))
    total = tf.reduce_sum(given, 1, keepdims=True)
    is_graded = tf.cast(total > 0.0, tf.float32)
    shares = tf.math.divide_no_nan(given, total)
    losses = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
    counted = tf.squeeze(weight * is_graded, 1)
    return tf.reduce_sum(losses * counted) / tf.maximum(tf.reduce_sum(counted), 1e-6)


def discounted_gain(scores, grades, weight):
    """[B] gains of each list's three best, by weights."""
    kept = tf.where(grades >= 0.0, scores, tf.reduce_min(scores, 1, keepdims=True) - 1.0)
    count = tf.minimum(3, tf.shape(scores)[1])
    _, places = tf.math.top_k(kept, count)
    best = tf.gather(tf.maximum(grades, 0.0), places, batch_dims=1)
    discounts = tf.math.log(2.0) / tf.math.log(tf.cast(tf.range(count), tf.float32) + 2.0)
    gains = tf.reduce_sum((2.0**best - 1.0) * discounts, 1)
    return tf1.metrics.mean(gains, tf.squeeze(weight, 1))


LOSSES = {"pairwise": pairwise, "listwise": listwise}


def model_fn(features, labels, mode, params):
    """A model_fn for an Estimator on one device; `params` holds the losses' names."""
    scores = scores_of(features["documents"])
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions={"scores": scores})
    losses = [LOSSES[name](scores, labels, features["weight"]) for name in params["losses"]]
    loss = tf.add_n(losses) + 0.01 * tf.add_n(
        [tf.nn.l2_loss(v) for v in tf1.trainable_variables() if "kernel" in v.name]
    )
    if mode == "eval":
        found = {"gain": discounted_gain(scores, labels, features["weight"])}
        found |= {
            f"loss/{name}": tf1.metrics.mean(value)
            for name, value in zip(params["losses"], losses, strict=True)
        }
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
    optimizer = tf1.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.05)
    pairs = list(zip(gradients, [v for _, v in pairs], strict=True))
    train_op = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
