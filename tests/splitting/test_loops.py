import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import analysis, states
from replicate.splitting.lowering import functions
from replicate.splitting.states import FLOW, WHOLE, ListOf, Rows
from replicate.splitting.structure import loops
from tests import control_flow
from tests.splitting import alike

BATCH = Rows(0, states.Space("the batch"))


def scan_with_gradient(graph):
    """Makes a loop over time that fills an array, and its gradient."""
    x = tf1.placeholder(tf.float64, [None, 4, 3])

    def body(i, state, held):
        state = tf.tanh(state + x[:, i])
        return i + 1, state, held.write(i, state)

    held = tf.TensorArray(tf.float64, 4)
    held = tf1.while_loop(lambda i, *_: i < 4, body, [0, x[:, 0], held])[2]
    (gradient,) = tf1.gradients(tf.reduce_sum(held.stack()), [x])
    gradient = tf.identity(gradient)
    functions.lower(graph, graph.get_operations())
    return gradient


def of_type(graph, kind, scope=""):
    found = [op for op in graph.get_operations() if op.type == kind and scope in op.name]
    return [op for op in found if not op.name.startswith("lowered/")]


def test_exit_belongs_to_its_loop_and_gives_to_the_outer_one(fresh_graph, either_control_flow):
    def inner(a):
        return tf1.while_loop(lambda b: tf.reduce_sum(b) < 9, lambda b: [b + 1.0], [a])

    tf1.while_loop(lambda a: tf.reduce_sum(a) < 9, inner, [tf.zeros([2])])
    functions.lower(fresh_graph, fresh_graph.get_operations())
    structure = loops.Structure(fresh_graph)
    levels = {}
    for op in of_type(fresh_graph, "Exit"):
        outside, own = structure.loop(op), structure.own_loop(op)
        assert structure.outer(own) is outside
        levels[outside is None] = own
        assert structure.root(op) is levels.get(True, structure.root(op))
    assert structure.outer(levels[False]) is levels[True]
    assert structure.frame_name(levels[True]) != structure.frame_name(levels[False])
    (root,) = structure.loops_sharing_stacks(levels[True])
    assert root is levels[True]


def test_pops_are_found_with_their_pushes(fresh_graph, either_control_flow):
    scan_with_gradient(fresh_graph)
    structure = loops.Structure(fresh_graph)
    pops, pushes = of_type(fresh_graph, "StackPopV2"), of_type(fresh_graph, "StackPushV2")
    assert len(pops) == len(pushes)
    assert {structure.push_of(pop) for pop in pops} == set(pushes)
    found, more = structure.with_pops(pushes)
    assert found.issuperset(pops)
    assert more == {pop: [structure.push_of(pop)] for pop in pops}
    for pop in pops:
        roots = {structure.root(pop), structure.root(structure.push_of(pop))}
        assert roots <= structure.loops_sharing_stacks(structure.root(pop))


def test_reads_of_lists_lead_to_what_made_them(fresh_graph, either_control_flow):
    scan_with_gradient(fresh_graph)
    structure = loops.Structure(fresh_graph)
    for kind in ("TensorListStack", "TensorListPopBack", "TensorListSetItem"):
        for op in of_type(fresh_graph, kind, "lowered"):
            sources = structure.list_sources(op.inputs[0])
            assert sources
            assert {source.type for source in sources} <= set(loops.NEW_LISTS)
    for op in of_type(fresh_graph, "TensorListPushBack", "lowered"):
        for source in structure.list_sources(op.outputs[0]):
            assert op in structure.list_writes(source)


def test_handles_and_flows_lead_to_their_array(fresh_graph, either_control_flow):
    scan_with_gradient(fresh_graph)
    for op in of_type(fresh_graph, "TensorArrayWriteV3"):
        array = loops.handle_of(op.inputs[0])
        assert array.type in ("TensorArrayV3", "TensorArrayGradV3")
        assert loops.flow_source(op.outputs[0]) is array
        assert loops.is_flow(op.outputs[0])
        assert op in loops.Structure(fresh_graph).array_writes(array)


def test_lists_of_lists_have_the_sources_of_what_was_written(fresh_graph):
    shape = tf.constant([-1])
    inner = tf.raw_ops.EmptyTensorList(
        element_shape=shape, max_num_elements=9, element_dtype=tf.float32
    )
    outer = tf.raw_ops.EmptyTensorList(
        element_shape=shape, max_num_elements=9, element_dtype=tf.variant
    )
    pushed = tf.raw_ops.TensorListPushBack(input_handle=outer, tensor=inner)
    popped = tf.raw_ops.TensorListPopBack(
        input_handle=pushed, element_shape=shape, element_dtype=tf.variant
    )
    structure = loops.Structure(fresh_graph)
    assert structure.list_sources(popped.tensor) == [inner.op]
    assert structure.list_sources(popped.output_handle) == [outer.op]
    assert structure.list_writes(outer.op) == [pushed.op]
    assert structure.list_starts() == [inner, outer]


