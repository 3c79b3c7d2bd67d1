import sys

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.lowering import functions
from replicate.splitting.structure import definitions, order

BATCH = np.random.RandomState(0).randn(5, 4, 3)


@pytest.fixture
def batch(fresh_graph, new_control_flow):
    tf1.set_random_seed(3)
    return tf1.placeholder(tf.float64, [None, 4, 3])


def weight():
    return tf1.get_variable(
        "w", [3, 3], tf.float64, tf1.initializers.random_normal(seed=1), use_resource=True
    )


def loop(x):
    w = weight()

    def body(i, a, total):
        return i + 1, tf.tanh(tf.einsum("btf,fg->btg", a, w)), total + tf.reduce_sum(a)

    return tf.while_loop(lambda i, *_: i < 3, body, [0, x, tf.zeros([], tf.float64)])[1:]


def nested(x):
    w = weight()

    def inner(j, b):
        return j + 1, tf.tanh(tf.einsum("btf,fg->btg", b, w))

    def body(i, a):
        b = tf.while_loop(lambda j, b: j < i + 1, inner, [0, a])[1]
        return i + 1, tf.cond(
            tf.reduce_sum(b) > 0,
            lambda: b * 2.0,
            lambda: tf.cond(i > 1, lambda: a, lambda: tf.zeros_like(a) + 1.0),
        )

    return tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]


def first_branch(x):
    w = weight()
    return tf.cond(tf.size(x) > 0, lambda: x @ w, lambda: tf.ones([5, 4, 3], tf.float64))


def second_branch(x):
    w = weight()
    return tf.cond(tf.size(x) < 0, lambda: x @ w, lambda: tf.ones([5, 4, 3], tf.float64))


def branch_that_passes_on(x):
    constant = tf.constant(2.0)
    return tf.cond(tf.size(x) > 9, lambda: (x, constant), lambda: (x * 2, tf.constant(3.0)))


def call(x):
    w = weight()

    @tf.function
    def inner(a):
        return a @ w, a

    @tf.function
    def outer(a):
        b, same = inner(a)
        return b * tf.random.uniform([], dtype=tf.float64, seed=4), same, tf.constant(3.0)

    return outer(x)


def scan(x):
    w = weight()
    return tf.scan(lambda h, a: tf.tanh(h @ w + a), tf.transpose(x, [1, 0, 2]))


def array(x):
    def body(i, held):
        return i + 1, held.write(i, x[:, i] * 2)

    held = tf.TensorArray(tf.float64, 4)
    return tf.while_loop(lambda i, _: i < 4, body, [0, held])[1].stack()


def dropout(x):
    def body(i, a):
        return i + 1, tf.nn.dropout(a, 0.5, seed=5)

    return tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]


def lstm(x):
    return tf.keras.layers.LSTM(6, return_sequences=True, dtype="float64")(x)


LOWERED = [
    loop,
    nested,
    first_branch,
    second_branch,
    branch_that_passes_on,
    call,
    scan,
    array,
    dropout,
    lstm,
]


def gradients(outputs, x):
    variables = tf1.trainable_variables()
    found = tf1.gradients(tf.reduce_sum(tf.square(outputs[0])), [x, *variables])
    return [tf.convert_to_tensor(each) for each in found if each is not None]


def kinds(tensors):
    """Returns the types of all operations that tensors are made from."""
    return {op.type for op in operations.executed_by(tensors)}


def run(fetches, x, values=None):
    """Returns values, and those of the variables before."""
    with tf1.Session(graph=x.graph) as session:
        session.run([each.initializer for each in tf1.global_variables()])
        for variable, value in zip(tf1.global_variables(), values or (), strict=False):
            session.run(variable.initializer, {variable.initializer.inputs[1]: value})
        values = session.run(tf1.global_variables())
        return session.run(fetches, {x: BATCH}), values


def lower(graph, x):
    return functions.lower(graph, order.behind([x]))


@pytest.mark.parametrize("model", LOWERED, ids=lambda model: model.__name__)
def test_lowered_functions_compute_the_same(fresh_graph, batch, model):
    outputs = tf.nest.flatten(model(batch))
    outputs = [tf.identity(each) for each in [*outputs, *gradients(outputs, batch)]]
    before, values = run(outputs, batch)
    lower(fresh_graph, batch)
    after, _ = run(outputs, batch, values)
    assert kinds(outputs).isdisjoint(definitions.CALLING)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.thorough("nested")
@pytest.mark.parametrize("model", [nested, scan, lstm])
def test_graph_can_be_exported_after(fresh_graph, batch, model):
    outputs = tf.nest.flatten(model(batch))
    outputs = [tf.identity(each) for each in [*outputs, *gradients(outputs, batch)]]
    before, values = run(outputs, batch)
    lower(fresh_graph, batch)
    tf1.train.Saver(tf1.global_variables() or [tf1.train.create_global_step()])
    exported = tf1.train.export_meta_graph(clear_devices=True)
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(exported)
        outputs = [graph.get_tensor_by_name(each.name) for each in outputs]
        after, _ = run(outputs, graph.get_tensor_by_name(batch.name), values)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def loops_value(graph):
    """Returns the output of the graph's one functional loop that is no counter."""
    (op,) = [op for op in graph.get_operations() if op.type in definitions.LOOPS]
    return next(each for each in op.outputs if each.dtype == tf.float64)


