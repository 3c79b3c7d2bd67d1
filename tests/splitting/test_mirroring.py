"""Mirrored variables in a split graph: copies that stay alike, and are one device's."""

import re

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.structure import own_functions
from replicate.strategy.variables import variables
from tests import control_flow, exactness
from tests.law import copies, losses, running, table
from tests.splitting import alike

F64 = tf.float64
DEVICES = alike.DEVICES[:3]
SETTING = running.Setting("mirrored", 3, (7, 5, 1, 2))
CASES = [(name, 1) for name in copies.MODELS] + [(name, 2) for name in copies.WITH_CONTROL_FLOW]


def without_copies():
    """Returns the names of the variables of the graph that are not mirrored."""
    found = [v for v in tf1.global_variables() if not isinstance(v, variables.MirroredVariable)]
    return [v.op.name for v in found if v.op.name != "global_step"]


@pytest.mark.thorough(
    "scaled-1",
    "drawn_from_a_state-1",
    "looked_up_in_loop-1",
    "accumulated-1",
    "rows_of_a_loop-1",
    "beside_a_branch-1",
    "read_back-1",
    "rows_of_a_function-1",
)
@pytest.mark.parametrize(("name", "version"), CASES)
def test_copies_are_alike_and_one_devices(name, version):
    step, without = copies.MODELS[name]
    found = []

    def fetch(spec):
        found[:] = without_copies()
        return exactness.fetched(spec)

    with control_flow.of_version(version):
        options = {"fetch": fetch, "random_numbers": "one_device"}
        running.require_exact(table.model(step), SETTING, **options)
    assert found == [*without]


class Built:
    """A training in a graph of its own, on one device or with copies on several.

    Args:
        step: From features, labels and weights to a loss and a train_op.
        num_devices: K.
    """

    def __init__(self, step, num_devices=3):
        (batch,) = running.batches(7)
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.train.create_global_step()
            given = exactness.placeholders(batch, False)
            model = table.model(step)
            replicated = replicate.replicate_model_fn(
                model, devices=num_devices, strategy="mirrored"
            )
            self.spec = replicated(*given, "train")
            self.feed = exactness.feeds(given, batch)
            self.reads = {
                v.name: [m.read_value() for m in getattr(v, "members", [v])]
                for v in tf1.global_variables()
            }
            initializer = exactness.initializer_of_all()
        self.session = tf1.Session(graph=self.graph, config=exactness.session_config())
        self.session.run(initializer)

    def run(self, fetch):
        return self.session.run(fetch, self.feed, exactness.PATIENCE)

    def values(self):
        """Returns the variables, whose copies must be alike."""
        found = self.session.run(self.reads)
        exactness.require_equal(found)
        return {name: values[0] for name, values in found.items()}


def mean(f, y, v):
    loss = losses.mean(f, y, v)
    return loss, running.adam().minimize(loss, tf1.train.get_global_step())


def linear(f, y, v):
    w = tf1.get_variable("w", [3, 3], F64, exactness.start)
    loss = tf.reduce_mean((tf.matmul(f["x"], w) - y["y"]) ** 2)
    return loss, running.descend().minimize(loss, tf1.train.get_global_step())


def gathers_of_later_devices(built):
    ops = [op for op in built.graph.get_operations() if op.type == "ResourceGather"]
    return {(op.device, op.inputs[0].op.name) for op in ops if op.name.startswith("tower_1/")}


def test_each_device_reads_its_own_copy():
    built = Built(linear)
    for k in range(3):
        product = built.graph.get_operation_by_name(f"tower_{k}/MatMul")
        copy = product.inputs[1].op.inputs[0].op
        assert copy.name == ("w" if k == 0 else f"tower_{k}/w")
        assert product.device == copy.device == DEVICES[k]
    found = gathers_of_later_devices(Built(copies.rows_of_a_table, 2))
    assert found == {(DEVICES[1], "tower_1/table")}


def test_a_device_reads_a_copy_once_for_all_reads_that_wait_for_the_same():
    ops = Built(mean, 2).graph.get_operations()
    updates = [op for op in ops if op.type == "ResourceApplyAdam"]
    casts = {op.name.startswith("tower_1/"): [] for op in updates}
    for op in updates:  # the power of beta1 is cast to float64
        casts[op.name.startswith("tower_1/")].append(op.inputs[3].op)
    assert [len(casts[is_later]) for is_later in (False, True)] == [2, 2]  # of two variables
    (read,) = {cast.inputs[0].op for cast in casts[True]}
    assert read.inputs[0].op.name == "tower_1/beta1_power"


