"""Training specs: losses, regularization, update operations, as on one device."""

import numpy as np
import pytest

from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import default
from tests import exactness

TOWERS = (2, 3, 8)
STRATEGIES = ("parameter_server", "mirrored")


def batch(rows, seed=0):
    numbers = np.random.RandomState(seed)
    return (
        numbers.uniform(0.5, 1.5, [rows, 3]).astype(np.float32),
        numbers.uniform(-1, 1, [rows, 1]).astype(np.float32),
    )


def descend():
    return tf1.train.GradientDescentOptimizer(0.1)


def lazy():
    return tf1.train.AdamOptimizer(0.1)


def log_model(features, labels, mode):
    """Not finite on a row of zeros; Adam notices every gradient that is not nothing."""
    w = tf1.get_variable("w", initializer=[[0.1], [0.2], [0.3]])
    output = tf.math.log(tf.matmul(features, w)) + 1.0 / features[:, :1]
    table = tf1.get_variable("table", [4, 1], initializer=exactness.start)
    ids = tf.cast(features[:, 1] * 10.0, tf.int32) % 4
    loss = tf.square(output - labels + tf.nn.embedding_lookup(table, ids))
    metrics = {"mean": tf1.metrics.mean(loss)}
    return exactness.spec_of(mode, tf.reduce_mean(loss), output, eval_metric_ops=metrics)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_borrowed_rows_count_for_nothing(rows, is_static, strategy):
    options = {"devices": 5, "strategy": strategy, "loss_reduction": "mean"}
    for mode in ("train", "eval"):
        exactness.require_one_device(
            log_model, [batch(rows)] * 2, mode, lazy, is_static=is_static, **options
        )


def poisoned_model(features, labels, mode):
    """A tower whose id is above 0 answers NaN for every row, in values and gradients."""
    w = tf1.get_variable("w", initializer=[[0.1], [0.2], [0.3]])
    output = tf.matmul(features, w)
    loss = tf.reduce_sum(tf.square(output - labels))
    if default.get_tower_context().tower_id > 0:
        output, loss = output * np.nan, loss * np.nan
    metrics = {"mean": tf1.metrics.mean(output)}
    return exactness.spec_of(mode, loss, output, eval_metric_ops=metrics)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_what_a_borrowed_row_makes_infinite_reaches_nothing(reduction, is_static, mode):
    given = batch(1) if mode != "infer" else (batch(1)[0], None)
    model = poisoned_model
    if mode == "infer":
        model = poisoned_predictions
    exactness.require_one_device(
        model, [given], mode, descend, is_static=is_static, devices=3, loss_reduction=reduction
    )


def poisoned_predictions(features, labels, mode):
    factor = np.nan if default.get_tower_context().tower_id > 0 else 1.0
    return exactness.spec_of(mode, predictions=features * factor)


def squares(w):
    return 0.1 * tf.nn.l2_loss(w)


def by_get_variable(x):
    w = tf1.get_variable("w", [3, 1], initializer=exactness.start, regularizer=squares)
    return tf.matmul(x, w), tf1.losses.get_regularization_loss


def by_layers(x):
    output = tf1.layers.dense(
        x,
        1,
        kernel_initializer=exactness.start,
        kernel_regularizer=squares,
        bias_regularizer=lambda w: tf.reduce_sum(tf.square(w + 1.0)),
    )
    return output, lambda: tf.add_n(tf1.losses.get_regularization_losses())


def by_keras(x):
    inputs = tf.keras.Input([3])
    hidden = tf.keras.layers.Dense(
        1, kernel_initializer=exactness.start, kernel_regularizer=tf.keras.regularizers.L2(0.1)
    )
    model = tf.keras.Model(inputs, hidden(inputs))
    output = model(x)
    return output, lambda: tf.add_n(model.losses)


def by_hand(x):
    w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
    tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, squares(w))
    return tf.matmul(x, w), tf1.losses.get_regularization_loss


