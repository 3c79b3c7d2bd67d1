"""Summaries: scalars are the whole batch's, all else is the first tower's."""

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry
from tests import exactness

NUMBERS = np.random.RandomState(0)
X = NUMBERS.uniform(-1, 1, [7, 3])
Y = NUMBERS.uniform(-1, 1, [7, 1])


def model(features, labels, mode):
    w = tf1.get_variable("w", [3, 1], tf.float64, exactness.start)
    output = tf.matmul(features, w)
    loss = tf.reduce_mean(tf.square(output - labels))
    tf1.summary.scalar("loss", loss)
    tf1.summary.scalar("rows", tf.shape(features)[0], collections=["others"])
    with tf1.name_scope("scope"):
        tf1.summary.scalar("root", tf.sqrt(loss))
        tf1.summary.scalar("penalty", tf.nn.l2_loss(w))
    tf1.summary.histogram("first", output)
    return exactness.spec_of(mode, loss)


def shown(spec):
    """What is written, by tag; of a histogram how many numbers it holds."""
    found = {}
    keys = (tf1.GraphKeys.SUMMARIES, "others")
    items = [item for key in keys for item in tf1.get_collection(key)]
    with tf1.Session(config=exactness.session_config()) as session:
        session.run(exactness.initializer_of_all())
        for text in session.run(items):
            for value in tf1.Summary.FromString(text).value:
                is_scalar = value.WhichOneof("value") == "simple_value"
                found[value.tag] = value.simple_value if is_scalar else value.histo.num
    return found


def summarised(run, mode, is_static):
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        rows = 7 if is_static else None
        x = tf1.placeholder_with_default(X, [rows, 3])
        y = tf1.placeholder_with_default(Y, [rows, 1])
        return shown(run(x, y, mode))


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_scalar_summaries_are_the_whole_batchs(strategy, mode, is_static):
    def optimizer_fn():
        return tf1.train.GradientDescentOptimizer(0.1)

    towers = model_fn.replicate_model_fn(model, optimizer_fn, 3, strategy=strategy)
    expected = summarised(model, mode, is_static)
    found = summarised(towers, mode, is_static)
    assert found.pop("first") == 3  # of 7 rows the first of three towers has 3
    assert expected.pop("first") == 7
    exactness.compare(found, expected, 1e-6, 1e-7)


@pytest.mark.parametrize("devices", [1, 3])
def test_summaries_of_tensorflow_2_are_written_once(fresh_graph, tmp_path, devices):
    """They need TensorBoard, which TensorFlow itself brought up to 2.20."""

    def writing(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], tf.float64, exactness.start)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        writer = tf.summary.create_file_writer(str(tmp_path))
        with writer.as_default():
            tf.summary.scalar("loss", loss, step=0)
        return exactness.spec_of(mode, loss)

    tf1.train.create_global_step()
    step = model_fn.replicate_model_fn(
        writing, lambda: tf1.train.GradientDescentOptimizer(0.1), devices
    )
    step(tf.constant(X), tf.constant(Y), "train")
    (written,) = tf1.summary.all_v2_summary_ops()
    assert "WriteSummary" in {op.type for op in ancestry.executed_by([written])}
