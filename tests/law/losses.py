"""Losses as people write them, each a function of features, labels and variables.

Shapes: B rows, T tokens, C = 3 classes, as many as there are features.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests import exactness

WIDTH = 3
BATCH_SIZE = 7  # what the input_fn was asked for, and a last batch need not have
PARAMS = {"batch_size": BATCH_SIZE}


class Weights:
    """A model's variables, made on first use and read once: a step's loss shows what it reads.

    Attributes:
        w: [WIDTH, C].
        b: [C].
        s: [2], a weight for each of two tasks.
        variables: The variables themselves, by name, as far as they are made.
    """

    def __init__(self):
        self.variables = {}

    @functools.cached_property
    def w(self) -> tf.Tensor:
        return self._read("w", [WIDTH, 3])

    @functools.cached_property
    def b(self) -> tf.Tensor:
        return self._read("b", [3])

    @functools.cached_property
    def s(self) -> tf.Tensor:
        return self._read("s", [2])

    def _read(self, name, shape):
        self.variables[name] = tf1.get_variable(name, shape, tf.float64, exactness.start)
        return self.variables[name].read_value()


def batch(rows: int, step: int, length: int) -> tuple[dict, dict]:
    """Returns features and labels of some rows, whose tokens are padded to a length.

    The first half of the rows is masked out, so that a device may keep no row; the last one
    never is.
    """
    numbers = np.random.RandomState(100 * step + rows)
    mask = numbers.choice([0.0, 1.0], rows)
    mask[: rows // 2], mask[-1] = 0.0, 1.0
    picked = numbers.choice([0.0, 1.0], [rows, length])
    picked[: rows // 2], picked[-1, 0] = 0.0, 1.0
    lengths = numbers.randint(1, length + 1, rows)
    lengths[-1] = length
    features = {
        "x": numbers.uniform(-1, 1, [rows, WIDTH]),
        "mask": mask,
        "real": np.append(numbers.choice([0.0, 0.5, 2.0], rows - 1), 1.5),
        "tokens": numbers.uniform(-1, 1, [rows, length, WIDTH]).view(exactness.Padded),
        "is_token": (np.arange(length) < lengths[:, None]).astype(float).view(exactness.Padded),
        "picked": picked.view(exactness.Padded),
    }
    labels = {
        "y": numbers.uniform(-1, 1, [rows, 3]),
        "class": numbers.randint(0, 3, rows),
        "words": numbers.randint(0, 3, [rows, length]).view(exactness.Padded),
    }
    return features, labels


class Case(NamedTuple):
    """A loss.

    Attributes:
        loss: From features, labels and weights to a scalar.
        dtype: In which TensorFlow computes it, whatever it is given.
        statics: With which static batches (True, False) it can be built.
    """

    loss: Callable[[dict, dict, Weights], Any]
    dtype: type = np.float64
    statics: Sequence[bool] = (True, False)


def logits(f, v):
    """[B, C]."""
    return tf.matmul(f["x"], v.w) + v.b


def cross(f, y, v):
    """Each row's cross entropy, [B]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y["class"], logits(f, v))


def squares(f, y, v):
    """Each row's squared error, [B]."""
    return tf.reduce_sum(tf.square(tf.tanh(logits(f, v)) - y["y"]), 1)


def of_tokens(f, y, v):
    """Each token's cross entropy, [B, T]."""
    found = tf.einsum("btw,wc->btc", f["tokens"], v.w) + v.b
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y["words"], found)


def count(x, dtype=tf.float64):
    """The number of rows, known or not."""
    return tf.cast(tf.shape(x)[0], dtype)


def mean(f, y, v):
    return tf.reduce_mean(cross(f, y, v))


def total(f, y, v):
    return tf.reduce_sum(cross(f, y, v))


def quotient(f, y, v):
    return tf.reduce_sum(cross(f, y, v) * f["mask"]) / tf.reduce_sum(f["mask"])


PLAIN = {
    "mean": mean,
    "sum": total,
    "sum by 7": lambda f, y, v: total(f, y, v) / 7.0,
    "sum by params": lambda f, y, v: total(f, y, v) / PARAMS["batch_size"],
    "sum of means of columns": lambda f, y, v: tf.reduce_sum(
        tf.reduce_mean(tf.square(logits(f, v) - y["y"]), 0)
    ),
    "mean of sums of columns": lambda f, y, v: tf.reduce_mean(
        tf.reduce_sum(tf.square(logits(f, v) - y["y"]), 0)
    ),
    "a kept axis that is squeezed": lambda f, y, v: tf.squeeze(
        tf.reduce_mean(cross(f, y, v)[:, None], 0, keepdims=True)
    ),
    "half the sum of squares": lambda f, y, v: tf.nn.l2_loss(logits(f, v) - y["y"]),
    "a product with ones": lambda f, y, v: tf.tensordot(cross(f, y, v), tf.ones_like(f["mask"]), 1),
    "sum and mean": lambda f, y, v: mean(f, y, v) + 0.1 * tf.reduce_sum(squares(f, y, v)),
    "stacked": lambda f, y, v: tf.reduce_sum(
        tf.stack([mean(f, y, v), 0.1 * tf.reduce_sum(squares(f, y, v))])
    ),
    "the larger one": lambda f, y, v: tf.maximum(mean(f, y, v), 0.01 * tf.nn.l2_loss(v.w)),
    "learned task weights": lambda f, y, v: (
        tf.exp(-v.s[0]) * mean(f, y, v)
        + tf.exp(-v.s[1]) * tf.reduce_sum(squares(f, y, v))
        + tf.reduce_sum(v.s)
    ),
}


