"""What a run exports, and what its exports predict."""

import contextlib
import json
import os
import pathlib
import signal

import numpy as np
import pytest

from replicate import errors, estimator
from replicate.app.command import cli
from replicate.app.training import exports
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import predictor as predictors


def slope(features, labels, mode, params):
    """y = w x, w = 0 at first; the loss is w, so that each step takes the rate from w."""
    w = tf1.get_variable("w", params.get("shape", []), initializer=tf1.zeros_initializer())
    y = tf.reduce_sum(w) * features["x"]
    if mode == estimator.ModeKeys.PREDICT:
        if params.get("signal"):
            os.kill(os.getpid(), getattr(signal, params["signal"]))
        found = {"y": y, "x": features["x"]}
        outputs = {"serving_default": found, "doubled": {"doubled": 2.0 * y}}
        outputs = {key: estimator.export.PredictOutput(one) for key, one in outputs.items()}
        return estimator.EstimatorSpec(mode, found, export_outputs=outputs)
    loss = tf.reduce_mean(tf.reduce_sum(w) * labels)
    step = tf.cast(tf1.train.get_global_step(), tf.float32)
    score = tf1.metrics.mean(-tf.abs(step - 6.0))
    both = (tf.stack([step, step]), tf1.no_op())
    nothing = tf1.metrics.mean(step * float("nan"))
    metrics = {"score": score, "both": both, "nothing": nothing}
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op(), eval_metric_ops=metrics)


