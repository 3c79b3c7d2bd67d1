"""`replicate launch --restarts` and `--workers MIN:MAX`: who is lost, and who goes on."""

import os
import signal
import subprocess
import sys
import time
import types

import pytest

from replicate import errors
from replicate.app.cluster import launcher, lifeline, places
from replicate.app.command import cli, requests
from replicate.console import interrupts
from tests.cluster import children, processes, test_launch
from tests.cluster.children import launch, sizes


@pytest.fixture(name="folder")
def make_folder(tmp_path, monkeypatch):
    """Returns a folder; restarts come soon, and an hour passes whenever one is late."""
    monkeypatch.setattr(places, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(places, "LONGEST_DELAY", 0.04)
    begun = time.monotonic()

    def clock():
        return time.monotonic() - begun + 3600 * len(list(tmp_path.glob("late.*")))

    monkeypatch.setattr(places, "time", types.SimpleNamespace(monotonic=clock))
    return tmp_path


@pytest.mark.parametrize(
    ("word", "how"),
    [
        ("die", "was ended by SIGKILL"),
        ("fail", "failed with exit code 3"),
        ("interrupted", "was interrupted"),
    ],
)
def test_a_lost_worker_has_all_started_again(folder, capfd, word, how):
    said = children.Said()
    # The chief, which waits for the worker, is not asked: that would take all of the grace.
    began = time.monotonic()
    launch(folder, {"chief:0": "stuck", "worker:0": word}, restarts=2, display=said)
    assert time.monotonic() - began < children.PATIENCE
    assert capfd.readouterr().out == "result of chief:0 in cluster 2\n"
    assert said.beginnings == [f"worker:0 {how}; restart 1 of 2 from step 10 in 0.01 s"]
    before, after = children.clusters(folder)
    assert set(before["chief"] + before["worker"]).isdisjoint(after["chief"] + after["worker"])
    logs = [folder / "logs" / f"{name}.log" for name in ("chief-0", "worker-0")]
    lines = [line for log in logs for line in log.read_text().splitlines()]
    numbers = [int(line.split()[-1]) for line in lines if line.startswith("==== process ")]
    assert [processes.is_alive(number) for number in numbers] == [False] * 4


def test_the_chief_and_a_server_may_be_lost_as_well(folder, capfd):
    said = children.Said()
    first = {"chief:0": "die", "worker:0": "stuck", "ps:0": "stuck"}
    second = {"chief:0": "stuck", "worker:0": "stuck", "ps:0": "die"}
    launch(folder, first, second, ps=1, restarts=2, display=said)
    assert capfd.readouterr().out == "result of chief:0 in cluster 3\n"
    assert said.beginnings == [
        "chief:0 was ended by SIGKILL; restart 1 of 2 from step 10 in 0.01 s",
        "ps:0 was ended by SIGKILL; restart 2 of 2 from step 30 in 0.02 s",
    ]


def test_a_chief_with_servers_saves_before_a_restart(folder):
    said = children.Said()
    launch(folder, {"chief:0": "stay", "worker:0": "die"}, ps=1, restarts=1, display=said)
    assert said.beginnings == [
        "worker:0 was ended by SIGKILL; restart 1 of 1 from step 20 in 0.01 s"
    ]


def test_restarts_are_counted_and_the_last_failure_is_the_launchs(folder):
    said, lost = children.Said(), {"chief:0": "stay", "worker:0": "die"}
    with pytest.raises(errors.RunError, match=r"^worker:0 was ended by SIGKILL; the others were"):
        launch(folder, {**lost, "chief:0": "idle"}, lost, lost, restarts=2, display=said)
    assert said.beginnings == [
        "worker:0 was ended by SIGKILL; restart 1 of 2 from the start in 0.01 s",
        "worker:0 was ended by SIGKILL; restart 2 of 2 from step 30 in 0.02 s",
    ]
    assert sizes(folder) == [2, 2, 2]


@pytest.mark.parametrize(
    ("word", "error"), [("usage", errors.ConfigError), ("refused", errors.RunError)]
)
def test_what_no_restart_helps_is_not_started_again(folder, word, error):
    with pytest.raises(error, match=r"^worker:0 failed with exit code(.|\n)*Step 20 is saved"):
        launch(folder, {"chief:0": "stay", "worker:0": word}, restarts=2)
    assert sizes(folder) == [2]


def test_a_signal_while_it_waits_ends_a_launch(folder, monkeypatch):
    monkeypatch.setattr(places, "FIRST_DELAY", 1000.0)
    monkeypatch.setattr(places, "LONGEST_DELAY", 1000.0)

    class Interrupting(children.Said):
        def say(self, text):
            super().say(text)
            if "; restart " in text:
                os.kill(os.getpid(), signal.SIGINT)

    lost = {"chief:0": "stay", "worker:0": "die"}
    with pytest.raises(interrupts.Interrupted, match=r"^stopped; step 10 is saved in "):
        launch(folder, lost, restarts=2, display=Interrupting())
    assert sizes(folder) == [2]


# MIN:MAX.


@pytest.mark.parametrize(
    ("size", "plan", "expected", "told"),
    [
        (
            (1, 2),
            [{"chief:0": "stay", "worker:0": "die"}, {"chief:0": "late"}],
            [2, 1, 2],
            [
                "worker:0 was ended by SIGKILL; restart 1 of 9 from step 10 with 1 of 2 workers at "
                "once",
                "taken in: worker:0; goes on from step 40 with 2 of 2 workers",
            ],
        ),
        (  # the first of those left becomes chief
            (2, 3),
            [
                {"chief:0": "die", "worker:0": "stay", "worker:1": "stay"},
                {"chief:0": "late", "worker:0": "stay"},
            ],
            [3, 2, 3],
            [
                "chief:0 was ended by SIGKILL; restart 1 of 9 from step 10 with 2 of 3 workers at "
                "once",
                "taken in: worker:1; goes on from step 40 with 3 of 3 workers",
            ],
        ),
        (  # with too few left the least are started after a delay
            (2, 3),
            [{"chief:0": "stay", "worker:0": "die", "worker:1": "stay"}] * 2,
            [3, 2, 2],
            [
                "worker:0 was ended by SIGKILL; restart 1 of 9 from step 10 with 2 of 3 workers at "
                "once",
                "worker:0 was ended by SIGKILL; restart 2 of 9 from step 30 with 2 of 3 workers in "
                "0.02 s",
            ],
        ),
    ],
)
def test_a_lost_worker_is_gone_on_without_and_taken_in_again(
    folder, capfd, size, plan, expected, told
):
    said = children.Said()
    launch(folder, *plan, size=size, restarts=9, display=said)
    assert capfd.readouterr().out == "result of chief:0 in cluster 3\n"
    assert sizes(folder) == expected
    assert said.beginnings == told


def test_a_training_that_ends_meanwhile_is_over(folder, capfd):
    lost = {"chief:0": "stay", "worker:0": "die"}
    launch(folder, lost, {"chief:0": "finish"}, size=(1, 2), restarts=9)
    assert capfd.readouterr().out == "finished by chief:0\n"
    assert sizes(folder) == [2, 1]


def test_each_loss_counts_as_a_restart_and_nobody_who_returns(folder):
    said, lost = children.Said(), {"chief:0": "stay", "worker:0": "die"}
    with pytest.raises(errors.RunError, match=r"^worker:0 was ended by SIGKILL; the others were"):
        launch(folder, lost, {"chief:0": "late"}, lost, size=(1, 2), restarts=1, display=said)
    assert sizes(folder) == [2, 1, 2]
    assert ["taken in" in line for line in said.beginnings] == [False, True]


@pytest.mark.parametrize("code", ["1", "143"])  # the latter is a shell's, of who got SIGTERM
def test_nobody_is_lost_who_is_asked_to_end_whatever_the_exit_code(folder, code):
    said = children.Said()
    lost = {"chief:0": "stay", "worker:0": "stay", "worker:1": "die"}
    late = {"chief:0": "stay", "worker:0": code}
    launch(folder, lost, late, size=(1, 3), restarts=1, display=said)
    assert sizes(folder) == [3, 2, 3]
    assert said.beginnings[1:] == ["taken in: worker:1; goes on from step 40 with 3 of 3 workers"]


def test_ctrl_c_ends_a_launch_with_those_that_are_left(folder, monkeypatch):
    running = launcher._Cluster.run

    def interrupted(cluster, stop):
        stop.requested = cluster._members.up == 1  # as Ctrl-C has it
        return running(cluster, stop)

    monkeypatch.setattr(launcher._Cluster, "run", interrupted)
    lost = {"chief:0": "stay", "worker:0": "die"}
    with pytest.raises(interrupts.Interrupted, match=r"^stopped; step "):
        launch(folder, lost, {"chief:0": "stay"}, size=(1, 2), restarts=9)


@pytest.mark.parametrize(
    ("codes", "expected", "left"),
    [
        ({"chief:0": 1, "worker:1": -9}, "worker:1 was ended by SIGKILL", 2),
        (
            {"worker:0": -9, "worker:1": -11, "chief:0": 1},
            "worker:0 was ended by SIGKILL, worker:1 was ended by SIGSEGV",
            1,
        ),
        ({"worker:1": 3, "worker:0": 1}, "worker:0 failed with exit code 1", 2),
    ],
)
def test_all_that_were_killed_are_lost_and_else_one(folder, codes, expected, left):
    names, said = ("chief:0", "worker:0", "worker:1"), children.Said()
    wanted = launcher.Wanted(places.Size(1, 3), 0, 1, restarts=1)
    cluster = launcher._Cluster(wanted, lambda name: [], str(folder), said)
    cluster._processes = [
        types.SimpleNamespace(name=name, code=codes.get(name), is_refused=False) for name in names
    ]
    cluster._lose(cluster._failed())
    text = f"{expected}; restart 1 of 1 from the start with {left} of 3 workers at once"
    assert said.lines == [text]


# Through the command.


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


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (errors.RunError("no file"), True),
        (errors.BatchError("9 rows, 10 labels"), True),
        (errors.ClusterError("worker:1 is lost"), False),
        (OSError("reset by peer"), False),
    ],
)
def test_a_command_tells_its_launcher_what_no_restart_helps(monkeypatch, capsys, error, is_told):
    def fail(*_):
        raise error

    told = []
    monkeypatch.setattr(lifeline, "attached", lambda: told.append)
    monkeypatch.setattr(requests, "carry_out", fail)
    assert cli.main(["train", "a.yaml"]) == 1
    assert str(error) in capsys.readouterr().err
    assert told == [lifeline.REFUSED] * is_told


# A training: a part of a batch of 5 rows for each worker, of 13 rows in another order each pass.

TRAINING = """
extends: steady.yaml
train:
  steps: 500
  hooks: [slow_of_elastic:slow]
  input: {batch_size: 5, shuffle: true}
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
import os, sys, time, types
from replicate.app.cluster import places
clock = lambda: time.monotonic() + 3600 * os.path.exists(sys.argv[1])
places.time = types.SimpleNamespace(monotonic=clock)
from replicate.app.command import cli, requests
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.thorough
def test_a_training_gives_one_devices_weights_whoever_is_there(tmp_path):
    folder, most, who = test_launch.filled(tmp_path), 3, "chief-0"
    (folder / "elastic.yaml").write_text(TRAINING)
    (folder / "slow_of_elastic.py").write_text(SLOW)
    line = ["launch", "elastic.yaml", "--workers", "2:3", "--model-dir", "elastic"]
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
