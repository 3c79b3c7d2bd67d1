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
            given, rows = [x], ROWS if is_static else None
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


def test_a_read_may_wait_for_a_sum_that_comes_after_a_write():
    def make(x):
        c = counted()
        with tf.control_dependencies([c.assign_add(1.0)]):
            total = tf.exp(tf.reduce_mean(tf.tanh(x)))
        with tf.control_dependencies([total]):
            return [c.read_value(), total]

    require_alike(make)


# Effects of all kinds: writes of c, of shape [2], each of which gives something to wait for.


def assigned(c):
    return tf.identity(c.assign_add([1.0, 1.0]))


def assigned_a_slice(c):
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=c.handle, begin=[0], end=[1], strides=[1], value=tf.constant([5.0], tf.float64)
    )


def scattered(c):
    updates = tf.constant([1.0], tf.float64)
    return tf.raw_ops.ResourceScatterAdd(resource=c.handle, indices=[0], updates=updates)


def assigned_in_a_branch(c):
    taken = tf1.placeholder_with_default(True, [])
    return tf.cond(taken, lambda: tf.identity(c.assign_add([1.0, 1.0])), c.read_value)


def assigned_in_one_of_several(c):
    which = tf1.placeholder_with_default(1, [])
    cases = [lambda: c.read_value() * 0.0, lambda: tf.identity(c.assign_add([1.0, 2.0]))]
    return tf.switch_case(which, cases)


def assigned_in_a_function(c):
    @tf.function
    def add():
        c.assign_add([1.0, 1.0])
        return tf.constant(1.0)

    return add()


def assigned_in_a_loop(c):
    def body(i):
        return i + 1.0 + 0.0 * c.assign_add([1.0, 1.0])[0]

    return tf.while_loop(lambda i: i < 2.0, body, [tf.constant(0.0, tf.float64)])


EFFECTS = [
    assigned,
    assigned_a_slice,
    scattered,
    assigned_in_a_branch,
    assigned_in_one_of_several,
    assigned_in_a_function,
    assigned_in_a_loop,
]


def op_of(effect):
    effect = effect[0] if isinstance(effect, (list, tuple)) else effect
    return getattr(effect, "op", effect)


def waits_of_waits(h, effect):
    with tf.control_dependencies([op_of(effect)]):
        first = tf.tanh(h)
    with tf.control_dependencies([first]):
        return tf.reduce_sum(tf.sin(h))


def a_shape_waits(h, effect):
    with tf.control_dependencies([op_of(effect)]):
        number = tf.shape(h)[0]
    return tf.reduce_sum(h) / tf.cast(number, tf.float64)


def a_constant_waits(h, effect):
    with tf.control_dependencies([op_of(effect)]):
        column = tf.constant(np.arange(ROWS, dtype=np.float64)[:, None])
    return tf.reduce_sum(h * column)


def behind(effect, use):
    def make(x):
        w = tf1.get_variable("w", [3, 4], tf.float64, tf1.constant_initializer(0.3))
        c = tf1.get_variable("c", [2], tf.float64, tf1.zeros_initializer(), trainable=False)
        return [use(x @ w, effect(c))]

    return make


@pytest.mark.parametrize(
    ("use", "is_static"),
    [(waits_of_waits, False), (a_shape_waits, False), (a_constant_waits, True)],
    ids=["control", "shape", "constant"],
)
@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
def test_no_effect_is_lost(effect, use, is_static, control_flow, resources):
    require_alike(behind(effect, use), is_static, steps=2)


@pytest.fixture
def resources():
    before = tf1.resource_variables_enabled()
    tf1.enable_resource_variables()
    yield
    if not before:
        tf1.disable_resource_variables()


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
def test_a_read_comes_before_a_write_that_it_has_no_order_with(effect, control_flow, resources):
    def make(x):
        c = tf1.get_variable("c", [2], tf.float64, tf1.ones_initializer(), trainable=False)
        loss = tf.reduce_sum(tf.ones_like(x) * c.read_value()[0])
        return [loss, op_of(effect(c))]

    found = run(make, True, False, 1, {})
    assert found[0] == ROWS * 3  # c is 1 for each entry of x


def require_refused(make, is_static):
    for is_split in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
            run(make, is_split, is_static, 1, {})


def asserted(h):
    return tf1.assert_negative(h)


def asserted_of_all(h):
    return tf.debugging.Assert(tf.reduce_sum(h) < 0.0, ["assertion failed"])


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("use", [waits_of_waits, a_shape_waits], ids=["control", "shape"])
@pytest.mark.parametrize("check", [asserted, asserted_of_all], ids=lambda check: check.__name__)
def test_an_assertion_fails_as_on_one_device(check, use, is_static, control_flow):
    def make(x):
        w = tf1.get_variable(
            "w", [3, 4], tf.float64, tf1.constant_initializer(0.3), use_resource=True
        )
        h = x @ w
        return [use(h, check(h))]

    require_refused(make, is_static)


def test_a_file_is_written(tmp_path):
    def make(x):
        h = x * 2.0
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "file"), "text")]):
            first = tf.tanh(h)
        with tf.control_dependencies([first]):
            return [tf.reduce_sum(tf.sin(h))]

    run(make, True, False, 1, {})
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_step_writes_a_table_that_a_branch_looks_up(is_taken, control_flow, resources):
    def make(x):
        p = tf1.placeholder(tf.bool, [], "p")
        table = tf1.get_variable("t", [5, 3], tf.float64, tf1.constant_initializer(0.3))
        ids = tf.cast(x[:, 0], tf.int32)
        found = tf.cond(p, lambda: tf.nn.embedding_lookup(table, ids), lambda: x)
        return trained(tf.reduce_sum(tf.square(found * x)) + tf.reduce_sum(tf.square(table)))

    require_alike(make, feed={"p": is_taken})


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
