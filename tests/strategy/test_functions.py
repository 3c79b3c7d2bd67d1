"""When eager towers run at the same time, and models that build themselves in them."""

import threading

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.towers import functions


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
    known, model = functions.Functions(), Model()
    known.note(model.step, has_made=False)
    assert known.has_settled(model.step)
    assert not known.has_settled(Model().step)
    assert not known.has_settled(len)
    known.note(model.step, has_made=True)
    assert not known.has_settled(model.step)


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


def shapes_traced(**options):
    """Runs a function of vectors in two towers, of other lengths each time.

    Returns:
        The shapes that the function saw while it was traced, tower by tower.
    """
    strategy, seen = core.MirroredStrategy(["/cpu:0", "/cpu:1"]), []

    @tf.function(**options)
    def double(x, scale=2.0):
        seen.append(x.shape.as_list())
        return scale * x

    for length in (2, 3, 4):
        x = tf.ones([length])
        shards = core.PerDevice([x, 3.0 * x], strategy.worker_devices)
        for given in ((shards,), {}), ((), {"x": shards}):
            found = strategy.unwrap(strategy.run(double, *given))
            assert [part.numpy().tolist() for part in found] == [[2.0] * length, [6.0] * length]
    return seen


def test_a_function_in_towers_has_its_own_signature():
    # Traced once, in each of two towers.
    signature = [tf.TensorSpec([None], name="x")]
    assert shapes_traced(input_signature=signature) == [[None], [None]]


def test_a_function_in_towers_is_traced_anew_as_it_says():
    # By position and by name, for the first length; for the second with any length.
    assert shapes_traced(reduce_retracing=True) == [[2]] * 4 + [[None]] * 4
    assert shapes_traced() == [[n] for n in (2, 3, 4) for _ in range(4)]


@pytest.mark.parametrize("makes", [core.MirroredStrategy, core.LocalParameterServerStrategy])
def test_a_function_of_a_graph_enters_the_scope_by_itself(makes):
    strategy = makes(["/cpu:0", "/cpu:1"])
    model = Model()
    with tf.Graph().as_default():
        results = tf.function(lambda: strategy.unwrap(strategy.run(model.step)))()
        with tf1.Session() as session:
            session.run([variable.initializer for variable in model.variables])
            assert session.run(results) == [2.0, 2.0]
