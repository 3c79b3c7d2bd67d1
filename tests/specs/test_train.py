"""Training specs: losses, regularization, update operations, as on one device."""

import functools
import logging

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
    options = {"devices": 5, "strategy": strategy}
    for mode in ("train", "eval"):
        exactness.require_one_device(
            log_model, [batch(rows)] * 2, mode, lazy, is_static=is_static, **options
        )


def poisoned_model(reduce, features, labels, mode):
    """A tower whose id is above 0 answers NaN for every row, in values and gradients."""
    w = tf1.get_variable("w", initializer=[[0.1], [0.2], [0.3]])
    output = tf.matmul(features, w)
    error = tf.square(output - labels)
    if default.get_tower_context().tower_id > 0:
        output, error = output * np.nan, error * np.nan
    loss = reduce(error)
    metrics = {"mean": tf1.metrics.mean(output), "loss": tf1.metrics.mean(loss)}
    return exactness.spec_of(mode, loss, output, eval_metric_ops=metrics)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_what_a_borrowed_row_makes_infinite_reaches_nothing(reduction, is_told, is_static, mode):
    given = batch(1) if mode != "infer" else (batch(1)[0], None)
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean
    model = functools.partial(poisoned_model, reduce)
    if mode == "infer":
        model = poisoned_predictions
    options = {"loss_reduction": reduction} if is_told else {}
    exactness.require_one_device(
        model, [given], mode, descend, is_static=is_static, devices=3, **options
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


def in_the_loss(x):
    w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
    unused = tf1.get_variable("unused", [2], initializer=exactness.start)
    return tf.matmul(x, w), lambda: squares(w) + 0.5 * (squares(unused) + tf.reduce_sum(w) ** 2)


def in_the_loss_of_a_table(x):
    table = tf1.get_variable("table", [4, 1], initializer=exactness.start)
    ids = tf.cast(x[:, 1] * 10.0, tf.int32) % 4
    return tf.nn.embedding_lookup(table, ids) * x[:, :1], lambda: squares(table)


def regularised(network, reduction):
    def model(features, labels, mode):
        output, loss_of = network(features)
        errors_of_rows = tf.square(output - labels)
        reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean
        return exactness.spec_of(mode, reduce(errors_of_rows) + loss_of())

    return model


def stepping_with_keras(model, optimizer_fn):
    """The model with an optimizer that leaves its loss as it is."""

    def model_fn(features, labels, mode):
        spec = model(features, labels, mode)
        if mode != "train":
            return spec
        optimizer = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.5)
        optimizer.iterations = tf1.train.get_global_step()
        updates = optimizer.get_updates(spec.loss, tf1.trainable_variables())
        return spec._replace(train_op=tf1.group(updates))

    return model_fn


