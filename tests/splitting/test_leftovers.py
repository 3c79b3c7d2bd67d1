"""What is fetched by name is the step's own value, whatever it is made of."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from tests import exactness

F64 = tf.float64
DEVICES = [f"/device:CPU:{k}" for k in range(3)]
PATIENCE = tf1.RunOptions(timeout_in_ms=20_000)


@pytest.fixture(params=[False, True], ids=["version_1", "version_2"])
def graph(fresh_graph, request):
    """A graph in which loops and branches are of either version."""
    before = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if request.param else tf1.disable_control_flow_v2)()
    yield fresh_graph
    (tf1.enable_control_flow_v2 if before else tf1.disable_control_flow_v2)()


def noisy(x):
    return tf.nn.dropout(x, 0.5, seed=4)


def of_a_loop(x):
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
    return tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, noisy(s)), [0, x], shapes)[1]


def of_a_loops_array(x):
    def body(i, state, held):
        state = noisy(state)
        return i + 1, state, held.write(i, state)

    held = tf.TensorArray(F64, 3, element_shape=[None, 3])
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3]), tf.TensorShape(None)]
    held = tf.while_loop(lambda i, *_: i < 3, body, [0, x, held], shapes)[2]
    return tf.transpose(held.stack(), [1, 0, 2])


def of_a_branch(x):
    is_noisy = tf1.placeholder_with_default(True, [])
    return tf.cond(is_noisy, lambda: noisy(x), lambda: x)


def of_a_function(x):
    return tf.function(noisy)(x)


def of_a_sum_in_a_loop(x):
    """A part of a sum leaves the loop of each device."""
    total = tf.zeros([3], F64)

    def body(i, state, total):
        state = noisy(state)
        return i + 1, state, total + tf.reduce_sum(state, 0)

    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3]), tf.TensorShape([3])]
    return tf.while_loop(lambda i, *_: i < 3, body, [0, x, total], shapes)[2]


@pytest.mark.parametrize("rows", [7, 1])
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    "made", [of_a_loop, of_a_loops_array, of_a_branch, of_a_function, of_a_sum_in_a_loop]
)
def test_what_is_drawn_is_drawn_once(graph, made, is_static, rows):
    x = tf1.placeholder(F64, [rows if is_static else None, 3])
    found = tf.identity(made(x + 0.0), "found")
    tf.multiply(found, 2.0, "twice")
    loss = tf.reduce_mean(tf.sin(found))
    result = splitter.split_graph(
        [x],
        DEVICES,
        [loss],
        home=DEVICES[0],
        random_numbers="per_device",
        static_rows=rows if is_static else None,
    )
    fetch = [result.fetch[0], graph.get_tensor_by_name("found:0"), "twice:0"]
    with tf1.Session(graph=graph, config=exactness.session_config()) as session:
        for step in range(3):
            values = np.random.RandomState(step).uniform(1, 2, [rows, 3])
            loss, one, two = session.run(fetch, {x: values}, PATIENCE)
            np.testing.assert_allclose(np.mean(np.sin(one)), loss, 1e-12)
            np.testing.assert_allclose(two, 2.0 * one, 1e-12)


def test_a_loop_reads_what_the_step_reads(graph):
    x = tf1.placeholder(F64, [None, 3])
    start = tf.constant_initializer(0.3)
    w = tf1.get_variable("w", [3, 3], F64, start, use_resource=True)
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
    found = tf.while_loop(
        lambda i, s: i < 9, lambda i, s: (i + 1, tf.tanh(s @ w + 0.1)), [0, x], shapes
    )[1]
    found = tf.identity(found, "found")
    step = tf1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(tf.square(found - 1.0)))
    result = splitter.split_graph([x], DEVICES, [step], home=DEVICES[0])
    ran = behind(graph.get_tensor_by_name("found:0").op)
    assert not [op.name for op in ran if op.type == "ReadVariableOp" and op in of_loops(result)]
    require_no_late_reads(graph, x, result.fetch[0], w, "found:0", after_loop)


def test_what_no_step_needs_reads_what_the_step_reads(fresh_graph):
    x = tf1.placeholder(F64, [None, 3])
    start = tf.constant_initializer(0.3)
    w = tf1.get_variable("w", [3, 3], F64, start, use_resource=True)
    loss = tf.reduce_mean(tf.square(x @ w - 1.0))
    step = tf1.train.GradientDescentOptimizer(1.0).minimize(loss)
    tf.matmul(tf.sin(x), w, name="other")
    result = splitter.split_graph([x], DEVICES, [step], home=DEVICES[0])
    require_no_late_reads(
        fresh_graph,
        x,
        result.fetch[0],
        w,
        "other:0",
        lambda values, weight: np.sin(values) @ weight,
    )


def after_loop(values, weight):
    for _ in range(9):
        values = np.tanh(values @ weight + 0.1)
    return values


def behind(op):
    """Returns an operation, and all that it is made of."""
    found, waiting = set(), [op]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += [tensor.op for tensor in each.inputs]
    return found


def of_loops(result):
    """Returns the operations of the whole graph that are in loops, copies left out."""
    made = set(result.made.values())
    ops = next(iter(made)).graph.get_operations()
    return {op for op in ops if op not in made and op._get_control_flow_context() is not None}


def require_no_late_reads(graph, x, step, variable, name, wanted):
    """Runs steps that write a variable; what is fetched beside them is made of what was there."""
    with tf1.Session(graph=graph, config=exactness.session_config()) as session:
        session.run(variable.initializer)
        for number in range(6):
            values = np.random.RandomState(number).uniform(-1, 1, [500, 3])
            before = session.run(variable)
            _, found = session.run([step, name], {x: values}, PATIENCE)
            np.testing.assert_allclose(found, wanted(values, before), 1e-9)
