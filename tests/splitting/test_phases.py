"""Parts of a device take turns in phases: what they do, and what they wait for."""

import logging

import numpy as np
import pytest

import replicate
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.structure import phases
from tests import exactness

X = np.arange(12.0).reshape(6, 2)


def found(before, parts):
    return phases.Phases(before, parts, lambda each: each.startswith("own"))


def test_what_no_step_runs_is_behind_all_phases():
    before = {"own0": (), "own1": (), "all": ("own0", "own1"), "summary": ("all",)}
    of = phases.Phases(before, {"own0": 0, "own1": 1}, lambda each: False, {"summary"})
    assert [of.turn(each).phase for each in ("own0", "all", "summary")] == [0, 1, 2]
    assert phases.Phases(before, {}, lambda each: False).turn("summary").phase == 0


def no_bits(each):
    return 0


def test_a_number_of_all_rows_comes_before_what_only_gradients_behind_it_need():
    # Masks are counted; the loss of the forward pass is divided by the number of all.
    before = {}
    for k in "01":
        before |= {f"own{k}": (), f"mask{k}": (), f"forward{k}": (f"own{k}",)}
    before["count"] = ("mask0", "mask1")
    before |= {f"gradient{k}": (f"forward{k}", "count") for k in "01"}
    before["sum"] = ("gradient0", "gradient1")
    parts = {each: int(each[-1]) for each in before if each[-1] in "01" and each[:3] != "own"}
    of = found(before, parts)
    for k in (0, 1):
        assert of.turn(f"mask{k}") == (k, 0)
        assert of.turn(f"own{k}") == of.turn(f"forward{k}") == of.turn(f"gradient{k}") == (k, 1)
        assert of.begins(f"own{k}")
        assert not of.begins(f"gradient{k}")
        assert of.ends(f"gradient{k}")
        assert not of.ends(f"forward{k}")
    assert (of.turn("count"), of.turn("sum")) == ((None, 1), (None, 2))
    assert of.held({"own0", "own1"}, lambda each: 1, no_bits) == []


def test_what_is_read_before_and_behind_a_join_is_held():
    before = {}
    for k in "01":
        before |= {f"layer{k}": (), f"mean{k}": (f"layer{k}",)}
    before["all"] = ("mean0", "mean1")
    before |= {f"norm{k}": (f"layer{k}", "all") for k in "01"}
    of = found(before, {each: int(each[-1]) for each in before if each[-1] in "01"})
    assert [of.turn(f"{name}0").phase for name in ("layer", "mean", "norm")] == [0, 0, 1]
    assert of.held({"layer0"}, lambda each: 1, no_bits) == [("layer0", "norm0")]
    assert of.end("layer0") == "mean0"
    assert of.held({"layer0"}, lambda each: 0, no_bits) == []
    assert of.held({"layer0"}, {"layer0": 1, "mean0": 0, "norm0": 8}.get, no_bits) != []
    assert of.held({"layer0"}, {"layer0": 1, "mean0": 0, "norm0": 10}.get, no_bits) == []


def test_what_is_read_behind_a_change_is_held():
    before = {}
    for k in "01":
        before |= {f"layer{k}": (), f"gradient{k}": (f"layer{k}", "change")}
    before = {"change": (), **before}
    of = found(before, {each: int(each[-1]) for each in before if each[-1] in "01"})
    bits = {"gradient0": 1, "gradient1": 1}
    pairs = of.held({"layer0"}, lambda each: 1, lambda each: bits.get(each, 0))
    assert pairs == [("layer0", "gradient0")]


def model(features, labels, mode):
    w = tf1.get_variable("w", [2, 3], tf.float64, tf1.ones_initializer())
    hidden = tf.tanh(tf.matmul(features, w))
    loss = tf.reduce_sum(hidden) / tf.reduce_sum(tf.cast(features > 3, tf.float64))
    optimizer = tf1.train.GradientDescentOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return exactness.spec_of(mode, loss, {"hidden": hidden}, train_op=train_op)


def build(model_fn=model, mode="train", **options):
    tf1.train.create_global_step()
    x = tf1.placeholder(tf.float64, [None, 2])
    return replicate.replicate_model_fn(model_fn, **options)(x, None, mode), x


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_a_part_begins_when_the_part_before_has_ended(fresh_graph, mode):
    spec, _ = build(mode=mode, devices=["/cpu:0"], micro_batches=2)
    wanted = {"train": spec.train_op, "eval": spec.loss, "infer": spec.predictions}[mode]
    last = {"train": "gradients/Tanh_grad/TanhGrad", "eval": "Sum", "infer": "Tanh"}[mode]
    executed = operations.executed_by(tf.nest.flatten(wanted))
    named = {op.name: op for op in executed}
    first, second = named[f"tower_0/{last}"], named["tower_1/MatMul"]
    assert first in operations.executed_by([second])
    assert second not in operations.executed_by([first])


