"""A checkpoint of any strategy restores under any other, and under none."""

import contextlib

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.conformance import strategies

KINDS = ["none", "one_device", "parameter_server", "round_robin", "mirrored", "mirrored_3"]
MAKERS = {
    **strategies.MAKERS,
    "mirrored_3": lambda: strategies.core.MirroredStrategy(3),
    "none": lambda: None,
}
# What is saved is the same for all, so who restores does not matter, and the other way round.
PAIRS = sorted({*((kind, "none") for kind in KINDS), *(("mirrored_3", kind) for kind in KINDS)})


def make_variables():
    """One variable of each kind, all starting from 0."""
    local = {"synchronization": tf.VariableSynchronization.ON_READ, "trainable": False}
    aggregations = tf.VariableAggregation
    return {
        "weight": tf.Variable([0.0, 0.0], name="weight"),
        "step": tf.Variable(0, dtype=tf.int64, trainable=False, name="step"),
        "count": tf.Variable(0, aggregation=aggregations.SUM, name="count", **local),
        "total": tf.Variable(0.0, aggregation=aggregations.SUM, name="total", **local),
        "mean": tf.Variable(0.0, aggregation=aggregations.MEAN, name="mean", **local),
        "first": tf.Variable(
            0.0, aggregation=aggregations.ONLY_FIRST_REPLICA, name="first", **local
        ),
    }


# 7 and 6 leave a remainder, or none, over 2 and 3 towers.
VALUES = {"weight": [1.5, 2.5], "step": 5, "count": 7, "total": 6.0, "mean": 3.0, "first": 4.0}


def scope_of(strategy):
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def new_session():
    return tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 8}))


def assert_values(found):
    for key, value in VALUES.items():
        np.testing.assert_allclose(found[key], value, err_msg=key)


@pytest.mark.thorough("mirrored_3-*-outside", "*-mirrored_3-in_scope", "round_robin-none-*")
@pytest.mark.parametrize("outside", [False, True], ids=["in_scope", "outside"])
@pytest.mark.parametrize(("saving", "restoring"), PAIRS)
def test_saver_goes_between_strategies(saving, restoring, outside, tmp_path):
    with tf.Graph().as_default(), new_session() as session:
        strategy = MAKERS[saving]()
        with scope_of(strategy):
            made = make_variables()
            session.run([v.initializer for v in made.values()])
            session.run([v.assign(VALUES[key]) for key, v in made.items()])
            saver = None if outside else tf1.train.Saver()
        path = (saver or tf1.train.Saver()).save(session, str(tmp_path / "model"))
    assert sorted(name for name, _ in tf.train.list_variables(path)) == sorted(VALUES)
    with tf.Graph().as_default(), new_session() as session:
        strategy = MAKERS[restoring]()
        with scope_of(strategy):
            made = make_variables()
            saver = None if outside else tf1.train.Saver()
        (saver or tf1.train.Saver()).restore(session, path)
        assert_values(session.run(dict(made)))
        assert_copies(made, lambda v: session.run(v.value()))


@pytest.mark.parametrize(("saving", "restoring"), PAIRS)
def test_checkpoint_goes_between_strategies(saving, restoring, tmp_path):
    with scope_of(MAKERS[saving]()):
        made = make_variables()
        for key, v in made.items():
            v.assign(VALUES[key])
    path = tf.train.Checkpoint(**made).save(str(tmp_path / "model"))
    with scope_of(MAKERS[restoring]()):
        made = make_variables()
    tf.train.Checkpoint(**made).restore(path).assert_existing_objects_matched()
    assert_values({key: v.numpy() for key, v in made.items()})
    assert_copies(made, lambda v: v.numpy())


@pytest.mark.parametrize(("saving", "restoring"), [("mirrored", "mirrored"), ("mirrored", "none")])
def test_checkpoint_restores_variables_made_later(saving, restoring, tmp_path):
    with scope_of(MAKERS[saving]()):
        made = make_variables()
        for key, v in made.items():
            v.assign(VALUES[key])
    path = tf.train.Checkpoint(**made).save(str(tmp_path / "model"))
    later = tf.train.Checkpoint()
    later.restore(path)
    with scope_of(MAKERS[restoring]()):
        made = make_variables()
    for key, v in made.items():
        setattr(later, key, v)
    assert_values({key: v.numpy() for key, v in made.items()})


