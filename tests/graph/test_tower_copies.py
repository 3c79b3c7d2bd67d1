"""What later towers have in place of the first one's operations, on graphs made by hand.

Three towers on CPU:1 to CPU:3 are given 1, 2 and 3.
"""

import contextlib

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import placement, tower_copies

DEVICES = tuple(f"/device:CPU:{i}" for i in (1, 2, 3))
NAMED = "/device:CPU:6"
OF_VARIABLES = "/device:CPU:7"
PREFIXES = ("", "tower_1/", "tower_2/")
GIVEN = (1.0, 2.0, 3.0)

pytestmark = pytest.mark.usefixtures("fresh_graph")


class Towers:
    """Three towers, of which the first one builds.

    Attributes:
        given: What each tower was given: a number in a vector of two.
        copies: The copies of the later ones.
        resources: By each handle of the first tower's, three handles.
    """

    def __init__(self):
        with tf.device("/device:CPU:0"):
            self.given = [tf.constant([number, number]) for number in GIVEN]
        self.resources = {}
        self.copies = tower_copies.TowerCopies(DEVICES, PREFIXES, self._resource_of)
        self.copies.give(self.given)

    def _resource_of(self, i, handle):
        return self.resources.get(handle.ref(), [handle] * 3)[i]

    @contextlib.contextmanager
    def first(self):
        """Has the first tower build what is built inside; gives what it was given."""
        self.copies.begin()
        place = placement.device_function(placement.Single(OF_VARIABLES), DEVICES[0])
        with tf1.device(place), tf1.device(self.copies.device_function):
            yield self.given[0]
        self.copies.end()

    def column(self, tensor):
        """Returns what the three towers have."""
        return [tensor, *(own[0] for own in self.copies.of([tensor]))]

    def mirror(self, name):
        """Makes a variable of which each tower has a copy: 10, 20, 30."""
        made = []
        for i, device in enumerate(DEVICES):
            with tf.device(device):
                made.append(variable(f"{name}/{i}", 10.0 * (i + 1)))
        self.resources[made[0].handle.ref()] = [member.handle for member in made]
        return made


@pytest.fixture
def towers():
    return Towers()


@pytest.fixture
def run(session):
    """Initializes the variables and runs what is fetched."""

    def run(fetches):
        session.run(tf1.global_variables_initializer())
        return session.run(fetches)

    return run


def variable(name, value):
    return tf1.get_variable(name, initializer=value, use_resource=True)


def names():
    """Returns the names of all operations of later towers."""
    found = [op.name for op in tf1.get_default_graph().get_operations()]
    return sorted(name for name in found if name.startswith(PREFIXES[1:]))


def of_type(kind):
    return [op for op in tf1.get_default_graph().get_operations() if op.type == kind]


def near(device):
    """Returns the end of a device's name, which says which CPU it is."""
    return device.rsplit("device:", 1)[-1]


# What is copied.


def test_nothing_is_copied_until_asked_for(towers):
    with towers.first() as x:
        tf.negative(x, name="negative")
    assert names() == []


def test_only_what_is_asked_for_is_copied(towers, run):
    with towers.first() as x:
        y = tf.negative(x, name="negative")
        tf.square(y, name="after")
        tf.exp(x, name="beside")
    column = towers.column(y)
    assert names() == ["tower_1/negative", "tower_2/negative"]
    np.testing.assert_array_equal(run(column), [[-1.0, -1.0], [-2.0, -2.0], [-3.0, -3.0]])


def test_what_is_asked_for_again_is_copied_once(towers):
    with towers.first() as x:
        y = tf.negative(x, name="negative")
        z = tf.square(y, name="after")
    first = towers.column(y)
    again = towers.column(z)
    assert again[1].op.inputs[0] is first[1]
    assert all(one is other for one, other in zip(towers.column(y), first, strict=True))
    assert len(names()) == 4


