"""Evaluation specs: metrics over every row, predictions in order, as on one device."""

import functools

import numpy as np
import pytest

from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.specs import evaluate
from replicate.strategy import default
from tests import exactness

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
SIZES = [7, 2, 1, 5]  # fewer rows than towers, and a last batch that is not full


def batches(seed=0):
    numbers = np.random.RandomState(seed)
    return [
        (
            {
                "scores": numbers.uniform(0, 1, [rows, 4]).astype(np.float32),
                "weight": numbers.choice([0.0, 0.5, 2.0], [rows, 1]).astype(np.float32),
            },
            numbers.randint(0, 4, [rows, 1]).astype(np.int64),
        )
        for rows in SIZES
    ]


def binary(labels):
    return labels > 1


M = tf1.metrics
# y: [B, 1] classes of 4, s: [B, 4] scores, w: [B, 1] weights.
METRICS = {
    "accuracy": lambda y, s, w: M.accuracy(y[:, 0], tf.argmax(s, 1), w[:, 0]),
    "auc": lambda y, s, w: M.auc(binary(y), s[:, :1], w, num_thresholds=9),
    "auc_pr": lambda y, s, w: M.auc(
        binary(y), s[:, :1], num_thresholds=9, curve="PR", summation_method="careful_interpolation"
    ),
    "average_precision_at_k": lambda y, s, w: M.average_precision_at_k(y, s, 2),
    "false_negatives": lambda y, s, w: M.false_negatives(binary(y), s[:, :1] > 0.5, w),
    "false_negatives_at": lambda y, s, w: M.false_negatives_at_thresholds(
        binary(y), s[:, :1], [0.3, 0.6], w
    ),
    "false_positives": lambda y, s, w: M.false_positives(binary(y), s[:, :1] > 0.5),
    "false_positives_at": lambda y, s, w: M.false_positives_at_thresholds(
        binary(y), s[:, :1], [0.3, 0.6]
    ),
    "mean": lambda y, s, w: M.mean(s, w),
    "mean_absolute_error": lambda y, s, w: M.mean_absolute_error(s[:, :1], s[:, 1:2], w),
    "mean_cosine_distance": lambda y, s, w: M.mean_cosine_distance(
        tf.math.l2_normalize(s, 1), tf.math.l2_normalize(s[:, ::-1], 1), 1, w
    ),
    "mean_iou": lambda y, s, w: M.mean_iou(y[:, 0], tf.argmax(s, 1), 4),
    "mean_per_class_accuracy": lambda y, s, w: M.mean_per_class_accuracy(
        y[:, 0], tf.argmax(s, 1), 4
    ),
    "mean_relative_error": lambda y, s, w: M.mean_relative_error(
        s[:, :1], s[:, 1:2], s[:, 2:3] + 0.1, w
    ),
    "mean_squared_error": lambda y, s, w: M.mean_squared_error(s[:, :1], s[:, 1:2]),
    "mean_tensor": lambda y, s, w: M.mean_tensor(tf.reduce_sum(s, 0)),
    "percentage_below": lambda y, s, w: M.percentage_below(s, 0.4),
    "precision": lambda y, s, w: M.precision(binary(y), s[:, :1] > 0.5, w),
    "precision_at_k": lambda y, s, w: M.precision_at_k(y, s, 2),
    "precision_at_thresholds": lambda y, s, w: M.precision_at_thresholds(
        binary(y), s[:, :1], [0.3, 0.6]
    ),
    "precision_at_top_k": lambda y, s, w: M.precision_at_top_k(
        y, tf.math.top_k(s, 2).indices, class_id=1
    ),
    "recall": lambda y, s, w: M.recall(binary(y), s[:, :1] > 0.5),
    "recall_at_k": lambda y, s, w: M.recall_at_k(y, s, 2),
    "recall_at_thresholds": lambda y, s, w: M.recall_at_thresholds(
        binary(y), s[:, :1], [0.3, 0.6], w
    ),
    "recall_at_top_k": lambda y, s, w: M.recall_at_top_k(y, tf.math.top_k(s, 2).indices),
    "root_mean_squared_error": lambda y, s, w: M.root_mean_squared_error(s[:, :1], s[:, 1:2], w),
    "sensitivity_at_specificity": lambda y, s, w: M.sensitivity_at_specificity(
        binary(y), s[:, :1], 0.5, w, num_thresholds=9
    ),
    "sparse_average_precision_at_k": lambda y, s, w: M.sparse_average_precision_at_k(y, s, 3),
    "sparse_precision_at_k": lambda y, s, w: M.sparse_precision_at_k(y, s, 3),
    "specificity_at_sensitivity": lambda y, s, w: M.specificity_at_sensitivity(
        binary(y), s[:, :1], 0.5, num_thresholds=9
    ),
    "true_negatives": lambda y, s, w: M.true_negatives(binary(y), s[:, :1] > 0.5),
    "true_negatives_at": lambda y, s, w: M.true_negatives_at_thresholds(
        binary(y), s[:, :1], [0.3, 0.6], w
    ),
    "true_positives": lambda y, s, w: M.true_positives(binary(y), s[:, :1] > 0.5, w),
    "true_positives_at": lambda y, s, w: M.true_positives_at_thresholds(
        binary(y), s[:, :1], [0.3, 0.6]
    ),
}


