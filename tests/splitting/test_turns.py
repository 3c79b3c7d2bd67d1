"""Definitions for inference: loops make one turn, and nothing evaluates what grows with rows."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import analysis, splitter
from replicate.splitting.inference.extents import Extent
from replicate.splitting.inference.facts import Facts
from replicate.splitting.inference.probes import KnownRows
from replicate.splitting.structure import loops
from tests import control_flow

ROW, OPEN = Extent(None, 1), Extent(None)


def facts_of(x):
    graph = tf1.get_default_graph()
    return Facts(graph, [KnownRows(x)], loops.Structure(graph), num_devices=2)


def batch(*inner):
    return tf1.placeholder(tf.float32, [None, *inner])


# What is as long as the batch, of whatever is told its size.
SIZED = {
    "BroadcastTo": lambda n: tf.broadcast_to(tf.constant([1]), [n]),
    "Fill": lambda n: tf.fill([n], 1),
    "LinSpace": lambda n: tf.cast(tf.raw_ops.LinSpace(start=1.0, stop=1.0, num=n), tf.int32),
    "OneHot": lambda n: tf.one_hot([0], n, dtype=tf.int32)[0],
    "Pad": lambda n: tf.pad([1], [[0, n - 1]]),
    "PadV2": lambda n: tf.pad([1], [[0, n - 1]], constant_values=1),
    "Range": lambda n: tf.range(n),
    "ScatterNd": lambda n: tf.scatter_nd([[0]], [1], [n]),
    "SparseToDense": lambda n: tf1.sparse_to_dense([0], [n], 1),
    "StatelessRandomUniformIntV2": lambda n: tf.random.stateless_uniform(
        [n], [1, 2], 0, 9, tf.int32
    ),
    "Tile": lambda n: tf.tile([1], [n]),
}


@pytest.mark.filterwarnings("ignore:.*sparse_to_dense.*")
@pytest.mark.parametrize("kind", SIZED)
def test_lengths_are_known_of_what_no_one_evaluates(fresh_graph, kind):
    x = batch(4)
    grown = SIZED[kind](tf.shape(x)[0])
    assert kind in {op.type for op in fresh_graph.get_operations()}
    # Inference would have to add up all entries to know this length.
    of_all = tf.zeros([tf.reduce_sum(tf.abs(grown)) + 1, 3])
    facts = facts_of(x)
    assert facts.shape(grown) == (ROW,)
    assert facts.shape(of_all) == (OPEN, Extent(3))


def test_what_does_not_grow_with_the_batch_is_evaluated(fresh_graph):
    x = batch(4)
    summed = tf.reduce_sum(x, tf.range(1, tf.raw_ops.Rank(input=x)))
    padded = tf.pad(x, tf.pad([[0, 2]], [[1, 0], [0, 0]]))
    facts = facts_of(x)
    assert facts.shape(summed) == (ROW,)
    assert facts.shape(padded) == (ROW, Extent(6))


@pytest.mark.thorough
def test_inference_of_many_rows_takes_no_memory_for_them(run_python):
    # Far more rows are assumed than the constant; as many int32 are half a GiB.
    run_python(
        """
import resource
from replicate.compat.tensorflow import tf
from tests.splitting.test_turns import SIZED, batch, facts_of

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

with tf.Graph().as_default():
    x = batch(4)
    tf.minimum(tf.shape(x)[0], 8_000_000)
    facts_of(x)
    before = peak()
    for grow in SIZED.values():
        tf.zeros([tf.reduce_sum(tf.abs(grow(tf.shape(x)[0]))), 3])
    facts = facts_of(x)
    assert facts._probes[-1].sizes.batch == 134217757
    assert peak() - before < 200, (before, peak())