def test_what_no_tower_made_is_everybodys(towers):
    everybodys = tf.constant(5.0)
    with towers.first() as x:
        y = tf.add(x, everybodys, name="sum")
    assert all(tensor is everybodys for tensor in towers.column(everybodys))
    assert towers.column(y)[2].op.inputs[1] is everybodys


def test_what_is_made_across_towers_is_everybodys(towers):
    with towers.first() as x:
        y = tf.negative(x)
    total = tf.add_n(towers.column(y))
    with towers.first():
        z = tf.square(total, name="square")
    assert not towers.copies.differs(total)
    assert towers.column(z)[1].op.inputs[0] is total


def test_each_tower_reads_what_it_was_given(towers):
    assert [t is g for t, g in zip(towers.column(towers.given[0]), towers.given, strict=True)]
    assert towers.copies.differs(towers.given[0])


def test_placeholders_are_fed_to_all_towers_at_once(towers):
    with towers.first() as x:
        fed = tf1.placeholder(tf.float32, [])
        y = tf.add(x, fed, name="sum")
    assert towers.column(y)[1].op.inputs[1] is fed
    assert names() == ["tower_1/sum", "tower_2/sum"]


def test_names_that_are_taken_are_left_to_who_has_them(towers):
    tf.constant(0.0, name="tower_2/negative")
    with towers.first() as x:
        y = tf.negative(x, name="negative")
    assert [t.op.name for t in towers.column(y)[1:]] == [
        "tower_1/negative_copy",
        "tower_2/negative_copy",
    ]


def test_a_name_that_is_chosen_is_left_to_the_copy_that_has_it(towers):
    tf.constant(0.0, name="tower_1/same")
    with towers.first() as x:
        y = tf.negative(tf.negative(x, name="same"), name="same_copy")
    towers.column(y)
    # "tower_1/same" is taken: its copy is "same_copy", and the next one is to be another
    assert [op for op in names() if "same_copy" in op] == [
        f"tower_{i}/same_copy{end}" for i in (1, 2) for end in ("", "_copy")
    ]


def test_operations_of_later_towers_are_known(towers):
    with towers.first() as x:
        y = tf.negative(x)
    copies = towers.column(y)[1:]
    assert [towers.copies.operations(i) for i in (1, 2)] == [{copy.op} for copy in copies]
    assert towers.copies.has(y.op)


# Devices.


def test_copies_are_on_their_towers_devices(towers):
    with towers.first() as x:
        y = tf.negative(x)
    assert [near(t.device) for t in towers.column(y)] == [near(device) for device in DEVICES]


def test_a_scope_in_which_copies_are_asked_for_adds_nothing_to_them(towers):
    with towers.first() as x:
        y = tf.tanh(x, name="y")
    graph = tf1.get_default_graph()
    with (
        graph.colocate_with(x.op),
        graph._attr_scope({"_mark": tf1.AttrValue(b=True)}),
        graph._kernel_label_map({"Tanh": "other"}),
        graph.gradient_override_map({"Tanh": "Other"}),
    ):
        copy = towers.column(y)[1].op
        beside = tf.tanh(x).op
    assert copy.device == DEVICES[1]
    added = {"_class", "_mark", "_kernel", "_gradient_op_type"}
    assert added.isdisjoint(copy.node_def.attr)
    assert added <= set(beside.node_def.attr)  # what is made there has it still


def test_a_device_that_the_user_named_stays(towers):
    with towers.first() as x, tf.device(NAMED):
        y = tf.negative(x)
    assert [near(t.device) for t in towers.column(y)] == [near(NAMED)] * 3


def test_what_is_put_beside_another_operation_follows_it(towers):
    with towers.first() as x:
        y = tf.negative(x)
        with tf1.colocate_with(y.op):
            z = tf.square(y)
    assert [near(t.device) for t in towers.column(z)] == [near(device) for device in DEVICES]


