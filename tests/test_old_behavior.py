"""Old Estimator code begins with `disable_v2_behavior`, which changes a whole process."""

import pytest

CODE = """
import tempfile
import numpy as np
import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

tf1.disable_v2_behavior()
replicate.devices.make_logical_cpus(2)


def model_fn(features, labels, mode):
    y = tf1.layers.dense(features["x"], 1, name="line")
    loss = None if labels is None else tf1.losses.mean_squared_error(labels, y)
    metrics = None if labels is None else {"rows": tf1.metrics.mean(labels)}
    return estimator.EstimatorSpec(
        mode, {"y": y}, loss, tf1.no_op(), metrics if mode == "eval" else None)


def input_fn():
    rows = tf1.data.Dataset.from_tensor_slices(np.ones([13, 1], np.float32))
    return rows.map(lambda x: ({"x": x}, x)).batch(5)


replicated = replicate.replicate_model_fn(
    model_fn, lambda: tf1.train.GradientDescentOptimizer(0.1), devices=["/cpu:0", "/cpu:1"])
model = estimator.Estimator(replicated, tempfile.mkdtemp())
model.train(input_fn)
print("metrics", model.evaluate(input_fn)["rows"])
print("rows", len(list(model.predict(input_fn))))
"""


@pytest.mark.thorough
def test_an_estimator_trains_under_the_old_behavior(run_python):
    said = run_python(CODE)
    said = getattr(said, "stdout", said)
    assert "metrics 1.0" in said
    assert "rows 13" in said
