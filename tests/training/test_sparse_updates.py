"""Averages of sparse gradients after a step that has got no batch."""

import time

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

BATCHES = np.array([[0, 1, 1, 4], [3, 3, 2, 0]])


def batches():
    """All batches; the end of input comes late, when all else of a step has long been done."""
    yield from BATCHES
    time.sleep(0.2)


def model(features, labels, mode):
    table = tf1.get_variable("table", [6, 2], tf.float64, exactness.start)
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, features) - 1.0))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def v1_adam():
    return tf1.train.AdamOptimizer(0.1)


def keras_model(features, labels, mode):
    """A table under Keras' Adam, which decays its averages in the same way."""
    loss = model(features, labels, mode).loss
    optimizer = tf.keras.optimizers.legacy.Adam(0.1)
    optimizer.iterations = tf1.train.get_global_step()
    train_op = optimizer.get_updates(loss, tf1.trainable_variables())[0]
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.filterwarnings("ignore:To construct input pipelines")
@pytest.mark.parametrize(
    ("model_fn", "optimizer_fn", "options"),
    [
        (model, v1_adam, {"devices": 1}),
        (model, v1_adam, {"devices": 2}),
        (model, v1_adam, {"devices": 2, "strategy": "mirrored"}),
        (model, v1_adam, {"devices": 2, "tower_building": "call"}),
        (keras_model, None, {"devices": 2}),
    ],
    ids=["one device", "split", "mirrored", "towers", "keras"],
)
def test_a_step_at_the_end_of_input_decays_nothing(model_fn, optimizer_fn, options):
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        rows = tf.data.Dataset.from_generator(
            batches, output_signature=tf.TensorSpec([None], tf.int64)
        )
        features = tf1.data.make_one_shot_iterator(rows).get_next()
        replicated = replicate.replicate_model_fn(model_fn, optimizer_fn, **options)
        spec = replicated(features, None, "train")
        variables = {each.name: each.read_value() for each in tf1.global_variables()}
        with tf1.Session(config=exactness.session_config()) as session:
            session.run(exactness.initializer_of_all())
            for _ in BATCHES:
                session.run(spec.train_op)
            expected = session.run(variables)
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(spec.train_op)
            np.testing.assert_equal(session.run(variables), expected)
