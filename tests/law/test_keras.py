"""What Keras asks of a strategy is answered as on one device: to a model there is none."""

import functools

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

_random = np.random.RandomState(5)
ROWS = 6
BATCHES = [
    (
        {"x": _random.randn(ROWS, 5, 3).astype(np.float32)},
        _random.randn(ROWS, 1).astype(np.float32),
    )
    for _ in range(3)
]
STRATEGIES = ["parameter_server", "mirrored"]


def dense(units, dtype=None):
    return tf.keras.layers.Dense(units, kernel_initializer=exactness.start, dtype=dtype)


def spec_of(mode, y, labels, train):
    loss = tf.reduce_mean(tf.square(labels - tf.cast(y, tf.float32)))
    with tf.control_dependencies([train(loss)]):
        step = tf1.train.get_global_step().assign_add(1, read_value=False)
    return estimator.EstimatorSpec(mode, {"y": y}, loss, step)


def descend(loss):
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss)


def mixed_precision(features, labels, mode, is_global=False):
    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    tf.keras.mixed_precision.set_global_policy(policy if is_global else "float32")
    try:
        hidden = dense(4, None if is_global else policy)(features["x"][:, 0])
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    return spec_of(mode, dense(1, "float32")(hidden), labels, descend)


def of_keras(features, labels, mode, scale=None, limit=None):
    """An optimizer of Keras; `scale`: of a loss scale, whether it is dynamic; `limit`: by hand."""
    layer = dense(1)

    def train(loss):
        optimizer = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)
        trained = layer.trainable_variables
        if scale is None:
            gradients = tf.gradients(loss, trained)
        else:
            growth = 2 if scale else None  # batches without a NaN, to double the scale
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
                optimizer, scale, initial_scale=64.0, dynamic_growth_steps=growth
            )
            gradients = tf.gradients(optimizer.get_scaled_loss(loss), trained)
            gradients = optimizer.get_unscaled_gradients(gradients)
        if limit:
            gradients, _ = tf.clip_by_global_norm(gradients, limit)
        return optimizer.apply_gradients(zip(gradients, trained, strict=True))

    return spec_of(mode, layer(features["x"][:, 0]), labels, train)


def stateful(features, labels, mode, kind):
    start = {"kernel_initializer": exactness.start, "recurrent_initializer": exactness.start}
    layer = getattr(tf.keras.layers, kind)(4, stateful=True, **start)
    hidden = layer(features["x"])
    with tf.control_dependencies(layer.updates):  # the states of the next batch
        hidden = tf.identity(hidden)
    return spec_of(mode, dense(1)(hidden), labels, descend)


def compiled(features, labels, mode):
    x = tf.keras.Input([3], batch_size=ROWS)
    model = tf.keras.Model(x, dense(1)(x))
    model.compile(tf1.train.GradientDescentOptimizer(0.1), "mse")

    def train(loss):
        return tf.group(*model.optimizer.get_updates(loss, model.trainable_variables))

    return spec_of(mode, model(features["x"][:, 0]), labels, train)


OPTIMIZERS = {
    "plain": of_keras,
    "fixed": functools.partial(of_keras, scale=False),
    "dynamic": functools.partial(of_keras, scale=True),
}
MODELS = {
    "mixed precision": mixed_precision,
    "global policy": functools.partial(mixed_precision, is_global=True),
    "fixed loss scale": OPTIMIZERS["fixed"],
    "dynamic loss scale": OPTIMIZERS["dynamic"],
    "stateful GRU": functools.partial(stateful, kind="GRU"),
    "stateful LSTM": functools.partial(stateful, kind="LSTM"),
    "compiled": compiled,
}


@pytest.mark.thorough("*GRU-parameter_server", "*dynamic*", "*mixed*mirrored", "compiled*")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_on_one_device(name, strategy):
    # Float16 has 11 bits: what is added in another order differs in the last ones.
    is_coarse = name in ("mixed precision", "global policy")
    tolerance = (2**-9, 2**-9) if is_coarse else (2e-4, 2e-5)
    exactness.require_one_device(
        MODELS[name], BATCHES, is_static=True, devices=2, strategy=strategy, tolerance=tolerance
    )


@pytest.mark.parametrize("name", ["stateful GRU", "compiled"])
def test_one_device_makes_the_operations_of_one_device(name):
    def types(model):
        with tf.Graph().as_default() as graph:
            tf1.train.create_global_step()
            model({"x": tf.constant(BATCHES[0][0]["x"])}, tf.constant(BATCHES[0][1]), "train")
            return [op.name for op in graph.get_operations()]

    replicated = model_fn.replicate_model_fn(MODELS[name], devices=1)
    assert types(replicated) == types(MODELS[name])


@pytest.mark.parametrize(
    ("name", "building"),
    [("plain", "split"), ("plain", "call"), ("fixed", "split"), ("dynamic", "split")],
)
def test_what_an_optimizer_of_keras_applies_is_clipped(name, building):
    reference = functools.partial(OPTIMIZERS[name], limit=0.05)
    options = {"clip_global_norm": 0.05, "tower_building": building, "reference": reference}
    exactness.require_one_device(OPTIMIZERS[name], BATCHES, devices=2, **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_of_keras_applies_is_accumulated(name):
    # The mean of two gradients of one batch is that gradient; it is of one scale or another.
    twice = [batch for batch in BATCHES for _ in range(2)]
    model = model_fn.replicate_model_fn(OPTIMIZERS[name], devices=2, accumulate_steps=2)
    found = exactness.run(model, twice).variables
    expected = exactness.run(of_keras, BATCHES).variables
    for n, values in enumerate(expected):
        exactness.compare(found[2 * n + 1]["dense/kernel:0"], values["dense/kernel:0"])


@pytest.mark.parametrize("building", ["split", "call"])
def test_a_model_has_the_strategy_that_towers_have_to_keras(building):
    def asking(features, labels, mode):
        assert tf.distribute.has_strategy()
        is_tower = building == "call"
        assert tf.compat.v2.distribute.has_strategy() == is_tower  # as tf_keras asks
        assert tf.distribute.get_strategy().num_replicas_in_sync == (2 if is_tower else 1)
        return of_keras(features, labels, mode)

    replicated = model_fn.replicate_model_fn(asking, devices=2, tower_building=building)
    exactness.run(replicated, BATCHES[:1])
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert tf.compat.v2.distribute.has_strategy()