def test_what_is_put_beside_what_towers_were_given_is_beside_each_towers_own(towers):
    received = []
    for device in DEVICES:
        with tf.device(device):
            received.append(tf.constant(1.0))  # as a joined gradient that is sent to all
    towers.copies.give(received)
    with towers.first(), tf1.colocate_with(received[0]):
        y = tf.square(received[0])
    assert [near(t.device) for t in towers.column(y)] == [near(device) for device in DEVICES]


def body_devices(ending):
    """Returns the devices named in functions of the graph whose names end so."""
    library = tf1.get_default_graph().as_graph_def().library.function
    bodies = [function for function in library if function.signature.name.endswith(ending)]
    return {near(node.device) for body in bodies for node in body.node_def if node.device}


def test_bodies_of_functions_are_on_their_towers_devices(towers, run):
    with towers.first() as x:
        y = tf.cond(x[0] > 0.0, lambda: tf.negative(x), lambda: x)
    column = towers.column(y)
    assert body_devices("_tower_1") == {near(DEVICES[1])}
    assert body_devices("_tower_2") == {near(DEVICES[2])}
    np.testing.assert_array_equal(run(column), [[-1.0, -1.0], [-2.0, -2.0], [-3.0, -3.0]])


def test_a_device_that_the_user_named_in_a_function_stays(towers):
    @tf.function
    def called(x):
        with tf.device(NAMED):
            y = tf.negative(x)
        return tf.square(y)

    with towers.first() as x:
        y = called(x)
    towers.column(y)
    assert body_devices("_tower_2") == {near(DEVICES[2]), near(NAMED)}


# Variables.


@pytest.fixture
def shared():
    """Two variables of which there is one copy: 10 and 100."""
    with tf.device(OF_VARIABLES):
        return variable("v", 10.0), variable("w", 100.0)


def test_variables_are_read_once_and_sent_in_one_transfer(towers, shared, run):
    v, w = shared
    with towers.first() as x:
        y = x * v.read_value() + w.read_value()
    reads = len(of_type("ReadVariableOp"))
    column = towers.column(y)
    assert len(of_type("ReadVariableOp")) == reads
    (sent,) = of_type("OptionalFromValue")
    assert near(sent.device) == near(OF_VARIABLES)
    received = of_type("OptionalGetValue")
    assert [near(op.device) for op in received] == [near(device) for device in DEVICES[1:]]
    # 1 * 10 + 100, 2 * 10 + 100, 3 * 10 + 100
    np.testing.assert_array_equal(run(column), [[110.0] * 2, [120.0] * 2, [130.0] * 2])


def test_what_was_sent_is_not_sent_again(towers, shared):
    v, w = shared
    with towers.first() as x:
        read = v.read_value(), w.read_value()
        y = x * read[0] + read[1]
        z = x - read[0] * read[1]
    towers.column(y)
    towers.column(z)
    assert len(of_type("OptionalFromValue")) == 1
    assert len(of_type("OptionalGetValue")) == 2


def test_one_variable_is_sent_as_it_is(towers, shared):
    v, _ = shared
    with towers.first() as x:
        read = v.read_value()
        y = tf.multiply(x, read, name="product")
    towers.column(y)
    assert of_type("OptionalFromValue") == []


def test_copies_of_a_variable_are_read_where_they_are(towers, run):
    members = towers.mirror("v")
    with towers.first() as x:
        y = x * members[0].read_value()
    column = towers.column(y)
    reads = [op for op in of_type("ReadVariableOp") if op.name.startswith("tower_")]
    assert [op.inputs[0] is member.handle for op, member in zip(reads, members[1:], strict=True)]
    assert [near(op.device) for op in reads] == [near(device) for device in DEVICES[1:]]
    # 1 * 10, 2 * 20, 3 * 30
    np.testing.assert_array_equal(run(column), [[10.0] * 2, [40.0] * 2, [90.0] * 2])
    assert towers.copies.differs(members[0].handle)


# What waits for what.