def assert_copies(made, read):
    """What each copy holds after a restore."""
    if not hasattr(made["count"], "members"):
        return
    K = len(made["count"].members)
    found = {key: [read(m) for m in v.members] for key, v in made.items() if hasattr(v, "members")}
    part = 7 // K
    assert found["count"] == [7 - part * (K - 1)] + [part] * (K - 1)
    np.testing.assert_allclose(found["total"], [6.0 / K] * K)
    np.testing.assert_allclose(found["mean"], [3.0] * K)
    np.testing.assert_allclose(found["first"], [4.0] + [0.0] * (K - 1))
    for copy in found.get("weight", []):
        np.testing.assert_allclose(copy, [1.5, 2.5])


SEVERAL = ["parameter_server", "mirrored"]


@pytest.mark.parametrize("name", KINDS)
def test_variables_start_from_a_checkpoint(name, tmp_path):
    with tf.Graph().as_default(), new_session() as session:
        made = make_variables()
        session.run([v.initializer for v in made.values()])
        session.run([v.assign(VALUES[key]) for key, v in made.items()])
        path = tf1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), new_session() as session:
        with scope_of(MAKERS[name]()):
            made = make_variables()
            tf1.train.init_from_checkpoint(path, made)
        session.run(tf1.global_variables_initializer())
        assert_values(session.run(dict(made)))
        assert_copies(made, lambda v: session.run(v.value()))


SAVERS = {
    "sharded": lambda made: tf1.train.Saver(sharded=True),
    "other names": lambda made: tf1.train.Saver({f"other/{key}": v for key, v in made.items()}),
}


@pytest.mark.parametrize("outside", [False, True], ids=["in_scope", "outside"])
@pytest.mark.parametrize("name", [*SEVERAL, "one_device"])
@pytest.mark.parametrize("kind", SAVERS)
def test_a_saver_of_a_kind_restores_every_copy(kind, name, outside, tmp_path):
    with tf.Graph().as_default(), new_session() as session:
        with scope_of(MAKERS[name]()):
            made = make_variables()
            saver = None if outside else SAVERS[kind](made)
        saver = saver or SAVERS[kind](made)
        session.run([v.initializer for v in made.values()])
        session.run([v.assign(VALUES[key]) for key, v in made.items()])
        path = saver.save(session, str(tmp_path / "model"))
        session.run([v.initializer for v in made.values()])
        saver.restore(session, path)
        assert_values(session.run(dict(made)))
        assert_copies(made, lambda v: session.run(v.value()))
    prefix = "other/" if kind == "other names" else ""
    names = sorted(name for name, _ in tf.train.list_variables(path))
    assert names == sorted(f"{prefix}{key}" for key in made)


@pytest.mark.parametrize("name", SEVERAL)
def test_session_fetches_variables_of_a_finalized_graph(name):
    with tf.Graph().as_default() as graph:
        with scope_of(MAKERS[name]()):
            made = make_variables()
        initialize = tf1.global_variables_initializer()
        graph.finalize()
        with new_session() as session:
            session.run(initialize)
            assert session.run(made["total"]) == 0.0
            assert session.run(made["weight"]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", SEVERAL)
def test_saved_model_holds_one_variable_for_all_copies(name, tmp_path):
    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.made = make_variables()

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def __call__(self, x):
            return self.made["weight"] * x

    with scope_of(MAKERS[name]()):
        scale = Scale()
    for key, v in scale.made.items():
        v.assign(VALUES[key])
    tf.saved_model.save(scale, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded(2.0).numpy().tolist() == [3.0, 5.0]
    assert_values({key: v.numpy() for key, v in loaded.made.items()})


@pytest.mark.parametrize("name", SEVERAL)
def test_saved_model_that_is_loaded_in_a_scope_has_the_scopes_variables(name, tmp_path):
    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable([2.0, 3.0])

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def __call__(self, x):
            return self.w * x

    tf.saved_model.save(Scale(), str(tmp_path))

    def gradient():
        with tf.GradientTape() as tape:
            read = loaded(5.0)
        return tape.gradient(read, loaded.w)

    strategy = MAKERS[name]()
    with scope_of(strategy):
        loaded = tf.saved_model.load(str(tmp_path))
        towers = strategy.unwrap(strategy.call_for_each_tower(lambda: loaded(2.0)))
        derived = strategy.unwrap(strategy.call_for_each_tower(gradient))
        loaded.w.assign([1.0, 0.5])
        after = strategy.unwrap(strategy.call_for_each_tower(lambda: loaded(2.0)))
    # 2 * [2, 3], and 2 * [1, 0.5] once every copy has been written.
    assert [value.numpy().tolist() for value in towers] == [[4.0, 6.0]] * len(towers)
    assert [value.numpy().tolist() for value in derived] == [[5.0, 5.0]] * len(derived)
    assert [value.numpy().tolist() for value in after] == [[2.0, 1.0]] * len(after)
    assert loaded(1.0).numpy().tolist() == [1.0, 0.5]
