"""`replicate launch` trains as one process does; whoever is lost, the job ends and goes on."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from replicate.app.cluster import launcher
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1
from tests.cluster import once, processes

TOP = pathlib.Path(__file__).parents[2]
PATIENCE = 120  # seconds; what is waited for takes less than ten

# 13 rows in batches of 4: the last batch of an epoch has one row, and a worker none.
CONFIG = """
model_fn: tests.app.line:line
optimizer: {name: Momentum, learning_rate: 0.01, momentum: 0.9}
devices: {cpu: 2}
seed: 3
train:
  epochs: 9
  early_stopping: {patience: 1}
  save_checkpoints_steps: 4
  keep_best: {metric: w, higher_is_better: true}
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 4, shuffle: true}
eval:
  every_steps: 4
  input: {kind: npz, file: d.npz, features: [x], label: x, batch_size: 4}
export: {}
cluster: {timeout: 60, grace: 4}
"""

# The same batch in each step, so that a run that goes on does what another one would have done.
STEADY = """
extends: line.yaml
optimizer: {learning_rate: 1e-4}
train:
  epochs: null
  keep_best: null
  early_stopping: null
  steps: 1000000
  save_checkpoints_steps: 10
  input: {batch_size: 13, shuffle: false}
eval: null
export: null
"""


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with the model, its data and its configs."""
    return filled(tmp_path_factory.mktemp("launch"))


def filled(folder):
    (folder / "line.yaml").write_text(CONFIG)
    (folder / "steady.yaml").write_text(STEADY)
    x = np.arange(1, 14) / 8
    np.savez(folder / "d.npz", x=x, y=2 * x)
    return folder


@contextlib.contextmanager
def launching(folder, config, model_dir, *options):
    """Starts a launch of two workers; ends it, whatever happens."""
    command = [sys.executable, "-m", "replicate", "launch", config, "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--model-dir", model_dir, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP)},
    )
    try:
        yield process
    finally:
        process.kill()  # its children end with it
        process.communicate()


def processes_of(folder, model_dir):
    """Returns the number of each process of the last launch, by its log."""
    logs = sorted((folder / model_dir / "logs").glob("*.log"))
    found = {log.stem: re.findall(r"^==== process (\d+)$", log.read_text(), re.M) for log in logs}
    return {name: int(numbers[-1]) for name, numbers in found.items() if numbers}


def weights(model_dir):
    """Returns all that the newest checkpoint holds, which must be whole."""
    checkpoint = tf.train.load_checkpoint(str(model_dir))
    return {name: checkpoint.get_tensor(name) for name in checkpoint.get_variable_to_shape_map()}


def train_alone(folder, config, model_dir, *options):
    """Trains in this process."""
    where = ["--model-dir", str(folder / model_dir), "--quiet"]
    assert cli.main(["train", str(folder / config), *where, *options]) == 0


@pytest.fixture(name="trained", scope="module")
def train_once(tmp_path_factory):
    """Returns a folder, and what a launch printed there that came to its end."""

    def train(folder):
        with launching(filled(folder), "line.yaml", "out", "--json") as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        return folder, json.loads(out), err

    return once.made(tmp_path_factory, "launched", train)


@pytest.mark.thorough
def test_a_launched_training_is_that_of_one_process(trained):
    folder, told, _ = trained
    train_alone(folder, "line.yaml", "alone")
    expected, found = weights(folder / "alone"), weights(folder / "out")
    # y = x is fitted best by w = 1, which is passed on the way to 2, long before 36 steps.
    assert 4 < found["global_step"] == expected["global_step"] < 36
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-9, err_msg=name)
    alone = json.loads((folder / "alone" / "metrics.json").read_text())
    launched = json.loads((folder / "out" / "metrics.json").read_text())
    assert launched["ended_by"] == alone["ended_by"] == "early_stopping"
    assert launched["metrics"] == pytest.approx(alone["metrics"])
    assert told["metrics"]["w"] == pytest.approx(alone["metrics"]["w"])
    assert told["step"] == found["global_step"]


@pytest.mark.thorough
def test_the_chief_alone_writes_what_one_process_writes(trained):
    folder, told, _ = trained
    written = {one: set(os.listdir(folder / one)) for one in ("out", "alone")}
    plain = {
        one: {name for name in names if not name.startswith("events")}
        for one, names in written.items()
    }
    assert plain["out"] - {"logs"} == plain["alone"]
    for part in ("", "eval", "best", "export"):
        both = [len(os.listdir(folder / one / part)) for one in ("out", "alone")]
        assert both[0] == both[1] + (part == "")  # the logs
    assert (folder / told["path"] / "saved_model.pb").exists()


@pytest.mark.thorough
def test_logs_say_who_waited_and_nothing_is_left(trained):
    folder, told, err = trained
    assert "logs: out/logs" in err
    assert "line: 2 workers of 2 towers on CPU:0, CPU:1 (multi_worker)" in err
    log = (folder / "out" / "logs" / "worker-0.log").read_text()
    assert "worker:0 is ready, and waits for 1 other worker, for 60 seconds at most" in log
    assert f"worker:0 has made its last step, {told['step']}" in log
    assert set(processes_of(folder, "out")) == {"chief-0", "worker-0"}
    assert not any(map(processes.is_alive, processes_of(folder, "out").values()))


