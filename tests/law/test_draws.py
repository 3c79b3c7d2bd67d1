"""The law of exactness: K devices are one, for whatever a model_fn is made of.

Each test draws a batch, K, a strategy, nests, a network of its family, a loss of the law behind it,
a way to take gradients and an optimizer; nobody says what kind of a loss it is, and nothing is
warned of. `EXACTNESS_DRAWS=5000 pytest tests/law/test_draws.py` draws that many in all.
"""

import collections
import os
from collections.abc import Callable
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, optimizers, running, table

DRAWS = int(os.environ.get("EXACTNESS_DRAWS", "25"))
STRATEGIES = ("parameter_server", "round_robin", "balanced", "mirrored")
SINGLE = (2e-4, 2e-5)  # relative and absolute, in float32
double = tf.float64

Pair = collections.namedtuple("Pair", ["first", "second"])


def sparse(x):
    """An array as a SparseTensorValue with all its numbers."""
    indices = np.stack(np.unravel_index(np.arange(x.size), x.shape), 1).astype(np.int64)
    return exactness.Unranked(indices, x.reshape(-1), np.array(x.shape, np.int64))


def ragged(x):
    """An array of shape [B, n] as a RaggedTensorValue."""
    splits = np.arange(len(x) + 1, dtype=np.int64) * x.shape[1]
    return tf1.ragged.RaggedTensorValue(x.reshape(-1), splits)


def wide(x):
    return tf.reshape(x, [-1, losses.WIDTH])


# How features or labels are packed for the input_fn, and unpacked in the model_fn.
NESTS = {
    "dict": (lambda f: f, lambda nest: nest),
    "nested": (lambda f: {"a": {"b": f, "c": (f, None)}}, lambda nest: nest["a"]["c"][0]),
    "tuple": (lambda f: (None, f), lambda nest: nest[1]),
    "namedtuple": (lambda f: Pair(None, {"n": f}), lambda nest: nest.second["n"]),
    "list": (lambda f: [f, f], lambda nest: nest[1]),
}
FEATURE_NESTS = {
    **NESTS,
    "without rows": (lambda f: {**f, "none": None, "rate": np.float32(3)}, lambda nest: nest),
    "sparse": (
        lambda f: {**f, "x": sparse(f["x"])},
        lambda nest: {**nest, "x": wide(tf.sparse.to_dense(nest["x"]))},
    ),
    "ragged": (
        lambda f: {**f, "x": ragged(f["x"])},
        lambda nest: {**nest, "x": wide(nest["x"].to_tensor())},
    ),
}


@pytest.mark.parametrize(("name", "setting"), running.in_turn(FEATURE_NESTS))
def test_nests_of_all_kinds_are_one_devices(name, setting):
    (pack, unpack), (pack_labels, unpack_labels) = FEATURE_NESTS[name], NESTS["nested"]

    def model(features, labels, mode):
        loss = losses.quotient(unpack(features), unpack_labels(labels), losses.Weights())
        return exactness.spec_of(mode, loss)

    given = running.batches(*setting.rows, is_static=setting.is_static)
    given = [(pack(features), pack_labels(labels)) for features, labels in given]
    running.require_exact(model, setting, given=given, optimizer_fn=running.momentum)


# Networks: from features, labels and mode to what stands in for the features, [B, WIDTH].


def apart(network):
    """A network in which no row meets another, and which knows no mode."""
    return lambda f, y, mode: network(f, y)


def dense(x, **options):
    return tf1.layers.dense(x, losses.WIDTH, kernel_initializer=exactness.start, **options)


def norm_of_keras(f, y, mode):
    """Some of its rows are those of all devices, whether the layer asks for them or not."""
    hidden = dense(f["x"], use_bias=False)
    for is_synchronized in (True, False):
        layer = tf.keras.layers.BatchNormalization(
            synchronized=is_synchronized, momentum=0.5, dtype=double
        )
        hidden = tf.nn.tanh(layer(hidden, training=mode == "train"))
        if mode == "train":
            for update in layer.updates:
                tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return hidden


def norm_of_layers(f, y, mode):
    options = {"training": mode == "train", "momentum": 0.5, "fused": False}
    return tf.nn.tanh(tf1.layers.batch_normalization(dense(f["x"], use_bias=False), **options))


def inference_norm(f, y, mode):
    options = {"training": False, "fused": False}
    return tf1.layers.batch_normalization(
        f["x"], moving_mean_initializer=exactness.start, **options
    )


def attention_to_rows(f, y, mode):
    """Each row looks at all rows of its batch."""
    hidden = dense(f["x"], activation=tf.nn.tanh)
    return tf.matmul(tf.nn.softmax(tf.matmul(hidden, hidden, transpose_b=True)), f["x"])


