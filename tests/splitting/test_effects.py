"""What has an effect happens once, in the order that one device's graph asks for."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter

ROWS = 6
DEVICES = [f"/device:CPU:{k}" for k in range(3)]


def counted(start=0.0):
    return tf1.get_variable(
        "c", [], tf.float64, tf1.constant_initializer(start), use_resource=True, trainable=False
    )


def behind_a_product(h, c):
    with tf.control_dependencies([h * c.assign_add(1.0)]):
        return tf.reduce_sum(tf.tanh(h))


def behind_a_mean(h, c):
    with tf.control_dependencies([tf.identity(c.assign_add(tf.reduce_mean(h))) + 0.0]):
        return tf.reduce_sum(tf.tanh(h))


def behind_a_scaled_count(h, c):
    with tf.control_dependencies([c.assign_add(1.0) * 2.0]):
        return tf.reduce_sum(tf.tanh(h))


def a_shape(h, c):
    with tf.control_dependencies([c.assign_add(1.0)]):
        number = tf.shape(h)[0]
    return tf.reduce_sum(h) / tf.cast(number, tf.float64)


def a_constant(h, c):
    with tf.control_dependencies([c.assign_add(1.0)]):
        column = tf.constant(np.arange(ROWS, dtype=np.float64)[:, None])
    return tf.reduce_sum(h * column)


def zeros(h, c):
    with tf.control_dependencies([c.assign_add(1.0)]):
        return tf.reduce_sum(tf.zeros_like(h) + 1.0)


def a_sum_over_nothing(h, c):
    del c
    return tf.reduce_sum(tf.nn.relu(h) * [1.0, 0.0, 1.0, 1.0], 0) / tf.zeros([], tf.float64)


CASES = [
    behind_a_product,
    behind_a_mean,
    behind_a_scaled_count,
    a_shape,
    a_constant,
    zeros,
    a_sum_over_nothing,
]


def run(make, is_split, is_static, steps, feed):
    """Returns what is fetched in each step, and all variables after them."""
    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float64, [ROWS if is_static else None, 3], name="x")
        fetch = make(x)
        if is_split:
            given, rows = [splitter.Given(x)], ROWS if is_static else None
            fetch = splitter.split_graph(
                given, DEVICES, [fetch], home=DEVICES[0], static_rows=rows
            ).fetch[0]
        config = tf1.ConfigProto(device_count={"CPU": 8})
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            found = []
            for step in range(steps):
                values = np.random.RandomState(step).randn(ROWS, 3)
                fed = {x: np.abs(values)}
                for name, value in feed.items():
                    fed[f"{name}:0"] = value
                found.append(session.run(fetch, fed)[0])
            return [*found, *session.run(tf1.global_variables())]


def require_alike(make, is_static=False, steps=3, feed=None):
    alone = run(make, False, is_static, steps, feed or {})
    split = run(make, True, is_static, steps, feed or {})
    for one, other in zip(alone, split, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)
    return split


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_an_order_asks_for_happens(case, is_static):
    def make(x):
        w = tf1.get_variable(
            "w", [3, 4], tf.float64, tf1.constant_initializer(0.3), use_resource=True
        )
        return [case(x @ w, counted())]

    require_alike(make, is_static)


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


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def control_flow(request):
    was_new = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if request.param else tf1.disable_control_flow_v2)()
    yield
    (tf1.enable_control_flow_v2 if was_new else tf1.disable_control_flow_v2)()


def trained(loss):
    return [loss, tf1.train.GradientDescentOptimizer(0.01).minimize(loss)]


@pytest.mark.parametrize(
    "read", [in_loop_behind_a_write, in_function_behind_a_write], ids=lambda read: read.__name__
)
def test_a_read_behind_a_write_stays_there(read, control_flow):
    def make(x):
        w = tf1.get_variable("w", [3], tf.float64, tf1.constant_initializer(0.3), use_resource=True)
        return trained(tf.reduce_mean(tf.square(read(x, w, counted(1.0)))))

    require_alike(make)


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_step_updates_what_branches_in_branches_use(outer, inner, control_flow):
    def make(x):
        p, q = tf1.placeholder(tf.bool, [], "p"), tf1.placeholder(tf.bool, [], "q")
        w = tf1.get_variable(
            "w", [3, 3], tf.float64, tf1.constant_initializer(0.3), use_resource=True
        )
        h = x @ w
        for n in range(4):
            h += tf1.get_variable(
                f"b{n}", [3], tf.float64, tf1.constant_initializer(0.1), use_resource=True
            )
        made = tf.cond(p, lambda: tf.cond(q, lambda: tf.tanh(h @ w), lambda: h), lambda: 2.0 * h)
        return trained(tf.reduce_sum(made))

    found = require_alike(make, feed={"p": outer, "q": inner})
    assert np.abs(found[3] - 0.3).max() > 0  # the weights have moved


def test_a_variable_that_a_branch_reads_is_read_before_it_is_written(control_flow):
    def make(x):
        w = tf1.get_variable(
            "w", [3, 4], tf.float64, tf1.constant_initializer(0.3), use_resource=True
        )
        c = tf1.get_variable("c", [], tf.float64, tf1.constant_initializer(0.5), use_resource=True)
        h = x @ w
        large = tf.reduce_mean(x) > 100.0
        return trained(tf.cond(large, lambda: tf.reduce_sum(h * c), lambda: tf.reduce_sum(h + c)))

    split = run(make, True, False, 1, {})
    # The loss is that of the values before the step: h is 0.3 times the sum of a row, four times.
    values = np.abs(np.random.RandomState(0).randn(ROWS, 3))
    np.testing.assert_allclose(split[0], 4 * (0.3 * values.sum()) + 4 * ROWS * 0.5, rtol=1e-12)