def test_lookups_in_a_copy_pick_their_own_rows():
    def model(features, labels, mode):
        table = tf1.get_variable("table", [4, 3], F64, exactness.start, use_resource=True)
        first, second = tf.gather(table, [1]), tf.gather(table, [2])
        found = features["x"] * first - tf.gather_nd(table, [[3]]) + 2.0 * second
        loss = tf.reduce_mean(tf.square(found - labels["y"]))
        rate = tf.gather_nd(table, [[0, 0]])[0] + tf.gather_nd(table, [[0, 1]])[0]
        step = tf1.train.GradientDescentOptimizer(0.1 * tf.stop_gradient(rate)).minimize(loss)
        return exactness.spec_of(mode, loss, train_op=step)

    running.require_exact(model, running.Setting("mirrored", 3, (7, 2)))


def test_a_gather_from_a_variable_without_copies_stays_beside_it():
    def step(f, y, v):
        loss, trained = copies.rows_of_a_table(f, y, v)
        (table,) = tf1.trainable_variables()

        def body(n):
            with tf1.control_dependencies([table.assign_add(tf.ones([3, 3], F64))]):
                return n + 1

        with tf1.control_dependencies([trained]):
            return loss, tf.group(tf1.while_loop(lambda n: n < 2, body, [tf.constant(0)]))

    with control_flow.of_version(1):
        assert gathers_of_later_devices(Built(step, 2)) == {(DEVICES[0], "table")}
        running.require_exact(table.model(step), SETTING)


def read_in_between(f, y, v):
    """A write waits for what is made of a read behind an earlier write."""
    held = tf1.get_variable("held", [2], F64, tf1.zeros_initializer())
    with tf1.control_dependencies([held.assign_add([1.0, 2.0], read_value=False)]):
        between = held.read_value() * 2.0
    with tf1.control_dependencies([between]):
        written = held.assign([3.0, 4.0], name="written", read_value=False)
    return tf.reduce_mean(f["x"] * between[0]), written


def read_in_a_branch_in_between(f, y, v):
    held = tf1.get_variable("held", [2], F64, tf1.zeros_initializer())

    def branch():
        with tf1.control_dependencies([held.assign_add([1.0, 2.0], read_value=False)]):
            between = held.read_value() * 2.0
        with tf1.control_dependencies([between]):
            written = held.assign([3.0, 4.0], name="written", read_value=False)
        with tf1.control_dependencies([written]):
            return tf.identity(between)

    is_taken = tf1.placeholder_with_default(True, [])
    found = tf1.cond(is_taken, branch, lambda: tf.zeros([2], F64))
    return tf.reduce_mean(f["x"] * found[0]), found.op


@pytest.mark.parametrize("step", [read_in_between, read_in_a_branch_in_between])
def test_a_copy_is_written_after_its_reads_that_the_write_waits_for(step):
    with control_flow.of_version(1):
        built = Built(step)
    ops = built.graph.get_operations()
    for k in (1, 2):
        (write,) = [op for op in ops if re.fullmatch(f"tower_{k}/(cond/)?written", op.name)]
        (read,) = [op for op in ops if re.fullmatch(f"tower_{k}/(cond/)?Read/.*", op.name)]
        assert read in operations.executed_by([write])


@pytest.mark.parametrize("step", [mean, copies.accumulated])
def test_a_write_or_a_branch_that_is_run_by_name_writes_all_copies(step):
    with control_flow.of_version(2):
        built, one = Built(step, 2), Built(step, 1)
    before = built.values()
    for _ in range(2):
        built.run(one.spec.train_op.name)
    after = built.values()
    assert all(np.any(before[key] != after[key]) for key in before if not key.endswith("sum:0"))


def test_a_write_aside_of_steps_is_run_by_name_and_needs_no_batch():
    def step(f, y, v):
        made = mean(f, y, v)
        v.variables["b"].assign([3.0] * 3, name="reset", read_value=False)
        return made

    built = Built(step, 2)
    built.run(built.spec.train_op)
    built.session.run("reset")
    assert built.values()["b:0"].tolist() == [3.0] * 3


def test_an_initial_value_that_is_fed_is_that_of_all_copies():
    made = []

    def step(f, y, v):
        loss, trained = mean(f, y, v)
        first = v.variables["w"]
        constant = tf1.get_variable("constant", initializer=tf.constant([1.0, 2.0], F64))
        value = tf1.cond(first.is_initialized(), first.read_value, lambda: first.initial_value)
        made[:] = first, constant, tf1.get_variable("twice", initializer=value * 2.0)
        return loss, trained

    built = Built(step)
    with built.graph.as_default():
        for variable in made:
            variable.load(np.full(variable.shape, 3.0), built.session)
    values = built.values()
    for variable in made:
        np.testing.assert_array_equal(values[variable.name], 3.0)


