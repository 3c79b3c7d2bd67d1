"""What each device has the whole value of is made, and read, on each device."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.states import COPIED
from replicate.splitting.structure import loops
from replicate.splitting.writing import writer
from tests.splitting import alike

DEVICES = alike.DEVICES[:3]
X = np.arange(15.0).reshape(5, 3)


def passed_on_with_rows(x):
    passed, number = tf.raw_ops.IdentityN(input=[x, tf.constant(3.0, tf.float64)])
    root = tf.sqrt(number)
    return root, passed * root


def of_a_lists_length(x):
    handle = tf.raw_ops.TensorListFromTensor(
        tensor=tf.transpose(x), element_shape=tf.constant([-1], tf.int32)
    )
    length = tf.sqrt(tf.cast(tf.raw_ops.TensorListLength(input_handle=handle), tf.float64))
    return length, x * length


MODELS = [passed_on_with_rows, of_a_lists_length]


@pytest.mark.parametrize("make", MODELS)
def test_what_is_made_of_copied_values_is_one_devices(make):
    alike.require_alike(lambda x: list(make(x)), [X, X[:2]])


@pytest.mark.parametrize("make", MODELS)
def test_what_is_made_of_copied_values_is_made_and_read_on_each_device(fresh_graph, make):
    x = tf1.placeholder(tf.float64, [None, 3])
    length, whole = make(x)
    result = alike.split([x], [whole])
    assert result.state(length) is COPIED
    for k, device in enumerate(DEVICES):
        # The first device, which is home, runs the operation itself.
        name = f"tower_{k}/{length.op.name}" if k else length.op.name
        copy = fresh_graph.get_operation_by_name(name)
        assert (copy.device or DEVICES[0]) == device
        users = [user for user in copy.outputs[0].consumers() if user.type == "Mul"]
        copies = [user for user in users if user.name.startswith("tower_")]
        assert [user.device for user in copies] == [device]


def test_what_is_whole_in_a_loop_of_each_devices_is_copied(fresh_graph):
    x = tf1.placeholder(tf.float64, [None, 3])
    turns, h = tf.while_loop(
        lambda n, _: n < 3, lambda n, h: (n + 1, h * tf.cast(n + 1, h.dtype)), [0, x]
    )
    result = alike.split([x], [turns, h])
    inside = [op for op in fresh_graph.get_operations() if loops.root(op) is not None]
    assert inside
    assert not result.whole.intersection(inside)  # nor does one device run the loop once more
    (condition,) = [op for op in inside if op.type == "LoopCond"]
    assert result.state(condition.outputs[0]) is COPIED
    for k, device in enumerate(DEVICES):
        copy = fresh_graph.get_operation_by_name(f"tower_{k}/{condition.name}")
        assert copy.device == device
    with alike.session() as session:
        turned, found = session.run(result.fetch, {x: X})
    assert turned == 3
    np.testing.assert_allclose(found, 6 * X)  # 1 * 2 * 3


def test_a_loop_that_joins_rows_is_whole_before_anything_is_written(fresh_graph, monkeypatch):
    written = []
    make = writer.Writer
    monkeypatch.setattr(writer, "Writer", lambda *args: written.append(make(*args)) or written[-1])
    x = tf1.placeholder(tf.float64, [None, 3])
    _, h = tf.while_loop(lambda n, _: n < 3, lambda n, h: (n + 1, h - tf.reduce_mean(h, 0)), [0, x])
    result = alike.split([x], [h])
    exits = [op for op in fresh_graph.get_operations() if op.type == "Exit"]
    (reason,) = {result.why(op) for op in exits} - {""}
    assert "in a loop that is whole" in reason
    assert "is wanted whole" in reason
    assert len(written) == 1