def evaluating(metrics):
    """A model_fn that only evaluates."""

    def model(features, labels, mode):
        s, w = features["scores"], features["weight"]
        found = {name: metric(labels, s, w) for name, metric in metrics.items()}
        return exactness.spec_of(mode, tf.reduce_mean(s), {"s": s}, eval_metric_ops=found)

    return model


def test_every_metric_of_tensorflow_is_listed():
    public = {name for name in dir(M) if callable(getattr(M, name)) and name[0] != "_"}
    listed = {
        name.replace("_at", "_at_thresholds") if name.endswith("_at") else name for name in METRICS
    }
    assert public <= listed


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("group", range(6))
def test_metrics_are_one_devices(group, strategy):
    names = sorted(METRICS)[group::6]
    exactness.require_one_device(
        evaluating({name: METRICS[name] for name in names}),
        batches(),
        "eval",
        devices=3,
        strategy=strategy,
    )


def test_a_metric_as_long_as_a_towers_rows_is_refused():
    def model(features, labels, mode):
        found = {"rows": tf1.metrics.mean_tensor(features)}
        return exactness.spec_of(mode, tf.reduce_mean(features), eval_metric_ops=found)

    # One device keeps the six rows apart; a tower's variables have the shape of its two rows.
    x = np.arange(6, dtype=np.float32).reshape(6, 1)
    towers = model_fn.replicate_model_fn(model, None, 3)
    with pytest.raises((errors.TowerMismatchError, ValueError), match="mean/total_tensor"):
        exactness.run(towers, [(x, None)], "eval", is_static=True)


def keras_metrics(features, labels, mode):
    s, w = features["scores"], features["weight"]
    metrics = {
        "accuracy": (tf.keras.metrics.SparseCategoricalAccuracy(), (labels[:, 0], s, w[:, 0])),
        "auc": (tf.keras.metrics.AUC(num_thresholds=9), (binary(labels), s[:, :1], w)),
        "mean": (tf.keras.metrics.Mean(), (s, w)),
        "sum": (tf.keras.metrics.Sum(), (s,)),
        "mse": (tf.keras.metrics.MeanSquaredError(), (s[:, :1], s[:, 1:2])),
        "precision": (tf.keras.metrics.Precision(), (binary(labels), s[:, :1])),
        "iou": (tf.keras.metrics.MeanIoU(4), (labels[:, 0], tf.argmax(s, 1))),
        "top": (tf.keras.metrics.SparseTopKCategoricalAccuracy(2), (labels[:, 0], s)),
    }
    for metric, arguments in metrics.values():
        metric.update_state(*arguments)
    found = {name: metric for name, (metric, _) in metrics.items()}
    return exactness.spec_of(mode, tf.reduce_mean(s), {"s": s}, eval_metric_ops=found)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_keras_metrics_are_one_devices(strategy):
    exactness.require_one_device(keras_metrics, batches(), "eval", devices=3, strategy=strategy)


def test_predictions_of_an_evaluation_are_complete_and_in_order():
    for is_static in (True, False):
        exactness.require_one_device(
            evaluating({}), batches()[:1], "eval", is_static=is_static, devices=4
        )


def test_a_fetch_of_all_updates_counts_each_row_once():
    model = evaluating({name: METRICS[name] for name in ("mean", "true_positives", "accuracy")})
    towers = model_fn.replicate_model_fn(model, None, 3)
    with tf.Graph().as_default() as graph:
        holders = exactness.placeholders(batches()[0], False)
        spec = towers(*holders, "eval")
        values = {name: value for name, (value, _) in spec.eval_metric_ops.items()}
        updates = [update for _, update in spec.eval_metric_ops.values()]
        initializer = exactness.initializer_of_all()
        with tf1.Session(graph=graph, config=exactness.session_config()) as session:
            session.run(initializer)
            session.run([updates, updates[0]], exactness.feeds(holders, batches()[0]))
            once = session.run(values)
            assert session.run(values) == once
    expected = exactness.run(model, batches()[:1], "eval").metrics
    exactness.compare(once, expected)


def maximum(features, labels, mode):
    """A running maximum, which is neither a sum nor a mean."""
    largest = tf1.get_variable(
        "largest",
        [],
        initializer=tf1.constant_initializer(-9.0),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES],
    )
    evaluate.metric_reduction(largest, lambda copies: tf.reduce_max(tf.stack(copies), 0))
    seen = tf.reduce_max(features["scores"])
    update = largest.assign(tf.maximum(largest, seen))
    found = {"largest": (largest.read_value(), update)}
    return exactness.spec_of(mode, seen, eval_metric_ops=found)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_metric_may_name_its_reduction(strategy):
    exactness.require_one_device(
        maximum, batches(), "eval", fetch=lambda spec: {}, devices=3, strategy=strategy
    )


