"""Loading an exported model."""

import os

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export, predictor

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]


def doubling(features, labels, mode):
    """y = 2 left - right."""
    y = tf1.get_variable("w", initializer=2.0) * features["left"] - features["right"]
    outputs = {"serving_default": estimator.export.PredictOutput({"y": y})}
    outputs = outputs if mode == "infer" else None
    loss = tf.reduce_sum(y)
    return estimator.EstimatorSpec(mode, y, loss, tf1.no_op(), export_outputs=outputs)


def raw():
    features = {name: tf1.placeholder(tf.float32, [None], name) for name in ("left", "right")}
    return estimator.export.ServingInputReceiver(features, features)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model of four towers, exported with all of them."""
    home = tmp_path_factory.mktemp("serving")
    descent = tf1.train.GradientDescentOptimizer
    replicated = model_fn.replicate_model_fn(doubling, lambda: descent(0.0), 4)
    made = estimator.Estimator(replicated, model_dir=str(home / "model"), params={})
    features = {"left": [1.0, 2.0], "right": [0.0, 0.0]}
    made.train(lambda: tf.data.Dataset.from_tensors((features, [0.0, 0.0])), steps=1)
    return os.fsdecode(export.export_saved_model(made, home / "merged", raw, towers="merged"))


def test_any_batch_size_is_answered(path):
    with predictor.load_exported(path) as loaded:
        for size in (1, 2, 3, 7, 100):
            left = np.arange(size, dtype=np.float32)
            found = loaded({"left": left, "right": np.ones(size, np.float32)})
            np.testing.assert_array_equal(found["y"], 2 * left - 1)


@pytest.mark.parametrize("tags", ["serve", ["serve"], ("serve",)])
def test_tags_are_one_or_several(tags, path):
    with predictor.load_exported(path, tags=tags) as loaded:
        assert loaded.signatures == {"serving_default": (("left", "right"), ("y",))}


BOTH = {"left": [1.0], "right": [1.0]}


@pytest.mark.parametrize(
    ("inputs", "signature", "text"),
    [
        ({"left": [1.0]}, "serving_default", "'right' is missing"),
        ({"left": [1.0], "rihgt": [1.0]}, "serving_default", "'rihgt'. Did you mean 'right'"),
        ({**BOTH, "x": [1.0]}, "serving_default", "takes the inputs 'left', 'right': no inp"),
        ([1.0], "serving_default", "Inputs are a dict of arrays; got list"),
        (BOTH, "serve_default", "Did you mean 'serving_default'"),
    ],
)
def test_what_does_not_fit_is_named(inputs, signature, text, path):
    with predictor.load_exported(path) as loaded, pytest.raises(ValueError, match=text):
        loaded(inputs, signature=signature)


def test_a_directory_without_a_model_says_what_it_holds(path, tmp_path):
    with pytest.raises(ValueError, match="has nothing in it"):
        predictor.load_exported(tmp_path)
    with pytest.raises(ValueError, match="it is no directory"):
        predictor.load_exported(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"has graphs with the tags \[\['serve'\]\]; got"):
        predictor.load_exported(path, tags=["gpu"])