def test_handle_that_branches_choose_is_that_of_the_merge(fresh_graph):
    arrays = [tf.raw_ops.TensorArrayV3(size=2, dtype=tf.float32) for _ in range(2)]
    one, other = (tf.raw_ops.Enter(data=a.handle, frame_name="f") for a in arrays)
    both = tf.raw_ops.Merge(inputs=[one, other])
    same = tf.raw_ops.Merge(inputs=[one, tf.identity(one)])
    assert loops.handle_of(both.output) is both.output.op
    assert loops.handle_of(same.output) is arrays[0].handle.op


@pytest.fixture
def made(fresh_graph):
    """Returns a graph's assumptions, an array, and a list."""
    array = tf.raw_ops.TensorArrayV3(size=2, dtype=tf.float32)
    held = tf.raw_ops.EmptyTensorList(
        element_shape=[-1], max_num_elements=9, element_dtype=tf.float32
    )
    return loops.Assumptions(loops.Structure(fresh_graph)), array, held


def test_list_is_assumed_once_and_then_whole(made):
    assumptions, _, held = made
    assert assumptions.element(held.op) is None
    with pytest.raises(loops.AgainError):
        assumptions.want_lists(held, BATCH)
    assert assumptions.element(held.op) == BATCH
    assumptions.want_lists(held, BATCH.at(1))
    assert assumptions.element(held.op) == BATCH
    with pytest.raises(loops.AgainError):
        assumptions.wanted_whole(held, ListOf(BATCH), "it is printed")
    assert assumptions.element(held.op) is WHOLE


def test_array_is_split_and_then_whole(made):
    assumptions, array, _ = made
    assert not assumptions.is_array_whole(array.handle.op)
    with pytest.raises(loops.AgainError):
        assumptions.wanted_whole(tf.identity(array.flow), FLOW, "it is printed")
    assert assumptions.is_array_whole(array.handle.op)


def test_what_cannot_be_told_makes_all_lists_whole_and_then_ends(made):
    assumptions, array, held = made
    with pytest.raises(loops.AgainError):
        assumptions.wanted_whole(tf.constant(0.0), FLOW, "it is a constant")
    assert assumptions.is_array_whole(array.handle.op)
    assert assumptions.element(held.op) is WHOLE
    with pytest.raises(ValueError, match="it is a constant"):
        assumptions.wanted_whole(tf.constant(0.0), FLOW, "it is a constant")


def test_loops_that_share_stacks_are_whole_together(fresh_graph):
    with control_flow.of_version(1):
        gradient = scan_with_gradient(fresh_graph)
    structure = loops.Structure(gradient.graph)
    assumptions = loops.Assumptions(structure)
    pop = of_type(fresh_graph, "StackPopV2")[0]
    assert not assumptions.why_whole(structure.root(pop))
    with pytest.raises(loops.AgainError):
        assumptions.let_loop_be_whole(pop, "it draws random numbers")
    assert "random numbers" in assumptions.why_whole(structure.root(pop))
    assert "random numbers" in assumptions.why_whole(structure.root(structure.push_of(pop)))
    with pytest.raises(ValueError, match="but once"):
        assumptions.let_loop_be_whole(pop, "it draws random numbers")


@pytest.mark.parametrize("number", [4, 8])
def test_an_assumption_costs_what_lies_between_it_and_the_first_to_ask(
    fresh_graph, monkeypatch, number
):
    # Each branch keeps values for its gradient, in a list of which nothing is assumed at first.
    decided = []
    decide = analysis.Analysis._decide
    monkeypatch.setattr(
        analysis.Analysis, "_decide", lambda self, op: decided.append(op) or decide(self, op)
    )
    x = tf1.placeholder(tf.float32, [None, 4])
    y = x
    with control_flow.of_version(2):
        for _ in range(number):
            y = tf.cond(tf.reduce_sum(y) > 0.0, lambda y=y: tf.tanh(y), lambda y=y: tf.sin(y))
        (gradient,) = tf.gradients(y, x)
    alike.split([x], [gradient], 2)
    assert len(decided) < 2 * len(set(decided))
