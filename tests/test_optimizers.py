"""Optimizers inside an unchanged model_fn, and what model_fns do around them."""

import functools

import numpy as np
import pytest

import replicate
from replicate import errors, estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.training import runs

STRATEGIES = ["round_robin", "mirrored"]


def predicted(features, scope="model"):
    """x w + e[ids], with a dense and a sparse gradient."""
    with tf1.variable_scope(scope):
        w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
        e = tf1.get_variable("e", initializer=tf.constant([[0.1 * i - 0.2] for i in range(6)]))
    return features["x"] @ w + tf.nn.embedding_lookup(e, features["ids"])


def mean_loss(features, labels):
    return tf.reduce_mean(tf.square(predicted(features) - labels))


def trains_with(make_train_op, make_loss=mean_loss):
    """A model_fn whose train_op is `make_train_op(loss)`."""

    def fn(features, labels, mode):
        loss = make_loss(features, labels)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=make_train_op(loss))

    return fn


def adam():
    return tf1.train.AdamOptimizer(0.1)


def global_step():
    return tf1.train.get_or_create_global_step()


def assert_as_on_one_device(
    model, num_devices=2, steps=4, strategies=STRATEGIES, one=None, **options
):
    """Trains on each strategy and on one device, and compares every variable."""
    expected = runs.train(one or model, steps)
    for strategy in strategies:
        with exactness.quiet():
            found = runs.train(runs.replicated(model, num_devices, strategy, **options), steps)
        runs.assert_same(found, expected)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    return expected


def test_user_code_between_gradients_and_update():
    def train_op(loss):
        optimizer = adam()
        pairs = optimizer.compute_gradients(loss)
        pairs = [(g * 0.5 if v.name.startswith("model/w") else g, v) for g, v in pairs]
        with_none = [*pairs, (None, tf1.get_variable("unused", initializer=1.0))]
        return optimizer.apply_gradients(with_none, global_step())

    assert_as_on_one_device(trains_with(train_op), num_devices=4)


class Clipping(tf1.train.GradientDescentOptimizer):
    """A user's subclass that clips in apply_gradients."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.1)
        pairs = list(zip(clipped, [v for _, v in pairs], strict=True))
        return super().apply_gradients(pairs, global_step, name)


class Stateless(tf1.train.GradientDescentOptimizer):
    """A user's subclass that updates the variables by itself."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = [v.assign_sub(0.1 * tf.convert_to_tensor(g)) for g, v in grads_and_vars]
        return tf.group(*updates, global_step.assign_add(1), name=name)


@pytest.mark.thorough("Stateless")
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("cls", [Clipping, Stateless])
def test_what_apply_gradients_does_is_done_once(cls):
    def wrapped(loss):
        return replicate.TowerOptimizer(cls(0.5)).minimize(loss, global_step())

    one = trains_with(lambda loss: cls(0.5).minimize(loss, global_step()))
    assert_as_on_one_device(one, num_devices=4)
    assert_as_on_one_device(trains_with(wrapped), one=one, strategies=["mirrored"])
    assert_as_on_one_device(
        trains_with(lambda loss: tf1.no_op()), one=one, optimizer_fn=lambda: cls(0.5)
    )


# Mixed precision.


def scaled(loss_scale):
    return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(adam(), loss_scale)


def dynamic():
    return tf1.mixed_precision.DynamicLossScale(64.0, increment_period=2)


@pytest.mark.thorough("mirrored-4")
@pytest.mark.parametrize("num_devices", [2, 4])
@pytest.mark.parametrize("strategy", ["parameter_server", *STRATEGIES])
def test_one_row_that_overflows_skips_the_step(strategy, num_devices):
    def train_op(loss):
        return scaled(dynamic()).minimize(loss, global_step())

    def fragile(features, labels):
        error = tf.square(predicted(features) - labels)
        return tf.reduce_mean(error * tf.where(tf.equal(features["ids"], 5), np.inf, 1.0)[:, None])

    # Only the last row has ids = 5, and only in the second batch: all but one device are finite.
    ids = [np.arange(runs.ROWS) % 5 for _ in range(3)]
    ids[1] = np.append(ids[1][:-1], 5)
    batches = [{**batch, "ids": i} for batch, i in zip(runs.BATCHES, ids, strict=True)]
    model = trains_with(train_op, fragile)
    one = runs.train(model, 5, batches)
    # Good; bad: 64 / 2; good; good, the second in a row: 32 * 2; bad: 64 / 2.
    assert [step["current_loss_scale"] for step in one.steps] == [64, 32, 32, 64, 32]
    assert one.last["global_step"] == 3
    runs.assert_same(runs.train(runs.replicated(model, num_devices, strategy), 5, batches), one)


