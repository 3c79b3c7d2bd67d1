"""Copies of a variable, made on their devices."""

import contextlib
import copy
import operator
import pickle

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1

ON_READ = tf.VariableSynchronization.ON_READ
SUM = tf.VariableAggregation.SUM


@pytest.fixture
def mirrored():
    return core.MirroredStrategy(["/cpu:0", "/cpu:1"])


def test_copies_start_from_the_same_random_value(session, mirrored):
    with mirrored.scope():
        v = tf1.get_variable("v", [3], initializer=tf1.random_normal_initializer())
    session.run(tf1.global_variables_initializer())
    first, second = session.run([member.value() for member in v.members])
    np.testing.assert_array_equal(first, second)


def test_later_copies_have_the_towers_prefix(fresh_graph, mirrored):
    with mirrored.scope(), tf1.variable_scope("a"):
        v = tf1.get_variable("v", [3])
        u = tf.Variable(1.0, name="u")
    assert [m.name for m in v.members] == ["a/v:0", "tower_1/a/v:0"]
    assert [m.name for m in u.members] == ["a/u:0", "tower_1/a/u:0"]


@pytest.mark.parametrize("synchronization", [tf.VariableSynchronization.AUTO, ON_READ])
def test_metric_variable_is_each_towers_own_and_sums(fresh_graph, mirrored, synchronization):
    with mirrored.scope():
        v = tf1.get_local_variable("v", [3], synchronization=synchronization)
    assert isinstance(v, core.TowerLocalVariable)
    assert v.aggregation == SUM
    assert tf1.local_variables() == [v] or tf1.local_variables()[0] is v


def test_parameter_server_keeps_one_copy_unless_towers_aggregate(fresh_graph):
    strategy = core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        plain = tf1.get_variable("plain", [3])
        merged = tf1.get_variable("merged", [3], aggregation=SUM)
        local = tf1.get_variable("local", [3], synchronization=ON_READ, aggregation=SUM)
    assert not isinstance(plain, core.MirroredVariable)
    assert isinstance(merged, core.MirroredVariable)
    assert len(merged.members) == 1
    assert [m.device[-1] for m in local.members] == ["0", "1"]


SIZES = [8, 2, 2, 2, 4]


@pytest.mark.parametrize("is_called", [None, False, True], ids=["graph", "eager", "called"])
@pytest.mark.parametrize(
    ("placement", "places"),
    # Floats on each device, balanced: 8|0, 8|2, 8|4, 8|6, 8|10.
    [("round_robin", "01010"), ("balanced", "01111")],
)
def test_variables_take_turns_or_are_balanced_by_bytes(placement, places, is_called):
    strategy = core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"], placement=placement)
    for _ in range(2 if is_called is None else 1):  # each graph is placed as if it were the first
        with contextlib.ExitStack() as entered:
            if is_called is None:
                entered.enter_context(tf.Graph().as_default())
            entered.enter_context(strategy.scope())
            starts = [tf.zeros([size]) for size in SIZES]
            made = [tf.Variable((lambda s=s: s) if is_called else s) for s in starts]
        assert "".join(v.device[-1] for v in made) == places


def test_an_initial_value_that_is_called_is_called_once():
    calls = []

    def start():
        calls.append("a call")
        return [1.0, 2.0]

    strategy = core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"], placement="balanced")
    with strategy.scope():
        assert tf.Variable(start).numpy().tolist() == [1.0, 2.0]
    assert calls == ["a call"]


def test_a_balanced_variable_may_be_made_in_a_function():
    strategy = core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"], placement="balanced")
    made = []

    @tf.function
    def read():
        if not made:
            made.append(tf.Variable(lambda: [1.0, 2.0]))
        return made[0] + 0.0

    with strategy.scope():
        assert read().numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"synchronization": tf.VariableSynchronization.NONE}, "synchronized ON_WRITE, ON_READ"),
        ({"aggregation": "sum"}, "aggregated by SUM.*'w' has aggregation='sum'"),
    ],
)
def test_words_that_say_nothing_are_refused(mirrored, asked, text):
    with mirrored.scope(), pytest.raises(ValueError, match=text):
        tf.Variable(1.0, name="w", **asked)


def test_strategy_is_copied_as_itself_and_not_pickled(mirrored):
    assert copy.copy(mirrored) is mirrored is copy.deepcopy(mirrored)
    with pytest.raises(TypeError, match="strategy cannot be pickled"):
        pickle.dumps(mirrored)


def test_device_that_the_user_names_is_not_overruled(fresh_graph):
    strategy = core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope(), tf.device("/cpu:4"):
        assert tf1.get_variable("v", [3]).device[-1] == "4"


def test_getter_of_the_user_still_runs(fresh_graph, mirrored):
    asked = []

    def getter(getter, name, *args, **kwargs):
        asked.append(name)
        return getter(name, *args, **kwargs)

    with mirrored.scope(), tf1.variable_scope("a", custom_getter=getter):
        tf1.get_variable("v", [3])
    assert asked == ["a/v"]


@pytest.mark.parametrize("change", ["iadd", "isub", "imul", "itruediv", "ipow"])
@pytest.mark.parametrize("synchronization", [ON_READ, tf.VariableSynchronization.AUTO])
def test_a_variable_is_not_changed_in_place(fresh_graph, mirrored, change, synchronization):
    with mirrored.scope():
        options = {"synchronization": synchronization, "aggregation": SUM}
        v = tf1.get_variable("v", initializer=1.0, trainable=False, **options)
        plain = mirrored.call_for_each_tower(
            lambda: getattr(operator, change)(tf.constant(1.0), 2.0)
        )
        for call in (lambda fn: fn(), mirrored.call_for_each_tower):
            with pytest.raises(RuntimeError, match=r"v:0.*assign_add"):
                call(lambda: getattr(operator, change)(v, 2.0))
    assert tf.is_tensor(plain.values[0])
