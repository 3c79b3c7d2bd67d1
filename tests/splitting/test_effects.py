"""What has an effect happens once, in the order that one device's graph asks for."""

import functools

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.splitting import alike

F64 = tf.float64
ROWS = 6
BATCHES = [np.abs(np.random.RandomState(step).randn(ROWS, 3)) for step in range(3)]
require_alike = functools.partial(
    alike.require_alike, batches=BATCHES, sessions=alike.optimizing_session
)
both_sizes = pytest.mark.parametrize("is_static", [False, True])


@pytest.fixture(autouse=True)
def resources():
    before = tf1.resource_variables_enabled()
    tf1.enable_resource_variables()
    yield
    if not before:
        tf1.disable_resource_variables()


def weight(*shape, start=0.3, name="w"):
    return tf1.get_variable(name, shape, F64, tf1.constant_initializer(start))


def counter(*shape, start=0.0):
    start = tf1.constant_initializer(start)
    return tf1.get_variable("c", shape, F64, start, trainable=False)


def trained(loss):
    return [loss, tf1.train.GradientDescentOptimizer(0.01).minimize(loss)]


# What waits for an effect.


def an_operation(h, effect):
    with tf.control_dependencies([effect]):
        first = tf.tanh(h)
    with tf.control_dependencies([first]):
        return tf.reduce_sum(tf.sin(h))


def a_shape(h, effect):
    with tf.control_dependencies([effect]):
        number = tf.shape(h)[0]
    return tf.reduce_sum(h) / tf.cast(number, F64)


def a_constant(h, effect):
    with tf.control_dependencies([effect]):
        column = tf.constant(np.arange(ROWS, dtype=np.float64)[:, None])
    return tf.reduce_sum(h * column)


def zeros(h, effect):
    with tf.control_dependencies([effect]):
        return tf.reduce_sum(tf.zeros_like(h) + 1.0)


WAITING = [an_operation, a_shape, a_constant, zeros]


@both_sizes
@pytest.mark.parametrize(
    "write",
    [
        lambda h, c: c.assign_add(1.0),
        lambda h, c: h * c.assign_add(1.0),
        lambda h, c: tf.identity(c.assign_add(tf.reduce_mean(h))) + 0.0,
    ],
    ids=["itself", "a product", "a mean"],
)
@pytest.mark.parametrize("use", WAITING)
def test_what_an_order_asks_for_happens(use, write, is_static):
    def make(x):
        h = x @ weight(3, 4)
        return [use(h, write(h, counter()))]

    require_alike(make, is_static=is_static)


def in_loop_behind_a_write(x, w, c):
    with tf.control_dependencies([c.assign_add(1.0, read_value=False)]):
        shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
        found = tf.while_loop(
            lambda i, s: i < 3, lambda i, s: (i + 1, s * w + c.read_value()), [0, x], shapes
        )
    return found[1]


def in_function_behind_a_write(x, w, c):
    with tf.control_dependencies([c.assign_add(1.0, read_value=False)]):
        return tf.function(lambda a: a * c.read_value() * w)(x)


@pytest.mark.parametrize("read", [in_loop_behind_a_write, in_function_behind_a_write])
def test_a_read_behind_a_write_stays_there(read, either_control_flow):
    def make(x):
        return trained(tf.reduce_mean(tf.square(read(x, weight(3), counter(start=1.0)))))

    require_alike(make)


def test_a_read_may_wait_for_a_sum_that_comes_after_a_write():
    def make(x):
        c = counter()
        with tf.control_dependencies([c.assign_add(1.0)]):
            total = tf.exp(tf.reduce_mean(tf.tanh(x)))
        with tf.control_dependencies([total]):
            return [c.read_value(), total]

    require_alike(make)


# Effects of all kinds: writes of c, of shape [2], each of which gives something to wait for.


def a_slice(c):
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=c.handle, begin=[0], end=[1], strides=[1], value=tf.constant([5.0], F64)
    )


def scattered(c):
    updates = tf.constant([1.0], F64)
    return tf.raw_ops.ResourceScatterAdd(resource=c.handle, indices=[0], updates=updates)


def in_a_branch(c):
    taken = tf1.placeholder_with_default(True, [])
    return tf.cond(taken, lambda: tf.identity(c.assign_add([1.0, 1.0])), c.read_value)