NETWORKS = [
    by_get_variable,
    by_layers,
    by_keras,
    by_hand,
    in_the_loss,
    in_the_loss_of_a_table,
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("place", ["optimizer_fn", "inside", "keras"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_regularization_counts_once(network, reduction, place, strategy):
    model, optimizer_fn = regularised(network, reduction), descend
    if place != "optimizer_fn":
        step = exactness.stepping if place == "inside" else stepping_with_keras
        model, optimizer_fn = step(model, descend), None
    options = {"devices": 3, "strategy": strategy}
    exactness.require_one_device(model, [batch(7)] * 2, "train", optimizer_fn, **options)
    exactness.require_one_device(model, [batch(7)], "eval", optimizer_fn, **options)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_weight_decay_that_is_added_to_gradients_counts_once(reduction, scale):
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean

    def model(features, labels, mode):
        loss = reduce(tf.square(by_get_variable(features)[0] - labels))
        optimizer = descend()
        pairs = optimizer.compute_gradients(loss)
        pairs = [((g / 2.0 + 0.1 * w.value()) * scale, w) for g, w in pairs]
        step = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=step)

    exactness.require_one_device(model, [batch(7)] * 2, devices=3)


def test_a_penalty_beside_a_loss_that_was_divided_counts_once():
    def model(features, labels, mode):
        output, loss_of = in_the_loss(features)
        loss = tf.reduce_mean(tf.square(output - labels))
        loss /= tf.distribute.get_strategy().num_replicas_in_sync
        return exactness.spec_of(mode, loss + loss_of())

    for place in (exactness.stepping, stepping_with_keras):
        exactness.require_one_device(place(model, descend), [batch(7)] * 2, devices=3)


def linear(x):
    """A loss of this is linear: what its bias adds does not depend on the rows."""
    hidden = tf1.layers.dense(x, 2, kernel_initializer=exactness.start)
    return tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)


def rows_and_penalties(x):
    b = tf1.get_variable("b", initializer=0.5)
    return tf.abs(linear(x)) + tf.square(b) * tf.ones_like(x[:, :1])


@pytest.mark.parametrize("network", [linear, rows_and_penalties])
@pytest.mark.parametrize("place", ["optimizer_fn", "inside", "keras"])
@pytest.mark.parametrize("is_static", [True, False])
def test_what_is_the_same_in_every_row_counts_for_every_row(network, place, is_static):
    def model(features, labels, mode):
        return exactness.spec_of(mode, tf.reduce_sum(network(features)))

    given = {"optimizer_fn": descend}
    if place != "optimizer_fn":
        model = (exactness.stepping if place == "inside" else stepping_with_keras)(model, descend)
        given = {}
    # NOTE: where gradients do not depend on the loss, it may be read before or after a step.
    exactness.require_one_device(
        model,
        [batch(7)] * 2,
        is_static=is_static,
        fetch=lambda spec: {},
        devices=3,
        **given,
    )


HIDDEN = {
    "reshaped": lambda w: tf.reshape(w, [3, 1]),
    "transposed": lambda w: tf.transpose(tf.reshape(w, [1, 3])),
    "squeezed": lambda w: tf.squeeze(w[None, :], 0)[:, None],
    "normalised": lambda w: w[:, None] / tf.norm(w + 1.0),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("is_static", [True, False])
def test_penalties_on_what_is_made_of_weights_count_once(name, is_static):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3], initializer=exactness.start)
        made = HIDDEN[name](w)
        loss = tf.reduce_sum(tf.square(tf.matmul(features, made) - labels))
        return exactness.spec_of(mode, 2.0 * (loss + squares(made)) + tf.reduce_sum(made))

    exactness.require_one_device(
        model, [batch(7)] * 2, "train", descend, is_static=is_static, devices=3
    )


def test_noise_is_no_penalty():
    # The generator of an adversarial network is given noise, and nothing of the batch.
    def model(features, labels, mode):
        w = tf1.get_variable("w", initializer=2.0)
        noise = tf.random.uniform(tf.shape(features)[:1], 1.0, 1.0 + 1e-6)
        return exactness.spec_of(mode, tf.reduce_sum(noise * w))

    # One number near 1 for each of the 7 rows, in whichever tower: w = 2 - 0.1 * 7.
    towers = model_fn.replicate_model_fn(model, descend, 3)
    found = exactness.run(towers, [batch(7)], is_static=True)
    np.testing.assert_allclose(found.variables[0]["w:0"], 1.3, 1e-5)
    np.testing.assert_allclose(found.fetched[0]["loss"], 14.0, 1e-5)


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


# What divides the sum over a tower's rows of x, whose static number of rows may be unknown.
DENOMINATORS = {
    "average": lambda losses, x: tf.nn.compute_average_loss(losses),
    "average with weights": lambda losses, x: tf.nn.compute_average_loss(losses, x[:, 1]),
    "rows of a tensor": lambda losses, x: (
        tf.reduce_sum(losses) / tf.cast(tf.shape(x)[0] * replicas(), losses.dtype)
    ),
    "replicas by rows": lambda losses, x: (
        tf.reduce_sum(losses) / tf.cast(replicas() * tf.size(losses), losses.dtype)
    ),
    "rows as floats": lambda losses, x: tf.math.divide_no_nan(
        tf.reduce_sum(losses), tf.cast(tf.shape(x)[0], losses.dtype) * replicas()
    ),
    "a mean by replicas": lambda losses, x: tf.math.divide_no_nan(
        tf.reduce_mean(losses), replicas()
    ),
    "a mean by replicas as floats": lambda losses, x: (
        tf.reduce_mean(losses) / tf.cast(replicas(), losses.dtype)
    ),
    "a sum of weights": lambda losses, x: (
        tf.reduce_sum(losses) / (tf.reduce_sum(tf.ones_like(losses)) * replicas())
    ),
    "at least 1": lambda losses, x: tf.math.divide_no_nan(
        tf.reduce_sum(losses), tf.maximum(1.0, replicas() * tf.reduce_sum(tf.ones_like(losses)))
    ),
    "a mean times a part": lambda losses, x: tf.multiply(tf.reduce_mean(losses), 1.0 / replicas()),
}