def test_waits_and_identities_are_left_out_where_nothing_has_an_effect(towers, run):
    with towers.first() as x:
        before = tf.exp(x, name="before")
        with tf.control_dependencies([before]):
            y = tf.negative(tf.identity(x), name="negative")
    column = towers.column(y)
    assert names() == ["tower_1/negative", "tower_2/negative"]
    assert column[1].op.inputs[0] is towers.given[1]
    assert list(column[1].op.control_inputs) == []
    np.testing.assert_array_equal(run(column)[2], [-3.0, -3.0])


def test_an_identity_that_is_asked_for_itself_stands_for_what_it_reads(towers):
    with towers.first() as x:
        y = tf.negative(x, name="negative")
        z = tf.identity(y)
    assert [t.op.name for t in towers.column(z)[1:]] == ["tower_1/negative", "tower_2/negative"]


@pytest.mark.parametrize("check", [tf1.Assert, tf.raw_ops.Assert], ids=["guarded", "bare"])
def test_an_assertion_holds_in_each_tower(towers, session, check):
    with towers.first() as x:
        holds = check(condition=tf.reduce_all(x < 2.5), data=[x])
        with tf.control_dependencies([holds]):
            y = tf.identity(x, name="y")
    _, second, third = towers.column(y)
    np.testing.assert_array_equal(session.run(second), [2.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        session.run(third)


def test_what_waits_for_an_assignment_waits_in_each_tower(towers, run):
    members = towers.mirror("v")
    with towers.first() as x:
        assigned = members[0].assign_add(x[0], read_value=False)
        with tf.control_dependencies([assigned]):
            y = members[0].read_value()
    # 10 + 1, 20 + 2, 30 + 3
    assert run(towers.column(y)) == [11.0, 22.0, 33.0]


def test_a_summary_is_the_first_towers_alone(towers):
    with towers.first() as x:
        holds = tf.raw_ops.Assert(condition=tf.reduce_all(x > 0.0), data=[x])
        summary = tf1.summary.scalar("first", x[0])
        with tf.control_dependencies([holds, summary.op]):
            y = tf.identity(x)
    assert [op.type for op in towers.column(y)[1].op.control_inputs] == ["Assert"]
    assert len(of_type("ScalarSummary")) == 1


def test_a_check_of_numbers_is_each_towers_own(towers, run):
    with towers.first() as x:
        y = tf.debugging.check_numerics(1.0 / (x - 2.0), "divided")
    column = towers.column(y)
    # 1 / (1 - 2) = -1; 1 / (2 - 2) is not finite
    np.testing.assert_array_equal(run(column[0]), [-1.0, -1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="divided"):
        run(column[1])


# Random numbers.


def seeds(column):
    return [(t.op.get_attr("seed"), t.op.get_attr("seed2")) for t in column]


def drawn(towers, **options):
    """Returns what three towers draw numbers with."""
    towers.copies.state.count_seeds()
    with towers.first():
        numbers = tf.random.normal([4], **options).op.inputs[0].op.inputs[0]
    column = towers.column(numbers)
    towers.copies.state.count_no_more()
    return column


def test_a_seed_that_the_graph_counted_is_each_towers_own(towers, run):
    tf1.set_random_seed(3)
    column = drawn(towers)
    assert len(set(seeds(column))) == 3
    first, second, third = run(column)
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


@pytest.mark.parametrize("graph_seed", [None, 3])
def test_a_seed_that_the_model_fixed_is_the_same(towers, run, graph_seed):
    if graph_seed is not None:
        tf1.set_random_seed(graph_seed)
    column = drawn(towers, seed=5)
    assert len(set(seeds(column))) == 1
    first, second, third = run(column)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


def test_a_fixed_seed_that_the_graph_has_just_counted_is_the_same(towers, run):
    tf1.set_random_seed(3)
    towers.copies.state.count_seeds()
    with towers.first():
        counted = tf.random.uniform([4])  # the graph's first seed is 0
        fixed = tf.random.uniform([4], seed=0)
    own, everybodys = (towers.column(tensor) for tensor in (counted, fixed))
    towers.copies.state.count_no_more()
    assert not np.array_equal(*run(own[:2]))
    np.testing.assert_array_equal(*run(everybodys[:2]))


def test_a_counted_seed_is_each_towers_own_though_the_graph_is_seeded_again(towers, run):
    tf1.set_random_seed(3)
    towers.copies.state.count_seeds()
    with towers.first():
        counted = tf.random.uniform([4])
        tf1.set_random_seed(4)
    column = towers.column(counted)
    towers.copies.state.count_no_more()
    assert not np.array_equal(*run(column[:2]))


def test_no_seed_stays_none(towers, run):
    column = drawn(towers)
    assert seeds(column) == [(0, 0)] * 3
    first, second, _ = run(column)
    assert not np.array_equal(first, second)


# Control flow, functions, and their gradients.


def branch(x):
    return tf.cond(x[0] > 1.5, lambda: tf.square(x), lambda: tf.sin(x))


def branch_of_constants(x):
    """What a branch that reads nothing gives is a constant in it."""
    return x * tf.cond(x[0] > 1.5, lambda: tf.constant(2.0), lambda: tf.constant(5.0))


def loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y) * x), [0, x])[1]


