"""How much memory a step needs at least: worked out by hand, for float32 of 4 bytes."""

import numpy as np
import pytest

from replicate.app.command import cli
from replicate.app.config import config
from replicate.app.inspect import description, memory, traffic
from replicate.compat.tensorflow import tf, tf1

FIRST, SECOND = "/device:CPU:0", "/device:CPU:1"


def held(*step):
    return memory.held(step, traffic.Places(), traffic.Sizes({}))


def fed(*shape, dtype=tf.float32):
    return tf1.placeholder(dtype, shape)


def end(*values):
    """Returns what reads values, and has none of its own."""
    with tf.control_dependencies(values):
        return tf.no_op()


@pytest.fixture(autouse=True)
def make_graph():
    """Gives each test a graph."""
    with tf.Graph().as_default(), tf.device(FIRST):
        yield


def test_what_is_read_later_is_held():
    kept = tf.exp(fed(4, 3))  # 48 bytes
    wide = tf.exp(tf.matmul(kept, fed(3, 5)))  # 80 bytes
    middle = tf.linalg.det(tf.matmul(wide, wide, transpose_a=True))  # reads 100 bytes
    step = end(kept * middle, wide * middle)
    # At det: kept, wide and the product of wide.
    assert held(step) == {FIRST: 48 + 80 + 100}


def test_what_is_read_no_more_is_not_held():
    x = fed(4, 3)
    for _ in range(9):
        x = tf.exp(x)
    assert held(end(x)) == {FIRST: 48}


def test_what_may_run_in_any_order_is_not_held_together():
    assert held(end(*(tf.exp(tf.exp(fed(4, 3))) for _ in range(3)))) == {FIRST: 48}


def test_who_must_wait_keeps_others_waiting():
    first = tf.exp(fed(4, 3))
    with tf.control_dependencies([first]):
        second = tf.exp(tf.exp(fed(5, 3)))  # 60 bytes
    with tf.control_dependencies([second]):
        third = first + 1.0
    # As the second exp runs: first, and what it reads. Of "+ 1.0" the number has 4 bytes.
    assert held(end(third)) == {FIRST: 48 + 60}


def test_views_have_no_memory_of_their_own():
    whole = tf.exp(fed(4, 3))
    views = [*tf.split(whole, 2), tf.reshape(whole, [12]), tf.identity(whole)]
    sums = tf.add_n([tf.reduce_sum(view, axis=list(range(view.shape.rank))) for view in views])
    with tf.control_dependencies([sums]):
        again = tf.exp(whole)
    found = held(end(again))[FIRST]
    assert 48 <= found <= 48 + 4 * 4 + 16  # four sums, and on which axes


def test_a_tensor_is_held_where_it_was_sent_to():
    weights = tf1.get_variable("weights", [3, 5], use_resource=True)
    with tf.device(SECOND):
        y = tf.matmul(tf.exp(fed(4, 3)), tf.convert_to_tensor(weights))  # 80 bytes
        loss = tf.linalg.det(tf.matmul(y, y, transpose_a=True))  # reads 100
        step = end(tf.matmul(y * loss, tf.convert_to_tensor(weights.value()), transpose_b=True))
    found = held(step)
    # The copy of the weights is read before det and after it; so is y.
    assert found[SECOND] >= 80 + 100
    assert found.get(FIRST, 0) == 0  # they are read where they are


def test_branches_count_as_nothing():
    def branch():
        inside = tf.exp(x)  # with what det reads, 36 bytes, more than x alone
        return inside * tf.linalg.det(tf.matmul(inside, inside, transpose_a=True))

    tf1.disable_control_flow_v2()
    try:
        x = tf.exp(fed(4, 3))
        step = end(tf1.cond(fed(dtype=tf.bool), branch, branch))
    finally:
        tf1.enable_control_flow_v2()
    assert held(step) == {FIRST: 48 + 1}  # x, and which branch


MODEL = """
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def model(features, labels, mode):
    hidden = tf1.layers.dense(features["x"], 400, tf.sigmoid)
    loss = tf1.losses.mean_squared_error(labels, tf1.layers.dense(hidden, 2))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())
"""
CONFIG = """
model_fn: model_of_peaks:model
optimizer: {name: Momentum, learning_rate: 0.1, momentum: 0.9}
devices: [/cpu:0, /cpu:1]
train:
  steps: 1
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 60}
"""
VARIABLES = 2 * 4 * (3 * 400 + 400 + 400 * 2 + 2) + 8  # weights, their slots, the global step


@pytest.fixture(name="path")
def make_config(tmp_path, monkeypatch):
    """Returns the path of a config; 3 features, a hidden layer of 400, 2 results."""
    (tmp_path / "model_of_peaks.py").write_text(MODEL)
    (tmp_path / "c.yaml").write_text(CONFIG)
    np.savez(tmp_path / "d.npz", x=np.zeros([60, 3], "f"), y=np.zeros([60, 2], "f"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "c.yaml")


@pytest.mark.parametrize("building", ["split", "call"])
def test_a_training_keeps_what_its_gradients_read(path, building):
    peaks = []
    for rows in (60, 600):
        options = [f"tower_building={building}", f"train.input.batch_size={rows}"]
        found = description.describe(config.load(path, options))
        first, second = found.devices
        assert (first.bytes, second.bytes) == (VARIABLES, 0)
        # The gradient of a sigmoid reads what that made: of half of the rows, 400 numbers each.
        assert first.peak - VARIABLES >= rows // 2 * 400 * 4
        assert second.peak >= rows // 2 * 400 * 4
        # No more than hidden, before and after the sigmoid, its gradient, and again as much.
        assert second.peak <= rows // 2 * 400 * 4 * 4 + VARIABLES
        peaks.append(second.peak)
    assert peaks[1] > 5 * peaks[0]


def test_a_training_without_memory_tells_what_it_needs(path, monkeypatch, capsys):
    def train(*_):
        raise tf.errors.ResourceExhaustedError(
            None,
            tf.zeros([9], name="large").op,
            "OOM when allocating tensor with shape[7] and type half on x",
        )

    first, second = description.describe(config.load(path)).devices
    monkeypatch.setattr("replicate.app.training.runner.train", train)
    assert cli.main(["train", path]) == 1
    told = capsys.readouterr().err
    assert "This device's memory is full: 14 bytes do not fit." in told
    assert "The operation is large." in told
    each = (
        f"CPU:0 {first.peak:,} bytes ({VARIABLES:,} of them variables), CPU:1 {second.peak:,} bytes"
    )
    assert f"A step of 60 rows needs at least, by the shapes of its graph: {each} (0 of" in told
