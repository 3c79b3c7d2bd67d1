"""Mirrored variables in a split graph: copies that stay alike, and are one device's."""

import re

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting import mirrored_variables
from replicate.splitting.structure import own_functions
from replicate.strategy.variables import variables
from tests import control_flow, exactness
from tests.splitting import alike

F64 = tf.float64
ROWS, STEPS = 7, 3
DEVICES = alike.DEVICES[:3]


# Models: from a batch to a loss and what makes a step.


def zeros(name, shape, dtype=F64):
    return tf1.get_variable(name, shape, dtype, tf1.zeros_initializer(), trainable=False)


def weight(name, *shape):
    return tf1.get_variable(name, shape, F64, exactness.start)


def dense(x, width, name):
    return tf.matmul(x, weight(name, x.shape[1], width)) + weight(f"{name}_bias", width)


def mean_loss(x, y):
    hidden = tf.tanh(dense(tf.nn.relu(dense(x, 8, "a")), 8, "b"))
    return tf.reduce_mean((dense(hidden, 1, "c") - y) ** 2)


def count():
    return tf1.train.get_or_create_global_step()


def trained_by(optimizer):
    def build(x, ids, y):
        loss = mean_loss(x, y)
        return loss, optimizer().minimize(loss, count())

    return build


def embedding(optimizer):
    def build(x, ids, y):
        found = tf.nn.embedding_lookup(weight("table", 11, 4), ids)
        x = tf.concat([tf.reshape(found, [-1, 12]), x], 1)
        loss = tf.reduce_mean((dense(x, 1, "c") - y) ** 2)
        return loss, optimizer().minimize(loss, count())

    return build


def accumulated(x, ids, y):
    """Gradients of two batches are applied in a branch."""
    loss, optimizer = mean_loss(x, y), tf1.train.AdamOptimizer(0.01)
    found = tf1.trainable_variables()
    sums = [zeros(f"{variable.op.name}/sum", variable.shape) for variable in found]
    added = [s.assign_add(g) for s, g in zip(sums, tf.gradients(loss, found), strict=True)]
    with tf1.control_dependencies([*added, count().assign_add(1)]):
        number, totals = count().read_value(), [s.read_value() for s in sums]

    def apply():
        pairs = [(total / 2.0, variable) for total, variable in zip(totals, found, strict=True)]
        with tf1.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.group([s.assign(tf.zeros_like(s)) for s in sums])

    return loss, tf1.cond(tf.equal(number % 2, 0), apply, tf.no_op)


def scaled(x, ids, y):
    """A loss scale: what is finite is applied, and a branch in the branch doubles the scale."""
    loss, optimizer = mean_loss(x, y), tf1.train.AdamOptimizer(0.01)
    scale, good = zeros("scale", []), zeros("good", [], tf.int64)
    pairs = [(g / (scale + 1), v) for g, v in optimizer.compute_gradients(loss * (scale + 1))]
    count()
    is_finite = tf.less(tf.linalg.global_norm([g for g, _ in pairs]), 0.9)

    def apply():
        with tf1.control_dependencies([optimizer.apply_gradients(pairs, count())]):
            added = good.assign_add(1)
        with tf1.control_dependencies([added]):
            double = tf1.cond(
                good.read_value() > 1, lambda: tf.group(scale.assign(scale * 2.0 + 1)), tf.no_op
            )
        return tf.group(added, double)

    return loss, tf1.cond(is_finite, apply, lambda: tf.group(scale.assign(1.0), good.assign(0)))


def value_of_branch(x, ids, y):
    """A value, not an operation, comes out of the branch that writes."""
    loss, first, second = mean_loss(x, y), zeros("first", [2]), zeros("second", [2])
    step = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, count())
    with tf1.control_dependencies([step]):
        found = tf1.cond(
            count().read_value() > 2,
            lambda: first.assign_add(tf.stack([loss, loss])).read_value(),
            lambda: first.assign_sub([1.0, loss]).read_value(),
        )
    return loss, second.assign_add(found).op


def read_back(x, ids, y):
    """The model reads on its devices what it has just written."""
    number = tf1.assign_add(zeros("number", []), 1.0)
    loss = mean_loss(x, y) + tf.reduce_mean((dense(x * number, 1, "z") - y) ** 2)
    return loss, tf1.train.AdamOptimizer(0.01).minimize(loss, count())


