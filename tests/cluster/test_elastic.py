"""`launch --workers MIN:MAX`: it goes on with those that are left, and takes lost ones in."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from replicate import errors
from replicate.app.cluster import launcher, places
from replicate.app.command import cli
from replicate.console import interrupts
from tests.cluster import test_launch, test_restarts

DELAY = 0.01  # seconds, in place of 1
PATIENCE = 30  # seconds; what is waited for takes less than two

# A task without TensorFlow: `python child.py FOLDER`. It does what plan.json has for the cluster's
# number and its own name, in words; without one it ends well. The chief saves ten steps in each
# cluster, and ten more when it is asked to end. A place that is lost may return once one is `late`;
# who does a number is, too, and ends with it when asked to.
CHILD = """
import json, os, pathlib, signal, sys, time
from replicate.app.cluster import lifeline
task, folder = json.loads(os.environ["TF_CONFIG"]), pathlib.Path(sys.argv[1])
name, jobs = "{type}:{index}".format(**task["task"]), task["cluster"]
address, known, line = jobs["chief"][0], folder / "clusters", lifeline.attached()
plan = json.loads((folder / "plan.json").read_text())

def clusters():
    lines = known.read_text().splitlines() if known.exists() else []
    return [json.loads(line)[0] for line in lines]

def save(step):
    if name == "chief:0":
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\\n')

def end(asked, frame):
    save(20 * number + 20)
    if what == "finish":
        print("finished by", name, flush=True)
    os._exit(int(what) if what.isdigit() else 0 if what == "finish" else 130)

if name == "chief:0":
    number = len(clusters())
else:
    while address not in clusters():
        time.sleep(0.01)
    number = clusters().index(address)
what = plan[number].get(name, "end") if number < len(plan) else "end"
signal.signal(signal.SIGTERM, end)
save(20 * number + 10)
if name == "chief:0":
    with known.open("a") as file:
        file.write(json.dumps([address, 1 + len(jobs.get("worker", []))]) + "\\n")
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("late", "finish") or what.isdigit():
    (folder / f"late.{number}").touch()
while what in ("stay", "late", "finish") or what.isdigit():
    time.sleep(0.01)
print("result of", name, "in cluster", number + 1)
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path, monkeypatch):
    """Returns a folder with the child; an hour passes whenever one is late."""
    monkeypatch.setattr(places, "FIRST_DELAY", DELAY)
    begun = time.monotonic()

    def clock():
        return time.monotonic() - begun + 3600 * len(list(tmp_path.glob("late.*")))

    monkeypatch.setattr(places, "Places", functools.partial(places.Places, clock=clock))
    (tmp_path / "child.py").write_text(CHILD)
    return tmp_path


def launch(folder, least, most, *plan, restarts=9):
    """Launches workers that do what is planned; returns the result, what was said, and sizes."""
    said = test_restarts.Said()
    (folder / "plan.json").write_text(json.dumps(plan))
    line = [sys.executable, str(folder / "child.py"), str(folder)]
    wanted = launcher.Wanted(places.Size(least, most), 0, False, PATIENCE, restarts=restarts)
    try:
        result = launcher.launch(wanted, lambda name: line, str(folder), said)
    except errors.RunError as e:
        result = str(e)
    lines = (folder / "clusters").read_text().splitlines()
    return result, said.lines[1:], [json.loads(one)[1] for one in lines]


def test_a_lost_worker_is_gone_on_without_and_taken_in_again(folder):
    result, said, sizes = launch(
        folder, 1, 2, {"chief:0": "stay", "worker:0": "die"}, {"chief:0": "late"}, {}
    )
    assert result == ["result of chief:0 in cluster 3\n"]
    assert sizes == [2, 1, 2]
    assert said == [
        "worker:0 was ended by SIGKILL; restart 1 of 9 from step 10 with 1 of 2 workers at once",
        "taken in: worker:0; goes on from step 40 with 2 of 2 workers",
    ]


def test_the_first_of_those_left_becomes_chief(folder):
    lost = {"chief:0": "die", "worker:0": "stay", "worker:1": "stay"}
    late = {"chief:0": "late", "worker:0": "stay"}
    result, said, sizes = launch(folder, 2, 3, lost, late, {})
    assert result == ["result of chief:0 in cluster 3\n"]
    assert sizes == [3, 2, 3]
    assert said[0].startswith("chief:0 was ended by SIGKILL; restart 1 of 9 from step 10 with 2 of")
    assert said[1:] == ["taken in: worker:1; goes on from step 40 with 3 of 3 workers"]


