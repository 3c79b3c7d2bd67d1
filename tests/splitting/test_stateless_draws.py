"""Random operations draw by their seeds, the global step and the turn of a loop alone."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.lowering import stateless_draws
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
    ("Multinomial", "int32"),
    ("Multinomial", "int64"),
    ("RandomShuffle", "int32"),
]


def of_kind(kind, dtype, seeds):
    """Returns 40 numbers of a kind of operation."""
    draw = getattr(tf.raw_ops, kind)
    if kind == "Multinomial":
        return draw(logits=tf.zeros([2, 99]), num_samples=20, output_dtype=dtype, **seeds)
    if kind == "RandomShuffle":
        return draw(value=tf.range(40), **seeds)
    options = {"dtype": dtype}
    if kind == "RandomUniformInt":
        options = {"minval": tf.constant(-3, dtype), "maxval": tf.constant(1000, dtype)}
    return draw(shape=tf.constant([2, 20]), **options, **seeds)


def key(graph, fetches, first=()):
    """Keys what is drawn by the global step."""
    step = tf1.train.get_or_create_global_step(graph)
    return stateless_draws.key_by_step(graph, step, fetches, first)


def at_step(session, step, fetches):
    tf1.train.get_global_step(session.graph).load(step, session)
    return session.run(fetches)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_numbers_depend_on_seeds_and_step_alone(fresh_graph, kind, dtype):
    seeds = (SEEDS, SEEDS, {"seed": 7, "seed2": 0}, {"seed": 8, "seed2": -11})
    values = [tf.identity(of_kind(kind, dtype, each)) for each in seeds]
    old = values[0].op.inputs[0]
    assert not key(fresh_graph, values).left
    new = values[0].op.inputs[0]
    assert (new.dtype, new.shape.as_list()) == (old.dtype, old.shape.as_list())
    with tf1.Session() as session:
        there = at_step(session, 5, values)
        other = at_step(session, 6, values)
        again = at_step(session, 5, values)
    drawn = [each.tobytes() for each in (*there[1:], *other[1:])]
    assert len(set(drawn)) == 6
    assert [each.tobytes() for each in there] == [each.tobytes() for each in again]
    assert there[0].tobytes() == there[1].tobytes()


def test_keys_are_none_of_the_numbers_that_tasks_of_a_cluster_must_have_alike(fresh_graph):
    value = tf.identity(of_kind("RandomUniform", "float32", SEEDS))
    before = {*fresh_graph.get_operations()}
    tf1.train.get_or_create_global_step(fresh_graph)
    before |= {*fresh_graph.get_operations()}
    key(fresh_graph, [value])
    added = {*fresh_graph.get_operations()} - before
    assert "StatelessRandomUniform" in {op.type for op in added}
    assert all(op.name.startswith("replicate_") for op in added)


def test_numbers_are_those_of_the_distribution(fresh_graph):
    tf1.set_random_seed(3)
    uniform, normal = tf.random.uniform([10000]), tf.random.normal([10000])
    values = [tf.identity(uniform), tf.identity(normal), tf.identity(tf.random.shuffle([1, 2, 3]))]
    key(fresh_graph, values)
    with tf1.Session() as session:
        found = [at_step(session, step, values) for step in range(30)]
    # Means over 300,000 numbers: their standard deviations are 0.0005 and 0.002.
    assert np.mean([each[0] for each in found]) == pytest.approx(0.5, abs=0.003)
    assert np.mean([each[1] for each in found]) == pytest.approx(0, abs=0.01)
    assert {tuple(sorted(each[2])) for each in found} == {(1, 2, 3)}
    assert len({tuple(each[2]) for each in found}) > 1


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


def in_a_loop_of_a_branch(x, w):
    is_true = tf.reduce_sum(w) > 0.0
    return tf.cond(is_true, lambda: in_a_loop(x, w), lambda: in_nested_loops(x, w))


PLACES = (plain, in_branches, in_a_function, in_a_loop, in_nested_loops, in_a_loop_of_a_branch)


def build(place):
    """Returns a training step, whose gradients read what was drawn."""
    tf1.set_random_seed(3)
    w = tf1.get_variable("w", [4, 4], initializer=tf1.ones_initializer(), use_resource=True)
    loss = tf.reduce_sum(tf.square(place(tf.ones([5, 4]), w)))
    step = tf1.train.get_or_create_global_step()
    return [loss, tf1.train.GradientDescentOptimizer(1e-5).minimize(loss, step)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_run_continues_with_the_numbers_that_follow(fresh_graph, place, version):
    with control_flow.of_version(version):
        step = build(place)
    assert not key(fresh_graph, step).left
    variables, initialize = tf1.global_variables(), tf1.global_variables_initializer()
    with tf1.Session() as session:
        session.run(initialize)
        whole = [session.run(step) for _ in range(3)]
        values = session.run(variables)
        whole += [session.run(step) for _ in range(3)]
    with tf1.Session() as session:
        for variable, value in zip(variables, values, strict=True):
            variable.load(value, session)
        parts = [session.run(step) for _ in range(3)]
    assert [loss for loss, _ in parts] == [loss for loss, _ in whole[3:]]
    assert len({loss for loss, _ in whole}) == 6


@pytest.mark.parametrize("version", [1, 2])
def test_each_turn_draws_its_own_numbers(fresh_graph, version):
    tf1.set_random_seed(3)

    shapes = [tf.TensorShape([]), tf.TensorShape([None])]

    def inner(n, drawn):
        return n + 1, tf.concat([drawn, tf.random.uniform([1])], 0)

    def turn(n, drawn):
        return n + 1, tf.while_loop(lambda m, _: m < 3, inner, [0, drawn], shapes)[1]

    with control_flow.of_version(version):
        drawn = tf.while_loop(lambda n, _: n < 4, turn, [0, tf.zeros([0])], shapes)[1]
    value = tf.identity(drawn)
    key(fresh_graph, [value])
    with tf1.Session() as session:
        found = [*at_step(session, 1, value), *at_step(session, 2, value)]
    assert len(found) == 24
    assert len(set(found)) == 24


def test_the_step_is_read_before_it_is_changed(fresh_graph):
    tf1.set_random_seed(3)
    step = tf1.train.get_or_create_global_step()
    add = step.assign_add(1)
    with tf.control_dependencies([add]):
        late = tf.identity(tf.random.uniform([]))
    early = tf.identity(late.op.inputs[0])
    key(fresh_graph, [early, late])
    with tf1.Session() as session:
        assert len({value for n in range(20) for value in at_step(session, 0, [early, late])}) == 1


def test_what_cannot_be_replaced_is_named(fresh_graph):
    tf1.set_random_seed(3)
    counter = tf1.get_variable("n", [], tf.int32, tf1.zeros_initializer(), use_resource=True)

    @tf.function(autograph=False)
    def writes():
        with tf.control_dependencies([counter.assign_add(1)]):
            return tf.random.uniform([2])

    called = writes()
    poisson = tf.random.poisson([2], 3.0)
    unseeded = tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, name="unseeded")
    replaced = tf.random.normal([2], name="replaced")
    aside = tf.random.normal([2], name="aside")
    found = key(fresh_graph, [called, poisson, unseeded, replaced])
    assert found.left == {called.op.name, poisson.op.name, "unseeded"}
    assert aside.op.inputs[0].op.inputs[0].op.type == "RandomStandardNormal"


def test_a_graph_that_draws_nothing_is_left_alone(fresh_graph):
    value = tf.constant(1.0) + 1.0
    step = tf1.train.get_or_create_global_step()
    before = len(fresh_graph.get_operations())
    assert stateless_draws.key_by_step(fresh_graph, step, [value]) == ({}, set())
    assert len(fresh_graph.get_operations()) == before


def test_what_waits_for_a_draw_waits_for_what_replaces_it(fresh_graph):
    drawn = tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, **SEEDS)
    with tf.control_dependencies([drawn]):
        after = tf.constant(2.0)
    key(fresh_graph, [after])
    assert [op.type for op in after.op.control_inputs] == ["StatelessRandomUniform"]


@pytest.mark.parametrize("by_name", [False, True])
def test_what_is_fetched_and_fed_is_what_is_read(fresh_graph, by_name):
    tf1.set_random_seed(3)
    number = tf.random.uniform([], 0, 1000, tf.int32)
    returned = tf.function(lambda: tf.random.normal([]), autograph=False)()
    readers = [number * 1, returned * 1.0]
    fetches = [*readers, number, returned]
    found = key(fresh_graph, readers)
    assert number.ref() in found.moved
    asked = [fetch.name for fetch in fetches] if by_name else fetches
    with tf1.Session() as session:
        for step in range(2):
            first, second, *same = at_step(session, step, asked)
            assert same == [first, second]
        fed = session.run(asked, {asked[2]: 7, asked[3]: 0.5})
        assert fed == [7, 0.5, 7, 0.5]


def test_what_initial_values_are_made_from_keeps_its_kernel(fresh_graph):
    tf1.set_random_seed(3)
    noise = tf.random.normal([4], name="noise")
    first = tf1.get_variable("first", initializer=noise, use_resource=True)
    other = tf.random.normal([4], name="other")
    total = tf.reduce_sum(first.read_value() + noise + other)
    assert key(fresh_graph, [total], [first.initializer]).left == {"noise/RandomStandardNormal"}
    with tf1.Session() as session:
        session.run(first.initializer)
        at_step(session, 0, total)


@pytest.mark.parametrize(
    ("device", "host"),
    [
        ("", ""),
        ("/device:CPU:1", "/device:CPU:1"),
        ("/device:GPU:1", "/device:CPU:0"),
        ("/job:worker/task:2/device:GPU:3", "/job:worker/task:2/device:CPU:0"),
    ],
)
def test_seeds_are_on_the_host(fresh_graph, device, host):
    # Where kernels of GPUs read them.
    with tf.device(device):
        value = tf.raw_ops.RandomUniform(shape=[4], dtype=tf.float32, **SEEDS)
    key(fresh_graph, [tf.identity(value)])
    (draw,) = (op for op in fresh_graph.get_operations() if op.type == "StatelessRandomUniform")
    assert (draw.inputs[1].op.device, draw.device) == (host, device)
