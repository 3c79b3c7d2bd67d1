"""What loops read of variables and tables, on one device and on several."""

import functools

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting import alike

F64 = tf.float64
ROWS = 5
DEVICES = alike.DEVICES[:3]
BATCHES = [np.random.RandomState(step).randn(ROWS, 3) for step in range(2)]
require_alike = functools.partial(alike.require_alike, batches=BATCHES, devices=(2, 3))


@pytest.fixture(autouse=True)
def version(either_control_flow):
    """All of it for either version."""


def variable(name, device, *shape):
    with tf1.device(DEVICES[device]):
        return tf1.get_variable(name, shape, F64, exactness.start, use_resource=True)


def looped(turn, h, turns=3):
    shapes = [tf.TensorShape([]), tf.TensorShape([h.shape[0], 4])]
    return tf.while_loop(lambda i, _: i < turns, lambda i, s: (i + 1, turn(s)), [0, h], shapes)[1]


def ids_of(s):
    return tf.cast(tf.abs(s[:, 0]) * 4.0, tf.int32)


# What a turn of a loop does with its rows s, weights e of shape [5, 4] and others.


def looks_up(s, e, w):
    return tf.tanh(s @ w + tf.nn.embedding_lookup(e, ids_of(s)))


def looks_up_by_numbers_of_several(s, e, w):
    return tf.tanh(s @ w + tf.gather_nd(e, ids_of(s)[:, None]))


def looks_up_in_a_branch(s, e, w):
    return tf.cond(
        tf.shape(s)[1] > 3, lambda: s + tf.nn.embedding_lookup(e, ids_of(s)), lambda: s @ w
    )


def asks_for_the_shape(s, e, w):
    size = tf.raw_ops.VariableShape(input=e.handle)[0]
    return tf.tanh(s @ w + tf.cast(size, F64))


def looks_up_and_takes_a_mean(s, e, w):
    """A value of all rows: the loop is whole."""
    found = tf.nn.embedding_lookup(e, ids_of(s))
    return tf.tanh(s @ w + found - tf.reduce_mean(found, 0))


def loops_again(s, e, w):
    return looped(lambda t: tf.tanh(t @ w) + tf.nn.embedding_lookup(e, ids_of(t)), s, 2)


def reads_and_loops_again(s, e, w):
    return looped(lambda t: tf.tanh(t @ w + s @ w), s, 2)


def sorts_again_and_again(s, e, w):
    """Nested loops that are whole."""
    return looped(lambda t: tf.tanh(t @ w - tf.reduce_mean(s @ w, 0)), s, 2)


TURNS = [
    looks_up,
    looks_up_by_numbers_of_several,
    looks_up_in_a_branch,
    asks_for_the_shape,
    looks_up_and_takes_a_mean,
    loops_again,
    reads_and_loops_again,
    sorts_again_and_again,
]


def model(turn, device, is_trained):
    def make(x):
        e, w = variable("e", device, 5, 4), variable("w", device, 4, 4)
        h = tf.tanh(x @ variable("in", 0, 3, 4))
        h = looped(lambda s: turn(s, e, w), h)
        if not is_trained:
            return [tf.reduce_sum(h, 1)]
        loss = tf.reduce_mean(tf.square(h - 0.3))
        return [loss, tf1.train.GradientDescentOptimizer(0.1).minimize(loss)]

    return make


@pytest.mark.thorough("v2-loops_again-1")
@pytest.mark.parametrize(("turn", "device"), [(turn, n % 2) for n, turn in enumerate(TURNS)])
def test_a_loop_reads_variables_wherever_they_are(turn, device):
    require_alike(model(turn, device, is_trained=True))


@pytest.mark.thorough("v1-*")
@pytest.mark.parametrize("turn", [looks_up, reads_and_loops_again])
def test_a_loop_reads_variables_with_static_rows(turn):
    require_alike(model(turn, 1, True), is_static=True)


@pytest.mark.parametrize("is_static", [False, True])
def test_a_loop_looks_tables_up(is_static):
    def make(x):
        keys, values = tf.constant([0, 1, 2], tf.int64), tf.constant([1.0, 2.0, 3.0], F64)
        pairs = tf.lookup.KeyValueTensorInitializer(keys, values)
        table = tf.lookup.StaticHashTable(pairs, -1.0)
        h = x @ variable("in", 0, 3, 4)

        def turn(s):
            return tf.tanh(s + table.lookup(tf.cast(ids_of(s), tf.int64))[:, None])

        return [tf.reduce_sum(looped(turn, h), 1)]

    require_alike(make, is_static=is_static)


def test_a_loop_that_begins_behind_a_write_reads_behind_it():
    def make(x):
        c = tf1.get_variable("c", [], F64, tf1.ones_initializer(), use_resource=True)
        h = x @ variable("in", 0, 3, 4)
        end = tf.cast(c.assign_add(1.0), tf.int32)
        _, h = tf.while_loop(lambda i, s: i < end, lambda i, s: (i + 1, tf.tanh(s + c)), [0, h])
        return [tf.reduce_sum(h)]

    require_alike(make)


def test_a_loop_reads_before_what_waits_for_its_results():
    """An optimizer behind an update: so are the counters of the loop's gradient, which enter it."""

    def make(x):
        w = variable("w", 1, 4, 4)
        h = looped(lambda s: tf.tanh(s @ w), x @ variable("in", 0, 3, 4))
        mean = tf1.get_variable("mean", [], F64, tf1.zeros_initializer(), use_resource=True)
        loss = tf.reduce_mean(tf.square(h - 0.3))
        with tf.control_dependencies([mean.assign_add(tf.reduce_mean(h))]):
            return [loss, tf1.train.GradientDescentOptimizer(0.1).minimize(loss)]

    require_alike(make)


def test_a_loop_reads_what_it_has_written():
    def make(x):
        c = tf1.get_variable("c", [], F64, tf1.ones_initializer(), use_resource=True)
        h = x @ variable("in", 0, 3, 4)

        def turn(i, s):
            with tf.control_dependencies([c.assign_add(1.0)]):
                return i + 1, tf.tanh(s + c.read_value())

        _, h = tf.while_loop(lambda i, s: i < 3, turn, [0, h], parallel_iterations=1)
        return [tf.reduce_sum(h, 1)]

    require_alike(make)


def split_over_three(make, is_static=False):
    """Returns the operations of a graph that is split."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(F64, [ROWS if is_static else None, 3])
        alike.split([x], make(x), static_rows=ROWS if is_static else None)
        return graph.get_operations()


def test_each_device_looks_up_in_a_loop_of_its_own():
    kinds = ("Gather", "GatherV2", "ResourceGather")
    gathers = [op for op in split_over_three(model(looks_up, 1, False)) if op.type in kinds]
    found = {op.name.split("/")[0]: (op.type, op.device) for op in gathers}
    for k, device in enumerate(DEVICES):
        assert found[f"tower_{k}"] == ("GatherV2", device)


def test_each_device_finds_its_own_shape_in_a_loop_of_its_own():
    def make(x):
        e, h = variable("e", 0, ROWS, 4), x @ variable("in", 0, 3, 4)
        return [looped(lambda s: e * tf.broadcast_to(s, tf.raw_ops.Shape(input=e)), h)]

    require_alike(make, is_static=True)
    found = [op.device for op in split_over_three(make, True) if op.type == "FloorDiv"]
    assert found == DEVICES  # of all rows' shape by their number