"""
    )


def test_lengths_that_no_importer_follows_are_learned_from_values(fresh_graph):
    # A product of entries of which one is unknown: an importer evaluates all of them, or none.
    x = tf1.placeholder(tf.float32, [None, None])
    counts = tf.stack([tf.shape(x)[0], tf.shape(tf.unique(tf.reshape(x, [-1]))[0])[0]])
    rows = tf.reduce_prod(counts[:1])
    made_of_it = tf.tanh(tf.zeros([rows, 3]))
    facts = facts_of(x)
    assert facts.shape(made_of_it) == (ROW, Extent(3))


# Loops and lists.


@pytest.fixture
def old_loops():
    with control_flow.of_version(1):
        yield


@pytest.mark.usefixtures("old_loops")
def test_what_differs_by_turn_is_not_evaluated(fresh_graph):
    x = batch(4)
    inside = []

    def body(n, total):
        inside.extend([x[:, :n], tf.zeros([n + 1, 3])])
        return n + 1, total + tf.reduce_sum(inside[0]) + tf.reduce_sum(inside[1])

    tf.while_loop(lambda n, _: n < 4, body, (0, 0.0))
    facts = facts_of(x)
    assert facts.shape(inside[0]) == (ROW, OPEN)
    assert facts.shape(inside[1]) == (OPEN, Extent(3))


@pytest.mark.usefixtures("old_loops")
def test_shapes_that_enter_a_loop_are_known_in_it(fresh_graph):
    x = batch(4)
    wide, size = batch(2), tf.shape(x)
    inside = []

    def body(n, y):
        inside.append(tf.reshape(tf.concat([wide, wide], 1), size) + y)
        return n + 1, y * 2.0

    tf.while_loop(lambda n, _: n < 4, body, (0, x))
    graph = tf1.get_default_graph()
    given = [KnownRows(x), KnownRows(wide)]
    facts = Facts(graph, given, loops.Structure(graph), num_devices=2)
    assert facts.shape(inside[0]) == (ROW, Extent(4))


@pytest.mark.usefixtures("old_loops")
def test_a_variable_keeps_the_lengths_that_no_turn_changes(fresh_graph):
    x = batch(2, 3)
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None, None]))
    _, grown = tf.while_loop(
        lambda n, _: n < 4,
        lambda n, y: (n + 1, tf.concat([y, y], 1)),
        (0, x),
        shape_invariants=shapes,
    )
    assert facts_of(x).shape(grown) == (ROW, OPEN, Extent(3))


@pytest.mark.usefixtures("old_loops")
@pytest.mark.parametrize("last", [[2, 3], [3, 2]])
def test_what_is_one_of_several_elements_is_known_where_all_are_equal(fresh_graph, last):
    x = batch(4)
    held = tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=tf.int32)

    def body(n, held):
        item = tf.constant([2, 3])
        return n + 1, tf.raw_ops.TensorListPushBack(input_handle=held, tensor=item)

    _, held = tf.while_loop(lambda n, _: n < 4, body, (0, held))
    held = tf.raw_ops.TensorListPushBack(input_handle=held, tensor=last)
    shape = tf.raw_ops.TensorListPopBack(
        input_handle=held, element_shape=-1, element_dtype=tf.int32
    ).tensor
    made = tf.zeros(shape)
    facts = facts_of(x)
    assert facts.shape(shape) == (Extent(2),)
    assert facts.shape(made) == ((Extent(2), Extent(3)) if last == [2, 3] else (OPEN, OPEN))


def test_each_value_of_an_optional_has_its_own_shape(fresh_graph):
    x, y = batch(4), batch(2, 2)
    held = tf.raw_ops.OptionalFromValue(components=[x, y])
    first, second = tf.raw_ops.OptionalGetValue(
        optional=held, output_types=[tf.float32] * 2, output_shapes=[None, None]
    )
    graph = tf1.get_default_graph()
    given = [KnownRows(x), KnownRows(y)]
    facts = Facts(graph, given, loops.Structure(graph), num_devices=2)
    assert facts.shape(first) == (ROW, Extent(4))
    assert facts.shape(second) == (ROW, Extent(2), Extent(2))


@pytest.mark.usefixtures("old_loops")
def test_elements_that_do_not_fit_together_leave_the_rest_known(fresh_graph):
    # What is pushed last is popped first: of the one that is pushed first a product has no sense.
    x = batch(4)
    held = tf.raw_ops.EmptyTensorList(
        element_shape=-1, max_num_elements=-1, element_dtype=tf.float32
    )
    for item in (x[:, :3], x):
        held = tf.raw_ops.TensorListPushBack(input_handle=held, tensor=item)
    got = tf.raw_ops.TensorListPopBack(
        input_handle=held, element_shape=-1, element_dtype=tf.float32
    ).tensor
    product = tf.raw_ops.MatMul(a=got, b=np.ones([4, 5], np.float32))
    facts = facts_of(x)
    assert facts.shape(product)[1] == Extent(5)
    assert facts.shape(held.op.inputs[1]) == (ROW, Extent(4))


@pytest.mark.parametrize("number", [4, 8])
def test_an_assumption_costs_what_lies_between_it_and_the_first_to_ask(
    fresh_graph, monkeypatch, number
):
    # Each branch keeps values for its gradient, in a list of which nothing is assumed at first.
    decided = []
    decide = analysis.Analysis._decide
    monkeypatch.setattr(
        analysis.Analysis, "_decide", lambda self, op: decided.append(op) or decide(self, op)
    )
    x = batch(4)
    y = x
    with control_flow.of_version(2):
        for _ in range(number):
            y = tf.cond(tf.reduce_sum(y) > 0.0, lambda y=y: tf.tanh(y), lambda y=y: tf.sin(y))
        (gradient,) = tf.gradients(y, x)
    devices = [f"/device:CPU:{k}" for k in range(2)]
    splitter.split_graph([x], devices, [gradient], home=devices[0])
    assert len(decided) < 2 * len(set(decided))
