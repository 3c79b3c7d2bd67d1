"""What lies behind an operation, and what lies before it."""

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from tests import control_flow


def loop(start, addend):
    """Three times adds a number."""
    return tf1.while_loop(
        lambda i, total: i < 3, lambda i, total: (i + 1, total + addend), [tf.constant(0), start]
    )


def test_what_runs_includes_what_is_waited_for(fresh_graph):
    waited, other = tf.constant(1.0), tf.constant(2.0)
    with tf1.control_dependencies([waited * 2.0]) as _:
        x = tf.constant(3.0)
    y = x + 1.0
    executed, made = operations.executed_by([y]), operations.made_from([y])
    assert waited.op in executed
    assert waited.op not in made
    assert other.op not in executed
    assert made == {y.op, y.op.inputs[0].op, y.op.inputs[1].op}
    assert operations.executed_by([y.op]) == executed  # an operation or its tensor
    reached = operations.reached_from([waited.op])
    assert y.op not in reached
    assert {op.type for op in reached} == {"Const", "Mul"}


def test_a_loop_is_made_from_all_of_it(fresh_graph):
    start, addend = tf.constant(0.0), tf.constant(1.0)
    with control_flow.of_version(1):  # a cycle in the graph
        _, total = loop(start, addend)
    assert {start.op, addend.op} <= operations.made_from([total])


# Writes.


def test_writes_are_those_of_the_variable(fresh_graph):
    variable, other = (
        tf1.get_variable(name, [3], use_resource=True, initializer=tf.zeros_initializer())
        for name in ("variable", "other")
    )
    before = {op.name for op in operations.writes(variable)}
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
    types = [op.type for op in operations.writes(variable)]
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
    assert not set(operations.writes(variable)) & set(operations.writes(other))


def test_a_function_that_writes_is_a_write(fresh_graph):
    variable, other = (
        tf1.get_variable(name, initializer=1.0, use_resource=True) for name in ("v", "other")
    )

    @tf.function
    def write():
        variable.assign_add(1.0)
        return other.read_value() + variable.read_value()

    write()
    calls = [op for op in fresh_graph.get_operations() if "PartitionedCall" in op.type]
    assert len(calls) == 1
    assert operations.writes(variable)[1:] == calls
    assert operations.writes(other)[1:] == []


def test_functions_of_an_imported_graph_cannot_be_looked_into(fresh_graph):
    @tf.function
    def doubled(x):
        return x * 2.0

    doubled(tf.constant(1.0))
    (call,) = [op for op in fresh_graph.get_operations() if operations.is_call(op)]
    (body,) = operations.bodies(call)
    assert [given.dtype for given in body.inputs] == [given.dtype for given in call.inputs]
    with tf.Graph().as_default() as other:
        tf.import_graph_def(fresh_graph.as_graph_def(), name="")
        assert operations.bodies(other.get_operation_by_name(call.name)) == []
