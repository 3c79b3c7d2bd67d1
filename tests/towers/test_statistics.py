"""Whose `UPDATE_OPS` run."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.towers import models

STRATEGIES = models.STRATEGIES


def normalised(features, labels, mode):
    """A moving mean of the input with momentum 0.5, as batch normalization keeps it."""
    hidden = tf1.layers.batch_normalization(
        features, training=mode == "train", momentum=0.5, fused=False
    )
    output = tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)
    return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)))


def waiting(features, labels, mode):
    """The same, whose step waits for the updates."""
    spec = normalised(features, labels, mode)
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        step = models.descend().minimize(spec.loss, tf1.train.get_global_step())
    return spec._replace(train_op=step)


def moving_mean(batches, num_towers, update_ops, model=normalised, **options):
    optimizer_fn = models.descend if model is normalised else None
    towers = models.called(model, optimizer_fn, num_towers, update_ops=update_ops, **options)
    return exactness.run(towers, batches, "train").variables[-1][
        "batch_normalization/moving_mean:0"
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", [normalised, waiting])
@pytest.mark.parametrize("update_ops", ["first", None])
def test_the_first_towers_statistics_are_the_models(strategy, model, update_ops):
    # Tower 0 of 2 has the first 3 of 5 rows. The mean began with 0: 0.5 * 0 + 0.5 * mean.
    given = models.batch(5)
    found = moving_mean([given], 2, update_ops, model, strategy=strategy)
    np.testing.assert_allclose(found, given[0][:3].mean(0) / 2, 1e-6)


@pytest.mark.thorough("5-mirrored", "1-round_robin")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", [1, 5])
def test_statistics_are_averaged_over_rows(strategy, rows):
    # 3/5 of the first 3 rows' mean and 2/5 of the last 2 rows' is the mean of all.
    given = models.batch(rows)
    found = moving_mean([given], 2, "mean", strategy=strategy)
    np.testing.assert_allclose(found, given[0].mean(0) / 2, 1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_tower_has_statistics_of_its_own(strategy):
    # The checkpoint's value is the plain mean of the towers' copies (aggregation MEAN).
    batches = [models.batch(5, seed) for seed in (1, 2)]
    found = moving_mean(batches, 2, "all", strategy=strategy)
    copies = [0.0, 0.0]
    for given in batches:
        parts = models.shards(given, 2)
        copies = [c / 2 + x.mean(0) / 2 for c, (x, _) in zip(copies, parts, strict=True)]
    np.testing.assert_allclose(found, np.mean(copies, 0), 1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("update_ops", ["first", "mean", "all"])
def test_a_tower_without_rows_dilutes_no_statistics(strategy, update_ops):
    # Tower 1 has no rows at first. Both then had 0.5 * r, of the one row r of the first batch.
    batches = [models.batch(1), models.batch(5, 1)]
    found = moving_mean(batches, 2, update_ops, strategy=strategy)
    first, x = batches[0][0][0] / 2, batches[1][0]
    parts = {"first": [x[:3]], "all": [x[:3], x[3:]], "mean": [x]}[update_ops]
    expected = np.mean([first / 2 + part.mean(0) / 2 for part in parts], 0)
    np.testing.assert_allclose(found, expected, 1e-6)


def shown(features, labels, mode):
    """A moving average of the loss, as a summary may show it."""
    spec = exactness.spec_of(mode, tf.reduce_mean(tf.square(features[:, :1] - labels)))
    average = tf1.train.ExponentialMovingAverage(0.5)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, average.apply([spec.loss]))
    w = tf1.get_variable("w", [], tf.float64, tf1.ones_initializer())
    return spec._replace(loss=spec.loss * w)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("rows", "num_towers"), [(7, 2), (2, 3)])
def test_a_moving_average_of_the_loss_is_that_of_all_rows(strategy, rows, num_towers):
    given = [models.batch(rows), models.batch(rows, 1)]
    towers = models.called(shown, devices=num_towers, strategy=strategy)
    found = exactness.run(towers, given, "train").variables[-1]
    stepping = exactness.stepping(shown, models.descend)
    expected = exactness.run(stepping, given, "train").variables[-1]
    exactness.compare(found, expected)


def synchronised(features, labels, mode):
    """Batch normalisation of all rows, by sums over towers."""
    normalise = tf.keras.layers.BatchNormalization(synchronized=True, dtype=tf.float64)
    hidden = normalise(features * tf.constant([1.0, 2.0, 3.0], tf.float64), training=True)
    w = tf1.get_variable("w", [models.WIDTH, 1], tf.float64, models.start)
    return exactness.spec_of(mode, tf.reduce_mean(tf.square(tf.tanh(hidden) @ w - labels)))


@pytest.mark.thorough("2-3-mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("rows", "num_towers"), [(7, 2), (7, 3), (2, 3)])
def test_gradients_go_through_sums_over_towers(strategy, rows, num_towers):
    given = [models.batch(rows)]
    towers = models.called(synchronised, devices=num_towers, strategy=strategy)
    found = exactness.run(towers, given, "train").variables[0]
    stepping = exactness.stepping(synchronised, models.descend)
    expected = exactness.run(stepping, given, "train").variables[0]
    trained = [name for name in expected if "moving" not in name]
    exactness.compare({n: found[n] for n in trained}, {n: expected[n] for n in trained})