CONFIG = """
model_fn: tests.app.test_exports:slope
optimizer: {name: GradientDescent, learning_rate: 0.1}
devices: [/cpu:0, /cpu:1]
train:
  steps: 10
  keep_best: {metric: score, higher_is_better: true}
  save_checkpoints_steps: 2
  input: &data {kind: npz, file: d.npz, features: [x], label: y, batch_size: 2}
eval: {every_steps: 2, input: *data}
predict: {input: {kind: npz, file: d.npz, features: [x], batch_size: 3}}
export: {}
"""
BEST = "train.keep_best={{metric: {}, higher_is_better: true}}"


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with a model, its data and its config."""
    folder = tmp_path_factory.mktemp("slope")
    (folder / "slope.yaml").write_text(CONFIG)
    x = np.float32([1, 2, 3, 4])
    np.savez(folder / "d.npz", x=x, y=np.ones_like(x))
    np.savez(folder / "named.npz", z=x)
    return folder


def run(folder, command, *options, model_dir="trained"):
    """Runs a command on the config; returns the exit code."""
    where = ["--model-dir", str(folder / model_dir)]
    return cli.main([command, str(folder / "slope.yaml"), *where, *options])


@pytest.fixture(name="trained", scope="module")
def train_twice(folder):
    """Returns the folder after a training that was continued once, after step 6."""
    assert run(folder, "train", "--set", "train.steps=6") == 0
    assert run(folder, "train") == 0
    return folder


def steps_of(directory):
    """Returns the steps whose weights the exports in a directory have: w = -0.1 step."""
    steps = []
    for path in sorted(path for path in directory.iterdir() if path.name.isdecimal()):
        with predictors.load_exported(str(path)) as predictor:
            steps.append(round(float(predictor({"x": [1.0]})["y"][0]) / -0.1, 3))
    return steps


def test_the_best_of_five_evaluations_over_a_restart_is_exported(trained, tmp_path):
    out = f"export.directory={tmp_path}"
    assert run(trained, "export", "--checkpoint", "best", "--set", out) == 0
    assert steps_of(tmp_path) == [6]  # score -4 -2 0 | -2 -4


def test_each_training_exports_at_its_end_and_nothing_half_written_is_left(trained):
    assert steps_of(trained / "trained" / "export")[:2] == [6, 10]
    assert all(path.name.isdecimal() for path in (trained / "trained" / "export").iterdir())


@pytest.mark.parametrize("towers", ["one", "merged"])
def test_export_writes_towers_as_the_config_says(trained, capsys, towers):
    assert run(trained, "export", "--set", f"export.towers={towers}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == ["  doubled", "    input  x: float32 [None]", *lines[3:4]]
    graph = (pathlib.Path(lines[0]) / "saved_model.pb").read_bytes()
    assert (b"tower_1/" in graph) == (towers == "merged")


def predicted(folder, tmp_path, *options):
    """Returns what predict writes, as text."""
    path = tmp_path / "p.jsonl"
    assert run(folder, "predict", "--output", str(path), *options) == 0
    return path.read_text()


@pytest.mark.parametrize("towers", ["one", "merged"])
def test_a_saved_model_predicts_what_its_checkpoint_does(trained, tmp_path, capsys, towers):
    assert run(trained, "export", "--set", f"export.towers={towers}") == 0
    path = capsys.readouterr().out.splitlines()[0]
    expected = [json.loads(line) for line in predicted(trained, tmp_path).splitlines()]
    with contextlib.closing(predictors.load_exported(path)) as predictor:
        found = predictor({"x": np.float32([row["x"] for row in expected])})
    assert {name: list(values) for name, values in found.items()} == {
        name: pytest.approx([row[name] for row in expected], rel=1e-6) for name in found
    }


@pytest.mark.thorough("options0-*")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([BEST.format("scor")], "got 'scor'. Did you mean score?"),
        ([BEST.format("both")], "must be a single number"),
        (["export.directory=slope.yaml"], "must be a directory that can be written"),
    ],
)
def test_an_export_that_cannot_be_is_told(folder, capsys, options, text):
    given = [part for option in options for part in ("--set", option)]
    name = f"bad_{abs(hash(tuple(options)))}"
    assert run(folder, "train", "--set", "train.steps=4", *given, model_dir=name) == 1
    shown = capsys.readouterr().err
    assert text in shown
    assert "Traceback" not in shown


@pytest.mark.thorough
def test_a_metric_that_is_no_number_is_never_the_best(folder):
    given = ["--set", BEST.format("nothing")]
    assert run(folder, "train", "--set", "train.steps=2", *given, model_dir="nan") == 0
    assert not (folder / "nan" / "best").exists()


def test_the_end_of_training_exports_without_an_evaluation(folder):
    given = [part for one in ("eval=null", "train.keep_best=null") for part in ("--set", one)]
    assert run(folder, "train", *given, "--set", "train.steps=3", model_dir="unseen") == 0
    assert steps_of(folder / "unseen" / "export") == [3]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_export_that_is_stopped_leaves_nothing(trained, tmp_path, capsys, name):
    before = signal.getsignal(signal.SIGTERM)
    given = ["--set", f"params.signal={name}", "--set", f"export.directory={tmp_path / 'out'}"]
    assert run(trained, "export", *given) == 130
    assert list((tmp_path / "out").iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before
    assert "Traceback" not in capsys.readouterr().err


def test_features_of_any_kind_of_tensor_are_served(tmp_path):
    features = {
        "dense": tf.TensorSpec([None, 2], tf.float32),
        "sparse": tf.SparseTensorSpec([None, None], tf.int64),
        "ragged": tf.RaggedTensorSpec([None, None, 3], tf.float32, ragged_rank=1),
    }
    with tf.Graph().as_default():
        receiver = exports.receiver_fn(features)()
    assert isinstance(receiver, estimator.export.ServingInputReceiver)
    assert receiver.features["ragged"].shape.as_list() == [None, None, 3]
    with pytest.raises(errors.RunError, match="TensorArraySpec"):
        exports.receiver_fn({"a": tf.TensorArraySpec()})


def test_features_are_served_by_names_that_no_op_could_have(trained, capsys):
    names = ["x", "w", "sepal length (cm)", "_", "größe", "a/"]  # w: as a variable is called
    described = ", ".join(f"'{name}': {{dtype: float32}}" for name in names)
    for towers in ("one", "merged"):
        given = ["--set", f"export.inputs={{{described}}}", "--set", f"export.towers={towers}"]
        assert run(trained, "export", *given) == 0
        shown = capsys.readouterr().out
        assert all(f"{name}: float32 [None]" in shown for name in names)


def test_an_export_without_any_input_needs_inputs(trained, capsys):
    given = [part for name in ("train", "eval", "predict") for part in ("--set", f"{name}=null")]
    given += ["--set", "export={}"]
    assert run(trained, "export", *given) == 1
    assert "export.inputs: must be given" in capsys.readouterr().err
    assert run(trained, "export", *given, "--set", "export.inputs={x: {dtype: float32}}") == 0
