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


def of_a_list(x):
    listed = tf.raw_ops.TensorListFromTensor(tensor=x[None], element_shape=[8, 9])
    return tf.raw_ops.TensorListGetItem(
        input_handle=listed, index=0, element_shape=[8, 9], element_dtype=tf.float32
    )


def of_an_optional(x):
    held = tf.raw_ops.OptionalFromValue(components=[x])
    return tf.raw_ops.OptionalGetValue(
        optional=held, output_types=[tf.float32], output_shapes=[[8, 9]]
    )[0]


def of_a_reference(x):
    # That of the variable is counted with the variables.
    return tf1.assign(tf1.get_variable("kept", [8, 9], use_resource=False), x)


def of_a_branch(x):
    return tf1.cond(fed(dtype=tf.bool), lambda: x, lambda: x + 1.0)


def of_a_branch_of_version_1(x):
    tf1.disable_control_flow_v2()
    try:
        return of_a_branch(x)
    finally:
        tf1.enable_control_flow_v2()


def of_a_loop(x):
    return tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y), [0, x])[1]


def of_a_loop_of_version_1(x):
    tf1.disable_control_flow_v2()
    try:
        return of_a_loop(x)
    finally:
        tf1.enable_control_flow_v2()


def held_with(again):
    """Returns what is held while two tensors of 288 bytes wait, and what is made of one of them."""
    x, other = tf.exp(fed(8, 9)), tf.exp(fed(8, 9))
    y = again(x)
    with tf.control_dependencies([x, y]):
        moment = tf.exp(other)
    with tf.control_dependencies([moment]):
        return held(end(*(tf.raw_ops.Size(input=each) for each in (x, y))))[FIRST]


@pytest.mark.parametrize(
    "again",
    [
        *(of_a_list, of_an_optional, of_a_reference, of_a_branch, of_a_branch_of_version_1),
        *(of_a_loop, of_a_loop_of_version_1, tf.function(tf.identity)),
        lambda x: tf.raw_ops.IdentityN(input=[fed(3), x])[1],
        lambda x: tf.ensure_shape(x, [8, None]),
        lambda x: tf1.placeholder_with_default(x, [8, 9]),
        lambda x: tf.bitcast(x, tf.uint32),
        lambda x: tf.broadcast_to(x, [8, 9]),
        lambda x: tf.transpose(x, [0, 1]),
        lambda x: tf.tile(x, [1, 1]),
        lambda x: tf.stack([x]),
        lambda x: tf.reduce_sum(x[None], 0),
    ],
)
def test_what_may_be_given_back_is_held_once(again):
    assert 2 * 288 <= held_with(again) < 3 * 288


@pytest.mark.parametrize(
    "again", [tf.exp, lambda x: tf.tile(x, [2, 1]), lambda x: tf.stack([x, x])]
)
def test_what_is_larger_has_memory_of_its_own(again):
    assert held_with(again) >= 3 * 288


def test_whole_numbers_of_32_bits_are_not_in_the_memory_of_a_gpu():
    with tf.device("/device:GPU:0"):
        ids, x = fed(800, dtype=tf.int32) + 1, tf.exp(fed(8, 9))
        with tf.control_dependencies([ids]):
            moment = tf.exp(x)
        with tf.control_dependencies([moment]):
            step = end(ids + 2)
    assert held(step)["/device:GPU:0"] == 288


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


def ended_for(path, monkeypatch, capsys, reason):
    """Returns what is said where a training ends with an error of TensorFlow's."""

    def train(*_):
        raise tf.errors.ResourceExhaustedError(None, None, reason)

    monkeypatch.setattr("replicate.app.training.runner.train", train)
    assert cli.main(["train", path]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("reason", ["a; No space left on device", "message larger than max (5)"])
def test_who_lacks_something_else_is_not_told_of_memory(path, monkeypatch, capsys, reason):
    told = ended_for(path, monkeypatch, capsys, reason)
    assert reason in told
    assert "A step of" not in told


def test_a_model_that_cannot_be_built_again_hides_no_error(path, monkeypatch, capsys):
    def describe(*_):
        raise ValueError("only once")

    monkeypatch.setattr(description, "describe", describe)
    told = ended_for(path, monkeypatch, capsys, "OOM when allocating tensor with shape[7] and")
    assert "ResourceExhaustedError: OOM when" in told
    assert "only once" not in told


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
