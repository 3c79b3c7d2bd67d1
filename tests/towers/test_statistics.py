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
