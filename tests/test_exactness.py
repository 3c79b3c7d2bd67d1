"""The law of exactness: K towers are one device, for whatever a model_fn is made of.

Each test draws a batch, K, a strategy, nests, a reduction, a model of its family and an
optimizer. `EXACTNESS_DRAWS=5000 pytest tests/test_exactness.py` draws that many in all.
"""

import collections
import os
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import default
from tests import exactness

DRAWS = int(os.environ.get("EXACTNESS_DRAWS", "301"))
STRATEGIES = ("parameter_server", "round_robin", "balanced", "mirrored")
WIDTH = 3

Pair = collections.namedtuple("Pair", ["first", "second"])


def sparse(x):
    """An array as a SparseTensorValue with all its numbers."""
    indices = np.stack(np.unravel_index(np.arange(x.size), x.shape), 1).astype(np.int64)
    return tf1.SparseTensorValue(indices, x.reshape(-1), np.array(x.shape, np.int64))


def ragged(x):
    """An array of shape [B, n] as a RaggedTensorValue."""
    splits = np.arange(len(x) + 1, dtype=np.int64) * x.shape[1]
    return tf1.ragged.RaggedTensorValue(x.reshape(-1), splits)


# How features or labels are packed for the input_fn, and unpacked in the model_fn.
NESTS = {
    "tensor": (lambda x: x, lambda nest: nest),
    "dict": (lambda x: {"x": x, "none": None, "rate": np.float32(3)}, lambda nest: nest["x"]),
    "nested": (lambda x: {"a": {"b": x, "c": (x,)}}, lambda nest: nest["a"]["c"][0]),
    "tuple": (lambda x: (None, x), lambda nest: nest[1]),
    "namedtuple": (lambda x: Pair(x, {"n": x}), lambda nest: nest.second["n"]),
    "list": (lambda x: [x, x], lambda nest: nest[1]),
}
FEATURE_NESTS = {
    **NESTS,
    "sparse": (
        lambda x: {"x": sparse(x)},
        lambda nest: tf.reshape(tf.sparse.to_dense(nest["x"]), [-1, WIDTH]),
    ),
    "ragged": (
        lambda x: {"x": ragged(x)},
        lambda nest: tf.reshape(nest["x"].to_tensor(), [-1, WIDTH]),
    ),
}


def dense(x, mode):
    hidden = tf1.layers.dense(x, 4, tf.nn.tanh, kernel_initializer=exactness.start, name="hidden")
    bare = tf.Variable(np.float32([0.1, 0.2, 0.3, 0.4]), name="bare")
    return tf1.layers.dense(hidden * bare, 1, kernel_initializer=exactness.start)


def keras_dense(x, mode):
    hidden = tf.keras.layers.Dense(4, "tanh", kernel_initializer=exactness.start)(x)
    return tf.keras.layers.Dense(1, kernel_initializer=exactness.start)(hidden)


def convolution(x, mode):
    image = tf.reshape(tf.tile(x, [1, 4]), [-1, 4, WIDTH, 1])
    image = tf1.layers.conv2d(
        image, 2, 2, padding="same", activation=tf.nn.tanh, kernel_initializer=exactness.start
    )
    image = tf1.layers.average_pooling2d(image, 2, 1)
    return tf1.layers.dense(tf1.layers.flatten(image), 1, kernel_initializer=exactness.start)


def embedding(x, mode):
    ids = tf.cast(tf.math.floormod(tf.floor(x * 3.0), 5.0), tf.int32)
    table = tf1.get_variable("table", [5, 2], initializer=exactness.start)
    rows = tf.nn.embedding_lookup(table, ids)
    return tf1.layers.dense(tf1.layers.flatten(rows), 1, kernel_initializer=exactness.start)


def dynamic_rnn(x, mode):
    with tf1.variable_scope("rnn_scope", initializer=exactness.start):
        cell = tf1.nn.rnn_cell.BasicRNNCell(3)
        _, state = tf1.nn.dynamic_rnn(cell, x[:, :, None], dtype=tf.float32)
    return tf1.layers.dense(state, 1, kernel_initializer=exactness.start)


def keras_lstm(x, mode):
    layer = tf.keras.layers.LSTM(
        2, kernel_initializer=exactness.start, recurrent_initializer=exactness.start
    )
    return tf1.layers.dense(layer(x[:, :, None]), 1, kernel_initializer=exactness.start)


def synchronised_norm(x, mode):
    layer = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
    hidden = tf1.layers.dense(x, 3, kernel_initializer=exactness.start, use_bias=False)
    hidden = layer(hidden, training=mode == "train")
    if mode == "train":
        for update in layer.updates:
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return tf1.layers.dense(tf.nn.tanh(hidden), 1, kernel_initializer=exactness.start)


def inference_norm(x, mode):
    hidden = tf1.layers.batch_normalization(
        x, training=False, moving_mean_initializer=exactness.start
    )
    return tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)


def squares(w):
    return 0.1 * tf.nn.l2_loss(w)


def regularised(x, mode):
    hidden = tf1.layers.dense(
        x, 4, tf.nn.tanh, kernel_initializer=exactness.start, kernel_regularizer=squares
    )
    weights = tf1.get_variable("v", [4, 1], initializer=exactness.start, regularizer=squares)
    return tf.matmul(hidden, weights)