@pytest.mark.parametrize("name", DENOMINATORS)
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("rows", [2, 7])
def test_losses_divided_by_the_number_of_replicas_are_exact(name, is_static, rows):
    def model(features, labels, mode):
        output, _ = by_get_variable(features)
        loss = DENOMINATORS[name](tf.square(output - labels)[:, 0], features)
        loss += tf.nn.scale_regularization_loss(0.1 * tf1.losses.get_regularization_loss())
        return exactness.spec_of(mode, loss)

    for place in (exactness.stepping, stepping_with_keras):
        exactness.require_one_device(
            place(model, descend), [batch(rows)] * 2, is_static=is_static, devices=3
        )


def test_a_tower_counts_one_replica():
    seen = []

    def model(features, labels, mode):
        seen.append((replicas(), default.get_tower_context().num_towers))
        loss = tf.reduce_mean(tf.square(by_get_variable(features)[0] - labels))
        return exactness.spec_of(mode, loss * replicas())

    model = exactness.stepping(model, descend)
    exactness.require_one_device(model, [batch(7)] * 2, devices=3, tower_building="call")
    assert seen == [(1, 1), *[(1, 3)] * 3]


def test_a_static_number_of_rows_times_replicas_is_the_batch():
    def model(features, labels, mode):
        loss = tf.reduce_sum(tf.square(by_get_variable(features)[0] - labels))
        return exactness.spec_of(mode, loss / (features.shape.as_list()[0] * replicas()))

    model = exactness.stepping(model, descend)
    exactness.require_one_device(model, [batch(7)] * 2, is_static=True, devices=3)