def test_with_too_few_left_the_least_are_started_after_a_delay(folder):
    lost = {"chief:0": "stay", "worker:0": "die", "worker:1": "stay"}
    result, said, sizes = launch(folder, 2, 3, lost, lost, {})
    assert result == ["result of chief:0 in cluster 3\n"]
    assert sizes == [3, 2, 2]
    assert said == [
        "worker:0 was ended by SIGKILL; restart 1 of 9 from step 10 with 2 of 3 workers at once",
        "worker:0 was ended by SIGKILL; restart 2 of 9 from step 30 with 2 of 3 workers in 0.01 s",
    ]


def test_a_training_that_ends_meanwhile_is_over(folder):
    lost = {"chief:0": "stay", "worker:0": "die"}
    result, said, sizes = launch(folder, 1, 2, lost, {"chief:0": "finish"})
    assert result == ["finished by chief:0\n"]
    assert (sizes, len(said)) == ([2, 1], 1)


def test_each_loss_counts_as_a_restart_and_nobody_who_returns(folder):
    lost = {"chief:0": "stay", "worker:0": "die"}
    result, said, sizes = launch(folder, 1, 2, lost, {"chief:0": "late"}, lost, restarts=1)
    assert result.startswith("worker:0 was ended by SIGKILL; the others were ended. The end of")
    assert sizes == [2, 1, 2]
    assert ["taken in" in line for line in said] == [False, True]


@pytest.mark.parametrize("code", ["1", "143"])  # the latter is a shell's, of who got SIGTERM
def test_nobody_is_lost_who_is_asked_to_end_whatever_the_exit_code(folder, code):
    lost = {"chief:0": "stay", "worker:0": "stay", "worker:1": "die"}
    late = {"chief:0": "stay", "worker:0": code}
    result, said, sizes = launch(folder, 1, 3, lost, late, {}, restarts=1)
    assert result == ["result of chief:0 in cluster 3\n"]
    assert sizes == [3, 2, 3]
    assert said[1:] == ["taken in: worker:1; goes on from step 40 with 3 of 3 workers"]


def test_ctrl_c_ends_a_launch_with_those_that_are_left(folder, monkeypatch):
    running = launcher._Cluster.to_its_end

    def interrupted(cluster, stop, members):
        stop.requested = len(members) == 1  # as Ctrl-C has it
        return running(cluster, stop, members)

    monkeypatch.setattr(launcher._Cluster, "to_its_end", interrupted)
    with pytest.raises(interrupts.Interrupted, match=r"^stopped; step "):
        launch(folder, 1, 2, {"chief:0": "stay", "worker:0": "die"}, {"chief:0": "stay"})


class Ended(NamedTuple):
    """A process that has ended."""

    name: str
    code: int
    is_refused: bool = False


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"chief:0": 1, "worker:1": -9}, {2: "worker:1 was ended by SIGKILL"}),
        (
            {"worker:0": -9, "worker:1": -11, "chief:0": 1},
            {1: "worker:0 was ended by SIGKILL", 2: "worker:1 was ended by SIGSEGV"},
        ),
        ({"worker:1": 3, "worker:0": 1}, {1: "worker:0 failed with exit code 1"}),
    ],
)
def test_all_that_were_killed_are_lost_and_else_one(codes, expected):
    names = ("chief:0", "worker:0", "worker:1")
    processes = [Ended(name, codes.get(name)) for name in names]
    wanted = launcher.Wanted(places.Size(1, 3), 0, False, 1)
    cluster = launcher._Cluster(wanted, processes, "", test_restarts.Said())
    assert cluster._lost(cluster._failed()) == expected


# Through the command.


