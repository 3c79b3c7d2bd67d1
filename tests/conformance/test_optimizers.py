"""TensorFlow's optimizers, unchanged, in towers of every strategy."""

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import strategies

X = np.arange(24.0, dtype="float32").reshape(8, 3) / 10
Y = np.arange(8.0, dtype="float32")[:, None] / 8

OPTIMIZERS = {
    "adadelta": lambda: tf1.train.AdadeltaOptimizer(0.1),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adagrad_da": lambda: tf1.train.AdagradDAOptimizer(0.1, tf1.train.get_global_step()),
    "adam": lambda: tf1.train.AdamOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "gradient_descent": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "proximal_adagrad": lambda: tf1.train.ProximalAdagradOptimizer(0.1),
    "proximal_gradient_descent": lambda: tf1.train.ProximalGradientDescentOptimizer(0.1),
    "rms_prop": lambda: tf1.train.RMSPropOptimizer(0.1),
    "rms_prop_centered": lambda: tf1.train.RMSPropOptimizer(0.1, centered=True),
}


def minimize(make, x, y):
    """One dense and one sparse gradient, by a mean over rows."""
    table = tf1.get_variable("table", initializer=tf.fill([5, 3], 0.5))
    w = tf1.get_variable("w", initializer=tf.fill([3, 1], 0.1))
    h = x + tf.nn.embedding_lookup(table, tf.cast(y[:, 0] * 4, tf.int32))
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(h), w) - y))
    return make().minimize(loss, global_step=tf1.train.get_global_step())


def after_three_steps(train_op, directory):
    """Returns what a checkpoint holds: weights, slots, global step."""
    config = tf1.ConfigProto(device_count={"CPU": 8})
    with tf1.Session(config=config) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
        path = tf1.train.Saver().save(session, str(directory / "model"))
    reader = tf.train.load_checkpoint(path)
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def one_device(request, tmp_path_factory):
    """An optimizer, and what it does on one device with the whole batch."""
    make = OPTIMIZERS[request.param]
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        train_op = minimize(make, tf.constant(X), tf.constant(Y))
        return make, after_three_steps(train_op, tmp_path_factory.mktemp("one"))


@pytest.mark.thorough("adam-*", "momentum-*", "*-mirrored")
@pytest.mark.parametrize("name", strategies.SEVERAL)
def test_optimizer_gives_what_one_device_gives(name, one_device, tmp_path):
    make, expected = one_device
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        strategy = strategies.MAKERS[name]()
        K = strategy.num_towers
        shards = [core.PerDevice(tf.split(array, [8 // K] * K)) for array in (X, Y)]
        with strategy.scope():
            train_op = strategy.call_for_each_tower(lambda x, y: minimize(make, x, y), *shards)
            train_op = strategy.group(train_op)
        found = after_three_steps(train_op, tmp_path)
    assert set(found) == set(expected)
    assert found["global_step"] == 3
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=2e-5, atol=2e-6, err_msg=key)