def kept(f, y, v):
    """The rows that the mask keeps."""
    return tf.boolean_mask(cross(f, y, v), f["mask"] > 0.0)


def focal(f, y, v):
    p = tf.exp(-cross(f, y, v))
    return tf.reduce_sum((1.0 - p) ** 2 * cross(f, y, v) * f["mask"]) / tf.maximum(
        tf.constant(1.0, tf.float64), tf.reduce_sum(f["mask"])
    )


def dice(f, y, v):
    p = tf.sigmoid(logits(f, v)[:, 0])
    both = tf.reduce_sum(p * f["mask"])
    return 1.0 - (2.0 * both + 1.0) / (tf.reduce_sum(p) + tf.reduce_sum(f["mask"]) + 1.0)


def masked_language(f, y, v):
    """As BERT's pretraining has it."""
    numerator = tf.reduce_sum(of_tokens(f, y, v) * f["picked"])
    return numerator / (tf.reduce_sum(f["picked"]) + 1e-5)


def mean_of_sentences(f, y, v):
    found = tf.reduce_sum(of_tokens(f, y, v) * f["is_token"], 1)
    return tf.reduce_mean(found / tf.reduce_sum(f["is_token"], 1))


MASKS = {
    "quotient": quotient,
    "quotient of real weights": lambda f, y, v: tf.math.divide_no_nan(
        tf.reduce_sum(cross(f, y, v) * f["real"]), tf.reduce_sum(f["real"])
    ),
    "quotient of means": lambda f, y, v: (
        tf.reduce_mean(cross(f, y, v) * f["mask"]) / tf.reduce_mean(f["mask"])
    ),
    "mean of kept rows": lambda f, y, v: tf.reduce_mean(kept(f, y, v)),
    "mean of gathered rows": lambda f, y, v: tf.reduce_mean(
        tf.gather(cross(f, y, v), tf.where(f["mask"] > 0.0)[:, 0])
    ),
    "sum of kept rows by size": lambda f, y, v: (
        tf.reduce_sum(kept(f, y, v)) / tf.cast(tf.size(kept(f, y, v)), tf.float64)
    ),
    "count of nonzero weights": lambda f, y, v: (
        tf.reduce_sum(cross(f, y, v) * f["real"])
        / tf.math.count_nonzero(f["real"], dtype=tf.float64)
    ),
    "focal": focal,
    "dice": dice,
    "masked language": masked_language,
    "mean of sentences": mean_of_sentences,
    "mean of padded tokens": lambda f, y, v: tf.reduce_mean(of_tokens(f, y, v)),
    "tokens by rows": lambda f, y, v: (
        tf.reduce_sum(of_tokens(f, y, v) * f["is_token"]) / count(f["x"])
    ),
    "mean of kept tokens": lambda f, y, v: tf.reduce_mean(
        tf.boolean_mask(of_tokens(f, y, v), f["is_token"] > 0.0)
    ),
}

TAILS = {
    "perplexity": lambda f, y, v: tf.exp(mean(f, y, v)),
    "root of the mean": lambda f, y, v: tf.sqrt(tf.reduce_mean(squares(f, y, v))),
    "logarithm of the sum": lambda f, y, v: tf.math.log(total(f, y, v)),
    "perplexity of kept tokens": lambda f, y, v: tf.exp(masked_language(f, y, v)),
    "root of the sum and a penalty": lambda f, y, v: tf.sqrt(
        tf.reduce_sum(squares(f, y, v)) + tf.nn.l2_loss(v.w)
    ),
    "square of the mean": lambda f, y, v: tf.square(mean(f, y, v)),
}


def sparsity(f, y, v):
    """The divergence of the units' mean activations from 0.1."""
    rate = tf.reduce_mean(tf.sigmoid(logits(f, v)), 0)
    divergence = 0.1 * tf.math.log(0.1 / rate) + 0.9 * tf.math.log(0.9 / (1.0 - rate))
    return mean(f, y, v) + tf.reduce_sum(divergence)


def active(f, y, v):
    """A layer whose activity is penalised, by Keras per row."""
    layer = tf.keras.layers.Dense(
        2,
        kernel_initializer=exactness.start,
        activity_regularizer=tf.keras.regularizers.L2(0.1),
        dtype=tf.float64,
    )
    output = layer(logits(f, v))
    return tf.reduce_sum(tf.square(output)) + tf.add_n(layer.losses)


def covariance(f, y, v):
    hidden = tf.tanh(logits(f, v))
    found = tf.matmul(hidden, hidden, transpose_a=True) / count(hidden)
    return mean(f, y, v) + tf.reduce_sum(tf.square(found))


STATISTICS = {
    "rows by log z": lambda f, y, v: (
        total(f, y, v) + count(f["x"]) * tf.reduce_logsumexp(tf.square(v.w))
    ),
    "sparsity": sparsity,
    "covariance": covariance,
    "activity": active,
    "softplus of the mean logits": lambda f, y, v: tf.reduce_sum(
        tf.nn.softplus(tf.reduce_mean(logits(f, v), 0))
    ),
}
