"""Exported models that the tests of several modules load."""

import os
from typing import NamedTuple

import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export


def doubling(features, labels, mode):
    """y = 2 x, with an embedding that adds nothing."""
    w = tf1.get_variable("w", initializer=2.0)
    rows = tf1.get_variable("rows", initializer=tf.zeros([5, 1]))
    y = tf.multiply(features["left"], w, name="doubled") - features["right"]
    y += tf.nn.embedding_lookup(rows, tf.zeros_like(tf.cast(y, tf.int32)))[:, 0]
    outputs = {"serving_default": estimator.export.PredictOutput({"y": y})}
    return estimator.EstimatorSpec(
        mode,
        loss=tf.reduce_sum(y),
        train_op=tf1.no_op(),
        predictions=y,
        export_outputs=outputs if mode == "infer" else None,
    )


def raw():
    features = {name: tf1.placeholder(tf.float32, [None], name) for name in ("left", "right")}
    return estimator.export.ServingInputReceiver(features, features)


_BUILT = [("parameter_server", "split"), ("mirrored", "split"), ("parameter_server", "call")]


class Exported(NamedTuple):
    """Where a model of four towers on CPU:2 to CPU:5 is, and the same as one tower.

    Attributes:
        merged: The directory of all towers.
        one: The directory of one tower.
        products: The names of each tower's product.
    """

    merged: str
    one: str
    products: tuple


@pytest.fixture(scope="module", params=_BUILT, ids="-".join)
def merged(request, tmp_path_factory):
    """A model, exported in both ways."""
    strategy, tower_building = request.param
    home = tmp_path_factory.mktemp("serving")
    devices = [f"/cpu:{i}" for i in range(2, 6)]
    replicated = model_fn.replicate_model_fn(
        doubling,
        lambda: tf1.train.GradientDescentOptimizer(0.0),
        devices,
        strategy=strategy,
        tower_building=tower_building,
    )
    made = estimator.Estimator(replicated, model_dir=str(home / "model"), params={})
    features = {"left": [1.0, 2.0], "right": [0.0, 0.0]}
    made.train(lambda: tf.data.Dataset.from_tensors((features, [0.0, 0.0])), steps=1)
    first = "doubled" if tower_building == "call" else "tower_0/doubled"
    return Exported(
        *(
            os.fsdecode(export.export_saved_model(made, home / towers, raw, towers=towers))
            for towers in ("merged", "one")
        ),
        (first, *(f"tower_{k}/doubled" for k in (1, 2, 3))),
    )