def written_in_loop(x, ids, y):
    loss, sums = mean_loss(x, y), zeros("sums", [3])

    def body(j):
        with tf1.control_dependencies(
            [sums.assign_add(tf.cast(j, F64) * loss * tf.ones([3], F64))]
        ):
            return j + 1

    step = tf1.train.AdamOptimizer(0.01).minimize(loss, count())
    with tf1.control_dependencies([step]):
        end = tf1.while_loop(lambda j: j < 3, body, [tf.constant(0)])
    with tf1.control_dependencies([end]):
        doubled = sums.assign(sums.read_value() * 2.0)
    return loss, tf.group(step, doubled)


def looked_up_in_loop(x, ids, y):
    """A decoder: each turn looks up what it is given, and the weights have gradients."""
    table, w = weight("table", 11, 5), weight("w", 5, 5)

    def turn(j, h):
        return j + 1, tf.tanh(tf.matmul(h, w) + tf.nn.embedding_lookup(table, ids[:, j]))

    _, h = tf1.while_loop(lambda j, h: j < 3, turn, [tf.constant(0), x])
    loss = tf.reduce_mean((dense(h, 1, "c") - y) ** 2)
    return loss, tf1.train.GradientDescentOptimizer(0.1).minimize(loss, count())


def noisy(x, ids, y):
    """Random numbers are drawn once."""
    loss, found = mean_loss(x, y), tf1.trainable_variables()
    gradients = [
        g + 0.1 * tf.random.stateless_normal(g.shape, [1, 2], dtype=F64)
        for g in tf.gradients(loss, found)
    ]
    noise = tf1.get_variable("noise", [5], F64, tf1.random_normal_initializer(seed=1))
    step = tf1.train.AdamOptimizer(0.01).apply_gradients(
        zip(gradients, found, strict=True), count()
    )
    return loss, tf.group(step, noise.assign_add(tf1.random_normal([5], dtype=F64, seed=2)))


def beside(write):
    """A model that reads a variable which the step writes, with no order between the two."""

    def build(x, ids, y):
        held = tf1.get_variable("held", [2], F64, tf1.ones_initializer(), trainable=False)
        loss = mean_loss(x, y) + tf.reduce_mean(tf.ones_like(x) * held.read_value()[0])
        step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, count())
        with tf1.control_dependencies([loss]):  # which one device may read either before or after
            written = write(held)
        return loss, tf.group(step, getattr(written, "op", written))

    build.__name__ = f"beside_{write.__name__}"
    return build


def a_slice(held):
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=held.handle, begin=[0], end=[1], strides=[1], value=tf.constant([5.0], F64)
    )


def a_branch(held):
    is_odd = tf1.placeholder_with_default(True, [])
    return tf.cond(is_odd, lambda: tf.identity(held.assign_add([1.0, 1.0])), held.read_value)


def a_call(held):
    @tf.function
    def add():
        held.assign_add([1.0, 1.0])
        return tf.constant(1.0)

    return add()


def rows_of(write):
    """A model whose step reads rows of what writes, and nothing else of it."""

    def build(x, ids, y):
        held = tf1.get_variable("held", [5], F64, tf1.ones_initializer(), trainable=False)
        loss = mean_loss(write(held, dense(x, 5, "layer")), y)
        return loss, tf1.train.GradientDescentOptimizer(0.01).minimize(loss, count())

    build.__name__ = f"rows_of_{write.__name__}"
    return build


def a_first_batch(held, x):
    """A layer that its first batch sets, as a weight normalisation or an ActNorm is."""
    is_set = zeros("is_set", [], tf.bool)

    def first():
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(x), 0))
        with tf1.control_dependencies([held.assign(scale), is_set.assign(True)]):
            return x * scale

    return tf.cond(is_set, lambda: x * held, first)


def a_case(held, x):
    def add():
        with tf1.control_dependencies([held.assign_add(tf.reduce_mean(x, 0))]):
            return x + 1.0

    number = tf.cast(count().read_value() % 2, tf.int32)
    return tf.switch_case(number, [add, lambda: x * held]) * 1.0