def loop_around_branch(x):
    def body(i, y):
        return i + 1, tf.cond(i > 0, lambda: tf.sin(y), lambda: y * y)

    return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]


def called(x):
    return tf.function(lambda y: tf.sin(y) * y)(x)


def python_loop(x):
    """A loop that AutoGraph makes, within a function."""

    @tf.function
    def powers(x):
        y = x
        for _ in tf.range(3):
            y = tf.sin(y) * x
        return y

    return powers(x)


CONTROL = (branch, branch_of_constants, loop, loop_around_branch)
BODIES = [(make, True) for make in (*CONTROL, called, python_loop)] + [(m, False) for m in CONTROL]


@pytest.fixture(params=BODIES, ids=lambda param: f"{param[0].__name__}-v{1 + param[1]}")
def make(request):
    """What towers make, with control flow of the second version or the first."""
    body, is_second = request.param
    if not is_second:
        tf1.disable_control_flow_v2()
    yield body
    tf1.enable_control_flow_v2()


def require_own(session, column, expected):
    """Requires copies to be what each tower would have made by itself."""
    for found, own in zip(*session.run([column, expected]), strict=True):
        np.testing.assert_allclose(found, own, 1e-6)


def alone(towers, make):
    """Returns what each tower makes by itself, and its gradient, without copying."""
    values = [make(x) for x in towers.given]
    return values, [tf.gradients(y, x)[0] for y, x in zip(values, towers.given, strict=True)]


def test_control_flow_is_each_towers_own(towers, make, session):
    with towers.first() as x:
        y = make(x)
    require_own(session, towers.column(y), alone(towers, make)[0])


def test_gradients_of_control_flow_are_each_towers_own(towers, make, session):
    with towers.first() as x:
        (gradient,) = tf.gradients(make(x), x)
    require_own(session, towers.column(gradient), alone(towers, make)[1])


def test_control_flow_that_is_copied_already_can_be_derived(towers, make, session):
    """Operations that TensorFlow changes in place are changed in all towers."""
    with towers.first() as x:
        y = make(x)
    values = towers.column(y)
    with towers.first() as x:
        (gradient,) = tf.gradients(y, x)
    gradients = towers.column(gradient)
    expected = alone(towers, make)
    require_own(session, values, expected[0])
    require_own(session, gradients, expected[1])


# What cannot be copied.


def queue(x):
    held = tf1.FIFOQueue(1, [tf.float32], [[2]])
    with tf.control_dependencies([held.enqueue(x)]):
        return held.dequeue()