def test_what_no_step_runs_makes_no_part_wait(fresh_graph, caplog):
    def summarized(features, labels, mode):
        spec = model(features, labels, mode)
        hidden = fresh_graph.get_tensor_by_name("Tanh:0")
        spread = tf.reduce_mean(tf.square(hidden - tf.reduce_mean(hidden, 0)))
        tf1.summary.scalar("spread", spread)
        largest = tf.reduce_max(hidden, 0)
        return spec._replace(predictions={"hidden": hidden / largest})

    caplog.set_level(logging.INFO)
    spec, x = build(summarized, devices=["/cpu:0"], micro_batches=2)
    named = {op.name: op for op in operations.executed_by([spec.train_op])}
    first, second = named["tower_0/gradients/Tanh_grad/TanhGrad"], named["tower_1/MatMul"]
    assert first in operations.executed_by([second])
    assert not [each for each in caplog.messages if "memory" in each]
    (summary,) = tf1.get_collection("summaries")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        read = tf1.Summary.FromString(session.run(summary, {x: X}))
        hidden = session.run(spec.predictions["hidden"], {x: X})
    given = np.tanh(X @ np.ones([2, 3]))
    np.testing.assert_allclose(hidden, given / given.max(0))
    np.testing.assert_allclose(read.value[0].simple_value, given.var(), rtol=1e-6)


def test_gradients_of_parts_are_added_in_turn(fresh_graph):
    spec, _ = build(devices=["/cpu:0"], micro_batches=3)
    executed = operations.executed_by([spec.train_op])
    sums = [op for op in executed if op.type == "AddV2" and op.outputs[0].shape == [2, 3]]
    assert len(sums) == 2  # of three parts
    later = next(op for op in sums if any(tensor.op in sums for tensor in op.inputs))
    (earlier,) = set(sums) - {later}
    third = next(op for op in executed if op.name == "tower_2/MatMul")
    assert earlier in operations.executed_by([third])


def test_one_part_adds_nothing(fresh_graph):
    build(devices=["/cpu:0"], micro_batches=1)
    names = [op.name for op in fresh_graph.get_operations()]
    with tf.Graph().as_default() as plain:
        tf1.train.create_global_step()
        model(tf1.placeholder(tf.float64, [None, 2]), None, "train")
    assert [op.name for op in plain.get_operations()] == names


def test_what_makes_all_parts_wait_is_told(fresh_graph, caplog):
    def normalized(features, labels, mode):
        w = tf1.get_variable("w", [2, 3], tf.float64, tf1.ones_initializer())
        hidden = tf.matmul(features, w)
        loss = tf.reduce_sum(tf.square(hidden - tf.reduce_mean(hidden, 0, name="center")))
        return exactness.spec_of(mode, loss)

    caplog.set_level(logging.INFO)
    build(normalized, "eval", devices=["/cpu:0"], micro_batches=2)
    (line,) = [each for each in caplog.messages if "memory" in each]
    assert "Mean center" in line


def updated(of_layer):
    """Returns a model whose gradients come after an update, of its layer's mean or of none."""

    def updated(features, labels, mode):
        w = tf1.get_variable("w", [2, 3], tf.float64, tf1.ones_initializer())
        mean = tf1.get_variable("mean", [], tf.float64, trainable=False)
        hidden = tf.tanh(tf.matmul(features, w))
        with tf.control_dependencies([mean.assign_add(tf.reduce_mean(hidden) if of_layer else 1)]):
            loss = tf.reduce_sum(tf.tanh(tf.matmul(hidden, w, transpose_b=True), name="out"))
            optimizer = tf1.train.GradientDescentOptimizer(0.01)
            train_op = optimizer.minimize(loss, tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=train_op)

    return updated


@pytest.mark.parametrize("of_layer", [True, False])
def test_gradients_that_wait_for_an_update_are_told_with_what_does_not(
    fresh_graph, caplog, of_layer
):
    caplog.set_level(logging.INFO)
    build(updated(of_layer), devices=["/cpu:0"], micro_batches=2)
    (line,) = [each for each in caplog.messages if "memory" in each]
    assert line.startswith("micro_batches: what follows AssignAddVariableOp ")
    assert "tf.group(train_op, *updates)" in line


def test_what_need_not_wait_is_not_told(fresh_graph, caplog):
    caplog.set_level(logging.INFO)
    build(devices=["/cpu:0"], micro_batches=2)
    assert not [each for each in caplog.messages if "memory" in each]


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_parts_are_counted(number):
    with pytest.raises(ValueError, match="micro_batches must be a positive number"):
        replicate.replicate_model_fn(model, micro_batches=number)


def test_towers_have_no_parts():
    with pytest.raises(ValueError, match=r"micro_batches=2 with it\. .* accumulate_steps"):
        replicate.replicate_model_fn(model, tower_building="call", micro_batches=2)
