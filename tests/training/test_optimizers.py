"""Optimizers inside an unchanged model_fn, and what model_fns do around them."""

import functools
import time

import numpy as np
import pytest

import replicate
from replicate import errors, estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.training import models

STRATEGIES = ["round_robin", "mirrored"]  # variables on several devices, and on each


def adam():
    return tf1.train.AdamOptimizer(0.1)


def step_of(optimizer_fn):
    """Makes a train_op of a loss."""
    return lambda loss: optimizer_fn().minimize(loss, tf1.train.get_global_step())


class Stateless(tf1.train.GradientDescentOptimizer):
    """A user's subclass that updates the variables by itself, and counts the step."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = [v.assign_sub(0.1 * tf.convert_to_tensor(g)) for g, v in grads_and_vars]
        return tf.group(*updates, global_step.assign_add(1), name=name)


@pytest.mark.thorough("*-mirrored")
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("wrap", [lambda made: made, replicate.TowerOptimizer])
def test_what_apply_gradients_does_is_done_once(wrap, strategy):
    exactness.require_one_device(
        models.trains_with(step_of(lambda: wrap(Stateless(0.5)))),
        models.BATCHES,
        reference=models.trains_with(step_of(lambda: Stateless(0.5))),
        devices=4,
        strategy=strategy,
    )


class UnitDescent(tf1.train.GradientDescentOptimizer):
    """A class that needs no argument."""

    def __init__(self):
        super().__init__(1.0)


GIVEN = {
    "instance": UnitDescent,
    "function": lambda: lambda: tf1.train.GradientDescentOptimizer(1.0),
    "partial": lambda: functools.partial(tf1.train.GradientDescentOptimizer, 1.0),
    "class": lambda: UnitDescent,
}
descending = models.trains_with(step_of(UnitDescent))


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("devices", [2, 1, None])
def test_whatever_gives_a_tower_optimizer_an_optimizer_takes_the_same_step(given, devices):
    model = models.trains_with(step_of(lambda: replicate.TowerOptimizer(GIVEN[given]())))
    if devices is None:  # without any replication
        found = exactness.run(model, models.BATCHES)
        exactness.compare(found, exactness.run(descending, models.BATCHES))
    else:
        exactness.require_one_device(model, models.BATCHES, reference=descending, devices=devices)


class Announcing(tf1.train.GradientDescentOptimizer):
    """An optimizer whose step is a tensor."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        step = super().apply_gradients(grads_and_vars, global_step, name)
        with tf1.control_dependencies([step]):
            return tf.constant(1.0, name="applied")


@pytest.mark.thorough("split-2-mirrored", "call-2-round_robin")
@pytest.mark.parametrize(
    ("building", "devices", "strategy"),
    [
        ("split", 1, None),
        *((building, 2, strategy) for building in ("split", "call") for strategy in STRATEGIES),
    ],
)
def test_a_step_may_be_a_tensor(building, devices, strategy):
    exactness.require_one_device(
        models.trains_with(lambda loss: tf1.no_op()),
        models.BATCHES,
        optimizer_fn=lambda: Announcing(0.1),
        devices=devices,
        strategy=strategy,
        tower_building=building,
    )


# Mixed precision.


def scaled():
    scale = tf1.mixed_precision.DynamicLossScale(64.0, increment_period=2)
    return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(adam(), scale)


def fragile(features, labels):
    infinite = tf.where(tf.equal(features["ids"], 5), np.inf, 1.0)[:, None]
    return tf.reduce_mean(models.squares(features, labels) * infinite)


