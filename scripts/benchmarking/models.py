"""The models that are measured: how a batch looks, what the loss is, who optimizes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1


class Model(NamedTuple):
    """One model.

    Attributes:
        batch: Rows of a whole batch.
        make_batch: From a random state and a number of rows to features and labels.
        make_logits: From features to logits; variables are shared by name.
        make_optimizer: Returns a new optimizer.
    """

    batch: int
    make_batch: Callable[[np.random.RandomState, int], tuple[np.ndarray, np.ndarray]]
    make_logits: Callable[[Any], Any]
    make_optimizer: Callable[[], Any]

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the one batch that every step of every subject sees."""
        return self.make_batch(np.random.RandomState(0), self.batch)

    def make_loss(self, features: Any, labels: Any) -> Any:
        """Returns the mean loss of the rows."""
        logits = self.make_logits(features)
        return tf1.losses.sparse_softmax_cross_entropy(labels, logits)


def _dense(x: Any, units: int, name: str, activation: Any = None) -> Any:
    return tf1.layers.dense(x, units, activation, name=name)


def _floats(*shape: int) -> Callable:
    def make(random: np.random.RandomState, rows: int) -> tuple:
        features = random.standard_normal((rows, *shape)).astype(np.float32)
        return features, random.randint(0, 10, rows).astype(np.int32)

    return make


def _ids(length: int, vocabulary: int) -> Callable:
    def make(random: np.random.RandomState, rows: int) -> tuple:
        features = random.randint(0, vocabulary, (rows, length)).astype(np.int32)
        return features, random.randint(0, 10, rows).astype(np.int32)

    return make


def _tiny(x: Any) -> Any:
    return _dense(x, 10, "out")


def _mlp(x: Any) -> Any:
    for i in range(2):
        x = _dense(x, 256, f"hidden_{i}", tf.nn.relu)
    return _dense(x, 10, "out")


def _deep(x: Any) -> Any:
    # Small weights: 50 residual layers of the usual size would overflow.
    start = tf1.initializers.random_normal(stddev=0.01)
    for i in range(50):
        x = x + tf1.layers.dense(x, 64, tf.nn.relu, kernel_initializer=start, name=f"layer_{i}")
    return _dense(x, 10, "out")


def _cnn(x: Any) -> Any:
    for i, (filters, strides) in enumerate(((16, 1), (32, 2), (64, 2))):
        x = tf1.layers.conv2d(x, filters, 3, strides, "same", activation=tf.nn.relu, name=f"c_{i}")
    return _dense(tf.reduce_mean(x, [1, 2]), 10, "out")


def _embedding(vocabulary: int, width: int) -> Callable[[Any], Any]:
    """The mean of looked-up rows, and two layers above."""

    def logits(ids: Any) -> Any:
        start = tf1.initializers.zeros()
        table = tf1.get_variable("table", [vocabulary, width], initializer=start)
        x = tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)
        return _dense(_dense(x, 64, "hidden", tf.nn.relu), 10, "out")

    return logits


LENGTH, UNITS, HEADS, VOCABULARY = 32, 64, 4, 1000


def _normalized(x: Any, name: str) -> Any:
    """Layer normalisation of [rows * LENGTH, UNITS]."""
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", [UNITS], initializer=tf1.initializers.ones())
        beta = tf1.get_variable("beta", [UNITS], initializer=tf1.initializers.zeros())
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), -1, keepdims=True) + 1e-6)
    return centered * scale * gamma + beta


