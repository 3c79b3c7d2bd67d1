"""Copies as TensorFlow finds them: by name, and from within functions."""

import copy

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1

STRATEGIES = {
    "mirrored": lambda: core.MirroredStrategy(["/cpu:0", "/cpu:1"]),
    "parameter_server": lambda: core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"]),
    "one_device": lambda: core.OneDeviceStrategy("/cpu:0"),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture
def mirrored():
    return STRATEGIES["mirrored"]()


def tower_id():
    return core.get_tower_context().tower_id


def per_tower(strategy, session, fn):
    """Runs `fn` once per tower, and returns what the towers' results come to."""
    with strategy.scope():
        found = strategy.call_for_each_tower(fn)
        parts = strategy.unwrap(found)
    session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
    return session.run(list(parts))


def test_a_later_copys_operation_also_goes_by_the_name_of_the_first(fresh_graph, mirrored):
    with mirrored.scope():
        v = tf1.get_variable("v", [])
        other = tf1.get_variable("other", [])
    first, second = (member.handle.op for member in v.members)
    assert type(first.name) is str
    assert second.name == "tower_1/v" == str(copy.deepcopy(second.name))
    assert second.name == "v"
    assert second.name not in ("other", other.members[1].handle.op.name)
    assert sorted({first.name, second.name}) == ["tower_1/v", "v"]
    assert second is fresh_graph.get_operation_by_name("tower_1/v")


def start(value):
    return {"initializer": tf1.constant_initializer(value)}


def custom(x, w, given):
    """Has its own gradient by the variable: 10 x for x."""

    @tf.custom_gradient
    def scaled(x):
        def gradient(dy, variables=None):
            given.append(variables == [w] and variables[0] is w)
            return dy * w, [dy * x * 10.0]

        return x * w, gradient

    return scaled(x)


def recomputed(x, w, given):
    frozen = tf1.get_variable("frozen", [], **start(5.0), trainable=False)
    given.append(True)
    return tf.recompute_grad(lambda x: x * w * w + frozen)(x)


def of_a_towers_own(x, w, given):
    """A variable that each tower has is not differentiated."""
    options = {"synchronization": tf.VariableSynchronization.ON_READ}
    options["aggregation"] = tf.VariableAggregation.MEAN
    mean = tf1.get_variable("mean", [], **start(4.0), **options)
    given.append(True)
    return tf.recompute_grad(lambda x: x * mean)(x) + 0.0 * w


def of_a_sum_over_towers(x, w, given):
    """What was reduced over towers leads to the variable once."""

    def total(strategy, values):
        return strategy.reduce(tf.VariableAggregation.SUM, values, "/cpu:0")

    all_towers = core.get_tower_context().merge_call(total, x * w)

    @tf.custom_gradient
    def add(x):
        def gradient(dy, variables=None):
            given.append(variables == [w])
            return dy, [dy * 7.0]

        return x + all_towers, gradient

    return add(x)


@pytest.mark.parametrize(
    ("make", "expected"),
    # y, dy/dx and dy/dw of w = 2, where x is 1 in the first tower and 2 in the second.
    [
        (custom, [[2.0, 2.0, 10.0], [4.0, 2.0, 20.0]]),
        # y = 4 x + 5, dy/dw = 2 x w.
        (recomputed, [[9.0, 4.0, 4.0], [13.0, 4.0, 8.0]]),
        (of_a_towers_own, [[4.0, 4.0, 0.0], [8.0, 4.0, 0.0]]),
        # The sum is 2 + 4 = 6.
        (of_a_sum_over_towers, [[7.0, 1.0, 7.0], [8.0, 1.0, 7.0]]),
    ],
)
def test_a_gradient_of_ones_own_is_the_towers_own(strategy, session, make, expected):
    given = []

    def tower():
        w = tf1.get_variable("w", [], **start(2.0))
        x = tf.constant(float(tower_id() + 1))
        y = make(x, w, given)
        return tf.stack([y, *tf.gradients(y, [x, w])])

    if make is of_a_sum_over_towers and strategy.num_towers == 1:
        expected = [[3.0, 1.0, 7.0]]  # of one tower the sum is 2
    found = per_tower(strategy, session, tower)
    np.testing.assert_array_equal(found, expected[: strategy.num_towers])
    assert given == [True] * strategy.num_towers


@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function], ids=["eager", "function"])
def test_custom_gradient_on_a_tape_differentiates_with_respect_to_the_variable(strategy, wrap):
    with strategy.scope():
        w = tf.Variable(2.0)

    @tf.custom_gradient
    def scaled(x):
        return x * w, lambda dy, variables=None: (dy * w, [dy * x * 10.0 for _ in variables])

    def tower():
        x = tf.constant(float(tower_id() + 1))
        with tf.GradientTape() as tape:
            y = scaled(x)
        return tape.gradient(y, w)

    with strategy.scope():
        found = strategy.unwrap(wrap(lambda: strategy.call_for_each_tower(tower))())
    assert [float(part) for part in found] == [10.0, 20.0][: strategy.num_towers]


class Made(tf.Module):
    """Makes its variable in its function, at the first call."""

    def __init__(self, start):
        super().__init__()
        self.start = start
        self.w = None

    @tf.function
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable(self.start, name="w")
        return x * self.w * self.w


def test_variable_made_in_a_function_is_one_variable(strategy, session):
    modules = []

    def tower():
        modules.append(Made([3.0]))
        x = tf.constant([float(tower_id() + 1)])
        y = modules[-1](x)
        return tf.concat([y, *tf.gradients(y, [x, modules[-1].w])], 0)

    # y = w^2 x = 9 x, dy/dx = 9, dy/dw = 2 w x = 6 x; x = 1, 2.
    expected = [[9.0, 9.0, 6.0], [18.0, 9.0, 12.0]][: strategy.num_towers]
    np.testing.assert_array_equal(per_tower(strategy, session, tower), expected)
    assert all(module.w is modules[0].w for module in modules)
    assert [v is modules[0].w for v in tf1.global_variables()] == [True]
    assert not tf1.trainable_variables()


def test_a_scatter_gives_the_new_value(session, mirrored):
    with mirrored.scope():
        v = tf1.get_variable("v", initializer=[1.0, 2.0])
        found = v.scatter_add(tf.IndexedSlices(tf.constant([10.0]), tf.constant([1])))
    session.run(tf1.global_variables_initializer())
    assert session.run(found).tolist() == [1.0, 12.0]
