"""The law of exactness: K devices are one, for whatever a model_fn is made of.

Each test draws a batch, K, a strategy, nests, a network of its family, a loss, what becomes of
it, a penalty, a way to take gradients and an optimizer; nobody says what kind of a loss it is,
and nothing is warned of. `EXACTNESS_DRAWS=5000 pytest tests/test_exactness.py` draws that many in
all.
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
from tests import exactness
from tests.law import optimizers

DRAWS = int(os.environ.get("EXACTNESS_DRAWS", "42"))
STRATEGIES = ("parameter_server", "round_robin", "balanced", "mirrored")
WIDTH = 3
# Relative and absolute: reassociation alone. Metrics are computed in float32.
DOUBLE, SINGLE = (1e-9, 1e-11), (2e-4, 2e-5)
double = tf.float64

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
    bare = tf.Variable(np.float64([0.1, 0.2, 0.3, 0.4]), name="bare")
    return tf1.layers.dense(hidden * bare, 1, kernel_initializer=exactness.start)


def keras_dense(x, mode):
    options = {"kernel_initializer": exactness.start, "dtype": double}
    hidden = tf.keras.layers.Dense(4, "tanh", **options)(x)
    return tf.keras.layers.Dense(1, **options)(hidden)


def convolution(x, mode):
    image = tf.reshape(tf.tile(x, [1, 4]), [-1, 4, WIDTH, 1])
    image = tf1.layers.conv2d(
        image, 2, 2, padding="same", activation=tf.nn.tanh, kernel_initializer=exactness.start
    )
    image = tf1.layers.average_pooling2d(image, 2, 1)
    return tf1.layers.dense(tf1.layers.flatten(image), 1, kernel_initializer=exactness.start)


def embedding(x, mode):
    ids = tf.cast(tf.math.floormod(tf.floor(x * 3.0), 5.0), tf.int32)
    table = tf1.get_variable("table", [5, 2], double, exactness.start)
    rows = tf.nn.embedding_lookup(table, ids)
    return tf1.layers.dense(tf1.layers.flatten(rows), 1, kernel_initializer=exactness.start)


def dynamic_rnn(x, mode):
    with tf1.variable_scope("rnn_scope", initializer=exactness.start):
        cell = tf1.nn.rnn_cell.BasicRNNCell(3)
        _, state = tf1.nn.dynamic_rnn(cell, x[:, :, None], dtype=double)
    return tf1.layers.dense(state, 1, kernel_initializer=exactness.start)


def keras_lstm(x, mode):
    layer = tf.keras.layers.LSTM(
        2,
        kernel_initializer=exactness.start,
        recurrent_initializer=exactness.start,
        dtype=double,
    )
    return tf1.layers.dense(layer(x[:, :, None]), 1, kernel_initializer=exactness.start)


def norm_of_keras(x, mode):
    """Some of its rows are those of all devices, whether the layer asks for them or not."""
    hidden = tf1.layers.dense(x, 3, kernel_initializer=exactness.start, use_bias=False)
    for is_synchronized in (True, False):
        layer = tf.keras.layers.BatchNormalization(
            synchronized=is_synchronized, momentum=0.5, dtype=double
        )
        hidden = tf.nn.tanh(layer(hidden, training=mode == "train"))
        if mode == "train":
            for update in layer.updates:
                tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)


def norm_of_layers(x, mode):
    hidden = tf1.layers.dense(x, 3, kernel_initializer=exactness.start, use_bias=False)
    hidden = tf1.layers.batch_normalization(
        hidden, training=mode == "train", momentum=0.5, fused=False
    )
    return tf1.layers.dense(tf.nn.tanh(hidden), 1, kernel_initializer=exactness.start)


def inference_norm(x, mode):
    hidden = tf1.layers.batch_normalization(
        x, training=False, moving_mean_initializer=exactness.start, fused=False
    )
    return tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)


def attention_to_rows(x, mode):
    """Each row looks at all rows of its batch."""
    hidden = tf1.layers.dense(x, 3, tf.nn.tanh, kernel_initializer=exactness.start)
    seen = tf.nn.softmax(tf.matmul(hidden, hidden, transpose_b=True))
    return tf1.layers.dense(tf.matmul(seen, x), 1, kernel_initializer=exactness.start)


def ranks_of_rows(x, mode):
    """Rows in the order of their scores, and the sums of those before them."""
    scores = tf1.layers.dense(x, 1, kernel_initializer=exactness.start)[:, 0]
    order = tf.argsort(scores)
    before = tf.cumsum(tf.gather(scores, order), exclusive=True)
    back = tf.gather(before, tf.argsort(order))
    return tf1.layers.dense(
        tf.stack([scores, back], 1), 1, kernel_initializer=exactness.start
    ) / tf.cast(tf.shape(x)[0], double)


def squares(w):
    return 0.1 * tf.nn.l2_loss(w)


def regularised(x, mode):
    hidden = tf1.layers.dense(
        x, 4, tf.nn.tanh, kernel_initializer=exactness.start, kernel_regularizer=squares
    )
    weights = tf1.get_variable("v", [4, 1], double, exactness.start, regularizer=squares)
    return tf.matmul(hidden, weights)


FAMILIES = {
    "dense": (dense, keras_dense),
    "convolution": (convolution,),
    "embedding": (embedding,),
    "recurrent": (dynamic_rnn, keras_lstm),
    "batch norm": (norm_of_keras, norm_of_layers, inference_norm),
    "all rows": (attention_to_rows, ranks_of_rows),
    "regularised": (regularised,),
}


# A loss of output, y and weights, each [B, 1]; the weights are 0 for some rows, never for all.


def errors(output, y):
    return tf.square(output - y)


def kept(output, y, weight):
    return tf.boolean_mask(errors(output, y), weight > 0.0)


def with_losses(reduction):
    def loss(output, y, weight):
        return tf1.losses.mean_squared_error(y, output, weight, reduction=reduction)

    return loss


def with_statistic(output, y, weight):
    """The mean output is driven to 1."""
    return tf.reduce_sum(errors(output, y)) + tf.square(tf.reduce_mean(output) - 1.0)


def by_known_rows(output, y, weight):
    rows = y.shape[0]
    rows = tf.cast(tf.shape(y)[0], double) if rows is None else rows
    return tf.reduce_sum(errors(output, y)) / rows


BY_HAND = {
    "mean": lambda output, y, weight: tf.reduce_mean(errors(output, y)),
    "sum": lambda output, y, weight: tf.reduce_sum(errors(output, y)),
    "sum by 7": lambda output, y, weight: tf.reduce_sum(errors(output, y)) / 7.0,
    "sum by rows": by_known_rows,
    "average loss": lambda output, y, weight: tf.nn.compute_average_loss(errors(output, y)[:, 0]),
    "quotient": lambda output, y, weight: (
        tf.reduce_sum(errors(output, y) * weight) / tf.reduce_sum(weight)
    ),
    "masked mean": lambda output, y, weight: tf.reduce_mean(kept(output, y, weight)),
    "sum and mean": lambda output, y, weight: (
        tf.reduce_sum(tf.abs(output - y)) + tf.reduce_mean(errors(output, y))
    ),
    "statistic": with_statistic,
}
# NOTE: TensorFlow computes these in float32, whatever it is given.
BY_LIBRARY = {
    key: with_losses(getattr(tf1.losses.Reduction, key))
    for key in ("SUM", "MEAN", "SUM_OVER_BATCH_SIZE", "SUM_BY_NONZERO_WEIGHTS")
}
LOSSES = BY_HAND | BY_LIBRARY
TAILS = {
    "as it is": lambda loss: loss,
    "perplexity": lambda loss: tf.exp(0.1 * loss),
    "root": lambda loss: tf.sqrt(loss + 0.1),
    "logarithm": lambda loss: tf.math.log(loss + 1.5),
}
PENALTIES = {
    "none": lambda w: None,
    "squares": squares,
    "absolute": lambda w: 0.1 * tf.reduce_sum(tf.abs(w)),
    "softmax": lambda w: tf.reduce_sum(tf.square(tf.nn.softmax(w))),
    "slices": lambda w: tf.reduce_sum(tf.square(w[1:] - w[:-1])),
    "where": lambda w: tf.reduce_sum(tf.where(w > 0.0, w**2, -(w**3))),
    "norm": lambda w: 0.1 * tf.norm(w + 2.0),
    "product": lambda w: tf.nn.l2_loss(tf.matmul(w, w, transpose_a=True)),
    "log sum": tf.reduce_logsumexp,
}
OPTIMIZERS = {
    "descent": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.02, 0.9, use_nesterov=True),
    "adam": lambda: tf1.train.AdamOptimizer(0.05, epsilon=0.01),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01, epsilon=0.1, centered=True),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "assigning": lambda: optimizers.DecayingAdam(0.05),
}


def minimize(optimizer, loss):
    return optimizer.minimize(loss, tf1.train.get_global_step())


def clip(optimizer, loss):
    """Takes gradients, clips them for sure, and counts the step by itself."""
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1e-2)
    step = optimizer.apply_gradients(zip(gradients, trained, strict=True))
    return tf.group(step, tf1.train.get_global_step().assign_add(1))


WAYS = {"optimizer_fn": minimize, "minimize": minimize, "clip": clip}


class Draw(NamedTuple):
    """What one example compares."""

    network: Any
    sizes: list
    is_static: bool
    num_devices: int
    strategy: str
    feature_nest: str
    label_nest: str
    loss: str
    tail: str
    penalty: str
    way: str
    optimizer: str
    modes: tuple

    def model(self, features, labels, mode):
        """The model_fn: a network, a loss, metrics."""
        x = FEATURE_NESTS[self.feature_nest][1](features)
        output = self.network(x, mode)
        predictions = {"output": output, "rows": x, "mean": tf.reduce_mean(output, 0)}
        if mode == "infer":
            return exactness.spec_of(mode, predictions=predictions)
        given = NESTS[self.label_nest][1](labels)
        y, weight = given[:, :1], given[:, 1:]
        metrics = {
            "mean": tf1.metrics.mean(output, weight),
            "rmse": tf1.metrics.root_mean_squared_error(y, output, weight),
            "hits": tf1.metrics.accuracy(y > 0, output > 0, weight),
        }
        loss = self.loss_of(output, y, weight)
        metrics["loss"] = tf1.metrics.mean(loss)
        return exactness.spec_of(mode, loss, predictions, eval_metric_ops=metrics)

    def loss_of(self, output, y, weight):
        """The loss with penalties, of which the network may have some."""
        loss = TAILS[self.tail](LOSSES[self.loss](output, y, weight))
        penalties = tf1.losses.get_regularization_losses()
        weights = [v for v in tf1.trainable_variables() if v.shape.rank == 2]
        penalties += [PENALTIES[self.penalty](v.read_value()) for v in weights]
        return tf.add_n([loss, *(tf.cast(p, loss.dtype) for p in penalties if p is not None)])

    def stepping(self, features, labels, mode):
        """The model_fn with its optimizer inside."""
        spec = self.model(features, labels, mode)
        if mode != "train":
            return spec
        step = WAYS[self.way](OPTIMIZERS[self.optimizer](), spec.loss)
        return spec._replace(train_op=tf.group(step, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)))

    def replicated(self):
        """The model_fn for several devices."""
        options = {"devices": self.num_devices, "strategy": self.strategy}
        if self.way == "optimizer_fn":
            optimizer_fn = OPTIMIZERS[self.optimizer]
            return model_fn.replicate_model_fn(self.model, optimizer_fn, **options)
        return model_fn.replicate_model_fn(self.stepping, **options)

    def batches(self):
        """Successive batches, of as many rows as drawn."""
        numbers = np.random.RandomState(len(self.sizes) * 41 + self.sizes[0])
        made = []
        for rows in self.sizes:
            x = numbers.uniform(-1, 1, [rows, WIDTH])
            y = numbers.uniform(-1, 1, [rows, 2])
            y[:, 1] = numbers.choice([0.0, 0.5, 2.0], rows)
            y[-1, 1] = 1.5
            made.append((FEATURE_NESTS[self.feature_nest][0](x), NESTS[self.label_nest][0](y)))
        return made


@st.composite
def draws(draw, family):
    """Draws an example; see the class."""

    def one_of(table):
        return draw(st.sampled_from(list(table)))

    is_static = draw(st.booleans())
    rows = st.integers(1, 40)
    first = draw(rows)
    return Draw(
        network=one_of(FAMILIES[family]),
        sizes=[first, first] if is_static else [first, draw(rows)],
        is_static=is_static,
        num_devices=draw(st.integers(1, 8)),
        strategy=one_of(STRATEGIES),
        feature_nest=one_of(FEATURE_NESTS),
        label_nest=one_of(NESTS),
        loss=one_of(LOSSES),
        tail=one_of(TAILS),
        penalty=one_of(PENALTIES),
        way=one_of(WAYS),
        optimizer=one_of(OPTIMIZERS),
        modes=one_of((("train",), ("train", "eval"), ("infer",))),
    )


def require_exact(draw):
    """Compares training, then evaluation or prediction, with one device."""
    batches, replicated = draw.batches(), draw.replicated()
    tolerance = DOUBLE if draw.loss in BY_HAND else SINGLE
    for mode in draw.modes:
        given = batches if mode != "infer" else [(features, None) for features, _ in batches]
        expected = exactness.run(draw.stepping, given, mode, draw.is_static)
        with exactness.quiet():
            found = exactness.run(replicated, given, mode, draw.is_static)
        with exactness.named(mode):
            exactness.compare(found[:2], expected[:2], *tolerance)
            exactness.compare(found.metrics, expected.metrics, *SINGLE)


@pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_several_devices_are_one(family):
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