def a_loop(held, x):
    def turn(n, h):
        with tf1.control_dependencies([held.assign_add(tf.reduce_mean(h, 0))]):
            return n + 1, tf.tanh(h)

    return tf.while_loop(lambda n, _: n < 2, turn, [0, x], parallel_iterations=1)[1]


def a_function(held, x):
    @tf.function
    def scaled(x):
        held.assign_add(tf.reduce_mean(x, 0))
        return 2.0 * x

    return scaled(x)


def drawn_from_a_state(x, ids, y):
    """A generator's state is a variable, which is written by each draw."""
    state = tf1.get_variable("state", [3], tf.int64, tf1.constant_initializer([7, 8, 9]))
    noise = tf.raw_ops.StatefulStandardNormalV2(
        resource=state.handle, algorithm=tf.constant(1, tf.int64), shape=[5, 8], dtype=tf.float32
    )
    with tf1.control_dependencies([noise]):
        skipped = tf.raw_ops.RngReadAndSkip(
            resource=state.handle, alg=1, delta=tf.constant(256, tf.uint64)
        )
    noise = tf.stop_gradient(tf.cast(noise, F64))
    loss = mean_loss(x, y) + tf.reduce_mean(tf.matmul(x, noise) ** 2)
    step = tf1.train.AdamOptimizer(0.01).minimize(loss, count())
    return loss, tf.group(step, skipped.op)


def written_in_a_loop_of_a_loop(x, ids, y):
    """A loop whose inner one writes a variable, and another loop that comes later."""
    loss, sums = tf.reduce_mean(x), zeros("sums", [2])

    def add(j):
        with tf1.control_dependencies([sums.assign_add(loss * tf.ones([2], F64))]):
            return j + 1

    def repeat(j):
        with tf1.control_dependencies([tf1.while_loop(lambda n: n < 2, add, [j])]):
            return j + 1

    written = tf1.while_loop(lambda j: j < 2, repeat, [tf.constant(0)])
    with tf1.control_dependencies([written]):
        doubled = sums.assign(sums.read_value() * 2.0)
    with tf1.control_dependencies([doubled]):
        return loss, tf1.while_loop(lambda j: j < 3, lambda j: j + 1, [tf.constant(0)])


def drawn_by_a_function(x, ids, y):
    """The step itself is a call that is not repeated: it draws, between 3.0 and 3.0."""
    held = zeros("held", [2])

    @tf.function
    def draw():
        held.assign_add(tf.random.uniform([2], 3.0, 3.0, F64))
        return tf.constant(1.0)

    loss = tf.reduce_mean(x * held.read_value()[0])
    with tf1.control_dependencies([loss]):
        return loss, draw().op


MODELS = {
    "adam": trained_by(lambda: tf1.train.AdamOptimizer(0.01)),
    "sparse_adam": embedding(lambda: tf1.train.AdamOptimizer(0.1)),
    "sparse_gradient_descent": embedding(lambda: tf1.train.GradientDescentOptimizer(0.1)),
} | {
    each.__name__: each
    for each in (
        accumulated,
        scaled,
        value_of_branch,
        read_back,
        written_in_loop,
        looked_up_in_loop,
        noisy,
        drawn_from_a_state,
        drawn_by_a_function,
        written_in_a_loop_of_a_loop,
        *map(beside, (a_slice, a_branch, a_call)),
        *map(rows_of, (a_first_batch, a_case, a_loop, a_function)),
    )
}
# What a loop writes, or draws, cannot be repeated.
WITHOUT_COPIES = {
    "written_in_loop": ["sums"],
    "rows_of_a_loop": ["held"],
    "written_in_a_loop_of_a_loop": ["sums"],
    "drawn_by_a_function": ["held"],
}
WITH_CONTROL_FLOW = (
    "accumulated",
    "scaled",
    "value_of_branch",
    "written_in_loop",
    "looked_up_in_loop",
    "beside_a_branch",
    "rows_of_a_first_batch",
    "rows_of_a_case",
    "rows_of_a_loop",
)


def batch(step):
    numbers = np.random.RandomState(100 + step)
    return numbers.randn(ROWS, 5), numbers.randint(0, 11, [ROWS, 3]), numbers.randn(ROWS, 1)