def in_one_of_several(c):
    which = tf1.placeholder_with_default(1, [])
    cases = [lambda: c.read_value() * 0.0, lambda: tf.identity(c.assign_add([1.0, 2.0]))]
    return tf.switch_case(which, cases)


def in_a_function(c):
    @tf.function
    def add():
        c.assign_add([1.0, 1.0])
        return tf.constant(1.0)

    return add()


def in_a_loop(c):
    def body(i):
        return i + 1.0 + 0.0 * c.assign_add([1.0, 1.0])[0]

    return tf.while_loop(lambda i: i < 2.0, body, [tf.constant(0.0, F64)])


EFFECTS = [a_slice, scattered, in_a_branch, in_one_of_several, in_a_function, in_a_loop]


def op_of(effect):
    effect = effect[0] if isinstance(effect, (list, tuple)) else effect
    return getattr(effect, "op", effect)


@pytest.mark.parametrize("use", [an_operation, a_shape, a_constant])
@pytest.mark.parametrize("effect", EFFECTS)
def test_no_effect_is_lost(effect, use, either_control_flow):
    def make(x):
        return [use(x @ weight(3, 4), op_of(effect(counter(2))))]

    require_alike(make, is_static=use is a_constant)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_read_comes_before_a_write_that_it_has_no_order_with(effect, either_control_flow):
    def make(x):
        c = counter(2, start=1.0)
        return [tf.reduce_sum(tf.ones_like(x) * c.read_value()[0]), op_of(effect(c))]

    (loss, _), _ = alike.run(make, BATCHES[:1], 3)
    assert loss == ROWS * 3  # c is 1 for each entry of x


def test_a_variable_that_a_branch_reads_is_read_before_it_is_written(either_control_flow):
    def make(x):
        h, c = x @ weight(3, 4), weight(start=0.5, name="bias")
        large = tf.reduce_mean(x) > 100.0
        return trained(tf.cond(large, lambda: tf.reduce_sum(h * c), lambda: tf.reduce_sum(h + c)))

    (loss, _), _ = alike.run(make, BATCHES[:1], 3)
    # That of the values before the step: h is 0.3 times the sum of a row, four times.
    np.testing.assert_allclose(loss, 4 * (0.3 * BATCHES[0].sum()) + 4 * ROWS * 0.5, rtol=1e-12)


@both_sizes
@pytest.mark.parametrize("use", [an_operation, a_shape])
@pytest.mark.parametrize(
    "check",
    [
        tf1.assert_negative,
        lambda h: tf.debugging.Assert(tf.reduce_sum(h) < 0.0, ["assertion failed"]),
    ],
    ids=["of rows", "of all"],
)
def test_an_assertion_fails_as_on_one_device(check, use, is_static, either_control_flow):
    def make(x):
        h = x @ weight(3, 4)
        return [use(h, check(h))]

    for num_devices in (0, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
            alike.run(make, BATCHES[:1], num_devices, is_static)


def test_a_file_is_written(tmp_path):
    path = tmp_path / "file"
    alike.run(
        lambda x: [an_operation(x * 2.0, tf.io.write_file(str(path), "text"))], BATCHES[:1], 3
    )
    assert path.read_text() == "text"


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_step_writes_a_table_that_a_branch_looks_up(is_taken, either_control_flow):
    def make(x):
        taken, table = tf1.placeholder_with_default(is_taken, []), weight(5, 3)
        ids = tf.cast(x[:, 0], tf.int32)
        found = tf.cond(taken, lambda: tf.nn.embedding_lookup(table, ids), lambda: x)
        return trained(tf.reduce_sum(tf.square(found * x)) + tf.reduce_sum(tf.square(table)))

    require_alike(make)


@pytest.mark.thorough("v2-False-True", "v1-True-False")
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_step_updates_what_branches_in_branches_use(outer, inner, either_control_flow):
    def make(x):
        p, q = (tf1.placeholder_with_default(takes, []) for takes in (outer, inner))
        w = weight(3, 3)
        h = x @ w + sum(weight(3, start=0.1, name=f"b{n}") for n in range(4))
        made = tf.cond(p, lambda: tf.cond(q, lambda: tf.tanh(h @ w), lambda: h), lambda: 2.0 * h)
        return trained(tf.reduce_sum(made))

    *_, variables = require_alike(make)
    assert np.abs(variables["w:0"] - 0.3).max() > 0  # the weights have moved
