"""A model that is called once, and one that is called for each tower, are both one device.

Every model is trained, evaluated and asked for predictions on 7, 2 and 1 rows, over three
towers; what comes out is what TensorFlow alone gives on one device.
"""

import contextlib
import functools

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

WAYS = ("clone", "call")
STRATEGIES = ("parameter_server", "mirrored")
TOWERS = 3
SIZES = (7, 2, 1)  # rows that do not divide, fewer than towers, one
WIDTH = 4
MODES = ("train", "eval", "infer")

# TensorFlow advises against its older cells and layers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
both_ways = pytest.mark.parametrize("way", WAYS)
both_strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def batches(is_labelled=True, sizes=SIZES):
    """Pairs of features and labels: numbers, small integers, sparse and ragged rows."""
    made = []
    for rows in sizes:
        numbers = np.random.RandomState(rows)
        x = numbers.uniform(-1, 1, [rows, WIDTH]).astype(np.float32)
        lengths = numbers.randint(1, 4, rows)
        features = {
            "x": x,
            "ids": numbers.randint(0, 5, [rows, 2]).astype(np.int64),
            "words": tf1.SparseTensorValue(
                np.array([[i, i % 3] for i in range(rows)], np.int64),
                numbers.randint(0, 5, rows).astype(np.int64),
                np.array([rows, 3], np.int64),
            ),
            "ragged": tf1.ragged.RaggedTensorValue(
                numbers.uniform(-1, 1, lengths.sum()).astype(np.float32),
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            ),
        }
        made.append((features, x[:, :1] * 2.0 if is_labelled else None))
    return made


def dense(x, units=1, **options):
    return tf1.layers.dense(x, units, kernel_initializer=exactness.start, **options)


# Networks: from features and the mode to an output of shape [B, 1].


def layers(features, mode):
    return dense(dense(features["x"], 4, activation=tf.nn.tanh))


def embedding(features, mode):
    table = tf1.get_variable("table", [5, 3], initializer=exactness.start)
    return dense(tf1.layers.flatten(tf.nn.embedding_lookup(table, features["ids"])))


def keras_lstm(features, mode):
    start = exactness.start
    lstm = tf.keras.layers.LSTM(3, kernel_initializer=start, recurrent_initializer=start)
    return dense(lstm(features["x"][:, :, None]))


def dynamic_rnn(features, mode):
    with tf1.variable_scope("recurrent", initializer=exactness.start):
        cell = tf1.nn.rnn_cell.BasicRNNCell(3)
        _, state = tf1.nn.dynamic_rnn(cell, features["x"][:, :, None], dtype=tf.float32)
    return dense(state)


def branches(features, mode):
    """Takes one branch in even steps, the other in odd ones."""
    w = tf1.get_variable("w", [WIDTH, 3], initializer=exactness.start)
    hidden = features["x"] @ w
    is_even = tf.equal(tf1.train.get_global_step() % 2, 0)
    return dense(tf.cond(is_even, lambda: tf.tanh(hidden), lambda: tf.sigmoid(hidden @ w[:3])))


def loop(features, mode):
    w = tf1.get_variable("w", [WIDTH, WIDTH], initializer=exactness.start)

    def step(i, hidden):
        return i + 1, tf.tanh(hidden @ w)

    return dense(tf.while_loop(lambda i, _: i < 3, step, [0, features["x"]])[1])


def function(features, mode):
    w = tf1.get_variable("w", [WIDTH, 3], initializer=exactness.start)

    @tf.function
    def called(x):
        return tf.tanh(x @ w)

    return dense(called(features["x"]))


def table(features, mode):
    keys, found = tf.range(5, dtype=tf.int64), tf.constant([0.1, -0.2, 0.3, -0.4, 0.5])
    made = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, found), 9.0)
    return dense(tf.reshape(made.lookup(features["ids"]), [-1, 2]))


def numpy_function(features, mode):
    ids = features["ids"]
    halved = tf.numpy_function(lambda ids: (ids / 2).astype(np.float32), [ids], tf.float32)
    return dense(tf.ensure_shape(halved, [None, 2]))


