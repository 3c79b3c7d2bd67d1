"""Threads that meet at merge calls."""

import functools
import threading
import time

import pytest

import replicate
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.towers import lockstep, sharing


def merge(threads_run):
    """A body that merges once and returns its part."""

    def body(tower):
        request = lockstep.MergeRequest(
            threads_run, (tower.tower_id,), {}, lambda fn, args, kwargs: fn(*args)
        )
        return tower.sleep(request)

    return body


def run(bodies, concurrent=False, every_collection=False):
    creations = sharing.Creations(len(bodies))
    return lockstep.run(bodies, creations, concurrent, every_collection)


def test_a_towers_own_exception_wins_over_the_mismatch_that_its_finally_causes():
    def meet(tower, fn):
        return tower.sleep(lockstep.MergeRequest(fn, (), {}, lambda fn, args, kwargs: fn(*args)))

    def body(tower):
        try:
            if tower.tower_id == 1:
                raise KeyError("the tower's own")
            meet(tower, lambda: "the model's")
        finally:
            meet(tower, lambda: "clean up")

    with pytest.raises(KeyError, match="the tower's own") as raised:
        run([body] * 2)
    assert raised.value.__notes__ == ["raised in tower 1 of 2"]


def test_an_error_of_missing_estimators_says_what_to_do():
    text = "module 'tensorflow' has no attribute 'estimator'"
    with pytest.raises(AttributeError) as raised, lockstep.noted(0, 1):
        raise AttributeError(text)
    assert "replicate.estimator.install()" in raised.value.__notes__[1]


def test_towers_of_a_graph_run_one_after_another(fresh_graph):
    order = []

    def body(tower):
        order.append(tower.tower_id)

    run([body] * 4, concurrent=True)
    assert order == [0, 1, 2, 3]


def test_tower_that_swallows_the_stop_ends_all_the_same():
    def body(tower):
        if tower.tower_id == 1:
            raise KeyError("x")
        for _ in range(3):
            try:
                merge(lambda ids: None)(tower)
            except BaseException:  # noqa: BLE001 - what a careless model might do
                continue

    before = threading.active_count()
    with pytest.raises(KeyError):
        run([body] * 2)
    assert threading.active_count() == before


def test_towers_inherit_scopes_devices_and_dependencies(fresh_graph):
    seen = {}

    def body(tower):
        made = tf1.get_variable("w", [], use_resource=True) if tower.tower_id == 0 else None
        op = tf.constant(1.0, name="x").op
        seen[tower.tower_id] = (op.name, op.device, [c.name for c in op.control_inputs], made)

    before = tf1.no_op("before")
    with tf1.variable_scope("model"), tf.device("/device:CPU:3"):
        with tf1.control_dependencies([before]):
            run([body] * 2)
    assert seen[0][:3] == ("model/x", "/device:CPU:3", ["before"])
    assert seen[1][:3] == ("model/tower_1/x", "/device:CPU:3", ["before"])
    assert seen[0][3].name == "model/w:0"


def test_what_a_tower_adds_to_operations_is_added_to_its_own_alone(fresh_graph):
    graph = tf1.get_default_graph()
    kinds = {}

    def scope(mark):
        return graph._attr_scope({"_mark": tf1.AttrValue(s=mark)})

    def marks():
        found = tf.constant(1.0).op.node_def.attr
        return found["_mark"].s

    def body(tower):
        before = marks()
        with scope(f"of {tower.tower_id}".encode()), graph.gradient_override_map({"Tanh": "Own"}):
            merge(lambda ids: None)(tower)
            within = marks()
        kinds[tower.tower_id] = (before, within, marks())
        if tower.tower_id == 2:
            with scope(b"left"):
                raise KeyError("within")

    with scope(b"all"):
        with pytest.raises(KeyError):
            run([body] * 3)
        assert marks() == b"all"
    assert marks() == b""
    assert kinds == {i: (b"all", f"of {i}".encode(), b"all") for i in range(3)}


def test_scopes_after_the_towers_go_on_from_the_first(fresh_graph):
    def body(tower):
        with tf1.variable_scope(None, default_name="layer"):
            return tf1.get_variable_scope().name

    assert run([body] * 2) == ["layer", "layer"]
    with tf1.variable_scope(None, default_name="layer") as scope:
        assert scope.name == "layer_1"


def test_functions_are_the_same_when_their_code_is():
    def make(x):
        return lambda: x

    class Callable:
        def __call__(self):
            pass

    wrapped = functools.wraps(make)(lambda: None)
    for one, other in (
        (make(1), make(2)),
        (functools.partial(make, 1), make),
        (Callable().__call__, Callable().__call__),
        (Callable(), Callable()),
        (wrapped, make),
    ):
        assert lockstep.code_of(one) == lockstep.code_of(other)
    assert lockstep.code_of(make(1)) != lockstep.code_of(make)


def test_eager_towers_run_at_the_same_time():
    # Neither gets past the barrier unless both are there.
    barrier = threading.Barrier(2, timeout=20)
    assert run([lambda tower: barrier.wait() >= 0] * 2, concurrent=True) == [True, True]


def at_the_same_time(strategy, tower):
    """Runs towers at the same time, which the strategy allows to who has made nothing before."""
    makes = []

    def quiet_first():
        return tower() if makes else None

    with strategy.scope():
        strategy.call_for_each_tower(quiet_first)
        makes.append(True)
        return strategy.call_for_each_tower(quiet_first, run_concurrently=True)


def test_eager_towers_share_what_they_make_at_the_same_time():
    strategy = replicate.MirroredStrategy(3)
    waits = [0.0, 0.05, 0.1]

    def tower():
        # Later towers ask first, and wait until the first one has made what they ask for.
        time.sleep(waits[2 - replicate.get_tower_context().tower_id])
        with tf.name_scope("a"):
            a = tf.Variable(1.0, name="w")
        with tf.name_scope("b"):
            b = tf.Variable(2.0, name="w")
        return a, b

    a, b = at_the_same_time(strategy, tower)
    assert isinstance(a, replicate.MirroredVariable)
    assert a is not b
    assert [copy.numpy() for copy in b.members] == [2.0] * 3


def test_a_layer_built_by_the_first_tower_does_not_shift_the_others():
    strategy = replicate.LocalParameterServerStrategy(2)
    kept = []
    built = threading.Event()

    def tower():
        if replicate.get_tower_context().tower_id == 0:
            with tf.name_scope("kept"):
                kept.append(tf.Variable(1.0, name="w"))
            built.set()
        assert built.wait(20)
        with tf.name_scope("own"):
            own = tf.Variable(2.0, name="w")
        return kept[0], own

    first, own = at_the_same_time(strategy, tower)
    assert first is kept[0]
    assert own.numpy() == 2.0