@pytest.mark.parametrize("reduction", ["auto", "sum_over_batch_size", "sum", "none"])
@pytest.mark.parametrize("num_towers", [1, 3])
@pytest.mark.parametrize("place", ["inside", "keras"])
def test_keras_losses_are_exact(reduction, num_towers, place):
    def model(features, labels, mode):
        output, _ = by_get_variable(features)
        loss = tf.keras.losses.MeanSquaredError(reduction)(labels, output, features[:, 1:2])
        return exactness.spec_of(mode, tf.reduce_mean(loss) if reduction == "none" else loss)

    step = exactness.stepping if place == "inside" else stepping_with_keras
    model = step(model, descend)
    for mode in ("train", "eval"):
        exactness.require_one_device(model, [batch(7)] * 2, mode, devices=num_towers)


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
def test_weighted_losses_are_exact(rows, is_static):
    def model(features, labels, mode):
        weight = tf.where(features[:, :1] > 1.0, features[:, 1:2], tf.zeros_like(labels))
        output = tf1.layers.dense(
            features, 1, kernel_initializer=exactness.start, kernel_regularizer=squares
        )
        mean = tf.math.divide_no_nan(
            tf.reduce_sum(weight * tf.square(output - labels)), tf.reduce_sum(weight)
        )
        return exactness.spec_of(mode, mean + tf1.losses.get_regularization_loss())

    for mode in ("train", "eval"):
        exactness.require_one_device(
            model, [batch(rows)], mode, lazy, is_static=is_static, devices=3
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

    exactness.require_one_device(model, [batch(7)], "train", descend, devices=3)


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
    # Tower 1 has no rows; under "all" its copy takes the other's value, which is the mean.
    expected = batch(1)[0].mean(0) / 2
    np.testing.assert_allclose(moving_mean(1, 2, update_ops), expected, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("is_static", [True, False])
def test_towers_that_have_rows_at_times_do_not_dilute_the_statistics(strategy, is_static):
    # One row, then five: rows 0 - 2 to tower 0 and rows 3 - 4 to tower 1. Both had 0.5 * r.
    towers = model_fn.replicate_model_fn(
        normalised, descend, 2, strategy=strategy, update_ops="all"
    )
    sizes = (1, 1) if is_static else (1, 5)
    batches = [batch(rows, seed) for seed, rows in enumerate(sizes)]
    found = exactness.run(towers, batches, "train", is_static).variables[-1]
    first = batches[0][0][0] / 2
    x = batches[1][0]
    parts = (x[:1],) if is_static else (x[:3], x[3:])
    expected = np.mean([first / 2 + part.mean(0) / 2 for part in parts], 0)
    np.testing.assert_allclose(found["batch_normalization/moving_mean:0"], expected, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("place", ["optimizer_fn", "inside", "keras"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_synchronised_batch_normalization_is_one_devices(strategy, rows, place, reduction):
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean

    def model(features, labels, mode):
        layer = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
        hidden = tf1.layers.dense(features, 2, kernel_initializer=exactness.start)
        hidden = layer(hidden, training=mode == "train")
        for update in layer.updates if mode == "train" else ():
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        output = tf1.layers.dense(tf.nn.tanh(hidden), 1, kernel_initializer=exactness.start)
        return exactness.spec_of(mode, reduce(tf.square(output - labels)))

    optimizer_fn = lambda: tf1.train.MomentumOptimizer(0.1, 0.9)  # noqa: E731 - twice below
    if place != "optimizer_fn":
        step = exactness.stepping if place == "inside" else with_updates
        model, optimizer_fn = step(model, optimizer_fn), None
    exactness.require_one_device(
        model,
        [batch(rows)] * 3,
        "train",
        optimizer_fn,
        devices=3,
        strategy=strategy,
    )


def with_updates(model, optimizer_fn):
    """The model with an optimizer that leaves its loss as it is, and its statistics."""
    stepping = stepping_with_keras(model, optimizer_fn)

    def model_fn(features, labels, mode):
        spec = stepping(features, labels, mode)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        return spec._replace(train_op=tf1.group(spec.train_op, *updates))

    return model_fn


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("place", ["inside", "keras"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_means_over_replicas_are_means_of_rows(rows, place, reduction):
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean

    def model(features, labels, mode):
        output, _ = by_get_variable(features)
        replica = tf.distribute.get_replica_context()
        mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(output))
        loss = reduce(tf.square(output - mean - labels) * tf.exp(mean))
        return exactness.spec_of(mode, loss)

    step = exactness.stepping if place == "inside" else stepping_with_keras
    exactness.require_one_device(step(model, descend), [batch(rows)] * 2, devices=3)


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_moving_average_of_the_loss_is_one_devices(rows, strategy):
    def model(features, labels, mode):
        loss = tf.reduce_mean(tf.square(by_get_variable(features)[0] - labels))
        kept = tf1.train.ExponentialMovingAverage(0.5).apply([loss])
        step = descend().minimize(loss, tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=tf1.group(step, kept))

    exactness.require_one_device(model, [batch(rows)] * 3, devices=3, strategy=strategy)


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
    towers = model_fn.replicate_model_fn(*given, 3)
    found = exactness.run(towers, [(x, y)], is_static=is_static)
    exactness.compare(found._asdict(), expected._asdict(), rtol=1e-13, atol=1e-14)


def test_losses_are_found_by_their_scope():
    def model(features, labels, mode):
        with tf1.variable_scope("net"), tf1.name_scope("head"):
            output = tf1.layers.dense(
                features, 1, kernel_initializer=exactness.start, kernel_regularizer=squares
            )
            tf1.losses.mean_squared_error(labels, output)
        with tf1.name_scope("other"):
            tf1.losses.absolute_difference(labels, output)
        assert len(tf1.losses.get_losses("net")) == 1
        named = tf1.get_default_graph().get_tensor_by_name("net/head/dense/BiasAdd:0")
        assert named is output
        return exactness.spec_of(mode, tf1.losses.get_total_loss(scope="net"))

    model_inside = exactness.stepping(model, descend)
    exactness.require_one_device(model_inside, [batch(7)] * 2, devices=3)
    exactness.require_one_device(model, [batch(7)], "eval", devices=3)


def test_a_term_of_the_batch_among_regularization_losses_counts_for_every_tower():
    def model(features, labels, mode):
        output, _ = by_get_variable(features)
        tf1.add_to_collection(
            tf1.GraphKeys.REGULARIZATION_LOSSES, tf.reduce_sum(tf.square(output)) * 0.1
        )
        loss = tf.reduce_sum(tf.square(output - labels))
        return exactness.spec_of(mode, loss + tf1.losses.get_regularization_loss())

    for mode in ("train", "eval"):
        exactness.require_one_device(model, [batch(7)] * 2, mode, descend, devices=3)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_gradients_of_two_sources_are_weighted_each(is_scaled):
    def model(features, labels, mode):
        output, _ = by_get_variable(features)
        first = tf.reduce_mean(tf.square(output - labels))
        second = tf.reduce_mean(tf.abs(output))
        optimizer = descend()
        pairs = optimizer.compute_gradients(first)
        extra = tf1.gradients(second, [variable for _, variable in pairs])
        pairs = [(g + other, v) for (g, v), other in zip(pairs, extra, strict=True)]
        if is_scaled:
            pairs = [(2.0 * g, v) for g, v in pairs]
        step = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
        return exactness.spec_of(mode, first + second, train_op=step)

    exactness.require_one_device(model, [batch(7)] * 2, devices=3)


def keras_statistics(momentum=0.5, **options):
    """A model whose gradients wait for the updates of a Keras layer."""

    def model(features, labels, mode):
        layer = tf.keras.layers.BatchNormalization(momentum=momentum, **options)
        hidden = layer(features, training=True)
        output = tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)
        loss = tf.reduce_mean(tf.square(output - labels))
        with tf1.control_dependencies(layer.updates):
            step = descend().minimize(tf.identity(loss), tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=step)

    return model


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("update_ops", ["first", "mean", "all"])
@pytest.mark.parametrize("rows", [1, 5])
def test_statistics_that_gradients_wait_for(strategy, update_ops, rows):
    towers = model_fn.replicate_model_fn(
        keras_statistics(), None, 2, strategy=strategy, update_ops=update_ops
    )
    found = exactness.run(towers, [batch(rows)]).variables[0]["batch_normalization/moving_mean:0"]
    x = batch(rows)[0]
    of = {"first": [x[:3]], "mean": [x], "all": [x[:3], x[3:]] if rows > 1 else [x]}
    expected = np.mean([part.mean(0) for part in of[update_ops]], 0) / 2
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("is_inside", [True, False])
def test_renormalization_reads_the_first_towers_statistics_in_all(strategy, is_inside):
    # Both towers hold the same three rows, so that their statistics are one device's of three.
    def model(features, labels, mode):
        hidden = tf1.layers.batch_normalization(
            features, training=True, renorm=True, renorm_momentum=0.5, momentum=0.5
        )
        output = tf1.layers.dense(hidden, 1, kernel_initializer=exactness.start)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)))

    stepping = exactness.stepping(model, descend)
    expected = exactness.run(stepping, [batch(3, seed) for seed in range(4)])
    twice = [tuple(np.tile(part, [2, 1]) for part in batch(3, seed)) for seed in range(4)]
    given = (stepping, None) if is_inside else (model, descend)
    towers = model_fn.replicate_model_fn(*given, 2, strategy=strategy)
    exactness.compare(exactness.run(towers, twice)._asdict(), expected._asdict())


def test_a_hook_may_write_all_summaries():
    def model(features, labels, mode):
        output, _ = by_get_variable(features)
        loss = tf.reduce_mean(tf.square(output - labels))
        tf1.summary.scalar("shown", loss)
        tf1.summary.histogram("other", output, collections=["others"])
        tf1.train.SummarySaverHook(save_steps=1, summary_op=tf1.summary.merge_all())
        assert tf1.summary.merge_all("others") is not None
        assert tf1.summary.merge_all("none") is None
        return exactness.spec_of(mode, loss)

    exactness.require_one_device(model, [batch(7)], optimizer_fn=descend, devices=3)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_a_model_may_make_the_global_step_itself(strategy, mode):
    def model(features, labels, mode):
        step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("w", initializer=1.0)
        loss = tf.reduce_sum(w * features)
        train_op = descend().minimize(loss, step)
        return exactness.spec_of(mode, loss, {"w": w * features}, train_op=train_op)

    towers = model_fn.replicate_model_fn(model, None, 3, strategy=strategy)
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = towers(tf.ones([7, 1]), None, mode)
        assert [v.name for v in tf1.global_variables()] == ["global_step:0", "w:0"]
        session.run(tf1.global_variables_initializer())
        if mode == "train":
            session.run(spec.train_op)
            # The sum of w * 1 over 7 rows, whose derivative is 7: 1 - 0.1 * 7.
            steps, w = session.run(tf1.global_variables())
            np.testing.assert_allclose([steps, w], [1, 0.3], 1e-5)


def test_a_scope_may_be_called_as_a_towers():
    def model(features, labels, mode):
        outputs = []
        for i in range(3):
            with tf1.variable_scope(f"tower_{i}", regularizer=squares):
                outputs.append(tf1.layers.dense(features, 1, kernel_initializer=exactness.start))
                tf1.losses.mean_squared_error(labels, outputs[-1])
        with tf1.variable_scope("dense"):
            tf1.get_variable("own", initializer=1.0)
        counter = tf1.get_variable("counter", initializer=0.0, trainable=False)
        assert len(tf1.trainable_variables("tower_1/")) == 2
        assert [v.name for v in tf1.trainable_variables("dense")] == ["dense/own:0"]
        loss = tf1.losses.get_total_loss(scope="tower_1")
        step = descend().minimize(loss, tf1.train.get_global_step())
        with tf1.name_scope("tower_1/"):
            count = counter.assign_add(1.0, read_value=False)
        return exactness.spec_of(mode, loss, train_op=tf1.group(step, count))

    exactness.require_one_device(model, [batch(7)] * 2, devices=3)


@pytest.mark.parametrize("update_ops", ["first", "mean", "all"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_metrics_of_a_training_count_every_row(update_ops, strategy):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        _, update = tf1.metrics.mean(features)
        step = descend().minimize(loss, tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=tf1.group(step, update))

    towers = model_fn.replicate_model_fn(model, None, 2, strategy=strategy, update_ops=update_ops)
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = towers(*map(tf.constant, batch(5)), "train")
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        for steps in (1, 2):
            session.run(spec.train_op)
            # Five rows of three numbers each.
            (count,) = [v for v in tf1.local_variables() if v.name.endswith("count:0")]
            assert session.run(count.members[0].value()) == 15 * steps


@pytest.mark.parametrize("place", ["inside", "keras"])
@pytest.mark.parametrize("name", DENOMINATORS)
def test_a_division_in_a_function_is_taken_as_a_mean(place, name, caplog):
    def model(features, labels, mode):
        output, _ = by_get_variable(features)

        @tf.function
        def per_tower(losses):
            return DENOMINATORS[name](losses[:, 0], features)

        return exactness.spec_of(mode, per_tower(tf.square(output - labels)))

    step = exactness.stepping if place == "inside" else stepping_with_keras
    with caplog.at_level(logging.WARNING, "replicate"):
        exactness.require_one_device(step(model, descend), [batch(7)] * 2, devices=3)
    # All of them are means over rows, and the warning says that they were taken for one.
    texts = [record.getMessage() for record in caplog.records]
    (text,) = [text for text in texts if "is taken for a mean over rows" in text]
    assert "PartitionedCall" in text
    assert "replicate.verify" in text


def frozen():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 3], name="x")
        tf.identity(tf.tanh(x) * 2.0, name="y")
    return graph.as_graph_def()


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_graph_that_is_imported_under_no_name_is_each_towers_own(mode):
    def model(features, labels, mode):
        tf.import_graph_def(frozen(), {"x:0": features}, name="")
        found = tf1.get_default_graph().get_tensor_by_name("y:0")
        output = tf1.layers.dense(found, 1, kernel_initializer=exactness.start)
        loss = None if labels is None else tf.reduce_mean(tf.square(output - labels))
        return exactness.spec_of(mode, loss, output)

    for rows in (6, 7):
        given = batch(rows) if mode == "train" else (batch(rows)[0], None)
        exactness.require_one_device(model, [given], mode, descend, devices=3)
