"""What is fetched by name is the step's own value, whatever it is made of."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from tests import exactness
from tests.splitting import alike

F64 = tf.float64


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
def test_what_is_drawn_is_drawn_once(fresh_graph, either_control_flow, made, is_static, rows):
    x = tf1.placeholder(F64, [rows if is_static else None, 3])
    found = tf.identity(made(x + 0.0), "found")
    tf.multiply(found, 2.0, "twice")
    result = alike.split(
        [x],
        [tf.reduce_mean(tf.sin(found))],
        random_numbers="per_device",
        static_rows=rows if is_static else None,
    )
    with alike.session() as session:
        for step in range(3):
            feed = {x: alike.numbers(rows, 3, seed=step)}
            fetch = [result.fetch[0], "found:0", "twice:0"]
            loss, one, two = session.run(fetch, feed, alike.PATIENCE)
            np.testing.assert_allclose(np.mean(np.sin(one)), loss, 1e-12)
            np.testing.assert_allclose(two, 2.0 * one, 1e-12)


def in_a_loop(x, w):
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
    turn = lambda i, s: (i + 1, tf.tanh(s @ w + 0.1))  # noqa: E731
    return tf.while_loop(lambda i, s: i < 9, turn, [0, x], shapes)[1]


def after_loop(values, weight):
    for _ in range(9):
        values = np.tanh(values @ weight + 0.1)
    return values


@pytest.mark.usefixtures("either_control_flow")
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (in_a_loop, after_loop),
        (lambda x, w: tf.matmul(tf.sin(x), w), lambda values, weight: np.sin(values) @ weight),
    ],
    ids=["of the step", "of no step"],
)
def test_what_is_fetched_beside_a_step_reads_what_the_step_reads(fresh_graph, make, expected):
    """Steps write a variable; what is fetched beside them is made of what was there."""
    x = tf1.placeholder(F64, [None, 3])
    start = tf.constant_initializer(0.3)
    w = tf1.get_variable("w", [3, 3], F64, start, use_resource=True)
    found = tf.identity(make(x, w), "found")
    loss = tf.reduce_mean(tf.square((found if make is in_a_loop else x @ w) - 1.0))
    step = tf1.train.GradientDescentOptimizer(1.0).minimize(loss)
    result = alike.split([x], [step])
    if make is in_a_loop:
        require_no_reads_in_loops(fresh_graph.get_operation_by_name("found"), result)
    with alike.session() as session:
        session.run(w.initializer)
        for number in range(6):
            values, before = alike.numbers(500, 3, seed=number), session.run(w)
            _, given = session.run([result.fetch[0], "found:0"], {x: values}, alike.PATIENCE)
            np.testing.assert_allclose(given, expected(values, before), 1e-9)


def require_no_reads_in_loops(op, result):
    """Requires an operation to be made of no read that is in a loop, other than in copies."""
    found = operations.made_from([op]) - set(result.made.values())
    reads = [each for each in found if each.type == "ReadVariableOp"]
    assert not [each.name for each in reads if each._get_control_flow_context() is not None]


@pytest.mark.parametrize("rows", [500, 2, 1])
def test_what_is_fetched_beside_a_step_is_looked_up_once(fresh_graph, rows):
    """Each device looks up its own different ids; one device's are those of all, in order."""
    ids = tf1.placeholder(tf.int64, [None])
    start = tf.constant_initializer(np.arange(30.0).reshape(10, 3))
    table = tf1.get_variable("table", [10, 3], F64, start, use_resource=True)
    different, places = tf.unique(ids)
    rows_of = tf.identity(tf.nn.embedding_lookup(table, different), "rows_of")
    found = tf.identity(tf.gather(rows_of, places) + 1.0, "found")
    loss = tf.reduce_sum(tf.square(tf.gather(rows_of, places)))
    step = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    result = alike.split([ids], [step])
    races = exactness.unordered([result.fetch[0], found.op, rows_of.op])
    assert not races, races
    with alike.session() as session:
        session.run(table.initializer)
        for number in range(3):
            values, before = np.arange(rows) * 7 % (9 - number), session.run(table)
            fetch = [result.fetch[0], "rows_of:0", "found:0"]
            _, unique, given = session.run(fetch, {ids: values}, alike.PATIENCE)
            np.testing.assert_array_equal(given, before[values] + 1.0)
            first = list(dict.fromkeys(values.tolist()))
            np.testing.assert_array_equal(unique, before[first])