def _attention(x: Any) -> Any:
    """Self-attention over [rows * LENGTH, UNITS]."""
    parts = []
    for name in ("query", "key", "value"):
        part = tf.reshape(_dense(x, UNITS, name), [-1, LENGTH, HEADS, UNITS // HEADS])
        parts.append(tf.transpose(part, [0, 2, 1, 3]))
    query, key, value = parts
    scores = tf.matmul(query, key, transpose_b=True) * (UNITS // HEADS) ** -0.5
    seen = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
    return _dense(tf.reshape(seen, [-1, UNITS]), UNITS, "output")


def _bert(ids: Any) -> Any:
    words = tf1.get_variable("words", [VOCABULARY, UNITS])
    places = tf1.get_variable("places", [LENGTH, UNITS])
    x = tf.reshape(tf.nn.embedding_lookup(words, ids) + places, [-1, UNITS])
    for i in range(2):
        with tf1.variable_scope(f"layer_{i}"):
            x = _normalized(x + _attention(x), "norm_0")
            inner = _dense(x, 4 * UNITS, "inner", tf.nn.relu)
            x = _normalized(x + _dense(inner, UNITS, "outer"), "norm_1")
    first = tf.reshape(x, [-1, LENGTH, UNITS])[:, 0]
    return _dense(_dense(first, UNITS, "pooled", tf.tanh), 10, "out")


COLUMNS, BUCKETS = 8, 50_000


def _wide(ids: Any) -> Any:
    """Wide and deep: weights of crossed columns, and layers above embedded ones."""
    crossed = tf.math.floormod(ids[:, :-1] * 31 + ids[:, 1:], BUCKETS)
    weights = tf1.get_variable("wide", [BUCKETS, 10], initializer=tf1.initializers.zeros())
    wide = tf.reduce_sum(tf.nn.embedding_lookup(weights, crossed), 1)
    embedded = []
    for i in range(COLUMNS):
        table = tf1.get_variable(f"table_{i}", [BUCKETS // COLUMNS, 16])
        embedded.append(tf.nn.embedding_lookup(table, ids[:, i] // COLUMNS))
    x = tf.concat(embedded, 1)
    for i, units in enumerate((128, 64)):
        x = _dense(x, units, f"hidden_{i}", tf.nn.relu)
    return wide + _dense(x, 10, "out")


def _sentences(random: np.random.RandomState, rows: int) -> tuple:
    """Sentences of unequal lengths, padded with 0, and a tag for each word."""
    lengths = random.randint(LENGTH // 2, LENGTH + 1, rows)
    is_word = np.arange(LENGTH) < lengths[:, None]
    ids = random.randint(1, VOCABULARY, (rows, LENGTH)) * is_word
    return ids.astype(np.int32), random.randint(0, 10, (rows, LENGTH)).astype(np.int32)


def _tagger(ids: Any) -> Any:
    """Tags of words, by LSTMs forth and back."""
    words = tf1.get_variable("words", [VOCABULARY, UNITS])
    lengths = tf.reduce_sum(tf.cast(ids > 0, tf.int32), 1)
    cells = [tf1.nn.rnn_cell.LSTMCell(UNITS, name=name) for name in ("forth", "back")]
    outputs, _ = tf1.nn.bidirectional_dynamic_rnn(
        *cells, tf.nn.embedding_lookup(words, ids), lengths, dtype=tf.float32
    )
    return _dense(tf.concat(outputs, 2), 10, "out")


def _adam() -> Any:
    return tf1.train.AdamOptimizer(1e-3)


def _adagrad() -> Any:
    return tf1.train.AdagradOptimizer(1e-2)


MODELS = {
    "mlp": Model(128, _floats(784), _mlp, _adam),
    "cnn": Model(128, _floats(28, 28, 1), _cnn, _adam),
    "deep": Model(128, _floats(64), _deep, _adam),
    # NOTE: Adagrad updates the rows that a batch names. Adam's decay of its averages passes
    # over the whole table in each step, on one device too, and would be all that is measured.
    "embedding": Model(512, _ids(20, 100_000), _embedding(100_000, 64), _adagrad),
    "table": Model(512, _ids(20, 2_000_000), _embedding(2_000_000, 32), _adagrad),
    "bert": Model(32, _ids(LENGTH, VOCABULARY), _bert, _adam),
    "wide": Model(512, _ids(COLUMNS, BUCKETS), _wide, _adagrad),
    "tagger": Model(64, _sentences, _tagger, _adam),
}
WARM = Model(64, _floats(4), _tiny, _adam)