def written_by_a_function(bias):
    """A function draws a bias anew, between 3.0 and 3.0."""

    @tf.function
    def draw():
        bias.assign(tf.random.uniform([3], 3.0, 3.0, F64))
        return tf.constant(1.0)

    return draw()


def written_by_a_loop(bias):
    def body(n):
        with tf1.control_dependencies([bias.assign_add(tf.ones([3], F64))]):
            return n + 1

    return tf1.while_loop(lambda n: n < 3, body, [tf.constant(0)])


@pytest.mark.parametrize("write", [written_by_a_function, written_by_a_loop])
def test_what_is_written_and_not_repeated_has_no_copies(write):
    """So whoever runs the write by itself, as a hook, leaves no copies behind."""
    written = []

    def step(f, y, v):
        made = mean(f, y, v)
        with tf1.control_dependencies([made[1]]):
            written[:] = [write(v.variables["b"]).name]
        return made

    found = []
    with control_flow.of_version(1):
        for num_devices in (1, 3):
            built = Built(step, num_devices)
            built.run(written[0])
            first, loss = built.values(), built.run([built.spec.loss, built.spec.train_op])[0]
            found.append((first, loss, built.values()))
    exactness.compare(found[1], found[0], 1e-12, 1e-12)
    # Nor has the slot, which is written together with the variable.
    lengths = {name: len(reads) for name, reads in built.reads.items() if "step" not in name}
    assert {name for name, number in lengths.items() if number == 1} == {
        *("b:0", "b/Adam:0", "b/Adam_1:0"),
    }


# Through an Estimator.


class Writing(tf1.train.SessionRunHook):
    """Makes, and runs once, what writes a variable that a model_fn has made."""

    def __init__(self, variable, write):
        self.variable, self.write = variable, write

    def begin(self):
        self.written = self.write(self.variable, tf1.global_variables())

    def after_create_session(self, session, coord):
        session.run(self.written)


class WritingBeside(Writing):
    """Writes the variable in each run of a step, and requires that copies stay alike."""

    def begin(self):
        super().begin()
        self.copies = exactness.copies_of_variables()

    def after_create_session(self, session, coord):
        """Runs nothing yet."""

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self.written)

    def after_run(self, run_context, run_values):
        exactness.require_equal(run_context.session.run(self.copies))


def of_the_model(variable, listed):
    added = variable.assign_add(tf.ones([3, 3], F64), read_value=False)
    with tf1.control_dependencies([added]):
        return variable.assign(variable * 2.0, read_value=False)


def of_collections(variable, listed):
    (mirrored,) = [each for each in listed if each.name == variable.name]
    return mirrored.assign_add(tf.ones([3, 3], F64)).op


def in_a_branch(variable, listed):
    def write():
        return tf.group(variable.assign_add(tf.ones([3, 3], F64)))

    with control_flow.of_version(1):
        return tf1.cond(tf1.placeholder_with_default(True, []), write, tf.no_op)


def written_by_a_hook(strategy, folder, num_devices, write, hook=Writing, steps=3):
    def model_fn(features, labels, mode):
        w = tf1.get_variable("w", [3, 3], F64, exactness.start)
        scale = tf1.get_variable("scale", [3, 3], F64, exactness.start, trainable=False)
        loss = tf.reduce_mean((tf.matmul(features["x"], w * scale) - labels["y"]) ** 2)
        step = running.descend().minimize(loss, tf1.train.get_global_step())
        hooks = [hook(scale, write)]
        return estimator.EstimatorSpec(mode, loss=loss, train_op=step, training_hooks=hooks)

    devices = [f"CPU:{k}" for k in range(num_devices)]
    replicated = replicate.replicate_model_fn(model_fn, strategy=strategy, devices=devices)
    config = estimator.RunConfig(session_config=exactness.session_config())
    made = estimator.Estimator(replicated, str(folder), config)
    (batch,) = running.batches(7)
    made.train(lambda: tf.data.Dataset.from_tensors(batch).repeat(steps))
    return [made.get_variable_value(name) for name in ("w", "scale")]


@pytest.mark.thorough("of_collections")
@pytest.mark.parametrize("write", [of_the_model, of_collections])
def test_what_a_hook_makes_to_write_a_variable_writes_all_copies(write, tmp_path):
    mirrored = written_by_a_hook("mirrored", tmp_path / "mirrored", 2, write)
    one = written_by_a_hook("one_device", tmp_path / "one", 1, write)
    np.testing.assert_allclose(mirrored, one, 1e-12)


@pytest.mark.thorough("of_the_model")
@pytest.mark.parametrize("write", [of_the_model, of_collections])
def test_a_step_reads_all_copies_before_what_a_hook_writes_beside_it(write, tmp_path):
    written_by_a_hook("mirrored", tmp_path, 3, write, WritingBeside, steps=20)


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