def test_a_reduction_that_cannot_be_called_is_refused():
    with pytest.raises(ValueError, match="metric_reduction needs a function"):
        evaluate.metric_reduction(None, "max")


def aggregated(reduce, aggregation):
    """A metric that is assigned what `reduce` makes of a batch."""

    def model(features, labels, mode):
        kept = tf1.get_variable(
            "kept",
            [],
            initializer=tf1.zeros_initializer(),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )
        update = kept.assign(reduce(features["scores"]))
        found = {"kept": (kept.read_value(), update)}
        return exactness.spec_of(mode, tf.reduce_mean(features["scores"]), eval_metric_ops=found)

    return model


def number_of_rows(x):
    return tf.cast(tf.shape(x)[0], tf.float32)


@pytest.mark.parametrize("reduce", [number_of_rows, tf.reduce_sum, tf.reduce_mean])
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("sizes", [[7], [5, 7], [7, 1]])
def test_a_metric_is_assigned_what_one_device_assigns(reduce, aggregation, sizes):
    model = aggregated(reduce, tf.VariableAggregation[aggregation])
    given = [
        ({key: value[:rows] for key, value in batches()[0][0].items()}, batches()[0][1][:rows])
        for rows in sizes
    ]
    exactness.require_one_device(model, given, "eval", devices=3)


@pytest.mark.parametrize(
    ("aggregation", "join"),
    [
        (tf.VariableAggregation.MEAN, np.mean),
        (tf.VariableAggregation.ONLY_FIRST_REPLICA, lambda parts: parts[0]),
    ],
)
def test_a_metric_that_hides_its_rows_is_joined_by_its_aggregation(aggregation, join):
    towers = model_fn.replicate_model_fn(aggregated(tf.reduce_max, aggregation), None, 3)
    found = exactness.run(towers, batches()[:1], "eval").metrics
    # The three towers have the rows 0 - 2, 3 - 4 and 5 - 6, and keep the largest of each.
    scores = batches()[0][0]["scores"]
    largest = [part.max() for part in (scores[:3], scores[3:5], scores[5:])]
    assert found["kept"] == pytest.approx(join(largest))


@pytest.mark.parametrize("is_static", [True, False])
def test_a_metric_that_hides_its_rows_must_name_its_reduction(is_static):
    def model(reduce, write, features, labels, mode):
        kept = tf1.get_local_variable("kept", initializer=0.0, collections=["local_variables"])
        update = kept.assign(write(kept.value(), reduce(features)))
        return exactness.spec_of(
            mode, tf.reduce_mean(features), eval_metric_ops={"m": (kept.value(), update)}
        )

    batch = (np.arange(14, dtype=np.float32).reshape(7, 2) - 3.0, np.ones([7], np.float32))
    towers = functools.partial(model, tf.reduce_max, tf.maximum)
    towers = model_fn.replicate_model_fn(towers, None, 3)
    with pytest.raises(ValueError, match=r"kept:0 is assigned, .*metric_reduction"):
        exactness.run(towers, [batch], "eval", is_static)
    for write in (tf.add, tf.maximum):  # of what is seen, either is one device's
        exact = functools.partial(model, tf.reduce_sum, write)
        exactness.require_one_device(exact, [batch] * 2, "eval", is_static=is_static, devices=3)


def test_metrics_that_differ_between_towers_are_refused_by_name():
    def model(features, labels, mode):
        name = "late" if default.get_tower_context().tower_id == 2 else "early"
        return evaluating({"mean": METRICS["mean"], name: METRICS["recall"]})(
            features, labels, mode
        )

    towers = model_fn.replicate_model_fn(model, None, 3)
    with pytest.raises(errors.TowerMismatchError, match=r"tower 2 .*'late'.*differ in 'early'"):
        exactness.run(towers, batches(), "eval")


@pytest.mark.parametrize(
    ("odd_tower", "text"),
    [(0, "tower 1 created total .*tower 0 created count"), (1, "in call 1 tower 1 passed")],
)
def test_metrics_with_more_variables_in_one_tower_are_refused(odd_tower, text):
    def model(features, labels, mode):
        found = {"mean": METRICS["mean"]}
        if default.get_tower_context().tower_id == odd_tower:
            found = {"mean": METRICS["true_positives"]}
        return evaluating(found)(features, labels, mode)

    towers = model_fn.replicate_model_fn(model, None, 2)
    with pytest.raises(errors.TowerMismatchError, match=text):
        exactness.run(towers, batches(), "eval")


def test_an_evaluation_without_metrics_has_none():
    found = exactness.require_one_device(evaluating({}), batches(), "eval", devices=3)
    assert found.metrics == {}