def regularised(network, reduction):
    def model(features, labels, mode):
        output, loss_of = network(features)
        errors_of_rows = tf.square(output - labels)
        reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean
        return exactness.spec_of(mode, reduce(errors_of_rows) + loss_of())

    return model


@pytest.mark.parametrize("network", [by_get_variable, by_layers, by_keras, by_hand])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("is_inside", [True, False])
def test_regularization_counts_once(network, reduction, is_inside):
    model, optimizer_fn = regularised(network, reduction), descend
    if is_inside:
        model, optimizer_fn = exactness.stepping(model, descend), None
    options = {"devices": 3, "loss_reduction": reduction}
    exactness.require_one_device(model, [batch(7)] * 2, "train", optimizer_fn, **options)
    exactness.require_one_device(model, [batch(7)], "eval", optimizer_fn, **options)


@pytest.mark.parametrize("reduction", [tf1.losses.Reduction.SUM, tf1.losses.Reduction.MEAN])
def test_the_total_loss_of_a_tower_is_its_own(reduction):
    def model(features, labels, mode):
        output = tf1.layers.dense(
            features, 1, kernel_initializer=exactness.start, kernel_regularizer=squares
        )
        tf1.losses.mean_squared_error(labels, output, reduction=reduction)
        tf1.losses.absolute_difference(labels, output, reduction=reduction)
        assert len(tf1.losses.get_losses()) == 2
        assert len(tf1.losses.get_regularization_losses()) == 1
        return exactness.spec_of(mode, tf1.losses.get_total_loss())

    model = exactness.stepping(model, descend)  # which reduction it is, is found
    exactness.require_one_device(model, [batch(7)] * 2, devices=3)


def test_a_metric_of_the_regularization_is_the_first_towers():
    def model(features, labels, mode):
        output, loss_of = by_get_variable(features)
        regularization = loss_of()
        loss = tf.reduce_sum(tf.square(output - labels)) + regularization
        metrics = {"regularization": tf1.metrics.mean(regularization)}
        return exactness.spec_of(mode, loss, eval_metric_ops=metrics)

    exactness.require_one_device(model, [batch(7)], "eval", descend, devices=3)


@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize("is_static", [True, False])
def test_weighted_losses_are_exact_once_their_denominator_is_told(rows, is_static):
    def model(features, labels, mode):
        weight = tf.where(features[:, :1] > 1.0, features[:, 1:2], tf.zeros_like(labels))
        output = tf1.layers.dense(
            features, 1, kernel_initializer=exactness.start, kernel_regularizer=squares
        )
        mean = tf.math.divide_no_nan(
            tf.reduce_sum(weight * tf.square(output - labels)), tf.reduce_sum(weight)
        )
        default.get_tower_context().set_loss_weight(tf.reduce_sum(weight))
        return exactness.spec_of(mode, mean + tf1.losses.get_regularization_loss())

    for mode in ("train", "eval"):
        exactness.require_one_device(
            model, [batch(rows)], mode, lazy, is_static=is_static, devices=3, loss_reduction="mean"
        )


def test_a_loss_of_nothing_but_regularization_counts_once():
    def model(features, labels, mode):
        return exactness.spec_of(mode, by_get_variable(features)[1]() * 2.0)

    for mode in ("train", "eval"):
        exactness.require_one_device(model, [batch(7)], mode, descend, devices=3)


def test_without_any_weight_regularization_still_counts_once():
    def model(features, labels, mode):
        output, loss_of = by_get_variable(features)
        default.get_tower_context().set_loss_weight(tf.reduce_sum(output * 0.0))
        return exactness.spec_of(mode, tf.reduce_sum(output * 0.0) + loss_of())

    exactness.require_one_device(
        model, [batch(7)], "train", descend, devices=3, loss_reduction="mean"
    )


def normalised(features, labels, mode):
    """A moving mean of the input with momentum 0.5, as batch normalization keeps it."""
    hidden = tf1.layers.batch_normalization(
        features, training=mode == "train", momentum=0.5, fused=False
    )
    output = tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)
    return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)))


