"""Branches of which the graph alone tells that they are taken: what else they need never runs."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.lowering import branches
from tests import exactness
from tests.splitting import alike

F64 = tf.float64
X = np.arange(10.0).reshape(5, 2)
STEPS = [X, X + 1]


@pytest.fixture(autouse=True)
def version(either_control_flow):
    """All of it for either version."""


PREDICATES = {
    "constant": lambda x: tf.constant(False),
    "negated": lambda x: tf.logical_not(tf.identity(tf.constant(True))),
    "reduced": lambda x: tf.reduce_all(tf.constant([1, 2]) > 1),
    "of a rank": lambda x: tf.rank(x) > 2,
    "decided by one of two": lambda x: tf.logical_and(tf.shape(x)[0] > 1, tf.constant(False)),
    "left to a second one": lambda x: tf.logical_or(tf.shape(x)[0] > 10, tf.constant(False)),
    "of text": lambda x: tf.equal(tf.constant("eval"), "train"),
    "of a shape with rows": lambda x: tf.shape(x)[1] > 2,
    "of the rows": lambda x: tf.shape(x)[0] > 10,
    "to be fed": lambda x: tf1.placeholder_with_default(False, []),
}


OPEN = ("left to a second one", "of text", "of a shape with rows", "of the rows", "to be fed")


def counter(name):
    return tf1.get_variable(name, [], F64, tf1.zeros_initializer(), use_resource=True)


def counted(name, value):
    """A value behind an update that counts how often it ran."""
    with tf1.control_dependencies([counter(name).assign_add(1.0)]):
        return tf.identity(value)


def require_alike(make, counts):
    """Requires one device's values, and that these counters count so often in a step."""
    *_, values = alike.require_alike(
        make, STEPS, (2,), sessions=alike.optimizing_session, is_optimized=True
    )
    assert {name: values[f"{name}:0"] for name in counts} == {n: 2 * c for n, c in counts.items()}


@pytest.mark.parametrize("kind", PREDICATES)
def test_an_update_behind_what_is_not_taken_runs_if_one_devices_does(kind):
    def make(x):
        of_batch, of_average = counted("batch", x), counted("average", 2 * x)
        y = tf.cond(PREDICATES[kind](x), lambda: of_batch, lambda: of_average)
        return [tf.reduce_sum(y, 1), tf.reduce_mean(y)]

    require_alike(make, {"batch": float(kind in OPEN), "average": 1.0})


@pytest.mark.parametrize("kind", PREDICATES)
def test_a_predicate_is_known_if_a_session_works_it_out(kind, fresh_graph):
    found = branches.known(PREDICATES[kind](tf1.placeholder(F64, [None, 2])))
    assert found is (None if kind in OPEN else False)


def test_shapes_with_static_rows_are_known(fresh_graph):
    x = tf1.placeholder(F64, [5, 2])
    assert branches.known(tf.shape(x)[0] > 4) is True
    assert branches.known(tf.size(x) > 10) is False
    assert branches.known(tf.rank(tf1.placeholder(F64)) > 1) is None


def test_a_session_that_optimizes_nothing_runs_what_is_behind_both_branches():
    def make(x):
        of_batch = counted("batch", x)
        return [tf.cond(tf.constant(False), lambda: of_batch, lambda: 2 * x)]

    for is_optimized, sessions in ((True, alike.optimizing_session), (False, alike.session)):
        found = alike.run(make, STEPS, 2, sessions=sessions, is_optimized=is_optimized)
        assert found[-1] == {"batch:0": 0.0 if is_optimized else 2.0}


def test_what_a_predicate_waits_for_runs():
    def make(x):
        with tf1.control_dependencies([counter("before").assign_add(1.0)]):
            predicate = tf.constant(True)
        y = tf.cond(predicate, lambda: 3 * x, lambda: counted("other", x))
        return [tf.reduce_sum(y, 1)]

    require_alike(make, {"before": 1.0, "other": 0.0})


def test_a_branch_that_writes_is_taken_alone():
    def make(x):
        unread, read = counted("unread", x), counted("read", x)

        def writes():
            with tf1.control_dependencies([counter("written").assign_add(1.0)]):
                return tf.identity(read)

        return [tf.reduce_sum(tf.cond(tf.constant(True), writes, lambda: unread), 1)]

    require_alike(make, {"unread": 0.0, "read": 1.0, "written": 1.0})


def test_a_branch_that_reads_is_taken_beside_one_that_writes():
    def make(x):
        h = tf.tanh(x)

        def writes():
            with tf1.control_dependencies([counter("written").assign_add(1.0)]):
                return tf.identity(h)

        return [tf.reduce_sum(tf.cond(tf.constant(False), writes, lambda: h + 1.0), 1)]

    require_alike(make, {"written": 0.0})


def branch_in_branch(x, w):
    """The inner branches are known in one, in the other they are not."""
    inner = tf.cond(tf.constant(True), lambda: x @ w, lambda: counted("a", x))

    def taken():
        return tf.cond(tf.reduce_sum(x) > 3.0, lambda: inner * 2, lambda: tf.tanh(inner))

    return tf.cond(tf.constant(True), taken, lambda: counted("b", x) + inner)


def branch_around_a_loop(x, w):
    def taken():
        return tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, tf.tanh(y @ w)), [0, x])[1]

    return tf.cond(tf.constant(True), taken, lambda: counted("a", x) * counted("b", x))


def branch_in_a_loop(x, w):
    a, b = counted("a", x), counted("b", x)

    def turn(n, y):
        return n + 1, tf.cond(tf.constant(False), lambda: y * a + b, lambda: tf.tanh(y @ w))

    return tf.while_loop(lambda n, _: n < 3, turn, [0, x])[1]


def branch_in_an_open_one(x, w):
    def inner():
        return tf.cond(tf.constant(True), lambda: tf.tanh(x @ w), lambda: x * w[0])

    return tf.cond(tf.reduce_sum(x) > 30.0, inner, lambda: x + w[0])


def constant_in_a_branch(x, w):
    return tf.cond(
        tf.constant(False), lambda: counted("a", x), lambda: tf.constant([2.0, 3.0], F64) * w
    )


NESTED = (branch_in_branch, branch_around_a_loop, branch_in_an_open_one, constant_in_a_branch)


@pytest.mark.thorough("v2-*", "v1-branch_in_a_loop")
@pytest.mark.parametrize("layer", [*NESTED, branch_in_a_loop], ids=lambda layer: layer.__name__)
def test_known_branches_train_as_on_one_device(layer):
    def make(x):
        w = tf1.get_variable("w", [2, 2], F64, exactness.start, use_resource=True)
        counter("a"), counter("b")
        tf1.get_variable_scope().reuse_variables()
        y = layer(x, w)
        loss = tf.reduce_mean(tf.square(y)) + tf.reduce_sum(x) * 0.01
        return [loss, tf1.train.GradientDescentOptimizer(0.01).minimize(loss)]

    require_alike(make, {} if layer is branch_in_a_loop else {"a": 0.0, "b": 0.0})


def test_what_branches_merge_can_be_fetched_by_name(fresh_graph):
    x = tf1.placeholder(F64, [None, 2])
    merged = tf.cond(tf.constant(True), lambda: 2 * x, lambda: tf.tanh(x))
    alike.split([x], [[tf.reduce_sum(merged, 1)]], 2)
    with alike.optimizing_session() as session:
        np.testing.assert_array_equal(session.run(merged.name, {x: X}), 2 * X)
