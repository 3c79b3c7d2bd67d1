"""Who comes from Keras is told the way: `fit`, models, optimizers, strategies of another kind."""

import importlib
import importlib.util

import numpy as np
import pytest

from replicate import estimator, model_fn, strategy
from replicate.compat.tensorflow import tf, tf1

X, Y = np.ones([4, 3], np.float32), np.ones([4, 1], np.float32)
TWO = ["/cpu:0", "/cpu:1"]
KERAS = ["tf.keras", "keras"]


@pytest.fixture(params=KERAS)
def keras(request):
    return keras_of(request.param)


@pytest.fixture
def keras_3():
    return keras_of("keras")


def keras_of(name):
    if name == "tf.keras":
        return tf.keras
    if not tf.__version__.startswith("2.15."):  # whose Keras is of version 2
        return importlib.import_module("keras")
    return pytest.skip("Keras 3 is not beside this TensorFlow")


def model_of(keras):
    made = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize("made", [strategy.MirroredStrategy, strategy.LocalParameterServerStrategy])
@pytest.mark.parametrize("runs", ["fit", "evaluate", "predict"])
def test_models_do_not_train_in_a_scope_of_ours(keras, made, runs):
    with made(TWO).scope():
        model = model_of(keras)
    given = (X,) if runs == "predict" else (X, Y)
    with pytest.raises(NotImplementedError, match=r"distribute\.MirroredStrategy.*model_to_est"):
        getattr(model, runs)(*given, verbose=0)


def test_a_model_is_no_model_fn(keras):
    with pytest.raises(ValueError, match=r"the Keras model <.*model_to_estimator\(model\)\."):
        model_fn.replicate_model_fn(model_of(keras))


def line(train):
    """A model_fn that trains by a function of its loss."""

    def made(features, labels, mode):
        y = tf1.layers.dense(features["x"], 1, kernel_initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(tf.square(y - labels))
        return estimator.EstimatorSpec(mode, {"y": y}, loss, train(loss))

    return made


def trained(train, **options):
    replicated = model_fn.replicate_model_fn(line(train), devices=TWO, **options)
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        return replicated({"x": tf.constant(X)}, tf.constant(Y), "train")


@pytest.mark.parametrize(
    "optimizer_fn", [lambda each: each, lambda each: each(0.1), lambda each: lambda: each(0.1)]
)
def test_an_optimizer_of_keras_is_made_in_the_model_fn(keras, optimizer_fn):
    with pytest.raises(TypeError, match=r"got.*tf_keras\.optimizers\.legacy\.Adam"):
        trained(lambda loss: tf.no_op(), optimizer_fn=optimizer_fn(keras.optimizers.Adam))


def pairs_of(loss):
    weights = tf1.trainable_variables()
    return list(zip(tf.gradients(loss, weights), weights, strict=True))


@pytest.mark.parametrize("building", ["split", "call"])
def test_an_optimizer_of_keras_3_is_refused_in_a_model_fn(keras_3, building):
    outside = keras_3.optimizers.Adam(0.1)

    def counting(loss, made):
        made().apply_gradients(pairs_of(loss))
        return tf1.assign_add(tf1.train.get_global_step(), 1)

    for made in (lambda: keras_3.optimizers.Adam(0.1), lambda: outside):
        with pytest.raises(TypeError, match=r"Keras 3 do nothing: got one.*legacy\.Adam"):
            trained(lambda loss, made=made: counting(loss, made), tower_building=building)
    weight = keras_3.Variable([1.0])
    outside.build([weight])
    outside.apply([tf.constant([1.0])])  # nobody minds it elsewhere


def test_a_strategy_of_ours_is_no_train_distribute(tmp_path):
    ours = strategy.MirroredStrategy(TWO)
    config = estimator.RunConfig(str(tmp_path), train_distribute=ours, eval_distribute=ours)
    made = estimator.Estimator(line(lambda loss: tf.no_op()), config=config)
    for run in (made.train, made.evaluate):
        with pytest.raises(TypeError, match=r"got MirroredStrategy.*pass replicate_model_fn\("):
            run(lambda: tf.data.Dataset.from_tensors(({"x": X}, Y)))