@pytest.mark.thorough("mirrored-4")
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_row_that_overflows_skips_the_step(strategy, devices):
    # Only the last row has ids = 5, and only in the second batch: all but one device are finite.
    ids = [np.arange(models.ROWS) % 5 for _ in range(3)]
    ids[1] = np.append(ids[1][:-1], 5)
    batches = [
        ({**features, "ids": i}, labels)
        for i, (features, labels) in zip(ids, models.BATCHES, strict=True)
    ]
    batches = [batches[n % 3] for n in range(5)]
    found = exactness.require_one_device(
        models.trains_with(step_of(scaled), fragile), batches, devices=devices, strategy=strategy
    )
    # Good; bad: 64 / 2; good; good, the second in a row: 32 * 2; bad: 64 / 2.
    scales = [step["current_loss_scale:0"] for step in found.variables]
    assert scales == [64, 32, 32, 64, 32]
    assert found.variables[-1]["global_step:0"] == 3


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_loss_scale_with_devices_without_rows(strategy):
    model = models.trains_with(step_of(scaled))
    batches = [models.batch(1) for _ in range(4)]
    exactness.require_one_device(model, batches, devices=4, strategy=strategy)


@pytest.mark.thorough("128.0")
@pytest.mark.parametrize("scale", [128.0, "dynamic"])
def test_mixed_precision_graph_rewrite(scale):
    def rewritten():
        return tf1.mixed_precision.enable_mixed_precision_graph_rewrite(adam(), scale)

    try:
        model = models.trains_with(step_of(rewritten))
        for strategy in STRATEGIES:
            exactness.require_one_device(model, models.BATCHES, devices=2, strategy=strategy)
        beside = models.trains_with(lambda loss: tf1.no_op())
        options = {"optimizer_fn": rewritten, "devices": 2}
        exactness.require_one_device(beside, models.BATCHES, **options)
    finally:
        tf1.mixed_precision.disable_mixed_precision_graph_rewrite()


# SyncReplicasOptimizer, as its users have it.


def synchronous():
    return tf1.train.SyncReplicasOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9), 1, 1)


def with_its_hook(is_inside=True, wrap=lambda optimizer: optimizer, **hook):
    """Returns a model with the hook of an optimizer, and the optimizer_fn that it has beside it."""
    beside = None if is_inside else synchronous()

    def model(features, labels, mode):
        optimizer = beside or synchronous()
        hooks = [optimizer.make_session_run_hook(is_chief=True, **hook)]
        loss = tf.reduce_mean(models.squares(features, labels))
        train_op = step_of(lambda: wrap(optimizer))(loss) if is_inside else tf.no_op()
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)

    return model, None if is_inside else lambda: beside


def weights_after_a_step(model):
    """The update runs in a queue's thread: it is waited for."""
    features, labels = models.BATCHES[0]
    with tf.Graph().as_default():
        step = tf1.train.create_global_step()
        spec = model(tf.nest.map_structure(tf.constant, features), tf.constant(labels), "train")
        trained = [v.read_value() for v in tf1.trainable_variables()]
        with tf1.train.MonitoredTrainingSession(
            hooks=spec.training_hooks, stop_grace_period_secs=0
        ) as session:
            session.run(spec.train_op)
            for _ in range(500):
                if session.run(step) >= 1:
                    break
                time.sleep(0.01)
            return session.run(trained)


KINDS = {
    "wrapped": {"wrap": replicate.TowerOptimizer},
    "unchanged": {},
    "optimizer_fn": {"is_inside": False},
}


@pytest.mark.thorough(
    "unchanged-split-mirrored", "wrapped-call-mirrored", "optimizer_fn-split-round_robin"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore:To construct input pipelines")
@pytest.mark.parametrize(
    ("kind", "building", "strategy"),
    [
        *((kind, "split", strategy) for kind in KINDS for strategy in STRATEGIES),
        # One inside of a tower meets the others where it is wrapped.
        ("wrapped", "call", "mirrored"),
        ("optimizer_fn", "call", "parameter_server"),
    ],
)
def test_sync_replicas_optimizer_with_its_hook(kind, building, strategy):
    model, optimizer_fn = with_its_hook(**KINDS[kind])
    options = {"optimizer_fn": optimizer_fn, "strategy": strategy, "tower_building": building}
    found = weights_after_a_step(models.split(model, **options))
    exactness.compare(found, weights_after_a_step(with_its_hook()[0]), 1e-5, 1e-6)


def weights_after_three_waits(model_fn, directory):
    """A queue that nobody fills ends the test, and at the end of training its thread.

    Without tokens to begin with, a step waits for the update that its own gradient makes, so that
    no gradient is taken of older weights.
    """
    session = tf1.ConfigProto(device_count={"CPU": 8}, operation_timeout_in_ms=3000)
    config = estimator.RunConfig(str(directory), session_config=session)
    trained = estimator.Estimator(model_fn, config=config)
    batches = lambda: tf.data.Dataset.from_tensors(models.BATCHES[0]).repeat()  # noqa: E731
    trained.train(batches, max_steps=3)
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}


