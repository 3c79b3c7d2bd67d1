"""Means of one number per batch, of which each tower has its own, as on one device."""

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import default
from tests import exactness

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")


def in_rows(values):
    """Batches of one number per row, without labels."""
    return [(np.asarray(part, np.float32), None) for part in values]


# 7 rows on 3 towers are 3, 2 and 2; of 2 rows and of 1 there is none for the last towers.
UNEVEN = in_rows([np.linspace(-1.0, 2.0, 7) ** 3, [5.0, -0.5], [11.0]])


def of_scalars(make):
    """A model_fn of one weight, whose loss and scalars `make` gives; only evaluates."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [], initializer=exactness.start)
        loss, metrics = make(tf.square(features - w), w)
        return exactness.spec_of(mode, loss, eval_metric_ops=metrics)

    return model


def keras_mean(value):
    metric = tf.keras.metrics.Mean()
    metric.update_state(value)
    return metric


def nested_mean(value):
    with tf1.name_scope("outer"), tf1.variable_scope("inner"):
        return tf1.metrics.mean(value)


def scalar_metrics(loss, w):
    penalty = 0.1 * tf.square(w)
    both = loss + penalty
    return both, {
        "keras": keras_mean(both),
        "loss/first": tf1.metrics.mean(loss),
        "loss/both": nested_mean(both),
        "loss/penalty": tf1.metrics.mean(penalty),
        "loss/regularization": keras_mean(penalty),
        "rate": tf1.metrics.mean(tf.constant(0.25)),
        "squared": tf1.metrics.mean(tf.cast(2.0 * loss, tf.float64)),
        "tensor": tf1.metrics.mean_tensor(both),
    }


def with_mean(squares, w):
    return scalar_metrics(tf.reduce_mean(squares), w)


def with_losses_mean(squares, w):
    return scalar_metrics(tf1.losses.compute_weighted_loss(squares), w)


def with_sum(squares, w):
    loss, metrics = scalar_metrics(tf.reduce_sum(squares), w)
    metrics["again"] = keras_mean(tf.reduce_sum(squares) / 64.0)
    metrics["mean"] = tf1.metrics.mean(tf.reduce_mean(tf.cast(squares > 1.0, tf.float32)))
    metrics["losses"] = tf1.metrics.mean(tf1.losses.compute_weighted_loss(squares))
    return loss, metrics


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("make", [with_mean, with_losses_mean, with_sum])
def test_a_mean_of_scalars_is_one_devices(make, strategy):
    options = {"devices": 3, "strategy": strategy}
    exactness.require_one_device(of_scalars(make), UNEVEN, "eval", **options)
    for batch in UNEVEN:
        exactness.require_one_device(of_scalars(make), [batch], "eval", is_static=True, **options)


@pytest.mark.parametrize("rows", [7, 3])  # of three rows each of three towers counts one
@pytest.mark.parametrize("is_static", [True, False])
def test_means_of_rows_are_one_devices(rows, is_static):
    batch = in_rows([np.arange(rows) ** 2.0])
    exactness.require_one_device(mean_of_rows, batch, "eval", is_static=is_static, devices=3)


def mean_of_rows(features, labels, mode):
    found = {"mean": tf1.metrics.mean(features), "keras": keras_mean(features)}
    return exactness.spec_of(mode, tf.reduce_sum(features), eval_metric_ops=found)


def test_a_scalar_mean_that_divides_by_the_number_of_replicas_is_one_devices():
    def model(features, labels, mode):
        loss = tf.reduce_mean(features)
        if tf.distribute.in_cross_replica_context() or not tf.distribute.has_strategy():
            return of_loss(loss, mode)
        return of_loss(loss / tf.distribute.get_strategy().num_replicas_in_sync, mode)

    def of_loss(loss, mode):
        return exactness.spec_of(mode, loss, eval_metric_ops={"loss": tf1.metrics.mean(loss)})

    exactness.require_one_device(model, UNEVEN, "eval", devices=3)


def test_a_scalar_of_a_borrowed_row_may_be_anything():
    def model(features, labels, mode):
        # A tower that borrows a row is given it; its logarithm of a negative number is NaN.
        loss = tf.reduce_sum(tf.math.log(features))
        return exactness.spec_of(mode, loss, eval_metric_ops={"loss": tf1.metrics.mean(loss)})

    def spoiled(features, labels, mode):
        tower = default.get_tower_context()
        given = tf.where(tower.has_rows, features, -tf.ones_like(features))
        return model(given, labels, mode)

    exactness.require_one_device(
        spoiled, in_rows([np.arange(1.0, 8.0), [3.0]]), "eval", reference=model, devices=3
    )


def test_a_quotient_needs_no_weight():
    def model(features, labels, mode):
        # For a tower whose rows weigh nothing, as the last two of seven, it is 0 / 0.
        weights = tf.cast(features < 6, tf.float32)
        loss = tf.reduce_sum(weights * features) / tf.reduce_sum(weights)
        found = {"loss": tf1.metrics.mean(loss), "keras": keras_mean(loss)}
        return exactness.spec_of(mode, loss, eval_metric_ops=found)

    batch = in_rows([np.arange(1.0, 8.0), [3.0, 5.0, 1.5]])
    exactness.require_one_device(model, batch, "eval", devices=3)


def test_a_scalar_mean_may_have_two_names():
    def model(features, labels, mode):
        loss = tf.reduce_mean(features)
        value, update = tf1.metrics.mean(loss)
        _, other = tf1.metrics.mean(features)
        found = {"both": (value, tf1.group(update, other)), "one": (value, update)}
        return exactness.spec_of(mode, loss, eval_metric_ops=found)

    exactness.require_one_device(model, UNEVEN, "eval", devices=3)


def test_a_scalar_mean_counts_once_however_often_it_is_fetched():
    towers = model_fn.replicate_model_fn(of_scalars(with_mean), None, 3)
    with tf.Graph().as_default() as graph:
        holder = tf1.placeholder(tf.float32, [None])
        spec = towers(holder, None, "eval")
        values = {name: value for name, (value, _) in spec.eval_metric_ops.items()}
        updates = [update for _, update in spec.eval_metric_ops.values()]
        initializer = exactness.initializer_of_all()
        with tf1.Session(graph=graph, config=exactness.session_config()) as session:
            session.run(initializer)
            session.run([updates, updates[0]], {holder: UNEVEN[0][0]})
            once = session.run(values)
            assert session.run(values) == once
    expected = exactness.run(of_scalars(with_mean), UNEVEN[:1], "eval").metrics
    exactness.compare(once, expected)


def test_the_loss_of_each_head_is_one_devices():
    heads = [estimator.RegressionHead(name=name) for name in ("first", "second")]

    def model(features, labels, mode):
        w = tf1.get_variable("w", [1], initializer=exactness.start)
        logits = {"first": features[:, None] * w, "second": features[:, None] + w}
        given = dict.fromkeys(logits, features[:, None] ** 2)
        return estimator.MultiHead(heads, [0.5, 2.0]).create_estimator_spec(
            {"x": features}, mode, logits, given, trainable_variables=[w], train_op_fn=tf1.no_op
        )

    exactness.require_one_device(model, UNEVEN, "eval", devices=3)


def test_scalars_may_weigh_otherwise_than_the_loss():
    def model(features, labels, mode):
        w = tf1.get_variable("w", [], initializer=exactness.start)
        weights = tf.cast(features > 0.0, tf.float32)
        total = tf.reduce_sum(weights)
        loss = tf.math.divide_no_nan(tf.reduce_sum(weights * tf.square(features - w)), total)
        metrics = {
            "of the loss": tf1.metrics.mean(loss),
            "of the rows": tf1.metrics.mean(tf.reduce_mean(features)),
            "rows": tf1.metrics.mean(tf.cast(tf.shape(features)[0], tf.float32)),
        }
        return exactness.spec_of(mode, loss, eval_metric_ops=metrics)

    exactness.require_one_device(model, UNEVEN, "eval", devices=3)


def test_metrics_may_share_an_update():
    def make(squares, w):
        loss = tf.reduce_mean(squares)
        first, update = tf1.metrics.mean(loss)
        second, other = tf1.metrics.mean(loss * 2.0 + w)
        both = tf.group(update, other)
        return loss, {"first": (first, both), "second": (second, both)}

    exactness.require_one_device(of_scalars(make), UNEVEN, "eval", devices=3)
