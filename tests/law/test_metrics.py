"""What metrics and predictions are fed is the whole batch's, once per batch."""

import logging

import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running, table

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
CASES = dict(table.CASES)
M = tf1.metrics


def evaluating(metrics_of, loss=losses.quotient):
    """A model_fn that evaluates a loss and metrics."""

    def model(features, labels, mode):
        v = losses.Weights()
        found = metrics_of(features, labels, v)
        return exactness.spec_of(mode, loss(features, labels, v), eval_metric_ops=found)

    return model


def require_exact(model, is_static=False, **options):
    """Two batches of seven and of five rows, and one that K towers cannot share."""
    runs = [(7,), (9,)] if is_static else [(7, 5, 1)]
    options = {"tolerance": running.SINGLE, **options}
    for sizes in runs:
        given = running.batches(*sizes, is_static=is_static)
        running.require_exact(model, given, "eval", is_static=is_static, **options)


del CASES["tf.losses collected"]  # which is of every loss that the model has
STATICS = [name for name, case in CASES.items() if True in case.statics]
DYNAMICS = [name for name, case in CASES.items() if False in case.statics]


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("group", range(8))
def test_a_metric_of_any_loss_counts_once_per_batch(group, is_static, caplog):
    names = (STATICS if is_static else DYNAMICS)[group::8]

    def metrics_of(f, y, v):
        return {name: M.mean(CASES[name].loss(f, y, v)) for name in names}

    with caplog.at_level(logging.WARNING, "replicate"):
        require_exact(evaluating(metrics_of, CASES[names[0]].loss), is_static)
    assert not [record.getMessage() for record in caplog.records if "replicate" in record.name]


def keras(metric, *given):
    metric.update_state(*given)
    return metric


def scalars(f, y, v):
    """One number, or one vector, per batch."""
    loss = losses.quotient(f, y, v)
    gradients = tf.gradients(loss, list(v.variables.values()))
    means = tf.reduce_mean(losses.logits(f, v), 0)
    score = 1.0 - losses.dice(f, y, v)
    return {
        "loss": M.mean(loss),
        "loss by Keras": keras(tf.keras.metrics.Mean(), loss),
        "perplexity": M.mean(tf.exp(loss)),
        "score": M.mean(score),
        "loss by tokens": M.mean(loss, weights=tf.reduce_sum(f["picked"])),
        "loss by tokens by Keras": keras(tf.keras.metrics.Mean(), loss, tf.reduce_sum(f["mask"])),
        "norm of the gradient": M.mean(tf.linalg.global_norm(gradients)),
        "means": M.mean(means),
        "each mean": M.mean_tensor(means),
        "distance of means": M.root_mean_squared_error(tf.reduce_mean(y["y"], 0), means),
        "rows": M.mean(losses.count(f["x"])),
        "total": keras(tf.keras.metrics.Sum(), losses.total(f, y, v)),
        "is low": M.accuracy(tf.constant(True), loss < 1.2),
        "weights": M.mean(tf.nn.l2_loss(v.w)),
        "constant": M.mean(tf.constant(0.25)),
        "batches": keras(tf.keras.metrics.Sum(), tf.constant(1.0)),
    }


def of_rows(f, y, v):
    """Numbers of every row, some with weights."""
    p = tf.sigmoid(losses.logits(f, v))
    hits, weight = tf.cast(y["class"] > 0, tf.bool), f["real"]
    guess = tf.argmax(p, 1)
    return {
        "accuracy": M.accuracy(y["class"], guess, weight),
        "auc": M.auc(hits, p[:, 0], weight, num_thresholds=9),
        "auc by Keras": keras(tf.keras.metrics.AUC(num_thresholds=9), hits, p[:, 0]),
        "entries": M.mean(p),
        "tokens": M.mean(losses.of_tokens(f, y, v), f["is_token"]),
        "tokens by Keras": keras(tf.keras.metrics.Mean(), losses.of_tokens(f, y, v), f["is_token"]),
        "kept rows": M.mean(losses.kept(f, y, v)),
        "precision": M.precision(hits, p[:, 0] > 0.5, weight),
        "recall": M.recall(hits, p[:, 0] > 0.5),
        "overlap": M.mean_iou(y["class"], guess, 3),
        "distance": M.root_mean_squared_error(y["y"], p, weight[:, None]),
        "rate of positives": M.mean(tf.cast(hits, tf.float64)),
    }


def of_rows_and_of_batches(f, y, v):
    """Two metrics with one update, as heads of several tasks have them."""
    value, update = M.mean(losses.mean(f, y, v))
    other, later = M.mean(losses.cross(f, y, v), f["mask"])
    both = tf.group(update, later)
    return {"batches": (value, both), "rows": (other, both)}


@pytest.mark.parametrize("metrics_of", [scalars, of_rows, of_rows_and_of_batches])
@pytest.mark.parametrize(
    ("strategy", "is_static"), [("parameter_server", False), ("mirrored", True)]
)
def test_metrics_are_one_devices(metrics_of, strategy, is_static):
    require_exact(evaluating(metrics_of), is_static, strategy=strategy)


@pytest.mark.parametrize("is_static", [True, False])
def test_metrics_that_a_training_makes_change_nothing(is_static, caplog):
    def step(f, y, v):
        # Read in a tower, a metric is added up over towers: operations that one device has not.
        of_rows(f, y, v)
        loss = tf.add_n([losses.mean(f, y, v), tf.nn.l2_loss(v.w), tf.nn.l2_loss(v.b)])
        return loss, running.momentum().minimize(loss, tf1.train.get_global_step())

    with caplog.at_level(logging.WARNING, "replicate"):
        running.require_exact(running.training(step), is_static=is_static)
    assert not [record.getMessage() for record in caplog.records if "replicate" in record.name]


@pytest.mark.parametrize("metrics_of", [scalars, of_rows])
def test_a_batch_of_fewer_rows_than_towers_counts_as_one(metrics_of):
    options = {"devices": 4, "tolerance": running.SINGLE}
    running.require_exact(evaluating(metrics_of), running.batches(1, 2, 5), "eval", **options)


def outputs(features, v):
    hidden = losses.logits(features, v)
    return {
        "rows": hidden,
        "columns": hidden[:, 0],
        "means": tf.reduce_mean(hidden, 0),
        "total": tf.reduce_sum(hidden),
        "root": tf.sqrt(tf.reduce_mean(tf.square(hidden))),
        "spread": tf.matmul(hidden, hidden, transpose_a=True),
        "how many": tf.shape(hidden)[0],
        "shape": tf.shape(hidden),
        "weights": v.w,
        "constant": tf.constant([1.0, 2.0]),
    }


@pytest.mark.parametrize("mode", ["eval", "infer"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("num_towers", [2, 3])
def test_predictions_without_rows_are_the_whole_batchs(mode, is_static, num_towers):
    def model(features, labels, mode):
        v = losses.Weights()
        loss = None if labels is None else losses.mean(features, labels, v)
        return exactness.spec_of(mode, loss, outputs(features, v))

    sizes = (9,) if is_static else (7, 5, 1)
    given = running.batches(*sizes, is_static=is_static)
    if mode == "infer":
        given = [(features, None) for features, _ in given]
    running.require_exact(model, given, mode, devices=num_towers, is_static=is_static)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_bare_prediction_of_weights_comes_once(strategy):
    def model(features, labels, mode):
        return exactness.spec_of(mode, predictions=losses.Weights().w * 2.0)

    given = [(running.batches(7)[0][0], None)]
    running.require_exact(model, given, "infer", strategy=strategy)