class Owner:
    """What lists copies, of a strategy."""

    def __init__(self, devices):
        self.worker_devices = devices


class Built:
    """A model in a graph of its own, on one device or split over several."""

    def __init__(self, build, num_devices=0, mirrored=tf1.global_variables):
        self.devices = DEVICES[:num_devices]
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.set_random_seed(5)
            with tf1.variable_scope("", use_resource=True), tf.device(DEVICES[0]):
                self.given = (
                    tf1.placeholder(F64, [None, 5]),
                    tf1.placeholder(tf.int64, [None, 3]),
                    tf1.placeholder(F64, [None, 1]),
                )
                self.run = list(build(*self.given))
                self.own_saver = tf1.train.Saver()
            self.primaries = tf1.global_variables()
            if num_devices:
                self._split(mirrored())
            found = tf1.global_variables()
            self.reads = {
                each.name: [m._graph_element for m in getattr(each, "members", [each])]
                for each in found
            }
            self.saver = tf1.train.Saver()
            self.initializer = tf1.global_variables_initializer()

    def _split(self, mirrored):
        options = {"random_numbers": "one_device", "mirrored": mirrored}
        result = alike.split(self.given, self.run, len(self.devices), **options)
        self.run = result.fetch
        mirrored_variables.list_copies(Owner(self.devices), mirrored, result.copies, result.made)

    def session(self):
        return tf1.Session(graph=self.graph, config=exactness.session_config())

    def feed(self, step):
        return dict(zip(self.given, batch(step), strict=True))

    def step(self, session, step):
        return session.run(self.run, self.feed(step), alike.PATIENCE)[0]

    def values(self, session):
        """The variables, whose copies must be alike."""
        found = session.run(self.reads)
        for name, copies in found.items():
            for copy in copies[1:]:
                np.testing.assert_array_equal(copy, copies[0], name)
        return {name: copies[0] for name, copies in found.items()}


def trained(built):
    with built.session() as session:
        session.run(built.initializer)
        found = [built.values(session)]
        for step in range(STEPS):
            found.append({"loss": built.step(session, step), **built.values(session)})
    return found