def ranks_of_rows(f, y, mode):
    """Rows in the order of their scores, and the sums of those before them."""
    scores = dense(f["x"])[:, 0]
    order = tf.argsort(scores)
    before = tf.cumsum(tf.gather(scores, order), exclusive=True)
    back = tf.gather(before, tf.argsort(order)) / losses.count(f["x"])
    return dense(tf.stack([scores, back], 1))


def regularised(f, y, mode):
    options = {"activation": tf.nn.tanh, "kernel_regularizer": lambda w: 0.1 * tf.nn.l2_loss(w)}
    return dense(f["x"], **options)


FAMILIES = {
    "none": [lambda f, y, mode: f["x"]],
    "rows apart": [apart(network) for network in table.NETWORKS.values()],
    "batch norm": [norm_of_keras, norm_of_layers, inference_norm],
    "all rows": [attention_to_rows, ranks_of_rows],
    "regularised": [regularised],
}
OPTIMIZERS = {
    "descent": running.descend,
    "momentum": lambda: tf1.train.MomentumOptimizer(0.02, 0.9, use_nesterov=True),
    "adam": running.adam,
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
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1e-3)
    step = optimizer.apply_gradients(zip(gradients, trained, strict=True))
    return tf.group(step, tf1.train.get_global_step().assign_add(1))


WAYS = {"optimizer_fn": minimize, "minimize": minimize, "clip": clip}


class Draw(NamedTuple):
    """What one example compares."""

    network: Callable
    sizes: list
    is_static: bool
    num_devices: int
    strategy: str
    feature_nest: str
    label_nest: str
    loss: str
    way: str
    optimizer: str
    modes: tuple

    def model(self, features, labels, mode):
        """The model_fn: a network, a loss, metrics."""
        f, v = FEATURE_NESTS[self.feature_nest][1](features), losses.Weights()
        y = f["labels"] if labels is None else NESTS[self.label_nest][1](labels)
        x = self.network(f, y, mode)
        output = losses.logits({"x": x}, v)
        predictions = {"output": output, "rows": x, "mean": tf.reduce_mean(output, 0)}
        if mode == "infer":
            return exactness.spec_of(mode, predictions=predictions)
        loss = table.CASES[self.loss].loss({**f, "x": x}, y, v)
        penalties = tf1.losses.get_regularization_losses()
        loss = tf.add_n([loss, *(tf.cast(penalty, loss.dtype) for penalty in penalties)])
        metrics = {
            "mean": tf1.metrics.mean(output, f["real"][:, None]),
            "rmse": tf1.metrics.root_mean_squared_error(y["y"], output),
            "hits": tf1.metrics.accuracy(y["class"], tf.argmax(output, 1), f["real"]),
            "loss": tf1.metrics.mean(loss),
        }
        return exactness.spec_of(mode, loss, predictions, eval_metric_ops=metrics)

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
            return model_fn.replicate_model_fn(self.model, OPTIMIZERS[self.optimizer], **options)
        return model_fn.replicate_model_fn(self.stepping, **options)

    def batches(self, has_labels):
        """Successive batches, of as many rows as drawn."""
        pack_features, pack_labels = FEATURE_NESTS[self.feature_nest][0], NESTS[self.label_nest][0]
        given = running.batches(*self.sizes, is_static=self.is_static)
        if has_labels:
            return [(pack_features(f), pack_labels(y)) for f, y in given]
        return [(pack_features({**f, "labels": y}), None) for f, y in given]  # some look words up


@st.composite
def draws(draw, family):
    """Draws an example; see the class."""

    def one_of(found):
        return draw(st.sampled_from(list(found)))

    is_static = draw(st.booleans())
    rows = st.integers(1, 40)
    first = draw(rows)
    network = one_of(FAMILIES[family])
    return Draw(
        network=network,
        sizes=[first, first] if is_static else [first, draw(rows)],
        is_static=is_static,
        num_devices=draw(st.integers(1, 8)),
        strategy=one_of(STRATEGIES),
        feature_nest=one_of(FEATURE_NESTS),
        label_nest=one_of(NESTS),
        loss=one_of(name for name, case in table.CASES.items() if is_static in case.statics),
        way=one_of(WAYS),
        optimizer=one_of(OPTIMIZERS),
        modes=one_of((("train",), ("train", "eval"), ("infer",))),
    )


def require_exact(draw):
    """Compares training, then evaluation or prediction, with one device."""
    replicated = draw.replicated()
    tolerance = running.TOLERANCE if table.CASES[draw.loss].dtype == np.float64 else SINGLE
    for mode in draw.modes:
        given = draw.batches(has_labels=mode != "infer")
        expected = exactness.run(draw.stepping, given, mode, draw.is_static)
        with exactness.quiet():
            found = exactness.run(replicated, given, mode, draw.is_static)
        with exactness.named(mode):
            exactness.compare(found[:2], expected[:2], *tolerance)
            exactness.compare(found.metrics, expected.metrics, *SINGLE)


@pytest.mark.thorough("all rows")
@pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
@pytest.mark.parametrize("family", FAMILIES)
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