def python_with_gradient(x):
    return tf.py_function(lambda y: y, [x], tf.float32)


def read_data(x):
    numbers = tf.data.Dataset.from_tensors(1.0).repeat()
    return x * tf1.data.make_one_shot_iterator(numbers).get_next()


@pytest.mark.parametrize("build", [queue, python_with_gradient, read_data])
def test_a_state_of_which_there_is_one_is_refused(towers, build):
    with towers.first() as x:
        y = build(x)
    assert "holds a state" in towers.copies.reason_against()
    with pytest.raises(errors.TowerMismatchError, match=r"holds a state.*tower_building='call'"):
        towers.column(y)


def test_a_table_that_is_written_is_refused(towers):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
    with towers.first() as x:
        inserted = table.insert("x", x[0])
    assert "writes what all towers share" in towers.copies.reason_against()
    with pytest.raises(errors.TowerMismatchError, match="writes what all towers share"):
        towers.copies.of([inserted])


def test_a_reference_to_a_variable_is_refused(towers):
    old = tf1.get_variable("old", initializer=1.0, use_resource=False)
    with towers.first() as x:
        assigned = old.assign_add(x[0])
    assert "writes to a reference" in towers.copies.reason_against()
    with pytest.raises(errors.TowerMismatchError, match="writes to a reference"):
        towers.copies.of([assigned])


def test_a_state_in_a_function_is_refused(towers):
    with towers.first() as x:
        tf.cond(x[0] > 0.0, lambda: python_with_gradient(x), lambda: x)
    assert "(EagerPyFunc) holds a state" in towers.copies.reason_against()


def test_python_that_has_no_gradient_is_copied(towers, run):
    with towers.first() as x:
        halved = tf.numpy_function(lambda y: y / 2, [x], tf.float32)
        whole = tf.py_function(lambda y: tf.cast(y, tf.int32), [x], tf.int32)
    assert towers.copies.reason_against() is None
    np.testing.assert_array_equal(run(towers.column(halved)), [[0.5] * 2, [1.0] * 2, [1.5] * 2])
    np.testing.assert_array_equal(run(towers.column(whole)), [[1] * 2, [2] * 2, [3] * 2])


def test_a_table_of_constants_is_everybodys(towers, session):
    with towers.first() as x:
        initializer = tf.lookup.KeyValueTensorInitializer([1, 2, 3], [7.0, 8.0, 9.0])
        table = tf.lookup.StaticHashTable(initializer, 0.0)
        y = table.lookup(tf.cast(x, tf.int32))
    assert towers.copies.reason_against() is None
    column = towers.column(y)
    session.run(tf1.tables_initializer())
    np.testing.assert_array_equal(session.run(column), [[7.0] * 2, [8.0] * 2, [9.0] * 2])
    assert len(of_type("HashTableV2")) == 1


@pytest.mark.parametrize(("largest", "imports"), [(1 << 28, 1), (1, 2)])
def test_all_towers_are_copied_at_once_where_one_message_holds_them(
    towers, run, monkeypatch, largest, imports
):
    calls = []
    add = tower_copies.importing.add
    monkeypatch.setattr(tower_copies.importing, "add", lambda *a: calls.append(a) or add(*a))
    monkeypatch.setattr(tower_copies, "_MAX_BYTES", largest)
    with towers.first() as given:
        total = tf.reduce_sum(given * 2.0)
    np.testing.assert_array_equal(run(towers.column(total)), [4.0, 8.0, 12.0])
    assert len(calls) == imports


def test_an_operation_may_be_named_as_a_scope_is(towers, run):
    with towers.first() as given:
        with tf1.name_scope("both"):
            inner = tf.square(given, name="inner")
        copied = towers.column(inner)  # before the one that has the scope's name
        outer = tf.add(inner, 1.0, name="both/")
    assert outer.op.name == "both"
    np.testing.assert_array_equal(run([copied, towers.column(outer)])[1][2], [10.0, 10.0])