def compare(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert set(one) == set(other)
        for name in other:
            np.testing.assert_allclose(one[name], other[name], 1e-12, 1e-12, err_msg=name)


CASES = [(name, 1) for name in MODELS] + [(name, 2) for name in WITH_CONTROL_FLOW]


@pytest.mark.thorough("*-1")
@pytest.mark.parametrize(("name", "version"), CASES)
def test_copies_are_alike_and_one_devices(name, version):
    with control_flow.of_version(version):
        wanted = trained(Built(MODELS[name]))
        built = Built(MODELS[name], 3)
        without = [v for v in built_variables(built) if not is_mirrored(v)]
        assert [v.op.name for v in without] == WITHOUT_COPIES.get(name, [])
        compare(trained(built), wanted)


def is_mirrored(variable):
    return isinstance(variable, variables.MirroredVariable)


def built_variables(built):
    with built.graph.as_default():
        return tf1.global_variables()


@pytest.mark.parametrize("name", ["adam", "sparse_adam", "accumulated"])
def test_writes_of_mirrored_and_other_variables_at_once_are_followed(name):
    with control_flow.of_version(1):
        built = Built(MODELS[name], 2, mirrored=tf1.trainable_variables)
        compare(trained(built), trained(Built(MODELS[name])))


def gathers_of_later_devices(built):
    ops = [op for op in built.graph.get_operations() if op.type == "ResourceGather"]
    return [(op.device, op.inputs[0].op.name) for op in ops if op.name.startswith("tower_1/")]


def test_each_device_reads_its_own_copy():
    built = Built(MODELS["adam"], 3)
    for k in range(3):
        product = built.graph.get_operation_by_name(f"tower_{k}/MatMul")
        name = "a" if k == 0 else f"tower_{k}/a"
        assert product.inputs[1].op.inputs[0].op.name == name
        assert product.device == product.inputs[1].op.inputs[0].op.device == DEVICES[k]
    found = gathers_of_later_devices(Built(MODELS["sparse_adam"], 2))
    assert {*found} == {(DEVICES[1], "tower_1/table")}


def test_a_device_reads_a_copy_once_for_all_reads_that_wait_for_the_same():
    ops = Built(MODELS["adam"], 2).graph.get_operations()
    updates = [op for op in ops if op.type == "ResourceApplyAdam"]
    casts = {op.name.startswith("tower_1/"): [] for op in updates}
    for op in updates:  # the power of beta1 is cast to float64
        casts[op.name.startswith("tower_1/")].append(op.inputs[3].op)
    assert [len(casts[is_later]) for is_later in (False, True)] == [6, 6]  # of six variables
    (read,) = {cast.inputs[0].op for cast in casts[True]}
    assert read.inputs[0].op.name == "tower_1/beta1_power"


def test_a_gather_from_a_variable_without_copies_stays_beside_it():
    def mirrored():
        return [each for each in tf1.trainable_variables() if each.op.name != "table"]

    built = Built(MODELS["sparse_gradient_descent"], 2, mirrored)
    assert gathers_of_later_devices(built) == [(DEVICES[0], "table")]
    compare(trained(built), trained(Built(MODELS["sparse_gradient_descent"])))


def read_in_between(x, ids, y):
    """A write waits for what is made of a read behind an earlier write."""
    held = zeros("held", [2])
    with tf1.control_dependencies([held.assign_add([1.0, 2.0], read_value=False)]):
        between = held.read_value() * 2.0
    with tf1.control_dependencies([between]):
        written = held.assign([3.0, 4.0], name="written", read_value=False)
    return tf.reduce_mean(x * between[0]), written


def read_in_a_branch_in_between(x, ids, y):
    held, is_taken = zeros("held", [2]), tf1.placeholder_with_default(True, [])

    def branch():
        with tf1.control_dependencies([held.assign_add([1.0, 2.0], read_value=False)]):
            between = held.read_value() * 2.0
        with tf1.control_dependencies([between]):
            written = held.assign([3.0, 4.0], name="written", read_value=False)
        with tf1.control_dependencies([written]):
            return tf.identity(between)

    found = tf1.cond(is_taken, branch, lambda: tf.zeros([2], F64))
    return tf.reduce_mean(x * found[0]), found.op


@pytest.mark.parametrize("build", [read_in_between, read_in_a_branch_in_between])
def test_a_copy_is_written_after_its_reads_that_the_write_waits_for(build):
    with control_flow.of_version(1):
        built = Built(build, 3)
    ops = built.graph.get_operations()
    for k in (1, 2):
        (write,) = [op for op in ops if re.fullmatch(f"tower_{k}/(cond/)?written", op.name)]
        (read,) = [op for op in ops if re.fullmatch(f"tower_{k}/(cond/)?Read/.*", op.name)]
        assert read in operations.executed_by([write])


@pytest.mark.parametrize("saver", ["saver", "own_saver"])
def test_savers_restore_all_copies(saver, tmp_path):
    built = Built(MODELS["adam"], 3)
    with built.graph.as_default():
        uninitialized = tf1.report_uninitialized_variables()
    with built.session() as session:
        assert len(session.run(uninitialized)) == len(built.reads)
        session.run(built.initializer)
        assert not len(session.run(uninitialized))
        built.step(session, 0)
        path = getattr(built, saver).save(session, str(tmp_path / "saved"))
        wanted = built.values(session)
        built.step(session, 1)
        getattr(built, saver).restore(session, path)
        compare([built.values(session)], [wanted])
    names = sorted(name for name, _ in tf.train.list_variables(path))
    assert names == sorted(v.op.name for v in built.primaries)
    one = Built(MODELS["adam"])
    assert [v.name for v in built_variables(one)] == [v.name for v in built_variables(built)]


@pytest.mark.parametrize("name", ["adam", "accumulated"])
def test_a_write_or_a_branch_that_is_run_by_name_writes_all_copies(name):
    with control_flow.of_version(2):
        built, one = Built(MODELS[name], 2), Built(MODELS[name])
    with built.session() as session:
        session.run(built.initializer)
        before = built.values(session)
        for step in range(2):
            session.run(one.run[1].name, built.feed(step))
        after = built.values(session)
    assert all(np.any(before[key] != after[key]) for key in before if not key.endswith("sum:0"))


def test_a_write_aside_of_steps_is_run_by_name_and_needs_no_batch():
    def build(x, ids, y):
        loss, step = trained_by(lambda: tf1.train.MomentumOptimizer(0.01, 0.9))(x, ids, y)
        (bias,) = [each for each in tf1.global_variables() if each.op.name == "c_bias"]
        bias.assign([3.0], name="reset", read_value=False)
        return loss, step

    built = Built(build, 2)
    with built.session() as session:
        session.run(built.initializer)
        session.run(built.run, built.feed(0))
        session.run("reset")
        copies = session.run(built.reads["c_bias:0"])
    assert [copy.tolist() for copy in copies] == [[3.0], [3.0]]


def test_an_initial_value_that_is_fed_is_that_of_all_copies():
    def build(x, ids, y):
        loss = mean_loss(x, y)
        (first,) = [each for each in tf1.trainable_variables() if each.op.name == "a"]
        tf1.get_variable("constant", initializer=tf.constant([1.0, 2.0], F64))
        value = tf1.cond(first.is_initialized(), first.read_value, lambda: first.initial_value)
        tf1.get_variable("twice", initializer=value * 2.0)
        return loss, tf1.train.AdamOptimizer(0.01).minimize(loss, count())

    built = Built(build, 3)
    fed = [each for each in built.primaries if each.op.name in ("a", "constant", "twice")]
    with built.session() as session:
        session.run(built.initializer)
        for variable in fed:
            variable.load(np.full(variable.shape, 3.0), session)
        values = built.values(session)
    for variable in fed:
        np.testing.assert_array_equal(values[variable.name], 3.0)


def written_by_a_function(x, ids, y):
    """A function draws a bias anew, between 3.0 and 3.0."""
    loss, step = trained_by(lambda: tf1.train.MomentumOptimizer(0.01, 0.9))(x, ids, y)
    (bias,) = [each for each in tf1.global_variables() if each.op.name == "b_bias"]

    @tf.function
    def draw():
        bias.assign(tf.random.uniform([8], 3.0, 3.0, F64))
        return tf.constant(1.0)

    with tf1.control_dependencies([step]):
        return loss, step, draw()


def written_by_a_loop(x, ids, y):
    loss, step = trained_by(lambda: tf1.train.MomentumOptimizer(0.01, 0.9))(x, ids, y)
    (bias,) = [each for each in tf1.global_variables() if each.op.name == "b_bias"]

    def body(n):
        with tf1.control_dependencies([bias.assign_add(tf.ones([8], F64))]):
            return n + 1

    with tf1.control_dependencies([step]):
        return loss, step, tf1.while_loop(lambda n: n < 3, body, [tf.constant(0)])


@pytest.mark.parametrize("is_in_step", [False, True])
@pytest.mark.parametrize("make", [written_by_a_function, written_by_a_loop])
def test_what_is_written_and_not_repeated_has_no_copies(make, is_in_step):
    """So whoever runs the write by itself, as a hook, leaves no copies behind."""

    def build(x, ids, y):
        loss, step, made = make(x, ids, y)
        return (loss, tf.group(step, made), made.op) if is_in_step else (loss, step)

    found = []
    with control_flow.of_version(1):
        for num_devices in (0, 3):
            built = Built(build, num_devices)
            ops = built.graph.get_operations()
            writes = [op for op in ops if op.type in ("StatefulPartitionedCall", "Exit")]
            write = next(op for op in writes if not op.name.startswith("tower_"))
            with built.session() as session:
                session.run(built.initializer)
                session.run(write, built.feed(0))
                first = session.run(built.reads)
                losses = [built.step(session, step) for step in range(3)]
                found.append((losses, first, session.run(built.reads)))
    (wanted, *of_one), (losses, *of_three) = found
    np.testing.assert_allclose(losses, wanted, 1e-12)
    for many, one in zip(of_three, of_one, strict=True):
        for name, copies in many.items():
            # Nor has the slot, which is written together with the variable.
            assert len(copies) == (1 if name.startswith("b_bias") else 3)
            for copy in copies:
                np.testing.assert_allclose(copy, one[name][0], 1e-12, 1e-12)


# Through an Estimator.


class Writing(tf1.train.SessionRunHook):
    """Makes, and runs once, what writes a variable that a model_fn has made."""

    def __init__(self, variable, write):
        self.variable, self.write = variable, write

    def begin(self):
        self.written = self.write(self.variable, tf1.global_variables())

    def after_create_session(self, session, coord):
        session.run(self.written)


def of_the_model(variable, listed):
    added = variable.assign_add(tf.ones([5, 1], F64), read_value=False)
    with tf1.control_dependencies([added]):
        return variable.assign(variable * 2.0, read_value=False)


def of_collections(variable, listed):
    (mirrored,) = [each for each in listed if each.name == variable.name]
    return mirrored.assign_add(tf.ones([5, 1], F64)).op


def in_a_branch(variable, listed):
    def write():
        return tf.group(variable.assign_add(tf.ones([5, 1], F64)))

    with control_flow.of_version(1):
        return tf1.cond(tf1.placeholder_with_default(True, []), write, tf.no_op)


def written_by_a_hook(strategy, folder, num_devices, write):
    def model_fn(features, labels, mode):
        w = weight("w", 5, 1)
        loss = tf.reduce_mean((tf.matmul(features["x"], w) - labels) ** 2)
        step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, count())
        hooks = [Writing(w, write)]
        return estimator.EstimatorSpec(mode, loss=loss, train_op=step, training_hooks=hooks)

    devices = [f"CPU:{k}" for k in range(num_devices)]
    replicated = replicate.replicate_model_fn(model_fn, strategy=strategy, devices=devices)
    config = estimator.RunConfig(session_config=exactness.session_config())
    made = estimator.Estimator(replicated, str(folder), config)
    x, _, y = batch(0)
    made.train(lambda: tf.data.Dataset.from_tensors(({"x": x}, y)).repeat(STEPS))
    return made.get_variable_value("w")


