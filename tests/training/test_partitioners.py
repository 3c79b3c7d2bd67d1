"""Partitioners under replicate_model_fn: towers let one part through, and turn off several."""

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

STRATEGIES = ["parameter_server", "mirrored"]
WAYS = [(building, strategy) for building in ("split", "call") for strategy in STRATEGIES]
X = np.arange(8.0, dtype=np.float32).reshape(4, 2)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def one_part(shape, dtype):
    del dtype
    return [1] * shape.rank


def model_fn(features, mode, params):
    """A linear model, w of shape [2, 3], trained with momentum."""
    partitioner = params.get("partitioner", one_part)
    with tf1.variable_scope("a", partitioner=partitioner):
        w = tf1.get_variable("w", [2, 3], initializer=tf1.constant_initializer(0.5))
        scale = tf1.get_variable("scale", [], initializer=tf1.ones_initializer())
    with tf1.variable_scope("a", reuse=True):
        again = tf1.get_variable("w", [2, 3])
    if params.get("from"):
        tf1.train.init_from_checkpoint(params["from"], {"a/": "a/"})
    loss = tf.reduce_mean(features @ w + features @ again) * scale
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    train_op = optimizer.minimize(loss, tf1.train.get_or_create_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions=features)


each_way = pytest.mark.parametrize(("building", "strategy"), WAYS)


def build(building, strategy, num_towers=2, **params):
    made = replicate.replicate_model_fn(
        model_fn,
        devices=[f"/cpu:{i}" for i in range(num_towers)],
        strategy=strategy,
        tower_building=building,
    )
    tf1.train.get_or_create_global_step()
    return made(tf.constant(X), None, "train", params)


def trained(session, spec, steps=2):
    session.run(tf1.global_variables_initializer())
    for _ in range(steps):
        session.run(spec.train_op)


def members(variable):
    """The copies that a strategy made of a variable."""
    return getattr(variable, "members", (variable,))


def saved_names(path):
    return sorted(name for name, _ in tf.train.list_variables(path))


def test_one_part_has_the_names_of_one_device(fresh_graph, tmp_path):
    listed, saved = [], []
    for way in [None, *WAYS]:
        with tf.Graph().as_default(), tf1.Session() as session:
            if way is None:
                tf1.train.get_or_create_global_step()
                spec = model_fn(tf.constant(X), "train", {})
            else:
                spec = build(*way, num_towers=3)
            trained(session, spec, steps=1)
            listed.append(sorted(variable.name for variable in tf1.global_variables()))
            saved.append(saved_names(tf1.train.Saver().save(session, str(tmp_path / "model"))))
    assert "a/w/part_0:0" in listed[0]
    assert "a/w" in saved[0]
    assert listed == listed[:1] * 5
    assert saved == saved[:1] * 5


@each_way
def test_every_copy_of_one_part_is_restored(session, tmp_path, building, strategy):
    spec = build(building, strategy)
    saver = tf1.train.Saver()
    trained(session, spec)
    variables = [v for v in tf1.global_variables() if v.name.startswith("a/w/")]
    copies = [member.value() for variable in variables for member in members(variable)]
    before = session.run(copies)
    path = saver.save(session, str(tmp_path / "model"))
    trained(session, spec, steps=1)
    saver.restore(session, path)
    for found, expected in zip(session.run(copies), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@each_way
def test_one_part_starts_from_a_checkpoint(session, tmp_path, building, strategy):
    with tf.Graph().as_default(), tf1.Session() as other:
        tf1.get_variable("a/w", initializer=np.full([2, 3], 7.0, np.float32))
        tf1.get_variable("a/scale", initializer=2.0)
        other.run(tf1.global_variables_initializer())
        path = tf1.train.Saver().save(other, str(tmp_path / "model"))
    build(building, strategy, **{"from": path})
    session.run(tf1.global_variables_initializer())
    (w,) = [v for v in tf1.trainable_variables() if v.name.startswith("a/w/")]
    for member in members(w):
        np.testing.assert_array_equal(session.run(member.value()), np.full([2, 3], 7.0))


def test_one_copy_of_one_part_is_saved_as_a_partitioned_variable(session, tmp_path):
    spec = build("call", "parameter_server")
    (w,) = [v for v in tf1.trainable_variables() if v.name.startswith("a/w/")]
    saver = tf1.train.Saver({"other": [w]})
    trained(session, spec)
    before = session.run(w)
    path = saver.save(session, str(tmp_path / "model"))
    assert saved_names(path) == ["other"]
    trained(session, spec, steps=1)
    saver.restore(session, path)
    np.testing.assert_array_equal(session.run(w), before)


@each_way
def test_several_parts_are_turned_off_with_one_warning_by_towers(
    session, caplog, building, strategy
):
    build(building, strategy, partitioner=tf1.fixed_size_partitioner(2))
    names = [variable.name for variable in tf1.trainable_variables()]
    parts = ["a/w:0"] if building == "call" else ["a/w/part_0:0", "a/w/part_1:0"]
    assert names == [*parts, "a/scale:0"]
    warned = [r for r in caplog.records if "Partitioned variables are turned off" in r.message]
    assert len(warned) == (building == "call")
