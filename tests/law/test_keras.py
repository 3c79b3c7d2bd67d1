"""What Keras asks of a strategy is answered as on one device: to a model there is none."""

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


def stepped(update):
    with tf.control_dependencies([update]):
        return tf1.train.get_global_step().assign_add(1, read_value=False)


def spec_of(mode, y, labels, train):
    loss = tf.reduce_mean(tf.square(labels - tf.cast(y, tf.float32)))
    train_op = stepped(train(loss)) if mode == "train" else None
    return estimator.EstimatorSpec(mode, {"y": y}, loss, train_op)


def descend(loss):
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss)


def mixed_precision(features, labels, mode):
    hidden = dense(4, tf.keras.mixed_precision.Policy("mixed_float16"))(features["x"][:, 0])
    return spec_of(mode, dense(1, "float32")(hidden), labels, descend)


def global_policy(features, labels, mode):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        hidden = dense(4)(features["x"][:, 0])
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    return spec_of(mode, dense(1, "float32")(hidden), labels, descend)


def scaled(dynamic, limit=None):
    """A loss that is scaled; `limit` clips by hand."""

    def model(features, labels, mode):
        layer = dense(1)

        def train(loss):
            optimizer = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)
            growth = 2 if dynamic else None  # batches without a NaN, to double the scale
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
                optimizer, dynamic, initial_scale=64.0, dynamic_growth_steps=growth
            )
            trained = layer.trainable_variables
            gradients = tf.gradients(optimizer.get_scaled_loss(loss), trained)
            gradients = optimizer.get_unscaled_gradients(gradients)
            if limit:
                gradients, _ = tf.clip_by_global_norm(gradients, limit)
            return optimizer.apply_gradients(zip(gradients, trained, strict=True))

        return spec_of(mode, layer(features["x"][:, 0]), labels, train)

    return model


def of_keras(limit=None):
    """An optimizer of Keras; `limit` clips by hand."""

    def model(features, labels, mode):
        layer = dense(1)

        def train(loss):
            gradients, trained = tf.gradients(loss, layer.trainable_variables), layer.weights
            if limit:
                gradients, _ = tf.clip_by_global_norm(gradients, limit)
            optimizer = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)
            return optimizer.apply_gradients(zip(gradients, trained, strict=True))

        return spec_of(mode, layer(features["x"][:, 0]), labels, train)

    return model


def stateful(kind):
    def model(features, labels, mode):
        layer = getattr(tf.keras.layers, kind)(
            4,
            stateful=True,
            kernel_initializer=exactness.start,
            recurrent_initializer=exactness.start,
        )
        hidden = layer(features["x"])
        with tf.control_dependencies(layer.updates):  # the states of the next batch
            hidden = tf.identity(hidden)
        return spec_of(mode, dense(1)(hidden), labels, descend)

    return model


def compiled(features, labels, mode):
    x = tf.keras.Input([3], batch_size=ROWS)
    model = tf.keras.Model(x, dense(1)(x))
    model.compile(tf1.train.GradientDescentOptimizer(0.1), "mse")
    y = model(features["x"][:, 0])

    def train(loss):
        return tf.group(*model.optimizer.get_updates(loss, model.trainable_variables))

    return spec_of(mode, y, labels, train)


def metric(features, labels, mode):
    spec = spec_of(mode, dense(1)(features["x"][:, 0]), labels, descend)
    if mode != "eval":
        return spec
    mean = tf.keras.metrics.MeanSquaredError()
    mean.update_state(labels, spec.predictions["y"])
    return spec._replace(eval_metric_ops={"mse": mean})


MODELS = {
    "mixed precision": mixed_precision,
    "global policy": global_policy,
    "fixed loss scale": scaled(False),
    "dynamic loss scale": scaled(True),
    "stateful GRU": stateful("GRU"),
    "stateful LSTM": stateful("LSTM"),
    "compiled": compiled,
}


@pytest.mark.thorough("*GRU-parameter_server", "*dynamic*", "*mixed*mirrored", "compiled*")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_on_one_device(name, strategy):
    # Float16 has 11 bits: what is added in another order differs in the last ones.
    tolerance = (2**-9, 2**-9) if "mixed" in name else (2e-4, 2e-5)
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_metric_counts_as_on_one_device(strategy):
    exactness.require_one_device(
        metric, BATCHES, "eval", is_static=True, devices=2, strategy=strategy
    )


OPTIMIZERS = {
    "plain": of_keras,
    "fixed": lambda limit=None: scaled(False, limit),
    "dynamic": lambda limit=None: scaled(True, limit),
}


@pytest.mark.parametrize(
    ("name", "building"),
    [("plain", "split"), ("plain", "call"), ("fixed", "split"), ("dynamic", "split")],
)
def test_what_an_optimizer_of_keras_applies_is_clipped(name, building):
    make, limit = OPTIMIZERS[name], 0.05
    options = {"clip_global_norm": limit, "tower_building": building}
    exactness.require_one_device(make(), BATCHES, reference=make(limit), devices=2, **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_of_keras_applies_is_accumulated(name):
    # The mean of two gradients of one batch is that gradient; it is of one scale or another.
    twice = [batch for batch in BATCHES for _ in range(2)]
    model = model_fn.replicate_model_fn(OPTIMIZERS[name](), devices=2, accumulate_steps=2)
    found = exactness.run(model, twice).variables
    expected = exactness.run(of_keras(), BATCHES).variables
    for n, values in enumerate(expected):
        exactness.compare(found[2 * n + 1]["dense/kernel:0"], values["dense/kernel:0"])


def test_a_model_itself_sees_the_strategy():
    def asking(features, labels, mode):
        assert tf.distribute.has_strategy()
        assert not tf.compat.v2.distribute.has_strategy()  # as tf_keras asks
        assert tf.distribute.get_strategy().num_replicas_in_sync == 1
        return metric(features, labels, mode)

    exactness.run(model_fn.replicate_model_fn(asking, devices=2), BATCHES)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert tf.compat.v2.distribute.has_strategy()


def test_towers_are_a_strategy_to_keras():
    def asking(features, labels, mode):
        assert tf.compat.v2.distribute.has_strategy()
        return metric(features, labels, mode)

    exactness.run(
        model_fn.replicate_model_fn(asking, devices=2, tower_building="call"), BATCHES[:1]
    )