def test_a_script_goes_on_with_those_left_by_itself(folder, capfd):
    (folder / "script.py").write_text(test_restarts.SCRIPT)
    options = ["--workers", "1:2", "--model-dir", str(folder)]
    script = [sys.executable, str(folder / "script.py"), str(folder / "once")]
    assert cli.main(["launch", *options, "--", *script]) == 0
    said = capfd.readouterr().err
    assert "worker:0 was ended by SIGSEGV; restart 1 of 10 with 1 of 2 workers at once\n" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["2:1"], "or MIN:MAX, MIN at most MAX, got '2:1'"),
        (["0:2"], "must be a whole number of at least 1, or MIN:MAX, MIN at most MAX, got '0:2'"),
        (["2:"], "or MIN:MAX, MIN at most MAX, got '2:'"),
        (["1:2:3"], "or MIN:MAX, MIN at most MAX, got '1:2:3'"),
        (["1:2", "--ps", "1"], "--workers: must be a number beside --ps, got 1:2"),
    ],
)
def test_numbers_of_workers_that_cannot_be_are_refused(folder, capsys, options, words):
    line = ["launch", "--model-dir", str(folder), "--workers", *options, "--", "true"]
    try:
        code = cli.main(line)
    except SystemExit as e:
        code = e.code
    assert (code, words in capsys.readouterr().err) == (2, True)


# A training: a part of a batch of 5 rows for each worker, of 13 rows in another order each pass.

TRAINING = """
extends: line.yaml
optimizer: {learning_rate: 1e-4}
train:
  epochs: null
  keep_best: null
  early_stopping: null
  steps: 500
  save_checkpoints_steps: 10
  hooks: [slow_of_elastic:slow]
  input: {batch_size: 5}
eval: null
export: null
"""

SLOW = """
import time
from replicate.compat.tensorflow import tf1

class Slow(tf1.train.SessionRunHook):
    def after_run(self, context, values):
        time.sleep(0.01)

def slow():
    return Slow()
"""

# The command, for which an hour passes when a file is there: `python -c PATIENT FILE ARGUMENTS`.
PATIENT = """
import functools, os, sys, time
from replicate.app.cluster import places
clock = lambda: time.monotonic() + 3600 * os.path.exists(sys.argv[1])
places.Places = functools.partial(places.Places, clock=clock)
from replicate.app.command import cli
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("workers", "who"), [("1:2", "worker-0"), ("2:3", "chief-0")])
def test_a_training_gives_one_devices_weights_whoever_is_there(tmp_path, workers, who):
    folder, most = test_launch.filled(tmp_path), int(workers[-1])
    (folder / "elastic.yaml").write_text(TRAINING)
    (folder / "slow_of_elastic.py").write_text(SLOW)
    line = ["launch", "elastic.yaml", "--workers", workers, "--model-dir", "elastic"]
    with subprocess.Popen(
        [sys.executable, "-c", PATIENT, "late", *line],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(test_launch.TOP)},
    ) as launched:
        try:
            _await_step(launched, folder / "elastic", 20)
            lost_at = launcher.saved_step(folder / "elastic")
            os.kill(test_launch.processes_of(folder, "elastic")[who], signal.SIGKILL)
            _await_step(launched, folder / "elastic", lost_at + 30)
            (folder / "late").touch()
            said = launched.communicate(timeout=test_launch.PATIENCE)[1]
        finally:
            launched.kill()
    assert launched.returncode == 0, said
    lost, came = f"with {most - 1} of {most} workers at once", f"with {most} of {most} workers"
    assert f"{who.replace('-', ':')} was ended by SIGKILL; restart 1 of 10 from step" in said
    assert f"taken in: worker:{most - 2}; goes on from step" in said
    assert said.index(lost) < said.index(came, said.index("taken in"))
    assert "Traceback" not in said
    assert "config:" not in said  # no change of the config is warned of
    record = json.loads((folder / "elastic" / "run.json").read_text())
    assert (record["workers"], record["towers"]) == (most, 2 * most)
    test_launch.train_alone(folder, "elastic.yaml", "alone")
    found, expected = (test_launch.weights(folder / name) for name in ("elastic", "alone"))
    assert found["global_step"] == expected["global_step"] == 500
    assert found == {name: pytest.approx(value, 1e-9) for name, value in expected.items()}


def _await_step(launched, model_dir, step):
    end = time.monotonic() + test_launch.PATIENCE
    while (launcher.saved_step(model_dir) or 0) < step:
        assert launched.poll() is None, launched.communicate()[1]
        assert time.monotonic() < end, "no checkpoint has come"
        time.sleep(0.02)
