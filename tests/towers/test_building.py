"""A model_fn that is called for each tower, and knows it."""

import numpy as np
import pytest

from replicate import errors
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.towers import models


def built(model, devices=3, mode="train", optimizer_fn=models.descend, **options):
    """Returns the graph and the spec of a model of towers."""
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        x, y = map(tf.constant, models.batch(7))
        towers = models.called(model, optimizer_fn, devices, **options)
        return graph, towers(x, y, mode)


@pytest.mark.parametrize("strategy", models.STRATEGIES)
def test_a_tower_knows_which_it_is(strategy):
    seen = []

    def model(features, labels, mode):
        tower = core.get_tower_context()
        replica = tf.distribute.get_replica_context()
        seen.append(
            (
                tower.tower_id,
                tower.num_towers,
                replica.replica_id_in_sync_group,
                replica.num_replicas_in_sync,
                features.shape[0],
            )
        )
        return models.linear(features, labels, mode)

    built(model, strategy=strategy)
    assert seen == [(0, 3, 0, 3, 3), (1, 3, 1, 3, 2), (2, 3, 2, 3, 2)]


def test_merge_calls_of_the_model_meet():
    def model(features, labels, mode):
        def across(strategy, sums):
            return strategy.reduce(tf.VariableAggregation.SUM, sums, strategy.worker_devices)

        total = core.get_tower_context().merge_call(across, tf.reduce_sum(features))
        spec = models.linear(features, labels, mode)
        return spec._replace(loss=spec.loss + tf.stop_gradient(total))

    given = models.batch(7)
    found = exactness.run(models.called(model), [given], "train").fetched[0]["loss"]
    plain = exactness.run(models.linear, [given], "train").fetched[0]["loss"]
    np.testing.assert_allclose(found, plain + given[0].sum(), 1e-12)


def test_names_and_devices_are_the_towers():
    graph, _ = built(models.linear)
    products = [
        op for op in graph.get_operations() if op.type == "MatMul" and "grad" not in op.name
    ]
    assert [op.name for op in products] == ["matmul", "tower_1/matmul", "tower_2/matmul"]
    assert [op.device for op in products] == [f"/device:CPU:{i}" for i in range(3)]
    assert {v.name for v in graph.get_collection("variables")} == {"w:0", "global_step:0"}


def of_tower(i, make):
    """A model that does something more in one tower."""

    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        if core.get_tower_context().tower_id == i:
            make(spec)
        return spec

    return model


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (of_tower(1, lambda spec: tf1.get_variable("v", [2])), "tower 1 created v"),
        (
            of_tower(2, lambda spec: core.get_tower_context().merge_call(lambda strategy: None)),
            "tower 2",
        ),
    ],
    ids=["a variable", "a merge call"],
)
def test_towers_that_differ_are_refused(model, text):
    with pytest.raises(errors.TowerMismatchError, match=text):
        built(model)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_variable_that_a_tower_leaves_out_is_refused(mode):
    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        if core.get_tower_context().tower_id == 0:
            tf1.get_variable("v", [2])
        return spec

    with pytest.raises(errors.TowerMismatchError, match="tower 1 did not create v"):
        built(model, mode=mode)


def writes(write, **options):
    """A model whose towers write a variable that all of them share."""

    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        count = tf1.get_variable("count", initializer=0.0, trainable=False, **options)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, write(count, features))
        return spec

    return model


def add_rows(count, features):
    return count.assign_add(tf.cast(tf.shape(features)[0], tf.float32))


def by_its_handle(count, features):
    added = tf.cast(tf.shape(features)[0], tf.float32)
    return tf.raw_ops.AssignAddVariableOp(resource=count.handle, value=added)


@pytest.mark.parametrize("strategy", models.STRATEGIES)
@pytest.mark.parametrize(
    ("write", "error", "text"),
    [
        (add_rows, ValueError, "needs an aggregation"),
        (by_its_handle, errors.TowerMismatchError, "tower 1 writes count:0 by itself"),
    ],
    ids=["assign_add", "handle"],
)
def test_a_shared_variable_without_an_aggregation_is_not_written(strategy, write, error, text):
    with pytest.raises(error, match=text):
        built(writes(write), strategy=strategy, update_ops="all")


@pytest.mark.parametrize("strategy", models.STRATEGIES)
def test_what_towers_assign_is_joined_by_the_variables_aggregation(strategy):
    model = writes(add_rows, aggregation=tf.VariableAggregation.SUM)
    towers = models.called(model, strategy=strategy)
    found = exactness.run(towers, [models.batch(7)], "train").variables[0]
    assert found["count:0"] == 7


def test_towers_draw_numbers_of_their_own():
    def model(features, labels, mode):
        del labels
        drawn = tf.random.uniform([tf.shape(features)[0]], dtype=tf.float64)
        return exactness.spec_of(mode, predictions={"drawn": drawn})

    found = exactness.run(models.called(model, None), [models.batch(7)], "infer")
    assert len(set(found.fetched[0]["predictions"]["drawn"])) == 7


def test_a_model_may_make_a_saver():
    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        return spec._replace(scaffold=tf1.train.Scaffold(saver=tf1.train.Saver()))

    _, spec = built(model)
    names = {variable.name for variable in spec.scaffold.saver._var_list}
    assert names == {"w:0", "global_step:0"}


def test_a_step_that_each_tower_counts_is_refused():
    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        step = tf1.train.get_global_step()
        with tf1.control_dependencies([step.assign_add(1)]):
            train_op = models.descend().minimize(spec.loss)
        return spec._replace(train_op=train_op)

    with pytest.raises(errors.TowerMismatchError, match="tower 1 writes global_step:0 by itself"):
        built(model, optimizer_fn=None)


def test_a_synchronous_optimizer_of_each_tower_is_refused():
    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        optimizer = tf1.train.SyncReplicasOptimizer(models.descend(), 1, 1)
        return spec._replace(train_op=optimizer.minimize(spec.loss, tf1.train.get_global_step()))

    with pytest.raises(errors.TowerMismatchError, match="TowerOptimizer"):
        built(model, optimizer_fn=None)


class Assigning(tf1.train.Optimizer):
    """Assigns by itself, as an optimizer with weight decay may do."""

    def __init__(self):
        super().__init__(False, "assigning")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return tf.group(*[v.assign(v - 0.5 * g, name=name) for g, v in grads_and_vars])


@pytest.mark.parametrize("strategy", models.STRATEGIES)
def test_an_optimizer_that_assigns_is_left_out_or_refused(strategy):
    model = exactness.stepping(models.linear, Assigning)
    given = [models.batch(7)]
    found = exactness.run(models.called(model, strategy=strategy), given, "train").variables
    expected = exactness.run(models.called(models.linear), given, "train").variables
    exactness.compare(found, expected)
    with pytest.raises(errors.TowerMismatchError, match="TowerOptimizer"):
        exactness.run(models.called(model, None, strategy=strategy), given, "train")
