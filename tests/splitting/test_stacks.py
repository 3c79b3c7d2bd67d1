"""What loops of version 1 keep: values on stacks for their gradients, elements of arrays."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.splitting import alike

pytestmark = pytest.mark.usefixtures("old_control_flow")
F64 = tf.float64


@pytest.mark.parametrize("width", [3, 5])
def test_a_sum_that_needs_another_one_through_a_stack_does_not_wait_for_itself(width):
    def make(x):
        w = tf.constant(np.linspace(0.5, 1.0, width))
        mean = tf.reduce_sum(x, 0) / 4.0  # goes into the loop, whose gradient pops what it made
        turn = lambda n, h: (n + 1, tf.tanh(h * w + mean))  # noqa: E731
        _, h = tf.while_loop(lambda n, _: n < 3, turn, [0, x])
        # The gradient begins with ones: only what is popped depends on the forward pass.
        return [tf.reduce_sum(h), *tf.gradients(tf.reduce_sum(h), [w]), mean]

    alike.require_alike(make, [alike.numbers(7, width)])


def test_rows_go_to_stacks_of_each_devices_own(fresh_graph):
    x = tf1.placeholder(F64, [None, 3])
    _, h = tf.while_loop(lambda n, _: n < 3, lambda n, h: (n + 1, tf.tanh(h)), [0, x])
    (slope,) = tf.gradients(h, [x])
    ops = fresh_graph.get_operations()
    result = alike.split([x], [slope])
    used = [op for op in ops if op.type in ("StackPushV2", "StackPopV2")]
    assert [result.how(op) for op in used] == ["split"] * 2


def test_what_is_pushed_may_be_read_though_nothing_is_popped():
    def make(x):
        stack = tf.raw_ops.StackV2(max_size=-1, elem_type=F64)
        pushed = tf.raw_ops.StackPushV2(handle=stack, elem=tf.exp(x))
        tf.raw_ops.StackPopV2(handle=stack, elem_type=F64)
        return [pushed * 2.0]

    alike.require_alike(make, [alike.numbers(4, 3)])


def test_an_arrays_size_is_that_of_each_devices(fresh_graph):
    def make(x):
        array = tf.TensorArray(F64, 3, dynamic_size=True)
        array = array.unstack(tf.transpose(x, [1, 0, 2]))
        return [tf.reduce_sum(array.stack() * tf.cast(array.size(), F64), [0, 2])]

    alike.require_alike(make, [alike.numbers(rows, 3, 4) for rows in (5, 2, 1)])
    x = tf1.placeholder(F64, [None, 3, 4])
    result = alike.split([x], make(x))
    assert "TensorArraySizeV3" in {op.type for op in result.split}
