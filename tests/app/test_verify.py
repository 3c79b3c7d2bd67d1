"""`replicate verify`: exit codes, the table, JSON."""

import json

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1


def line(features, labels, mode, params):
    """y = w x; a tower that is called may be made to count more than the others."""
    y = tf1.get_variable("w", [], initializer=tf1.ones_initializer()) * features["x"]
    if mode == "infer":
        return estimator.EstimatorSpec(mode, {"y": y})
    tower = replicate.get_tower_context().tower_id
    loss = tf.reduce_mean(tf.square(y - labels) * (1.0 + params.get("extra", 0.0) * tower))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf.no_op())


CONFIG = """
model_fn: tests.app.test_verify:line
optimizer: {name: Momentum, learning_rate: 0.1, momentum: 0.9}
devices: [/cpu:0, /cpu:1]
train:
  steps: 4
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 4}
"""

CALL = ("--tower_building", "call")


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with the model, its data and its config."""
    folder = tmp_path_factory.mktemp("verified")
    (folder / "line.yaml").write_text(CONFIG)
    x = np.float32([1, 2, 3, 4])
    np.savez(folder / "d.npz", x=x, y=2 * x)
    return folder


def run(folder, *options):
    """Runs the command; returns the exit code."""
    model_dir = folder / "runs"
    code = cli.main(["verify", str(folder / "line.yaml"), "--model-dir", str(model_dir), *options])
    assert not model_dir.exists()
    return code


def test_exact_towers_are_exit_code_0_and_a_table(folder, capsys):
    assert run(folder) == 0
    shown = capsys.readouterr()
    first, *_, last = shown.out.splitlines()
    # 4 rows as they come, 3 that two towers do not divide, 1 row.
    assert first == (
        "2 towers (/device:CPU:0, /device:CPU:1) beside one device, on batches of 4, 3, 1 rows"
    )
    assert last == "The towers give what one device gives."
    assert "weights" in shown.out
    assert "verify 9/9" in shown.err


@pytest.mark.thorough
def test_a_difference_is_exit_code_1_and_named(folder, capsys):
    assert run(folder, "--quiet", *CALL, "--set", "params.extra=0.5") == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    rows = {line.split("  ")[0]: line for line in shown.out.splitlines()}
    assert "differs" in rows["loss"]
    assert "differs: w (batch" in rows["weights"]
    assert "equal" in rows["predictions"]


def test_a_split_graph_is_one_devices(folder, capsys):
    # To the model there is one tower, number 0: none counts more than others.
    assert run(folder, "--set", "params.extra=0.5", "--quiet", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"]
    assert {row["verdict"] for row in found["rows"]} <= {"equal", "not compared"}


@pytest.mark.thorough("0.5-*")
@pytest.mark.parametrize(("extra", "code"), [(0.0, 0), (0.5, 1)])
def test_machines_get_json(folder, capsys, extra, code):
    assert run(folder, "--json", "--quiet", *CALL, "--set", f"params.extra={extra}") == code
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is (code == 0)
    assert found["batch_sizes"] == [4, 3, 1]
    assert [row["what"] for row in found["rows"]][:3] == ["loss", "weights", "slots"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["train=null"], 2, "train: this section is required. Add it."),
        (["train.stepz=3"], 2, "Did you mean steps?"),
        (["devices=[/cpu:0, /cpu:99]"], 1, "it has no /device:CPU:99"),
        (["model_fn=tests.app.test_verify:lime"], 1, "must have lime. Did you mean line?"),
    ],
)
def test_what_cannot_run_is_a_text(folder, capsys, options, code, text):
    given = [part for option in options for part in ("--set", option)]
    assert run(folder, *given) == code
    shown = capsys.readouterr()
    assert text in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
