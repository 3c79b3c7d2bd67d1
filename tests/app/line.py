"""A line: the model, the data and the config with which tests run the app's commands.

x = 1, 2, 3, 4 and y = 2 x: the gradient is mean(x^2) (w - 2) = 7.5 (w - 2), so at rate 0.1 each
step leaves a quarter of w - 2, and w = 2 - 2 / 4^n after n steps.
"""

import pathlib

import numpy as np

from replicate import estimator
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1

WEIGHTS = [2 - 2 / 4**n for n in range(10)]
CONFIG = """
model_fn: tests.app.line:line
optimizer: {name: GradientDescent, learning_rate: 0.1}
devices: [/cpu:0, /cpu:1]
train:
  steps: 4
  save_checkpoints_steps: 2
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 4, shuffle: false}
eval: {input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 3}}
predict: {input: {kind: npz, file: d.npz, features: [x], batch_size: 3}}
export: {}
"""


def line(features, labels, mode, params):
    """y = w x, w = 0 at first; the loss is the mean of (w x - y)^2 / 2."""
    x = features["x"]
    name, shape = params.get("variable", "w"), params.get("shape", [])
    w = tf.reduce_sum(tf1.get_variable(name, shape, x.dtype, tf1.zeros_initializer()))
    y = w * x
    if mode == estimator.ModeKeys.PREDICT:
        output = {"serving_default": estimator.export.PredictOutput({"y": y})}
        return estimator.EstimatorSpec(mode, {"y": y, "x": x}, export_outputs=output)
    loss = tf.reduce_mean(tf.square(y - tf.cast(labels, x.dtype))) / 2.0
    metrics = {"w": tf1.metrics.mean(w), "average": tf1.metrics.mean(y)}
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op(), eval_metric_ops=metrics)


def write(folder: pathlib.Path, config: str = "") -> pathlib.Path:
    """Writes the data and `line.yaml`, whose keys these replace; returns the folder."""
    (folder / "base.yaml").write_text(CONFIG)
    (folder / "line.yaml").write_text(f"extends: base.yaml\n{config}")
    x = np.float32([1, 2, 3, 4])
    np.savez(folder / "d.npz", x=x, y=2 * x)
    return folder


def run(folder: pathlib.Path, command: str, *options: str, model_dir="trained") -> int:
    """Runs a command on the config; returns the exit code."""
    where = ["--model-dir", str(folder / model_dir)]
    return cli.main([command, str(folder / "line.yaml"), *where, *options])