def test_loss_scale_with_devices_without_rows():
    one_row = [{key: value[:1] for key, value in batch.items()} for batch in runs.BATCHES]
    model = trains_with(lambda loss: scaled(dynamic()).minimize(loss, global_step()))
    one = runs.train(model, 4, one_row)
    for strategy in STRATEGIES:
        runs.assert_same(runs.train(runs.replicated(model, 4, strategy), 4, one_row), one)


@pytest.mark.thorough("128.0")
@pytest.mark.parametrize("scale", [128.0, "dynamic"])
def test_mixed_precision_graph_rewrite(scale):
    def train_op(loss):
        optimizer = tf1.mixed_precision.enable_mixed_precision_graph_rewrite(adam(), scale)
        return optimizer.minimize(loss, global_step())

    try:
        assert_as_on_one_device(trains_with(train_op))
        assert_as_on_one_device(
            trains_with(lambda loss: tf1.no_op()),
            one=trains_with(train_op),
            optimizer_fn=functools.partial(
                tf1.mixed_precision.enable_mixed_precision_graph_rewrite,
                tf1.train.AdamOptimizer(0.1),
                scale,
            ),
            strategies=["round_robin"],
        )
    finally:
        tf1.mixed_precision.disable_mixed_precision_graph_rewrite()


@pytest.mark.parametrize("wrap", [lambda o: o, replicate.TowerOptimizer])
def test_no_gradient_at_all_is_an_error(wrap):
    def train_op(loss):
        del loss
        optimizer = wrap(adam())
        return optimizer.apply_gradients([(None, v) for v in tf1.trainable_variables()])

    # The first text is TensorFlow's own, as on one device.
    with pytest.raises(ValueError, match=r"No variables provided|[Gg]radient"):
        runs.train(runs.replicated(trains_with(train_op), 2), 1)


def test_applying_gradients_across_towers_says_what_to_call():
    for optimizer, text in [
        (replicate.TowerOptimizer(adam()), "strategy.call_for_each_tower runs"),
        (adam(), "_distributed_apply"),
    ]:
        with tf.Graph().as_default(), replicate.LocalParameterServerStrategy(2).scope():
            w = tf1.get_variable("w", initializer=1.0)
            with pytest.raises(RuntimeError, match=text):
                optimizer.apply_gradients([(tf.constant(1.0), w)])


# Towers: a model_fn that is called for each device.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slots_are_at_hand_in_every_tower(strategy):
    seen = []

    def train_op(loss):
        optimizer = adam()
        step = optimizer.minimize(loss, global_step())
        w = tf1.trainable_variables("model/w")[0]
        seen.append((optimizer.get_slot(w, "m"), optimizer.variables(), optimizer.get_slot_names()))
        return step

    runs.train(runs.replicated(trains_with(train_op), 2, strategy, tower_building="call"), 1)
    assert seen[0][0] is seen[1][0]
    assert seen[0][0].name == "model/w/Adam:0"
    names = ["beta1_power:0", "beta2_power:0", "model/e/Adam:0", "model/e/Adam_1:0"]
    assert [v.name for v in seen[0][1]] == [*names, "model/w/Adam:0", "model/w/Adam_1:0"]
    assert [v.name for v in seen[1][1]] == [v.name for v in seen[0][1]]
    assert seen[0][2] == seen[1][2] == ["m", "v"]


def test_loss_that_is_a_sum():
    def sum_loss(features, labels):
        return tf.reduce_sum(tf.square(predicted(features) - labels))

    def descend():
        return tf1.train.AdagradOptimizer(0.1)

    model = trains_with(lambda loss: descend().minimize(loss, global_step()), sum_loss)
    options = {"num_devices": 4, "loss_reduction": "sum", "strategies": ["mirrored"]}
    assert_as_on_one_device(model, **options)
    assert_as_on_one_device(
        trains_with(lambda loss: tf1.no_op(), sum_loss),
        one=model,
        optimizer_fn=descend,
        **options,
    )


def test_gradients_of_some_towers_only_name_the_variable():
    def train_op(loss):
        pairs = adam().compute_gradients(loss)
        if replicate.get_tower_context().tower_id == 1:
            pairs = [(None if v.name.startswith("model/w") else g, v) for g, v in pairs]
        return adam().apply_gradients(pairs, global_step())

    with pytest.raises(
        errors.TowerMismatchError, match="tower 1 has none for model/w:0, tower 0 has one"
    ):
        runs.train(runs.replicated(trains_with(train_op), 2, tower_building="call"), 1)


def test_optimizers_of_another_kind_are_refused():
    def train_op(loss):
        is_first = replicate.get_tower_context().tower_id == 0
        optimizer = adam() if is_first else tf1.train.FtrlOptimizer(0.1)
        return optimizer.minimize(loss, global_step())

    with pytest.raises(
        errors.TowerMismatchError, match="tower 1 applies FtrlOptimizer where tower 0 applies Adam"
    ):
        runs.train(runs.replicated(trains_with(train_op), 2, tower_building="call"), 1)
