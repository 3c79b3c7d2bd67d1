"""When eager towers run at the same time, and models that build themselves in them."""

import threading

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf
from replicate.strategy import functions


class Model:
    """Makes its variable when it is first called, and meets the other towers where asked."""

    def __init__(self):
        self.variables = []
        self.barrier = threading.Barrier(2)
        self.meets = False

    def step(self):
        if not self.variables:
            self.variables.append(tf.Variable(1.0))
        if self.meets:
            self.barrier.wait(timeout=10)
        return self.variables[0] + 1.0


def test_towers_overlap_where_asked_once_they_make_nothing():
    strategy, model = core.MirroredStrategy(["/cpu:0", "/cpu:1"]), Model()
    with strategy.scope():
        for _ in range(2):  # one run makes the variable, another makes nothing
            strategy.call_for_each_tower(model.step, run_concurrently=True)
        model.meets = True  # ends in a BrokenBarrierError where towers take turns
        strategy.call_for_each_tower(model.step, run_concurrently=True)
    assert len(model.variables) == 1


def test_towers_that_make_a_variable_take_turns_again():
    settled, model = functions.Settled(), Model()
    settled.note(model.step, has_made=False)
    assert model.step in settled
    assert Model().step not in settled
    assert len not in settled
    settled.note(model.step, has_made=True)
    assert model.step not in settled


@pytest.fixture
def keras():
    """Keras 2, which this TensorFlow has or finds as `tf_keras`."""
    if tf.version.VERSION.startswith("2.15."):
        return tf.keras
    return pytest.importorskip("tf_keras")


def weights_after(keras, steps, run):
    """Trains a model that nobody has built; `run` calls a function of one shard of two."""
    init = keras.initializers.Constant(0.1)
    layers = [keras.layers.Dense(3, "tanh", kernel_initializer=init) for _ in range(4)]
    model, optimizer = keras.Sequential(layers), keras.optimizers.legacy.Adam(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x) - 1.0))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(steps):
        run(step)
    assert len(model.trainable_variables) == 8
    return [weight.numpy() for weight in model.trainable_variables]


def test_keras_model_that_builds_itself_in_eager_towers_is_one_devices(keras):
    x = np.arange(12.0, dtype="float32").reshape(4, 3) / 10
    strategy = core.MirroredStrategy(["/cpu:0", "/cpu:1"])
    shards = core.PerDevice([tf.constant(x[:2]), tf.constant(x[2:])], strategy.worker_devices)
    expected = weights_after(keras, 3, lambda step: step(tf.constant(x)))
    with strategy.scope():
        found = weights_after(keras, 3, lambda step: strategy.run(step, (shards,)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
