"""What a loop of version 1 keeps on stacks, for its gradient."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from tests import exactness

DEVICES = [f"/device:CPU:{k}" for k in range(3)]


@pytest.fixture(autouse=True)
def old_control_flow():
    was_new = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if was_new:
        tf1.enable_control_flow_v2()


@pytest.mark.parametrize("width", [3, 5])
def test_a_sum_that_needs_another_one_through_a_stack_does_not_wait_for_itself(fresh_graph, width):
    x = tf1.placeholder(tf.float64, [None, width])
    w = tf.constant(np.linspace(0.5, 1.0, width))
    mean = tf.reduce_sum(x, 0) / 4.0  # goes into the loop, whose gradient pops what it made

    def body(n, h):
        return n + 1, tf.tanh(h * w + mean)

    _, h = tf.while_loop(lambda n, _: n < 3, body, [0, x])
    # The gradient begins with ones: only what is popped depends on the forward pass.
    made = [tf.reduce_sum(h), *tf.gradients(tf.reduce_sum(h), [w]), mean]
    config, values = exactness.session_config(), np.random.RandomState(1).randn(7, width)
    result = splitter.split_graph([x], DEVICES, made, home=DEVICES[0])
    with tf1.Session(graph=fresh_graph, config=config) as session:
        patience = tf1.RunOptions(timeout_in_ms=20_000)
        one, split = session.run([made, result.fetch], {x: values}, patience)
    for found, wanted in zip(split, one, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-12)


def test_rows_go_to_stacks_of_each_devices_own(fresh_graph):
    x = tf1.placeholder(tf.float64, [None, 3])
    _, h = tf.while_loop(lambda n, _: n < 3, lambda n, h: (n + 1, tf.tanh(h)), [0, x])
    (slope,) = tf.gradients(h, [x])
    ops = fresh_graph.get_operations()
    used = [op for op in ops if op.type in ("StackPushV2", "StackPopV2")]
    devices = [f"/device:CPU:{k}" for k in range(3)]
    result = splitter.split_graph([x], devices, [slope], home=devices[0])
    assert [result.how(op) for op in used] == ["split"] * 2
    with tf1.Session(config=exactness.session_config()) as session:
        one, split = session.run(
            [slope, result.fetch[0]], {x: np.linspace(-1, 1, 15).reshape(5, 3)}
        )
    np.testing.assert_allclose(split, one, 1e-12)


def test_what_is_pushed_may_be_read_though_nothing_is_popped(fresh_graph):
    x = tf1.placeholder(tf.float64, [None, 3])
    stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float64)
    pushed = tf.raw_ops.StackPushV2(handle=stack, elem=tf.exp(x))
    tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.float64)
    result = splitter.split_graph([x], DEVICES, [pushed * 2.0], home=DEVICES[0])
    with tf1.Session(config=exactness.session_config()) as session:
        (found,) = session.run(result.fetch, {x: np.zeros([4, 3])})
    np.testing.assert_array_equal(found, np.full([4, 3], 2.0))  # twice exp(0)