def ended(folder, process, *, reach, act):
    """Lets a launch reach a step, and does something to it; returns what it said in the end."""
    end = time.monotonic() + PATIENCE
    begun = launcher.saved_step(folder / "steady") or 0
    while (launcher.saved_step(folder / "steady") or 0) < begun + reach:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "no checkpoint has come"
        time.sleep(0.02)
    time.sleep(random.uniform(0, 0.3))
    act()
    err = process.communicate(timeout=PATIENCE)[1]
    assert not any(map(processes.is_alive, processes_of(folder, "steady").values()))
    return err


@pytest.mark.thorough
def test_who_is_stopped_or_loses_one_goes_on_to_the_same_weights(folder):
    with launching(folder, "steady.yaml", "steady") as process:
        err = ended(folder, process, reach=10, act=lambda: process.send_signal(signal.SIGINT))
        assert process.returncode == 130, err
    step = weights(folder / "steady")["global_step"]
    assert f"stopped; step {step} is saved in steady; the same command goes on" in err
    assert step % 10 or step > 10  # it was saved when the signal came

    with launching(folder, "steady.yaml", "steady") as process:
        kill = lambda: os.kill(processes_of(folder, "steady")["chief-0"], signal.SIGKILL)  # noqa: E731
        err = ended(folder, process, reach=10, act=kill)
        assert process.returncode == 1, err
    assert "chief:0 was ended by SIGKILL; the others were ended. The end of steady/logs" in err
    assert "Traceback" not in err
    assert weights(folder / "steady")["global_step"] > step
    step = weights(folder / "steady")["global_step"]
    assert f"Step {step} is saved in steady; the same command goes on from there." in err

    with launching(folder, "steady.yaml", "steady", "--train.steps", f"{step + 7}") as process:
        err = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, err
    train_alone(folder, "steady.yaml", "undisturbed", "--train.steps", f"{step + 7}")
    found, expected = weights(folder / "steady"), weights(folder / "undisturbed")
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-9, err_msg=name)


@pytest.mark.thorough
def test_a_launch_with_a_parameter_server_trains_to_its_end(folder):
    options = ["--ps", "1", "--json", "--train.early_stopping", "null", "--train.epochs", "3"]
    with launching(folder, "line.yaml", "served", *options) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    found, told = weights(folder / "served"), json.loads(out)
    # 3 epochs of 4 batches; the other worker may be in a step while one makes the last.
    assert 12 <= found["global_step"] == told["step"] <= 13
    assert 0 < found["w"] < 4  # from 0 on the way to 2, or beyond it by its momentum
    assert told["metrics"]["w"] == pytest.approx(found["w"])
    assert (folder / told["path"] / "saved_model.pb").exists()
    assert "line: 2 workers of 2 towers on CPU:0, CPU:1 (1 parameter server)" in err
    log = (folder / "served" / "logs" / "ps-0.log").read_text()
    assert "line: ps:0, keeps variables until it is ended" in log
    assert set(processes_of(folder, "served")) == {"chief-0", "worker-0", "ps-0"}
    assert not any(map(processes.is_alive, processes_of(folder, "served").values()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{", "TF_CONFIG is JSON"),
        ("[]", "TF_CONFIG is a JSON object"),
        ({"cluster": {"chief": ["a:1"], "boss": ["a:2"]}}, "A cluster's jobs are"),
        ({"task": {"type": "worker", "index": 1}}, "TF_CONFIG's task is one of its cluster"),
        ({"task": "worker"}, "TF_CONFIG's task is an object"),
        ({"cluster": {"chief": [""], "worker": ["a:2"]}}, "chief:0 has ''"),
        ({"cluster": {"chief": ["a:1"], "worker": ["a:1"]}}, "gives a:1 to chief:0 and worker:0"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_told(folder, monkeypatch, capsys, given, words):
    if isinstance(given, dict):
        usual = {"cluster": {"chief": ["a:1"], "worker": ["a:2"]}}
        given = json.dumps({**usual, "task": {"type": "chief", "index": 0}, **given})
    monkeypatch.setenv("TF_CONFIG", given)
    code = cli.main(["train", str(folder / "line.yaml"), "--model-dir", str(folder / "none")])
    assert (code, words in capsys.readouterr().err) == (2, True)
    assert not (folder / "none").exists()


def test_strategies_that_would_leave_workers_alone_are_refused(folder, capsys):
    wanted = ["--workers", "2", "--set", "strategy=mirrored"]
    assert cli.main(["launch", str(folder / "line.yaml"), *wanted]) == 2
    assert "strategy: must be multi_worker where a cluster has 2 workers" in capsys.readouterr().err


@pytest.mark.thorough
def test_other_commands_do_not_join_the_cluster(trained, monkeypatch, capsys):
    folder, told, _ = trained
    tasks = {
        "cluster": {"chief": ["a:1"], "worker": ["a:2"]},
        "task": {"type": "worker", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(tasks))
    where = ["--model-dir", str(folder / "out"), "--set", "strategy=multi_worker", "--json"]
    assert cli.main(["evaluate", str(folder / "line.yaml"), *where]) == 0
    assert json.loads(capsys.readouterr().out) == pytest.approx(told["metrics"])
    assert "TF_CONFIG" in os.environ
    assert tf1.get_default_graph() is not None
