"""`replicate launch --restarts`: the cluster is made again where one is lost, and only there."""

import json
import os
import pathlib
import signal
import sys
import time
import types

import pytest

from replicate import errors
from replicate.app.cluster import launcher, lifeline, places
from replicate.app.command import cli
from replicate.console import interrupts, progress
from tests.cluster import processes, test_launch

FIRST, LONGEST = 0.01, 0.04  # seconds before a restart, in place of 1 and 30
PATIENCE = 30  # seconds; what is waited for takes less than two

# A task without TensorFlow: `python child.py FOLDER`. It does what what.json has for its name: one
# word for each life. Each life of the chief saves ten steps, unless it is `idle`; none does what it
# is to do before all are there, or one that ends before it counts its life would live it twice.
CHILD = """
import json, os, pathlib, signal, sys, time
from replicate.app.cluster import lifeline
task = json.loads(os.environ["TF_CONFIG"])
name = "{type}:{index}".format(**task["task"])
folder, line = pathlib.Path(sys.argv[1]), lifeline.attached()
lives = folder / f"{name}.lives"
number = len(lives.read_text().splitlines()) if lives.exists() else 0
with lives.open("a") as file:
    file.write(json.dumps([os.getpid(), task["cluster"]]) + "\\n")
what = [*json.loads((folder / "what.json").read_text()).get(name, []), *(["work"] * 9)][number]

def end(asked, frame):
    (folder / f"{name}.saved").touch()
    os._exit(130)

signal.signal(signal.SIGTERM, signal.SIG_IGN if what == "stuck" else end)
for other in (task["cluster"] if name == "chief:0" else ()):
    while other != "chief" and not (folder / f"{other}:0.{number}").exists():
        time.sleep(0.01)
if name == "chief:0" and what != "idle":
    text = f'model_checkpoint_path: "model.ckpt-{10 * (number + 1)}"\\n'
    (folder / "checkpoint").write_text(text)
(folder / f"{name}.{number}").touch()
while not (folder / f"chief:0.{number}").exists():
    time.sleep(0.01)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "crash":
    sys.exit(1)
if what == "usage":
    sys.exit(2)
if what == "interrupted":
    sys.exit(130)
if what == "refused":
    line.tell(lifeline.REFUSED)
    sys.exit(1)
while what in ("stay", "stuck", "idle") or name == "ps:0":
    time.sleep(0.01)
print("result of", name, "in life", number + 1)
"""


class Said(progress.Display):
    """A display that keeps what is said."""

    def __init__(self):
        super().__init__(True)
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    @property
    def restarts(self):
        return [line for line in self.lines if "; restart " in line]


@pytest.fixture(name="folder")
def make_folder(tmp_path, monkeypatch):
    """Returns a folder with the child; restarts come soon."""
    monkeypatch.setattr(places, "FIRST_DELAY", FIRST)
    monkeypatch.setattr(places, "LONGEST_DELAY", LONGEST)
    (tmp_path / "child.py").write_text(CHILD)
    return tmp_path


def launch(folder, said, restarts, ps=0, grace=PATIENCE, **what):
    """Launches a chief and a worker that do what is said; returns the chief's result."""
    names = {name.replace("_", ":"): words for name, words in what.items()}
    (folder / "what.json").write_text(json.dumps(names))
    line = [sys.executable, str(folder / "child.py"), str(folder)]
    wanted = launcher.Wanted(places.Size(2, 2), ps, False, grace, restarts=restarts)
    return launcher.launch(wanted, lambda name: line, str(folder), said)


def lives(folder, name):
    """Returns the number of the process, and the cluster, of each life of a task."""
    return [json.loads(line) for line in (folder / f"{name}.lives").read_text().splitlines()]


@pytest.mark.parametrize(
    ("word", "how"),
    [
        ("die", "was ended by SIGKILL"),
        ("crash", "failed with exit code 1"),
        ("interrupted", "was interrupted"),
    ],
)
def test_a_lost_worker_has_all_started_again(folder, word, how):
    said = Said()
    # The chief, which waits for the worker, is not asked: that would take all of the grace.
    began = time.monotonic()
    result = launch(folder, said, 2, chief_0=["stuck"], worker_0=[word])
    assert time.monotonic() - began < PATIENCE
    assert result == ["result of chief:0 in life 2\n"]
    assert said.restarts == [f"worker:0 {how}; restart 1 of 2 from step 10 in 0.01 s"]
    for name in ("chief:0", "worker:0"):
        (first, before), (second, after) = lives(folder, name)
        assert not any(map(processes.is_alive, (first, second)))
        assert set(before["chief"] + before["worker"]).isdisjoint(after["chief"] + after["worker"])


def test_the_chief_and_a_server_may_be_lost_as_well(folder):
    said = Said()
    result = launch(
        folder, said, 2, ps=1, chief_0=["die", "stuck"], worker_0=["stuck", "stuck"],
        ps_0=["stuck", "die"],
    )  # fmt: skip
    assert result == ["result of chief:0 in life 3\n"]
    assert said.restarts == [
        "chief:0 was ended by SIGKILL; restart 1 of 2 from step 10 in 0.01 s",
        "ps:0 was ended by SIGKILL; restart 2 of 2 from step 20 in 0.01 s",
    ]