def test_original_computes_when_it_is_fetched_and_names_tell_what_was_lowered(fresh_graph, batch):
    tf.while_loop(lambda a: True, lambda a: (a * 2.0,), [batch], maximum_iterations=4)
    original = loops_value(fresh_graph)
    new = lower(fresh_graph, batch)[original.ref()]
    (first, second), _ = run([original, new], batch)
    np.testing.assert_array_equal(first, BATCH * 16)
    np.testing.assert_array_equal(second, BATCH * 16)
    assert original.shape.as_list() == new.shape.as_list() == [None, 4, 3]
    assert new.op.type == "Exit"
    assert new.op.name == f"{original.op.name}/lowered/exit_{original.value_index}"


def test_reads_stay_between_the_writes_around_a_call(fresh_graph, batch):
    count = tf1.get_variable("count", [], tf.float64, tf1.initializers.zeros(), use_resource=True)

    @tf.function
    def called(a):
        return a + count, count.read_value()

    with tf.control_dependencies([count.assign(7.0)]):
        added, read = called(batch)
    with tf.control_dependencies([read.op]):
        late = count.assign(9.0)
    with tf.control_dependencies([late]):
        fetches = [tf.identity(added), tf.identity(read), count.read_value()]
    assert lower(fresh_graph, batch)
    for _ in range(20):
        (added, read, last), _ = run(fetches, batch)
        np.testing.assert_array_equal(added, BATCH + 7)
        assert (read, last) == (7, 9)


def writing(x):
    count = tf1.get_variable("count", [], tf.float64, tf1.initializers.zeros(), use_resource=True)

    @tf.function
    def called(a):
        count.assign(3.0)
        return a + count

    return called(x)


def printing(x):
    @tf.function
    def called(a):
        tf.print("called", output_stream=sys.stderr)
        return a + 1.0

    return called(x)


def in_python(x):
    @tf.function
    def called(a):
        return tf.numpy_function(lambda a: a + 1.0, [a], tf.float64)

    return called(x)


def asserting_in_a_loop(x):
    def body(i, a):
        with tf.control_dependencies([tf.debugging.Assert(i < 9, [i])]):
            return i + 1, a * 2.0

    return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]


def compiled(x):
    return tf.function(lambda a: a * 2.0, jit_compile=True)(x)


def many_branches(x):
    return tf.switch_case(tf.shape(x)[0] - 4, [lambda: x, lambda: x * 2, lambda: x * 3])


def looking_up_in_a_loop(x):
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2]), tf.constant([1.0, 2.0]))
    table = tf.lookup.StaticHashTable(pairs, 0.0)

    @tf.function
    def looked_up(i):
        return tf.cast(table.lookup(i), tf.float64)

    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a + looked_up(i)), [0, x])[1]


NOT_WRITTEN_OUT = [
    writing,
    printing,
    in_python,
    asserting_in_a_loop,
    looking_up_in_a_loop,
    compiled,
    many_branches,
]


@pytest.mark.parametrize("model", NOT_WRITTEN_OUT)
def test_what_may_not_be_copied_stays(fresh_graph, batch, model):
    output = tf.identity(model(batch))
    assert lower(fresh_graph, batch) == {}
    assert not kinds([output]).isdisjoint(definitions.CALLING)


def test_call_in_a_loop_of_version_1_is_of_that_loop(fresh_graph, batch):
    w = weight()

    @tf.function
    def called(a, i):
        return tf.cond(i > 1, lambda: a @ w, lambda: a + tf.constant(1.0, tf.float64)), tf.constant(
            4
        )

    def body(i, a):
        b, four = called(a, i)
        return i + four - 3, tf1.cond(i > 0, lambda: called(b, i)[0], lambda: b)

    tf1.disable_control_flow_v2()
    output = tf.identity(tf1.while_loop(lambda i, a: i < 3, body, [0, batch])[1])
    tf1.enable_control_flow_v2()
    before, values = run(output, batch)
    moved = lower(fresh_graph, batch)
    after, _ = run(output, batch, values)
    np.testing.assert_array_equal(before, after)
    assert moved
    assert kinds([output]).isdisjoint(definitions.CALLING)


def test_summaries_and_savers_can_be_made_after(fresh_graph, batch):
    outputs = [tf.identity(each) for each in loop(batch)]
    lower(fresh_graph, batch)
    merge = next(op for op in fresh_graph.get_operations() if op.type == "Merge")
    assert merge._get_control_flow_context().IsWhileContext()
    summary = tf1.summary.scalar("total", outputs[1])
    with tf.control_dependencies([outputs[0]]):
        later = tf.identity(outputs[1] * 2)
    saver = tf1.train.Saver()
    (written, value), _ = run([summary, later], batch)
    assert written
    assert value.shape == ()
    assert saver.saver_def.save_tensor_name


def test_a_loop_keeps_how_many_turns_run_at_a_time(fresh_graph, batch):
    tf.while_loop(lambda a: tf.size(a) < 0, lambda a: (a * 2.0,), [batch], parallel_iterations=3)
    assert lower(fresh_graph, batch)
    enters = [op for op in fresh_graph.get_operations() if op.type == "Enter"]
    assert {op.get_attr("parallel_iterations") for op in enters} == {3}
