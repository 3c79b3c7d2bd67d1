"""Losses and gradients of towers, joined as `loss_reduction` says."""

import functools

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.training import tower_optimizer
from tests import exactness
from tests.towers import models

STRATEGIES = models.STRATEGIES


def by_hand(given, num_towers, reduction, scale):
    """Returns the loss and the weights after a step, of what each tower's rows give."""
    w = (np.arange(1.0, 1 + models.WIDTH) / 7)[:, None]
    loss, gradient = 0.0, np.zeros_like(w)
    for x, y in models.shards(given, num_towers):
        if not len(x):
            continue
        part = 1.0 if reduction == "sum" else len(x) / len(given[0])
        error = x @ w - y
        loss += part * (np.mean(error**2) + scale * np.sum(w**2) / 2)
        gradient += part * (2 * x.T @ error / len(x) + scale * w)
    return loss, w - 0.5 * gradient


@pytest.mark.thorough("False-7-3-*-mirrored", "True-2-4-*-round_robin")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("reduction", ["sum", "mean", None])
@pytest.mark.parametrize(("rows", "num_towers"), [(7, 3), (2, 4), (1, 2)])
@pytest.mark.parametrize("is_static", [True, False])
def test_a_step_is_that_of_joined_gradients(strategy, reduction, rows, num_towers, is_static):
    given, scale = models.batch(rows), 0.1
    model = functools.partial(models.linear, scale=scale)
    towers = models.called(model, devices=num_towers, strategy=strategy, loss_reduction=reduction)
    found = exactness.run(towers, [given], "train", is_static)
    loss, weights = by_hand(given, num_towers, reduction, scale)
    np.testing.assert_allclose(found.fetched[0]["loss"], loss, 1e-12)
    np.testing.assert_allclose(found.variables[0]["w:0"], weights, 1e-12)


def keras_step(features, labels, mode):
    """A tf_keras optimizer of the model's own."""
    spec = models.linear(features, labels, mode)
    optimizer = tf.keras.optimizers.legacy.SGD(0.5)
    optimizer.iterations = tf1.train.get_or_create_global_step()
    (step,) = optimizer.get_updates(spec.loss, tf1.trainable_variables())
    return spec._replace(train_op=step)


OWN = {
    "optimizer": exactness.stepping(models.linear, models.descend),
    "tower optimizer": exactness.stepping(
        models.linear, lambda: tower_optimizer.TowerOptimizer(models.descend)
    ),
    "keras": keras_step,
}


@pytest.mark.thorough("*-mean-mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", OWN)
def test_an_optimizer_of_the_models_own_takes_the_same_step(strategy, reduction, name):
    given = models.batch(7)
    towers = models.called(OWN[name], None, strategy=strategy, loss_reduction=reduction)
    found = exactness.run(towers, [given], "train").variables[0]
    expected = by_hand(given, 3, reduction, 0.0)[1]
    np.testing.assert_allclose(found["w:0"], expected, 1e-12)
    assert found["global_step:0"] == 1


def two_losses(features, labels, mode):
    """A generator's and a discriminator's step, by optimizers of their own."""
    spec = models.linear(features, labels, mode)
    v = tf1.get_variable("v", [models.WIDTH, 1], tf.float64, models.start)
    other = tf.reduce_sum(features @ v)
    step = tf1.train.get_global_step()
    first = models.descend().minimize(spec.loss, step, [tf1.trainable_variables()[0]])
    second = tf1.train.MomentumOptimizer(0.5, 0.9).minimize(other, var_list=[v])
    return spec._replace(train_op=tf.group(first, second))


def test_several_optimizers_meet_one_after_the_other():
    given = models.batch(7)
    found = exactness.run(models.called(two_losses, None), [given], "train").variables[0]
    np.testing.assert_allclose(found["w:0"], by_hand(given, 3, "mean", 0.0)[1], 1e-12)
    # The sum of each tower's rows, times its part of them.
    gradient = sum(len(x) / 7 * x.sum(0) for x, _ in models.shards(given, 3))
    expected = np.arange(1.0, 1 + models.WIDTH) / 7 - 0.5 * gradient
    np.testing.assert_allclose(found["v:0"][:, 0], expected, 1e-12)


def looked_up(features, labels, mode):
    table = tf1.get_variable("table", [5, 2], tf.float64, models.start)
    ids = tf.cast(tf.abs(features[:, 0]) * 5, tf.int32)
    rows = tf.nn.embedding_lookup(table, ids)
    return exactness.spec_of(mode, tf.reduce_sum(rows * labels))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sparse_gradients_stay_sparse_and_are_joined(strategy):
    x, y = models.batch(7)
    towers = models.called(looked_up, strategy=strategy, loss_reduction="sum")
    found = exactness.run(towers, [(x, y)], "train").variables[0]["table:0"]
    expected = np.arange(1.0, 11).reshape(5, 2) / 7
    np.subtract.at(expected, (np.abs(x[:, 0]) * 5).astype(int), 0.5 * y)
    np.testing.assert_allclose(found, expected, 1e-12)


def test_an_optimizer_beside_optimizer_fn_leaves_nothing():
    own = exactness.stepping(models.linear, lambda: tf1.train.AdamOptimizer(0.1))
    found = exactness.run(models.called(own), [models.batch(7)], "train").variables[0]
    assert sorted(found) == ["global_step:0", "w:0"]
    np.testing.assert_allclose(found["w:0"], by_hand(models.batch(7), 3, "mean", 0.0)[1], 1e-12)


@pytest.mark.parametrize("how", ["SUM", "MEAN"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_what_towers_reduce_has_the_gradients_of_all_of_them(reduction, how):
    given = models.batch(7)

    def scaled(features, labels, mode):
        """The mean of the labels, times w times the mean of the features as all towers know it."""
        w = tf1.get_variable("w", [], tf.float64, tf1.ones_initializer())
        replica = tf.distribute.get_replica_context()
        reduced = replica.all_reduce(how, w * tf.reduce_mean(features))
        return exactness.spec_of(mode, tf.reduce_mean(labels) * reduced)

    towers = models.called(scaled, loss_reduction=reduction)
    found = exactness.run(towers, [given], "train")
    means = [(len(x) / 7, x.mean(), y.mean()) for x, y in models.shards(given, 3)]
    rows, x, y = np.transpose(means)
    weights = {"sum": np.ones(3), "mean": rows}
    # The loss is linear in w, which is 1: it is its own gradient.
    loss = np.dot(weights[reduction], y) * np.dot(weights[how.lower()], x)
    np.testing.assert_allclose(found.fetched[0]["loss"], loss, 1e-12)
    np.testing.assert_allclose(found.variables[0]["w:0"], 1.0 - 0.5 * loss, 1e-12)