def test_a_chief_with_servers_saves_before_a_restart(folder):
    launch(folder, Said(), 1, ps=1, chief_0=["stay"], worker_0=["die"])
    assert (folder / "chief:0.saved").exists()
    assert [len(lives(folder, name)) for name in ("worker:0", "ps:0")] == [2, 2]


def test_restarts_are_counted_and_the_last_failure_is_the_launchs(folder):
    said = Said()
    with pytest.raises(errors.RunError, match=r"^worker:0 was ended by SIGKILL; the others were"):
        launch(folder, said, 2, chief_0=["idle", "stay", "stay"], worker_0=["die"] * 3)
    assert said.restarts == [
        "worker:0 was ended by SIGKILL; restart 1 of 2 from the start in 0.01 s",
        "worker:0 was ended by SIGKILL; restart 2 of 2 from step 20 in 0.01 s",
    ]
    assert len(lives(folder, "worker:0")) == 3


@pytest.mark.parametrize(
    ("word", "error"), [("usage", errors.ConfigError), ("refused", errors.RunError)]
)
def test_what_no_restart_helps_is_not_started_again(folder, word, error):
    said = Said()
    with pytest.raises(error, match=r"^worker:0 failed with exit code"):
        launch(folder, said, 2, chief_0=["stay"], worker_0=[word])
    assert said.restarts == []
    assert (folder / "chief:0.saved").exists()


def test_a_signal_while_it_waits_ends_a_launch(folder, monkeypatch):
    monkeypatch.setattr(places, "FIRST_DELAY", 1000.0)

    class Interrupting(Said):
        def say(self, text):
            super().say(text)
            if "; restart " in text:
                os.kill(os.getpid(), signal.SIGINT)

    said = Interrupting()
    with pytest.raises(interrupts.Interrupted, match=r"^stopped; step 10 is saved in "):
        launch(folder, said, 2, chief_0=["stay"], worker_0=["die"])
    assert len(said.restarts) == 1
    assert len(lives(folder, "worker:0")) == 1


# Through the command.

SCRIPT = """
import os, pathlib, signal, sys, time
job, once = os.environ["TF_CONFIG"].partition('"task"')[2], pathlib.Path(sys.argv[1])
if "worker" in job and not once.exists():
    once.touch()
    os.kill(os.getpid(), signal.SIGSEGV)
print("a script has ended")
"""


def test_a_script_is_started_again(folder, capfd):
    (folder / "script.py").write_text(SCRIPT)
    options = ["--workers", "2", "--restarts", "1", "--model-dir", str(folder)]
    script = [sys.executable, str(folder / "script.py"), str(folder / "once")]
    assert cli.main(["launch", *options, "--", *script]) == 0
    said = capfd.readouterr().err
    assert "worker:0 was ended by SIGSEGV; restart 1 of 1 in 0.01 s\n" in said
    assert said.endswith("a script has ended\n")


def test_a_script_that_is_no_program_is_tried_once(folder, capfd):
    line = ["--workers", "1", "--restarts", "3", "--model-dir", str(folder), "--", "pyton"]
    assert cli.main(["launch", *line]) == 1
    said = capfd.readouterr().err
    assert "pyton must be a program" in said
    assert "; restart" not in said


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
    monkeypatch.setattr(lifeline, "attached", lambda: types.SimpleNamespace(tell=told.append))
    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["train", "a.yaml"]) == 1
    assert str(error) in capsys.readouterr().err
    assert told == [lifeline.REFUSED] * is_told


@pytest.mark.thorough
def test_a_training_that_loses_a_worker_ends_as_one_that_does_not(tmp_path):
    folder = test_launch.filled(pathlib.Path(tmp_path))
    options = ["--train.steps", "800"]
    with test_launch.launching(folder, "steady.yaml", "lost", "--restarts", "1", *options) as one:
        end = time.monotonic() + test_launch.PATIENCE
        while (launcher.saved_step(folder / "lost") or 0) < 20:
            assert one.poll() is None, one.communicate()[1]
            assert time.monotonic() < end, "no checkpoint has come"
            time.sleep(0.02)
        os.kill(test_launch.processes_of(folder, "lost")["worker-0"], signal.SIGKILL)
        said = one.communicate(timeout=test_launch.PATIENCE)[1]
    assert one.returncode == 0, said
    assert "worker:0 was ended by SIGKILL; restart 1 of 1 from step " in said
    assert "Traceback" not in said
    test_launch.train_alone(folder, "steady.yaml", "alone", *options)
    found, expected = (test_launch.weights(folder / name) for name in ("lost", "alone"))
    assert found["global_step"] == 800
    assert found == {name: pytest.approx(value, 1e-9) for name, value in expected.items()}
