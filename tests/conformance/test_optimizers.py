"""TensorFlow's optimizers, unchanged, in towers of every strategy."""

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.conformance import strategies
from tests.training import models

X = np.arange(24.0, dtype="float32").reshape(8, 3) / 10
Y = np.arange(8.0, dtype="float32")[:, None] / 8


def minimize(x, y):
    """For each optimizer one dense and one sparse gradient, by a mean over rows."""
    steps = []
    for name, make in models.OPTIMIZERS.items():
        with tf1.variable_scope(name):
            table = tf1.get_variable("table", initializer=tf.fill([5, 3], 0.5))
            w = tf1.get_variable("w", initializer=tf.fill([3, 1], 0.1))
        h = x + tf.nn.embedding_lookup(table, tf.cast(y[:, 0] * 4, tf.int32))
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(h), w) - y))
        steps.append(make().minimize(loss, var_list=[table, w]))
    return tf.group(*steps)


def after_three_steps(step, directory):
    """Returns what a checkpoint holds: weights and slots."""
    with tf1.Session(config=exactness.session_config()) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        path = tf1.train.Saver().save(session, str(directory / "model"))
    reader = tf.train.load_checkpoint(path)
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """What one device makes of the whole batch."""
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        step = minimize(tf.constant(X), tf.constant(Y))
        return after_three_steps(step, tmp_path_factory.mktemp("one"))


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("name", strategies.SEVERAL)
def test_every_optimizer_gives_what_one_device_gives(name, one_device, tmp_path):
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        strategy = strategies.MAKERS[name]()
        K = strategy.num_towers
        shards = [core.PerDevice(tf.split(array, [8 // K] * K)) for array in (X, Y)]
        with strategy.scope():
            step = strategy.group(strategy.call_for_each_tower(minimize, *shards))
        exactness.compare(after_three_steps(step, tmp_path), one_device, 2e-5, 2e-6)
