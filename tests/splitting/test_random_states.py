"""Random operations with states in variables draw what their kernels draw, and can continue."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.lowering import random_states
from tests import control_flow

SEEDS = {"seed": 7, "seed2": -11}
KINDS = [
    *(
        (kind, dtype)
        for kind in ("RandomStandardNormal", "RandomUniform", "TruncatedNormal")
        for dtype in ("float16", "bfloat16", "float32", "float64")
    ),
    ("RandomUniformInt", "int32"),
    ("RandomUniformInt", "int64"),
]


def draws(run, session, times):
    return [session.run(run) for _ in range(times)]


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_the_numbers_are_those_of_the_kernel(kind, dtype, index):
    # More than 1,000 numbers are drawn by several threads.
    shapes = [[5], [2000], [], [3, 0], [7, 300], [4]]
    found = []
    for has_states in (False, True):
        with tf.Graph().as_default() as graph:
            shape, options = tf1.placeholder(index, [None]), {"dtype": dtype}
            if kind == "RandomUniformInt":
                options = {"minval": tf.constant(-3, dtype), "maxval": tf.constant(1000, dtype)}
            value = tf.identity(getattr(tf.raw_ops, kind)(shape=shape, **options, **SEEDS))
            states = random_states.RandomStates(graph, [value]) if has_states else None
            with tf1.Session() as session:
                if states is not None:
                    assert len(states.names) == 1
                    assert not states.left
                    states.write(session)
                found.append([session.run(value, {shape: each}) for each in shapes])
                if states is not None:
                    (drawn,) = states.read(session).values()
                    assert drawn == 5 + 2000 + 1 + 0 + 2100 + 4
    for kernel, stateless in zip(*found, strict=True):
        assert kernel.dtype == stateless.dtype
        assert kernel.tobytes() == stateless.tobytes()


def plain(x, w):
    return tf.nn.dropout(x @ w, 0.5) + tf.random.normal([5, 4])


def in_branches(x, w):
    turn = tf1.get_variable("turn", [], tf.int32, tf1.zeros_initializer(), use_resource=True)
    with tf.control_dependencies([turn.assign_add(1)]):
        is_odd = tf.equal(turn.read_value() % 2, 1)
    return tf.cond(is_odd, lambda: tf.nn.dropout(x @ w, 0.5), lambda: x + tf.random.normal([5, 4]))


def in_a_function(x, w):
    return tf.function(lambda v: tf.nn.dropout(v @ w, 0.5))(x)


def in_a_loop(x, w):
    def body(i, v):
        return i + 1, tf.nn.dropout(v @ w, 0.5) + tf.random.truncated_normal([5, 4])

    return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]


def in_nested_loops(x, w):
    def inner(j, v):
        return j + 1, v + tf.random.normal([5, 4])

    def body(i, v):
        return i + 1, tf.while_loop(lambda j, _: j <= i, inner, [0, v @ w])[1]

    return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]


# How many numbers one step draws; of branches each one draws in every second step.
PLACES = {
    plain: 40,
    in_branches: 20,
    in_a_function: 20,
    in_a_loop: 3 * 40,
    in_nested_loops: (1 + 2 + 3) * 20,
}


def build(place):
    """Returns a training step, whose gradients read what was drawn, and its states."""
    tf1.set_random_seed(3)
    w = tf1.get_variable("w", [4, 4], initializer=tf1.ones_initializer(), use_resource=True)
    loss = tf.reduce_sum(tf.square(place(tf.ones([5, 4]), w)))
    step = tf1.train.GradientDescentOptimizer(1e-5).minimize(loss)
    return [loss, step], random_states.RandomStates(tf1.get_default_graph(), [loss, step])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_run_continues_with_the_numbers_that_follow(fresh_graph, place, version):
    with control_flow.of_version(version):
        step, states = build(place)
    assert not states.left
    variables = tf1.global_variables()
    initialize = tf1.global_variables_initializer()
    with tf1.Session() as session:
        session.run(initialize)
        states.write(session)
        whole = draws(step, session, 6)
    with tf1.Session() as session:
        session.run(initialize)
        states.write(session)
        parts = draws(step, session, 3)
        drawn, values = states.read(session), session.run(variables)
    count = 3 * PLACES[place]
    assert sum(drawn.values()) == count
    with tf1.Session() as session:
        states.write(session, drawn)
        for variable, value in zip(variables, values, strict=True):
            variable.load(value, session)
        parts += draws(step, session, 3)
    assert [loss for loss, _ in parts] == [loss for loss, _ in whole]
    assert len({loss for loss, _ in whole}) == 6


def quiet(x):
    """A loop that draws nothing."""
    return tf.while_loop(lambda n, _: n < 2, lambda n, v: (n + 1, v * 0.5), [0, x])[1]


@pytest.mark.parametrize("version", [1, 2])
def test_loops_that_draw_make_one_turn_at_a_time(fresh_graph, version):
    tf1.set_random_seed(3)
    x = tf.ones([5, 4])
    with control_flow.of_version(version):
        drawing = in_nested_loops(x, tf.ones([4, 4]))
        other = tf.while_loop(lambda v: tf.reduce_sum(v) < 99.0, lambda v: v + 1.0, [x])
        outer = tf.while_loop(
            lambda n, _: n < 3,
            lambda n, v: (n + 1, quiet(v) + tf.random.normal([5, 4])),
            [0, x],
            name="outer",
        )
    random_states.RandomStates(fresh_graph, tf.nest.flatten([drawing, other, outer]))
    parallel = {
        op.get_attr("frame_name"): op.get_attr("parallel_iterations")
        for op in fresh_graph.get_operations()
        if op.type == "Enter"
    }
    # Loops that draw nothing are left alone; of version 2 one of them is one operation.
    assert sorted(parallel.values()) == [1, 1, 1, 10, 10][: 5 if version == 1 else 4]
    # What is drawn is in the loop of the operation that drew it.
    new = [op for op in fresh_graph.get_operations() if op.type == "StatelessRandomNormalV2"]
    old = [op for op in fresh_graph.get_operations() if op.type == "RandomStandardNormal"]
    contexts = {op._get_control_flow_context() for op in new}
    assert len(contexts) == 2
    assert contexts == {op._get_control_flow_context() for op in old}
    assert {op.outputs[0].shape.as_list()[0] for op in new} == {5}


def test_what_cannot_be_replaced_is_named(fresh_graph):
    tf1.set_random_seed(3)
    counter = tf1.get_variable("n", [], tf.int32, tf1.zeros_initializer(), use_resource=True)

    @tf.function(autograph=False)
    def writes():
        with tf.control_dependencies([counter.assign_add(1)]):
            return tf.random.uniform([2])

    called = writes()
    shuffled = tf.random.shuffle(tf.range(5), name="shuffled")
    unseeded = tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, name="unseeded")
    replaced = tf.random.normal([2], name="replaced")
    aside = tf.random.normal([2], name="aside")
    fetched = [called, shuffled, unseeded, replaced]
    states = random_states.RandomStates(fresh_graph, fetched)
    assert states.names == {"replaced/RandomStandardNormal"}
    assert states.left == {called.op.name, "shuffled", "unseeded"}
    assert aside.op.inputs[0].op.inputs[0].op.type == "RandomStandardNormal"


def test_a_graph_that_draws_nothing_has_no_states(fresh_graph):
    value = tf.constant(1.0) + 1.0
    before = len(fresh_graph.get_operations())
    states = random_states.RandomStates(fresh_graph, [value])
    with tf1.Session() as session:
        states.write(session, {"another": 3})
        assert states.read(session) == {}
    assert not states.names
    assert not states.left
    assert len(fresh_graph.get_operations()) == before


def test_a_state_may_be_far_along(fresh_graph):
    # The counter's lower half has 64 bits, of which each number takes 256: as a signed number of
    # 64 bits it is negative from 2^55 numbers on.
    value = tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, **SEEDS)
    fetched = tf.identity(value)
    states = random_states.RandomStates(fresh_graph, [fetched])
    (name,) = states.names
    with tf1.Session() as session:
        for count in (2**40, 2**55 - 4, 2**55 + 8):
            states.write(session, {name: count})
            session.run(fetched)
            assert states.read(session) == {name: count + 4}


def test_what_waits_for_a_draw_waits_for_what_replaces_it(fresh_graph):
    drawn = tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, **SEEDS)
    with tf.control_dependencies([drawn]):
        after = tf.constant(2.0)
    states = random_states.RandomStates(fresh_graph, [after])
    assert [op.type for op in after.op.control_inputs] == ["StatelessRandomUniformV2"]
    with tf1.Session() as session:
        states.write(session)
        session.run(after)
        assert sum(states.read(session).values()) == 4


@pytest.mark.parametrize("by_name", [False, True])
def test_what_is_fetched_and_fed_is_what_is_read(fresh_graph, by_name):
    tf1.set_random_seed(3)
    number = tf.random.uniform([], 0, 1000, tf.int32)
    returned = tf.function(lambda: tf.random.normal([]), autograph=False)()
    readers = [number * 1, returned * 1.0]
    fetches = [*readers, number, returned]
    states = random_states.RandomStates(fresh_graph, readers)
    assert len(states.names) == 2
    assert states.moved(number) is not number
    asked = [fetch.name for fetch in fetches] if by_name else fetches
    with tf1.Session() as session:
        states.write(session)
        session.run(readers)  # the kernels know nothing of it
        for _ in range(2):
            first, second, *same = session.run(asked)
            assert same == [first, second]
        fed = session.run(asked, {asked[2]: 7, asked[3]: 0.5})
        assert fed == [7, 0.5, 7, 0.5]


def test_what_initial_values_are_made_from_keeps_its_kernel(fresh_graph):
    tf1.set_random_seed(3)
    noise = tf.random.normal([4], name="noise")
    first = tf1.get_variable("first", initializer=noise, use_resource=True)
    other = tf.random.normal([4], name="other")
    total = tf.reduce_sum(first.read_value() + noise + other)
    states = random_states.RandomStates(fresh_graph, [total], [first.initializer])
    assert states.names == {"other/RandomStandardNormal"}
    assert states.left == {"noise/RandomStandardNormal"}
    with tf1.Session() as session:
        session.run(first.initializer)
        states.write(session)
        session.run(total)


@pytest.mark.parametrize(
    ("device", "host"),
    [
        ("", ""),
        ("/device:CPU:1", "/device:CPU:1"),
        ("/device:GPU:1", "/device:CPU:0"),
        ("/job:worker/task:2/device:GPU:3", "/job:worker/task:2/device:CPU:0"),
    ],
)
def test_sizes_are_on_the_host(fresh_graph, device, host):
    # GPUs have no product of 64-bit numbers.
    with tf.device(device):
        value = tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, **SEEDS)
    fetched = tf.identity(value)
    random_states.RandomStates(fresh_graph, [fetched])
    found = {op.type: op.device for op in fresh_graph.get_operations()}
    assert found["Prod"] == found["Cast"] == host
    assert found["RngReadAndSkip"] == found["StatelessRandomUniformV2"] == device


def test_no_saver_and_no_initializer_sees_a_state(fresh_graph):
    value = tf.identity(tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, **SEEDS))
    random_states.RandomStates(fresh_graph, [value])
    assert tf1.global_variables() + tf1.local_variables() + tf1.trainable_variables() == []
    assert np.size(fresh_graph.get_all_collection_keys()) == 0