def penalised(x, mode):
    """The penalties are not listed where TensorFlow looks for them: the loss adds them itself."""
    weights = tf1.get_variable("w", [WIDTH, 4], initializer=exactness.start)
    last = tf1.get_variable("v", [4, 1], initializer=exactness.start)
    tf1.add_to_collection("penalties", squares(weights) + 0.01 * tf.reduce_sum(tf.abs(last)))
    return tf.matmul(tf.nn.tanh(tf.matmul(x, weights)), last)


FAMILIES = {
    "dense": (dense, keras_dense),
    "convolution": (convolution,),
    "embedding": (embedding,),
    "recurrent": (dynamic_rnn, keras_lstm),
    "batch norm": (synchronised_norm, inference_norm),
    "regularised": (regularised, penalised),
    "weighted": (dense,),
}
OPTIMIZERS = {
    "descent": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.02, 0.9, use_nesterov=True),
    "adam": lambda: tf1.train.AdamOptimizer(0.05, epsilon=0.01),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01, epsilon=0.1, centered=True),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
}


class Draw(NamedTuple):
    """What one example compares."""

    network: Any
    family: str
    sizes: list
    is_static: bool
    num_towers: int
    strategy: str
    feature_nest: str
    label_nest: str
    reduction: str
    is_told: bool
    is_inside: bool
    optimizer: str
    modes: tuple

    def model(self, features, labels, mode):
        """The model_fn: a network, a loss, metrics."""
        x = FEATURE_NESTS[self.feature_nest][1](features)
        output = self.network(x, mode)
        predictions = {"output": output, "rows": x}
        if mode == "infer":
            return exactness.spec_of(mode, predictions=predictions)
        y, weight = NESTS[self.label_nest][1](labels)[:, :1], None
        if self.family == "weighted":
            weight = NESTS[self.label_nest][1](labels)[:, 1:]
        total = tf1.losses.Reduction.SUM
        if self.reduction == "mean":
            total = tf1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS
        tf1.losses.mean_squared_error(y, output, 1.0 if weight is None else weight, reduction=total)
        if weight is not None:
            denominator = tf.math.count_nonzero(weight, dtype=tf.float32)
            default.get_tower_context().set_loss_weight(denominator)
        metrics = {
            "mean": tf1.metrics.mean(output, weight),
            "rmse": tf1.metrics.root_mean_squared_error(y, output, weight),
            "hits": tf1.metrics.accuracy(y > 0, output > 0, weight),
        }
        loss = tf.add_n([tf1.losses.get_total_loss(), *tf1.get_collection("penalties")])
        metrics["loss"] = tf1.metrics.mean(loss)
        return exactness.spec_of(mode, loss, predictions, eval_metric_ops=metrics)

    def batches(self):
        """Successive batches, of as many rows as drawn."""
        numbers = np.random.RandomState(len(self.sizes) * 41 + self.sizes[0])
        made = []
        for rows in self.sizes:
            x = numbers.uniform(-1, 1, [rows, WIDTH]).astype(np.float32)
            y = numbers.uniform(-1, 1, [rows, 2]).astype(np.float32)
            y[:, 1] = numbers.choice([0.0, 0.5, 2.0], rows)
            made.append((FEATURE_NESTS[self.feature_nest][0](x), NESTS[self.label_nest][0](y)))
        return made


@st.composite
def draws(draw, family):
    """Draws an example; see the class."""
    is_static = draw(st.booleans())
    rows = st.integers(1, 40)
    first = draw(rows)
    sizes = [first, first] if is_static else [first, draw(rows)]
    reduction = draw(st.sampled_from(("mean", "sum")))
    is_inside = draw(st.booleans())
    may_be_silent = is_inside or reduction == "sum"
    network = draw(st.sampled_from(FAMILIES[family]))
    if network is penalised and reduction == "sum" and is_inside:
        is_static = False  # README, "Not exact": else rows and penalties look alike
    return Draw(
        network=network,
        family=family,
        sizes=sizes,
        is_static=is_static,
        num_towers=draw(st.integers(1, 8)),
        strategy=draw(st.sampled_from(STRATEGIES)),
        feature_nest=draw(st.sampled_from(sorted(FEATURE_NESTS))),
        label_nest=draw(st.sampled_from(sorted(NESTS))),
        reduction=reduction,
        is_told=not may_be_silent or draw(st.booleans()),
        is_inside=is_inside,
        optimizer=draw(st.sampled_from(sorted(OPTIMIZERS))),
        modes=draw(st.sampled_from((("train",), ("train", "eval"), ("infer",)))),
    )


def require_exact(draw):
    """Compares training, then evaluation or prediction, with one device."""
    batches, optimizer_fn = draw.batches(), OPTIMIZERS[draw.optimizer]
    single = exactness.stepping(draw.model, optimizer_fn)
    options = {"devices": draw.num_towers, "strategy": draw.strategy}
    if draw.is_told:
        options["loss_reduction"] = draw.reduction
    if draw.is_inside:
        towers = model_fn.replicate_model_fn(single, **options)
    else:
        towers = model_fn.replicate_model_fn(draw.model, optimizer_fn, **options)
    for mode in draw.modes:
        given = batches if mode != "infer" else [(features, None) for features, _ in batches]
        expected = exactness.run(single, given, mode, draw.is_static)
        found = exactness.run(towers, given, mode, draw.is_static)
        with exactness.named(mode):
            exactness.compare(found._asdict(), expected._asdict())


@pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_towers_are_one_device(family):
    @hypothesis.settings(
        max_examples=-(-DRAWS // len(FAMILIES)),
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],  # a draw says all; to shrink it builds many graphs
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(draws(family))
    def check(draw):
        require_exact(draw)

    check()