def py_func(features, mode):
    halved = tf1.py_func(lambda ids: (ids / 2).astype(np.float32), [features["ids"]], tf.float32)
    return dense(tf.reshape(halved, [-1, 2]))


def asserting(features, mode):
    below = tf.debugging.assert_less(features["x"], 2.0, message="all are below two")
    with tf.control_dependencies([below]):
        return dense(tf.identity(features["x"]))


def normalized(features, mode):
    """Normalizes the rows of all towers together."""
    norm = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
    hidden = norm(dense(features["x"], 3, use_bias=False), training=mode == "train")
    for update in norm.updates if mode == "train" else ():
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return dense(tf.tanh(hidden))


def sparse_and_ragged(features, mode):
    rows = tf1.get_variable("rows", [5, 3], initializer=exactness.start)
    words = tf.nn.safe_embedding_lookup_sparse(rows, features["words"], combiner="mean")
    means = tf.reduce_mean(features["ragged"], 1)[:, None]
    return dense(tf.ensure_shape(tf.concat([words, means], 1), [None, 4]))


NETWORKS = {
    network.__name__: network
    for network in (
        layers,
        embedding,
        keras_lstm,
        dynamic_rnn,
        branches,
        loop,
        function,
        table,
        numpy_function,
        py_func,
        asserting,
        normalized,
        sparse_and_ragged,
    )
}
OF_VERSION_1 = ("branches_of_version_1", "loop_of_version_1", "dynamic_rnn_of_version_1")
NETWORKS |= {name: NETWORKS[name.removesuffix("_of_version_1")] for name in OF_VERSION_1}


@contextlib.contextmanager
def control_flow_of(name):
    """Has TensorFlow build the control flow that the name of a network asks for."""
    if name not in OF_VERSION_1:
        yield
        return
    tf1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf1.enable_control_flow_v2()


# Model_fns.


def metric_by_keras(metric, *given):
    metric.update_state(*given)
    return metric


def spec(mode, output, labels, loss=None, **fields):
    """What a model_fn returns: a loss, two predictions, metrics of both kinds."""
    predictions = {"output": output, "mean": tf.reduce_mean(output)}
    if mode == "infer":
        return exactness.spec_of(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(output - labels)) if loss is None else loss
    metrics = {}
    if mode == "eval":
        metrics = {
            "rmse": tf1.metrics.root_mean_squared_error(labels, output),
            "hits": tf1.metrics.accuracy(labels > 0, output > 0),
            "loss": tf1.metrics.mean(loss),
            "error": metric_by_keras(tf.keras.metrics.MeanAbsoluteError(), labels, output),
            "area": metric_by_keras(tf.keras.metrics.AUC(num_thresholds=5), labels > 0, output),
        }
    return exactness.spec_of(mode, loss, predictions, eval_metric_ops=metrics, **fields)


def of_network(name):
    """Returns a model_fn whose step `optimizer_fn` makes."""

    def model(features, labels, mode):
        output = NETWORKS[name](features, mode)
        output = tf.sigmoid(output)  # what an area under a curve is made of
        return spec(mode, output, labels)

    return model


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def trained(loss, variables, optimizer):
    """Takes gradients and clips them, for sure; returns the step."""
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.05)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True))


def clipping(features, labels, mode):
    output = tf.sigmoid(layers(features, mode))
    if mode != "train":
        return spec(mode, output, labels)
    loss = tf.reduce_sum(tf.square(output - labels))
    step = trained(loss, tf1.trainable_variables(), tf1.train.AdamOptimizer(0.1, epsilon=0.1))
    counted = tf1.train.get_global_step().assign_add(1)
    return spec(mode, output, labels, loss, train_op=tf.group(step, counted))