@pytest.fixture(scope="module")
def waits_on_one_device(tmp_path_factory):
    model, _ = with_its_hook(num_tokens=0)
    return weights_after_three_waits(model, tmp_path_factory.mktemp("waits"))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("is_inside", "devices", "strategy"),
    [(True, 1, None), (True, 2, "mirrored"), (False, 2, "parameter_server")],
)
def test_sync_replicas_optimizer_trains_in_an_estimator(
    is_inside, devices, strategy, waits_on_one_device, tmp_path
):
    model, optimizer_fn = with_its_hook(is_inside, num_tokens=0)
    model = models.split(model, devices, optimizer_fn=optimizer_fn, strategy=strategy)
    found = weights_after_three_waits(model, tmp_path)
    assert found["global_step"] == 3
    exactness.compare(found, waits_on_one_device, 1e-5, 1e-6)


# What is refused.


@pytest.mark.parametrize("wrap", [lambda o: o, replicate.TowerOptimizer])
def test_no_gradient_at_all_is_an_error(wrap):
    def train_op(loss):
        del loss
        return wrap(adam()).apply_gradients([(None, v) for v in tf1.trainable_variables()])

    # The first text is TensorFlow's own, as on one device.
    with pytest.raises(ValueError, match=r"No variables provided|[Gg]radient"):
        exactness.run(models.split(models.trains_with(train_op)), models.BATCHES)


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


def is_first():
    return replicate.get_tower_context().tower_id == 0


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slots_are_at_hand_in_every_tower(strategy):
    seen = []

    def train_op(loss):
        optimizer = adam()
        step = optimizer.minimize(loss, tf1.train.get_global_step())
        w = tf1.trainable_variables("w")[0]
        seen.append((optimizer.get_slot(w, "m"), optimizer.variables(), optimizer.get_slot_names()))
        return step

    model = models.split(models.trains_with(train_op), strategy=strategy, tower_building="call")
    exactness.run(model, models.BATCHES)
    assert seen[0][0] is seen[1][0]
    assert seen[0][0].name == "w/Adam:0"
    names = ["beta1_power:0", "beta2_power:0", "e/Adam:0", "e/Adam_1:0", "w/Adam:0", "w/Adam_1:0"]
    for _, variables, slots in seen:
        assert ([v.name for v in variables], slots) == (names, ["m", "v"])


def none_for_w_but_in_the_first(loss):
    pairs = adam().compute_gradients(loss)
    pairs = [(None if v.name == "w:0" and not is_first() else g, v) for g, v in pairs]
    return adam().apply_gradients(pairs, tf1.train.get_global_step())


def of_another_kind(loss):
    optimizer = adam() if is_first() else tf1.train.FtrlOptimizer(0.1)
    return optimizer.minimize(loss, tf1.train.get_global_step())


@pytest.mark.parametrize(
    ("train_op", "text"),
    [
        (none_for_w_but_in_the_first, "tower 1 has none for w:0, tower 0 has one"),
        (of_another_kind, "tower 1 applies FtrlOptimizer where tower 0 applies Adam"),
    ],
)
def test_towers_that_step_otherwise_are_refused(train_op, text):
    model = models.split(models.trains_with(train_op), tower_building="call")
    with pytest.raises(errors.TowerMismatchError, match=text):
        exactness.run(model, models.BATCHES)
