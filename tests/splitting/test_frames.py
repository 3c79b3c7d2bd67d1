"""What leaves a loop waits for all that enters it, though it may not be made from that."""

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import frames
from tests import control_flow

PATIENCE = tf1.RunOptions(timeout_in_ms=20_000)  # a graph that waits for itself is a failure
X = np.random.RandomState(0).standard_normal((5, 4))


def model(features, labels, mode, params):
    """A loop that draws, so that it is whole; its gradient is split, and needs its counter."""
    x = features @ tf1.get_variable("w", [4, 4], tf.float64, tf1.ones_initializer())

    def turn(n, x):
        return n + 1, tf.nn.dropout(x, 0.1)

    x = tf.while_loop(lambda n, _: n < params["turns"], turn, [0, x], **params["options"])[1]
    loss = tf.reduce_mean(tf.square(x))
    train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


# By default at most 10 turns are made at a time.
@pytest.mark.parametrize(("turns", "options"), [(2, {"parallel_iterations": 1}), (15, {})])
def test_a_loop_of_more_turns_than_run_at_a_time_does_not_wait_for_itself(turns, options):
    losses = []
    for devices in (1, 2):
        with tf.Graph().as_default():
            tf1.set_random_seed(3)
            rows = tf.data.Dataset.from_tensors(X).repeat()
            replicated = model_fn.replicate_model_fn(
                model, devices=devices, random_numbers="one_device"
            )
            features = tf1.data.make_one_shot_iterator(rows).get_next()
            # One turn at a time, since turns that overlap draw in any order.
            given = {"turns": turns, "options": {"parallel_iterations": 1, **options}}
            if devices == 2:
                given["options"] = options
            spec = replicated(features, None, "train", given)
            initialize = tf1.global_variables_initializer()
            with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 8})) as session:
                session.run(initialize)
                loss, _ = session.run([spec.loss, spec.train_op], options=PATIENCE)
                losses.append(loss)
    if options:
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-12)


@pytest.mark.parametrize("version", [1, 2])
def test_a_loop_may_be_on_several_devices(fresh_graph, version):
    def turn(n, x):
        with tf.device("/cpu:0"):
            x = x * 1.5
        return n + 1, tf.tanh(x) + tf.reduce_mean(x)  # so that the loop is whole

    def model(features, labels, mode):
        x = features @ tf1.get_variable("w", [4, 4], tf.float64, tf1.ones_initializer())
        x = tf.while_loop(lambda n, _: n < 3, turn, [0, x])[1]
        train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(x))
        return estimator.EstimatorSpec(mode, loss=tf.reduce_mean(x), train_op=train_op)

    losses = []
    for devices in (["/cpu:1"], ["/cpu:1", "/cpu:2"]):
        with control_flow.of_version(version), tf.Graph().as_default():
            features = tf1.placeholder_with_default(X, [None, 4])
            spec = model_fn.replicate_model_fn(model, devices=devices)(features, None, "train")
            initialize = tf1.global_variables_initializer()
            with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 8})) as session:
                session.run(initialize)
                losses.append(session.run([spec.loss, spec.train_op], options=PATIENCE)[0])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-12)


def test_what_leaves_a_loop_waits_for_all_that_enters_it():
    # Two loops, one in the other; the counter of each leaves it.
    before = {
        "enter": ["zero"],
        "enter_x": ["x"],
        "merge": ["enter", "next"],
        "condition": ["merge"],
        "switch": ["merge", "condition"],
        "inner_enter": ["switch"],
        "inner_merge": ["inner_enter", "inner_next"],
        "inner_condition": ["inner_merge"],
        "inner_switch": ["inner_merge", "inner_condition"],
        "inner_next": ["inner_switch"],
        "inner_exit": ["inner_switch"],
        "next": ["inner_exit"],
        "exit": ["switch"],
        "zero": [],
        "x": [],
    }
    types = {"condition": "LoopCond", "next": "NextIteration"}

    def kind(name):
        name = name.removeprefix("inner_").removesuffix("_x")
        return types.get(name, name.capitalize())

    def frame(enter):
        return b"inner" if enter.startswith("inner") else b"outer"

    inner, outer = frames.Loop("inner"), frames.Loop("outer")
    assert frames.without_turns(before, kind, frame) == {
        **before,
        "merge": ["enter"],
        "inner_merge": ["inner_enter"],
        "exit": ["switch", outer],
        "inner_exit": ["inner_switch", inner],
        outer: ["enter", "enter_x"],
        inner: ["inner_enter"],
    }


def test_what_enters_behind_what_leaves_is_not_waited_for():
    # A counter enters each of two loops behind what has left the other one; `x` enters before.
    before = {
        **{f"{n}_enter": ["x"] for n in "ab"},
        **{f"{n}_merge": [f"{n}_enter"] for n in "ab"},
        **{f"{n}_switch": [f"{n}_merge"] for n in "ab"},
        **{f"{n}_exit": [f"{n}_switch"] for n in "ab"},
        "a_enter_late": ["b_exit"],
        "b_enter_late": ["a_exit"],
        "x": [],
    }

    def kind(name):
        return name[2:].removesuffix("_late").capitalize()

    found = frames.without_turns(before, kind, lambda enter: enter[:1].encode())
    assert [found[frames.Loop(name)] for name in "ab"] == [["a_enter"], ["b_enter"]]
    places = {each: n for n, each in enumerate(found)}
    assert all(places[other] < places[each] for each in found for other in found[each])


def test_only_what_a_branch_makes_may_have_no_value():
    before = {
        "merge": ["enter", "next"],
        "switch": ["merge", "decides"],
        "next": ["switch"],
        "exit": ["switch"],
        "takes": ["exit", "predicate"],
        "inside": ["takes"],
        "joined": ["inside", "other"],
        "other": ["takes"],
        "outside": ["joined"],
    }
    kinds = {
        **{"merge": "Merge", "switch": "Switch", "decides": "LoopCond", "next": "NextIteration"},
        **{"takes": "Switch", "joined": "Merge"},
    }
    found = frames.in_branches(before, lambda each: kinds.get(each, "Identity"))
    assert found == {"takes", "inside", "other"}


def test_branches_may_hold_branches_and_loops():
    # Whatever comes last is looked at first; `somewhere` is not listed.
    before = {
        "outside": ["joined", "constant"],
        "joined": ["inner_joined", "turned"],
        "inner_joined": ["inner_takes", "beside"],
        "inner_takes": ["takes", "predicate"],
        "beside": ["takes"],
        "turned": ["merge"],
        "merge": ["enter", "next"],
        "enter": ["takes", "constant"],
        "next": ["merge"],
        "takes": ["somewhere", "predicate"],
        "predicate": ["somewhere"],
        "constant": [],
    }
    kinds = {
        **{"takes": "Switch", "inner_takes": "Switch", "joined": "Merge", "inner_joined": "Merge"},
        **{"enter": "Enter", "merge": "Merge", "next": "NextIteration"},
    }
    found = frames.in_branches(before, lambda each: kinds.get(each, "Identity"))
    outside = {"outside", "joined", "predicate", "constant"}
    assert found == before.keys() - outside
