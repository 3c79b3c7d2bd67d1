"""What lies behind an operation, and what lies before it."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry


@pytest.fixture
def old_control_flow():
    """Loops made of Enter, Merge, NextIteration and their like: a cycle in the graph."""
    was_new = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if was_new:
        tf1.enable_control_flow_v2()


class Asked:
    """Ends that remember who was asked about."""

    def __init__(self, ends=()):
        self.ends = set(ends)
        self.asked = []

    def __contains__(self, op):
        self.asked.append(op)
        return op in self.ends


# Descent.


def test_sources_and_what_is_made_from_them(fresh_graph):
    x, weight = tf1.placeholder(tf.float32, [2]), tf.constant(2.0)
    product = x * weight
    total = tf.reduce_sum(product)
    penalty = tf.square(weight)
    descent = ancestry.Descent([x.op])
    assert x.op in descent
    assert product.op in descent
    assert total.op in descent
    assert (total + penalty).op in descent
    assert weight.op not in descent
    assert penalty.op not in descent


def test_every_source_counts(fresh_graph):
    x, y, z = (tf1.placeholder(tf.float32, []) for _ in range(3))
    descent = ancestry.Descent([x.op, y.op])
    assert [(tensor + 1.0).op in descent for tensor in (x, y, z)] == [True, True, False]


def test_without_sources_nothing_is_made_from_them(fresh_graph):
    x = tf.constant(1.0)
    assert (x + 1.0).op not in ancestry.Descent([])


def test_waiting_for_a_source_is_not_being_made_from_it(fresh_graph):
    x = tf.constant(1.0)
    with tf1.control_dependencies([x]):
        later = tf.constant(2.0)
    assert (later * 2.0).op not in ancestry.Descent([x.op])


def test_nobody_looks_behind_an_end(fresh_graph):
    x = tf1.placeholder(tf.float32, [2])
    end = tf.reduce_mean(x)
    descent = ancestry.Descent([x.op], {end.op})
    assert end.op not in descent
    assert tf.exp(end).op not in descent
    assert (tf.exp(end) + x).op in descent  # by another way
    assert (x - end).op in descent


def test_a_source_may_be_an_end(fresh_graph):
    x = tf.constant(1.0)
    descent = ancestry.Descent([x.op], {x.op})
    assert x.op in descent
    assert (x + 1.0).op in descent


def test_ends_may_grow(fresh_graph):
    x = tf1.placeholder(tf.float32, [2])
    ends = set()
    descent = ancestry.Descent([x.op], ends)
    assert tf.reduce_sum(x).op in descent
    whole = tf.reduce_mean(x)
    ends.add(whole.op)
    assert whole.op not in descent
    assert (whole * 2.0).op not in descent


def test_sources_may_be_added(fresh_graph):
    x = tf.constant(1.0)
    descent = ancestry.Descent([])
    assert (x + 1.0).op not in descent
    new = tf.constant(2.0)
    descent.add(new.op)
    assert new.op in descent
    assert (x + new).op in descent


def test_an_end_that_is_added_is_a_source(fresh_graph):
    """As a whole value is in `whole.Whole`: it depends on the batch, and has no rows."""
    x = tf1.placeholder(tf.float32, [2])
    whole = tf.reduce_mean(x)
    varying, dependent = ancestry.Descent([x.op], {whole.op}), ancestry.Descent([])
    dependent.add(whole.op)
    tail = tf.exp(whole)
    assert tail.op not in varying
    assert tail.op in dependent


def test_each_operation_is_asked_once(fresh_graph):
    x = tf.constant(1.0)
    chain = [x]
    for _ in range(10):
        chain.append(chain[-1] + chain[-1])
    ends = Asked()
    descent = ancestry.Descent([], ends)
    assert all(tensor.op not in descent for tensor in reversed(chain))
    assert len(ends.asked) == len(set(ends.asked)) == 11


def test_long_chains_need_no_recursion(fresh_graph):
    x, y = tf.constant(1.0), tf.constant(2.0)
    total = y
    for _ in range(1500):
        total = total + y
    assert total.op not in ancestry.Descent([x.op])
    assert (total + x).op in ancestry.Descent([x.op])
    assert len(ancestry.made_from([total])) == 1501
    assert len(ancestry.reached_from([y.op])) == 1502


def loop(start, addend):
    """Three times adds a number."""
    return tf1.while_loop(
        lambda i, total: i < 3, lambda i, total: (i + 1, total + addend), [tf.constant(0), start]
    )


@pytest.mark.parametrize("source", ["start", "addend", "neither"])
def test_loops_are_walked_around_once(fresh_graph, old_control_flow, source):
    given = {name: tf.constant(1.0) for name in ("start", "addend", "neither")}
    count, total = loop(given["start"], given["addend"])
    assert any(op.type == "NextIteration" for op in fresh_graph.get_operations())
    descent = ancestry.Descent([given[source].op])
    assert (total.op in descent) is (source != "neither")
    assert count.op not in descent
    # The bodies' own operations, asked one after the other, say the same.
    additions = [op for op in fresh_graph.get_operations() if op.type.startswith("Add")]
    found = [op in descent for op in additions if op.outputs[0].dtype == tf.float32]
    assert found == [source != "neither"]


def test_a_source_inside_a_loop_reaches_its_exit(fresh_graph, old_control_flow):
    inside = []

    def body(i, total):
        inside.append(tf.constant(5.0))
        return i + 1, total * inside[-1]

    count, total = tf1.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.constant(1.0)])
    descent = ancestry.Descent([inside[0].op])
    assert total.op in descent
    assert count.op not in descent


def test_an_end_inside_a_loop_hides_what_enters_it(fresh_graph, old_control_flow):
    x = tf.constant(1.0)
    _, total = loop(tf.constant(0.0), x)
    (end,) = [op for op in fresh_graph.get_operations() if op.type == "Enter" and op.inputs[0] is x]
    assert total.op not in ancestry.Descent([x.op], {end})
    assert total.op in ancestry.Descent([x.op])


def test_a_loop_is_asked_from_inside_first(fresh_graph, old_control_flow):
    """No answer that was given while a cycle was still open is kept."""
    x = tf.constant(1.0)
    _, total = loop(tf.constant(0.0), x)
    descent = ancestry.Descent([x.op])
    (merge,) = [
        op
        for op in fresh_graph.get_operations()
        if op.type == "Merge" and op.outputs[0].dtype == tf.float32
    ]
    assert merge in descent
    assert total.op in descent


# What runs, what is read, what is reached.


def test_what_runs_includes_what_is_waited_for(fresh_graph):
    waited, other = tf.constant(1.0), tf.constant(2.0)
    with tf1.control_dependencies([waited * 2.0]) as _:
        x = tf.constant(3.0)
    y = x + 1.0
    executed, made = ancestry.executed_by([y]), ancestry.made_from([y])
    assert waited.op in executed
    assert waited.op not in made
    assert other.op not in executed
    assert made == {y.op, y.op.inputs[0].op, y.op.inputs[1].op}
    assert ancestry.executed_by([y.op]) == executed  # an operation or its tensor


def test_nothing_runs_for_nothing(fresh_graph):
    tf.constant(1.0)
    assert ancestry.executed_by([]) == ancestry.made_from([]) == ancestry.reached_from([]) == set()


def test_ends_are_what_a_value_is_made_from(fresh_graph):
    x = tf.constant(1.0)
    end = x * 2.0
    y = tf.exp(end)
    assert ancestry.made_from([y], ends={end.op}) == {y.op, end.op}
    assert ancestry.made_from([end], ends={end.op}) == {end.op}


def test_a_loop_is_made_from_all_of_it(fresh_graph, old_control_flow):
    start, addend = tf.constant(0.0), tf.constant(1.0)
    _, total = loop(start, addend)
    assert {start.op, addend.op} <= ancestry.made_from([total])


def test_what_is_reached_lies_before(fresh_graph):
    x, weight = tf.constant(1.0), tf.constant(2.0)
    product = x * weight
    late = tf.exp(product)
    with tf1.control_dependencies([product]):
        later = tf.constant(1.0)
    assert ancestry.reached_from([x.op]) == {x.op, product.op, late.op}
    assert later.op not in ancestry.reached_from([x.op])


# Writes.


def test_writes_are_those_of_the_variable(fresh_graph):
    variable, other = (
        tf1.get_variable(name, [3], use_resource=True, initializer=tf.zeros_initializer())
        for name in ("variable", "other")
    )
    before = {op.name for op in ancestry.writes(variable)}
    assert before == {"variable/Assign"}
    made = [
        variable.assign([1.0, 2.0, 3.0], read_value=False),
        variable.assign_add([1.0, 2.0, 3.0], read_value=False),
        variable.assign_sub([1.0, 2.0, 3.0], read_value=False),
        tf1.scatter_update(variable, [0], [5.0]).op,
        variable[:1].assign([7.0]),
    ]
    variable.read_value()
    other.assign_add([1.0, 1.0, 1.0])
    tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones([3]), variable)])
    sparse = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
    tf1.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(sparse, variable)])
    types = [op.type for op in ancestry.writes(variable)]
    assert sorted(types) == sorted(
        [
            "AssignVariableOp",
            "AssignVariableOp",
            "AssignAddVariableOp",
            "AssignSubVariableOp",
            "ResourceScatterUpdate",
            "ResourceStridedSliceAssign",
            "ResourceApplyGradientDescent",
            "ResourceSparseApplyMomentum",
        ]
    )
    assert len(made) == 5
    assert not set(ancestry.writes(variable)) & set(ancestry.writes(other))


def test_what_is_no_resource_has_no_known_writes(fresh_graph):
    variable = tf1.get_variable("variable", [3], use_resource=False)
    assert ancestry.writes(variable) == []
    assert ancestry.writes(tf.constant(1.0)) == []
