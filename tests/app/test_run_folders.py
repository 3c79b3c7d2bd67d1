"""A run's folder in place of a config: what was trained, with the overrides of its training."""

import json
import os
import pathlib

import numpy as np
import pytest

from replicate import estimator
from replicate.app.command import cli
from replicate.app.config import config
from replicate.compat.tensorflow import tf, tf1


def scaled(features, labels, mode, params):
    w = tf1.get_variable("w", [params["size"]], initializer=tf1.ones_initializer())
    y = params["scale"] * tf.reduce_sum(w) * features["x"]
    if mode == estimator.ModeKeys.PREDICT:
        output = estimator.export.PredictOutput({"y": y})
        return estimator.EstimatorSpec(mode, {"y": y}, export_outputs={"serving_default": output})
    metrics = {"y": tf1.metrics.mean(y)}
    loss = tf1.reduce_mean(tf1.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op(), eval_metric_ops=metrics)


CONFIG = """
model_fn: tests.app.test_run_folders:scaled
optimizer: {name: GradientDescent, learning_rate: 0.0}
params: {size: 1, scale: 1.0}
devices: [/cpu:0]
train: {steps: 1, input: &d {kind: npz, file: ../d.npz, features: [x], label: y, batch_size: 4}}
eval: {input: *d}
predict: {input: {kind: npz, file: ../d.npz, features: [x]}}
"""


@pytest.fixture(name="folder", scope="module")
def train_with_overrides(tmp_path_factory):
    """Returns a folder with configs/line.yaml and the run runs/line, of params it does not say."""
    folder = tmp_path_factory.mktemp("run_folders")
    (folder / "configs").mkdir()
    (folder / "configs" / "line.yaml").write_text(CONFIG)
    x = np.float32([1, 2, 3, 4])
    np.savez(folder / "d.npz", x=x, y=x)
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        given = ["--params.size=3", "--params.scale=2.0", "--quiet"]
        assert cli.main(["train", "configs/line.yaml", *given]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def stand_in(folder, monkeypatch):
    """Makes the folder the working directory."""
    monkeypatch.chdir(folder)


# y = scale * (sum of 3 ones) * x = 6 x; the mean of x is 2.5.
def test_a_run_is_evaluated_as_it_was_trained(capsys):
    assert cli.main(["evaluate", "runs/line", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["y"] == pytest.approx(15.0)


def test_what_is_given_beside_a_run_overrides_its_config(capsys):
    assert cli.main(["evaluate", "runs/line/", "--json", "--params.scale=4"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["y"] == pytest.approx(30.0)
    assert "config: params.scale: was 2.0, is 4\n" in shown.err


def test_a_run_predicts_exports_and_is_described_as_it_was_trained(capsys):
    assert cli.main(["predict", "runs/line", "--output", "p.jsonl", "--quiet"]) == 0
    rows = [json.loads(line) for line in pathlib.Path("p.jsonl").read_text().splitlines()]
    assert [row["y"] for row in rows] == [6.0, 12.0, 18.0, 24.0]
    assert cli.main(["export", "runs/line", "--json"]) == 0
    path = json.loads(capsys.readouterr().out)["path"]
    assert pathlib.Path(path).parent == pathlib.Path("runs/line/export")
    assert tf.saved_model.contains_saved_model(path)
    assert cli.main(["describe", "runs/line", "--json"]) == 0
    assert "[3]" in capsys.readouterr().out.replace(" ", "")


def test_a_run_is_plotted_from_its_folder():
    assert cli.main(["evaluate", "runs/line", "--quiet"]) == 0
    assert cli.main(["plot", "runs/line", "--png", "curves.png", "--quiet"]) == 0
    assert pathlib.Path("curves.png").exists()


def test_a_run_goes_on_from_its_folder(capsys):
    assert cli.main(["check", "runs/line"]) == 0
    assert capsys.readouterr().out == "runs/line: ok\n"
    assert cli.main(["train", "runs/line"]) == 0
    assert "runs/line is at step 1 already" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_config_that_lacks_what_the_training_had_says_so(capsys, command):
    given = ["--params.scale=1", "--params.size=3"] * (command == "export")
    code = cli.main([command, "configs/line.yaml", *given])
    shown = capsys.readouterr().err
    assert "config: params.scale: was 2.0, is 1" in shown
    assert f"with the run's own config: replicate {command} runs/line\n" in shown
    assert ("give runs/line in place of the config." in shown) == (code == 1) == (not given)


def test_the_config_that_a_run_prints_can_be_copied_and_its_record_says_so(tmp_path, capsys):
    assert cli.main(["check", "runs/line", "--print-config"]) == 0
    (tmp_path / "copy.yaml").write_text(capsys.readouterr().out)
    assert config.load(str(tmp_path / "copy.yaml")) == config.load("runs/line")
    head = pathlib.Path("runs/line/config.yaml").read_text().partition("\nname:")[0]
    assert "`replicate check FOLDER --print-config > COPY`, which prints absolute paths" in head


def test_a_run_that_moved_names_what_it_does_not_find(folder, tmp_path, capsys):
    moved = tmp_path / "elsewhere" / "deep" / "down"
    moved.mkdir(parents=True)
    (moved / "config.yaml").write_text((folder / "runs" / "line" / "config.yaml").read_text())
    assert cli.main(["check", str(moved), "--strict"]) == 1
    assert f"there is no {tmp_path / 'elsewhere' / 'd.npz'} yet" in capsys.readouterr().err


def test_a_fault_of_a_runs_config_names_its_line(folder, tmp_path, capsys):
    written = (folder / "runs" / "line" / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(written.replace("\nseed: null", "\nseeds: 3"))
    assert cli.main(["check", str(tmp_path)]) == 2
    line = written[: written.index("\nseed: null") + 1].count("\n") + 1
    assert f"{tmp_path}/config.yaml:{line}: seeds: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize("files", [[], ["config.yaml"]])
def test_another_folder_is_no_config(tmp_path, capsys, files):
    for name in files:
        (tmp_path / name).write_text(CONFIG)
    assert cli.main(["evaluate", str(tmp_path)]) == 2
    assert (
        f"{tmp_path}: a folder in place of a config must be a run's, which has the config.yaml "
        "that `replicate train` writes; this one has none."
    ) in capsys.readouterr().err