def of_two_optimizers(features, labels, mode):
    """A network that is trained by the error, and a weight that follows its outputs' mean."""
    output = tf.sigmoid(layers(features, mode))
    level = tf1.get_variable("level", initializer=0.2)
    if mode != "train":
        return spec(mode, output, labels)
    network = [v for v in tf1.trainable_variables() if v is not level]
    loss = tf.reduce_mean(tf.square(output - labels))
    follows = tf.square(level - tf.stop_gradient(tf.reduce_mean(output)))
    first = momentum().minimize(loss, tf1.train.get_global_step(), network)
    second = tf1.train.AdamOptimizer(0.1, epsilon=0.1).minimize(follows, var_list=[level])
    return spec(mode, output, labels, loss + follows, train_op=tf.group(first, second))


def with_gradient_penalty(features, labels, mode):
    """The loss's own gradient is small where this one is."""
    output = tf.sigmoid(layers(features, mode))
    if mode != "train":
        return spec(mode, output, labels)
    loss = tf.reduce_mean(tf.square(output - labels))
    gradients = tf.gradients(loss, tf1.trainable_variables())
    loss += 0.5 * tf.add_n([tf.reduce_sum(tf.square(gradient)) for gradient in gradients])
    step = momentum().minimize(loss, tf1.train.get_global_step())
    return spec(mode, output, labels, loss, train_op=step)


OWN_STEPS = {
    model.__name__: model for model in (clipping, of_two_optimizers, with_gradient_penalty)
}


# Running.


@functools.cache
def one_device(name, mode):
    """What TensorFlow alone makes of a model, mode by mode; see `exactness.run`."""
    model = OWN_STEPS.get(name) or of_network(name)
    if name in NETWORKS:
        model = exactness.stepping(model, momentum)
    with control_flow_of(name):
        return exactness.run(model, batches(mode != "infer"), mode)


def require_one_device(name, mode, way, strategy):
    model = exactness.Counted(OWN_STEPS.get(name) or of_network(name))
    optimizer_fn = momentum if name in NETWORKS else None
    replicated = model_fn.replicate_model_fn(
        model, optimizer_fn, TOWERS, strategy=strategy, tower_building=way
    )
    with control_flow_of(name):
        found = exactness.run(replicated, batches(mode != "infer"), mode)
    assert model.calls == (1 if way == "clone" else TOWERS)
    for part, expected in one_device(name, mode)._asdict().items():
        with exactness.named(part):
            exactness.compare(getattr(found, part), expected)


@pytest.mark.parametrize("mode", MODES)
@both_strategies
@both_ways
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_both_ways_are_one_device(name, way, strategy, mode):
    require_one_device(name, mode, way, strategy)


@both_strategies
@both_ways
@pytest.mark.parametrize("name", sorted(OWN_STEPS))
def test_steps_of_the_models_own_are_one_devices(name, way, strategy):
    require_one_device(name, "train", way, strategy)


@both_strategies
@both_ways
def test_accumulated_steps_are_one_devices(way, strategy):
    def steps(devices, **options):
        model = model_fn.replicate_model_fn(
            of_network("layers"), momentum, devices, accumulate_steps=2, **options
        )
        return exactness.run(model, batches(sizes=(7, 2, 1, 7)))

    exactness.compare(steps(TOWERS, strategy=strategy, tower_building=way), steps(1))


def of_masked_error(name):
    """A network whose loss is a quotient, of which gradients are taken across towers."""

    def model(features, labels, mode):
        output = NETWORKS[name](features, mode)
        mask = tf.cast(labels > 0, output.dtype)
        loss = tf.reduce_sum(mask * tf.square(output - labels)) / (1.0 + tf.reduce_sum(mask))
        return spec(mode, output, labels, loss)

    return model


@both_strategies
@both_ways
@pytest.mark.parametrize("name", OF_VERSION_1)
def test_quotients_behind_control_flow_of_version_1_are_one_devices(name, way, strategy):
    with control_flow_of(name):
        exactness.require_one_device(
            of_masked_error(name),
            batches(),
            optimizer_fn=momentum,
            devices=TOWERS,
            strategy=strategy,
            tower_building=way,
        )
