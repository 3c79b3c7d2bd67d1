"""K towers' metrics become one, over every row."""

import functools

import numpy as np
import pytest

from replicate import errors
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from replicate.towers import metrics
from tests import exactness
from tests.towers import models

METRICS = {
    "mean": lambda x, y: tf1.metrics.mean(x),
    "accuracy": lambda x, y: tf1.metrics.accuracy(y > 0, x[:, :1] > 0),
    "auc": lambda x, y: tf1.metrics.auc(y > 0, tf.nn.sigmoid(x[:, :1])),
    "recall": lambda x, y: tf1.metrics.recall(y > 0, x[:, :1] > 0),
    "rmse": lambda x, y: tf1.metrics.root_mean_squared_error(y, x[:, :1]),
    "iou": lambda x, y: tf1.metrics.mean_iou(y > 0, x[:, :1] > 0, 2),
    "per class": lambda x, y: tf1.metrics.mean_per_class_accuracy(y > 0, x[:, :1] > 0, 2),
    "top": lambda x, y: tf1.metrics.recall_at_k(tf.zeros_like(y, tf.int64), x, 2),
}


def keras_mean(x, y):
    """A metric that is an object."""
    del y
    metric = tf.keras.metrics.Mean(name="keras_mean")
    metric.update_state(x)
    return metric


METRICS["keras"] = keras_mean


def evaluated(chosen):
    def model(features, labels, mode):
        found = {name: METRICS[name](features, labels) for name in chosen}
        return exactness.spec_of(mode, tf.reduce_mean(features), eval_metric_ops=found)

    return model


@pytest.mark.thorough("sizes1-mirrored")
@pytest.mark.parametrize("strategy", models.STRATEGIES)
@pytest.mark.parametrize("sizes", [(7, 7, 2), (1, 3, 1)])
def test_metrics_are_of_every_row(strategy, sizes):
    batches = [models.batch(rows, rows) for rows in sizes]
    model = evaluated(METRICS)
    towers = models.called(model, None, 3, strategy=strategy)
    found = exactness.run(towers, batches, "eval").metrics
    exactness.compare(found, exactness.run(model, batches, "eval").metrics)


def kept(write, reduce=None, **options):
    """A model with a metric whose variable is written by a function of it and of the rows."""

    def model(features, labels, mode):
        del labels
        variable = tf1.get_variable(
            "kept",
            [],
            tf.float64,
            tf1.zeros_initializer(),
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES],
            **options,
        )
        if reduce is not None:
            metrics.metric_reduction(variable, reduce)
        update = variable.assign(write(variable.value(), features))
        found = {"kept": (variable.read_value(), update)}
        return exactness.spec_of(mode, tf.reduce_mean(features), eval_metric_ops=found)

    return model


def largest_so_far(value, rows):
    return tf.maximum(value, tf.reduce_max(rows))


def test_a_variable_may_name_how_its_copies_are_reduced():
    model = kept(largest_so_far, lambda copies: tf.reduce_max(tf.stack(copies), 0))
    batches = [models.batch(rows, rows) for rows in (7, 2)]
    found = exactness.run(models.called(model, None, 3), batches, "eval").metrics
    assert found["kept"] == max(x.max() for x, _ in batches)


def test_a_variable_that_is_assigned_must_name_how_its_copies_are_reduced():
    with pytest.raises(ValueError, match=r"kept:0 is assigned, .*metric_reduction"):
        exactness.run(models.called(kept(largest_so_far), None, 3), [models.batch(7)], "eval")


def test_a_reduction_that_cannot_be_called_is_refused():
    with pytest.raises(ValueError, match="metric_reduction needs a function"):
        metrics.metric_reduction(None, "max")


@pytest.mark.parametrize(
    ("aggregation", "join"),
    [("SUM", np.sum), ("MEAN", np.mean), ("ONLY_FIRST_REPLICA", lambda parts: parts[0])],
)
def test_copies_are_joined_by_their_aggregation(aggregation, join):
    model = kept(
        lambda value, rows: tf.reduce_max(rows),
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation[aggregation],
    )
    given = models.batch(7)
    found = exactness.run(models.called(model, None, 3), [given], "eval").metrics["kept"]
    assert found == pytest.approx(join([x.max() for x, _ in models.shards(given, 3)]))


def test_metrics_that_differ_between_towers_are_refused():
    def model(features, labels, mode):
        is_late = core.get_tower_context().tower_id == 2
        found = {"late" if is_late else "early": METRICS["mean"](features, labels)}
        return exactness.spec_of(mode, tf.reduce_mean(features), eval_metric_ops=found)

    with pytest.raises(errors.TowerMismatchError, match=r"tower 2 .*'late'.*differ in 'early'"):
        exactness.run(models.called(model, None, 3), [models.batch(7)], "eval")


def test_an_evaluation_without_metrics_has_none():
    model = functools.partial(models.linear)
    assert exactness.run(models.called(model), [models.batch(7)], "eval").metrics == {}