def moving_mean(rows, num_towers, update_ops, strategy="parameter_server", inside=False):
    model, optimizer_fn = normalised, descend
    if inside:
        model, optimizer_fn = exactness.stepping(model, descend), None
    towers = model_fn.replicate_model_fn(
        model,
        optimizer_fn,
        num_towers,
        strategy=strategy,
        loss_reduction="mean",
        update_ops=update_ops,
    )
    return exactness.run(towers, [batch(rows)], "train").variables[-1][
        "batch_normalization/moving_mean:0"
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("inside", [True, False])
def test_update_ops_first_keeps_the_first_towers_statistics(strategy, inside):
    # Tower 0 of 2 has the first 3 of 5 rows. The mean began with 0: 0.5 * 0 + 0.5 * mean.
    expected = batch(5)[0][:3].mean(0) / 2
    np.testing.assert_allclose(moving_mean(5, 2, "first", strategy, inside), expected, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", [1, 5])
def test_update_ops_mean_averages_over_rows(strategy, rows):
    # 3/5 of the first 3 rows' mean and 2/5 of the last 2 rows' is the mean of all.
    expected = batch(rows)[0].mean(0) / 2
    np.testing.assert_allclose(moving_mean(rows, 2, "mean", strategy), expected, 1e-5)


def test_update_ops_all_runs_every_towers():
    # The checkpoint's value is the plain mean of the towers' copies (aggregation MEAN).
    x = batch(5)[0]
    expected = (x[:3].mean(0) / 2 + x[3:].mean(0) / 2) / 2
    np.testing.assert_allclose(moving_mean(5, 2, "all"), expected, 1e-5)


@pytest.mark.parametrize("update_ops", ["first", "mean", "all"])
def test_a_tower_without_rows_updates_no_statistics(update_ops):
    # Tower 1 has no rows; under "all" its copy keeps what it began with, 0.
    expected = batch(1)[0].mean(0) / 2 / (2 if update_ops == "all" else 1)
    np.testing.assert_allclose(moving_mean(1, 2, update_ops), expected, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", [1, 5])
def test_synchronised_batch_normalization_is_one_devices(strategy, rows):
    def model(features, labels, mode):
        layer = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
        hidden = tf1.layers.dense(features, 2, kernel_initializer=exactness.start)
        hidden = layer(hidden, training=mode == "train")
        for update in layer.updates if mode == "train" else ():
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        output = tf1.layers.dense(tf.nn.tanh(hidden), 1, kernel_initializer=exactness.start)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)))

    for reduction in ("mean",):
        exactness.require_one_device(
            model,
            [batch(rows)] * 3,
            "train",
            lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
            devices=3,
            strategy=strategy,
            loss_reduction=reduction,
        )


def test_a_loss_of_another_shape_than_the_first_towers_is_refused():
    def model(features, labels, mode):
        if default.get_tower_context().tower_id == 1:
            features = tf.cast(features, tf.float64)
        w = tf1.get_variable("w", initializer=1.0)
        loss = tf.reduce_mean(features) * tf.cast(w, features.dtype)
        return exactness.spec_of(mode, loss)

    towers = model_fn.replicate_model_fn(model, descend, 2)
    with pytest.raises(errors.TowerMismatchError, match=r"tower 1 has the dtype float64"):
        exactness.run(towers, [batch(4)], "eval")


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("is_inside", [True, False])
def test_double_precision_is_kept(is_static, is_inside):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], tf.float64, initializer=exactness.start)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(tf.matmul(features, w) - labels)))

    x, y = (part.astype(np.float64) for part in batch(7))
    single = exactness.stepping(model, descend)
    expected = exactness.run(single, [(x, y)], is_static=is_static)
    given = (single, None) if is_inside else (model, descend)
    towers = model_fn.replicate_model_fn(*given, 3, loss_reduction="mean")
    found = exactness.run(towers, [(x, y)], is_static=is_static)
    exactness.compare(found._asdict(), expected._asdict(), rtol=1e-13, atol=1e-14)