@pytest.mark.parametrize("write", [of_the_model, of_collections])
def test_what_a_hook_makes_to_write_a_variable_writes_all_copies(write, tmp_path):
    mirrored = written_by_a_hook("mirrored", tmp_path / "mirrored", 2, write)
    one = written_by_a_hook("one_device", tmp_path / "one", 1, write)
    np.testing.assert_allclose(mirrored, one, 1e-12)


def test_a_branch_in_which_a_hook_writes_a_variable_is_refused(tmp_path):
    with pytest.raises(ValueError, match="outside of branches, loops and functions; cond/"):
        written_by_a_hook("mirrored", tmp_path, 2, in_a_branch)


def test_a_later_devices_functions_call_its_own(fresh_graph):
    @tf.function
    def inner(x):
        with tf.device(DEVICES[0]):
            return tf.exp(x)

    @tf.function
    def outer(x):
        return inner(x) + 1.0

    outer(tf.constant(1.0))
    (call,) = [op for op in fresh_graph.get_operations() if "PartitionedCall" in op.type]
    attribute = call.node_def.attr["f"]
    own = own_functions.OwnFunctions(fresh_graph, DEVICES)
    own.change(attribute, 1)
    own.add()
    made = {each.signature.name: each for each in fresh_graph.as_graph_def().library.function}
    (nested,) = [
        node.attr["f"].func.name
        for node in made[attribute.func.name].node_def
        if "PartitionedCall" in node.op
    ]
    assert attribute.func.name.endswith("_tower_1")
    assert nested.endswith("_tower_1")
    assert [node.device for node in made[nested].node_def if node.op == "Exp"] == [DEVICES[1]]


def test_a_branch_that_writes_variables_alone_is_repeated(fresh_graph):
    held = tf1.get_variable("held", [2], use_resource=True)
    with control_flow.of_version(2):
        tf1.cond(
            tf1.placeholder(tf.bool, []),
            lambda: tf.group(held.assign_add([1.0, 1.0])),
            lambda: tf.group(held.assign(tf.random.uniform([2]))),
        )
    (branches,) = [op for op in fresh_graph.get_operations() if op.type == "If"]
    functions = own_functions.OwnFunctions(fresh_graph, DEVICES)
    found = [
        all(map(functions._may_be_copied, functions.known.definition(name).node_def))
        for name in (branches.get_attr(key).name for key in ("then_branch", "else_branch"))
    ]
    assert found == [True, False]  # a draw is made once
