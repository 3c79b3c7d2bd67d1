"""`replicate launch` starts processes, shows where they are, and ends all of them."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from replicate import errors
from replicate.app.cluster import launcher, places, view
from replicate.app.command import cli
from replicate.console import progress
from tests.cluster import processes
from tests.console.terminal import Terminal

TOP = pathlib.Path(__file__).parents[2]
PATIENCE = 30  # seconds; what is waited for takes less than two

# Stands for `replicate train`, without TensorFlow: what it does is said in its folder.
CHILD = """
import json, os, pathlib, signal, subprocess, sys, time
from replicate.app.cluster import lifeline
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
line = lifeline.attached()
what = json.loads((folder / "what.json").read_text()).get(name, "work")
task = json.loads(os.environ["TF_CONFIG"])
(folder / f"{name}.json").write_text(json.dumps([os.getpid(), task]))

def end(number, frame):
    line.tell({"stopped": "saved"})
    print("saved", file=sys.stderr, flush=True)
    os._exit(130)

signal.signal(signal.SIGTERM, signal.SIG_IGN if what == "stubborn" else end)
line.tell({"state": "trains"})
for step in range(0, 21, 10):
    text = f"train {step}/20"
    line.tell({"task": 0, "bar": ["train", step, 20, "loss 2.5"]})
    line.tell({"line": text})
    print(text, file=sys.stderr, flush=True)
print("a line of", name, file=sys.stderr, flush=True)
(folder / f"{name}.at").touch()
while what.startswith("fail") and not (folder / "chief:0.at").exists():
    time.sleep(0.01)
if what == "fail":
    print("the reason", file=sys.stderr, flush=True)
    sys.exit(3)
if what == "fail late":
    chief = json.loads((folder / "chief:0.json").read_text())[0]
    while pathlib.Path(f"/proc/{chief}").exists():
        time.sleep(0.01)
    sys.exit(3)
if what == "nurse":
    nursed = subprocess.Popen(["sleep", "1000"])
    (folder / "nursed").write_text(str(nursed.pid))
if what == "slow":
    time.sleep(0.5)
while what in ("stay", "stubborn") or name.startswith("ps"):
    time.sleep(0.01)
print("result of", name)
"""

# A launcher of its own process: `python -c LAUNCHER FOLDER`.
LAUNCHER = """
import pathlib, sys
from replicate.app.cluster import launcher, places
from replicate.console import interrupts, progress
folder = sys.argv[1]
wanted = launcher.Wanted(places.Size(2, 2), 0, False, 2)
command = lambda name: [sys.executable, folder + "/child.py", name, folder]
try:
    with interrupts.terminable():
        launcher.launch(wanted, command, folder, progress.Display())
except KeyboardInterrupt as e:
    print(e, file=sys.stderr)
    sys.exit(130)
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    """Returns a folder with the child."""
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "what.json").write_text("{}")
    return tmp_path


def launch(folder, workers=2, ps=0, evaluator=False, grace=2.0, display=None, **what):
    """Launches children that do what is said; returns what they gave to stdout."""
    names = {name.replace("_", ":"): one for name, one in what.items()}
    (folder / "what.json").write_text(json.dumps(names))
    wanted = launcher.Wanted(places.Size(workers, workers), ps, evaluator, grace)

    def command(name):
        return [sys.executable, str(folder / "child.py"), name, str(folder)]

    return launcher.launch(wanted, command, str(folder), display or progress.Display(True))


def process_of(folder, name):
    """Returns the number of a child's process, and what TF_CONFIG said to it."""
    return json.loads((folder / f"{name}.json").read_text())


def wait_for(condition):
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def gone(folder, *names):
    """Tells whether nothing is left of some children."""
    return not any(processes.is_alive(process_of(folder, name)[0]) for name in names)


def test_each_process_is_told_its_task_and_has_a_log(folder):
    found = launch(folder, workers=3, ps=1, evaluator=True)
    assert found == ["result of chief:0\n", "result of evaluator:0\n"]
    names = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
    told = {name: process_of(folder, name)[1] for name in names}
    tasks = [(told[name]["task"]["type"], told[name]["task"]["index"]) for name in names]
    assert tasks == [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
    jobs = told["chief:0"]["cluster"]
    assert {job: len(some) for job, some in jobs.items()} == {"chief": 1, "worker": 2, "ps": 1}
    addresses = [address for some in jobs.values() for address in some]
    assert len(set(addresses)) == 4
    assert all(one.startswith("127.0.0.1:") for one in addresses)
    assert all(told[name]["cluster"] == jobs for name in names)
    for name in names:
        log = (folder / "logs" / f"{name.replace(':', '-')}.log").read_text()
        assert f"a line of {name}\n" in log
        assert f"process {process_of(folder, name)[0]}\n" in log
    assert gone(folder, *names)
    for address in addresses:  # and each port is free again
        with socket.socket() as free:
            free.bind(("127.0.0.1", int(address.rpartition(":")[2])))


def test_where_one_fails_the_others_are_ended_and_its_last_lines_shown(folder):
    with pytest.raises(errors.RunError) as caught:
        launch(folder, chief_0="stay", worker_0="fail")
    assert str(caught.value) == (
        "worker:0 failed with exit code 3; the others were ended. "
        f"The end of {folder}/logs/worker-0.log:\n"
        "    train 0/20\n    train 10/20\n    train 20/20\n    a line of worker:0\n"
        f"    the reason\nNo checkpoint is saved in {folder} yet."
    )
    assert "saved" in (folder / "logs" / "chief-0.log").read_text()  # it was asked first
    assert gone(folder, "chief:0", "worker:0")


def test_with_servers_nobody_fails_once_the_training_is_over(folder):
    ended = launch(folder, ps=1, worker_0="fail late", ps_0="fail late")
    assert ended == ["result of chief:0\n"]
    (folder / "chief:0.at").unlink()
    with pytest.raises(errors.RunError, match=r"^worker:0 failed with exit code 3"):
        launch(folder, worker_0="fail late")


def test_who_does_not_end_in_time_is_killed(folder):
    began = time.monotonic()
    with pytest.raises(errors.RunError, match=r"^worker:0 failed"):
        launch(folder, grace=0.5, chief_0="stubborn", worker_0="fail")
    assert time.monotonic() - began < PATIENCE
    assert gone(folder, "chief:0")


def test_a_process_that_was_killed_is_named_with_the_signal(folder):
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-40"\n')
    code = f"import os, time; time.sleep(0.5); os.kill(int(open({str(folder / 'n')!r}).read()), 9)"
    killer = None

    class Killing(progress.Display):
        def say(self, text):
            nonlocal killer
            if killer is None and (folder / "worker:0.at").exists():
                (folder / "n").write_text(str(process_of(folder, "worker:0")[0]))
                killer = subprocess.Popen([sys.executable, "-c", code])

        def status(self, text):
            self.say(text)

    with pytest.raises(errors.RunError, match=r"^worker:0 was ended by SIGKILL.*\n") as caught:
        launch(folder, display=Killing(True), chief_0="stay", worker_0="stay")
    killer.wait()
    assert f"Step 40 is saved in {folder}; the same command goes on" in str(caught.value)


def test_what_a_process_has_started_itself_does_not_stay(folder):
    launch(folder, chief_0="nurse")
    wait_for(lambda: not processes.is_alive(int((folder / "nursed").read_text())))


def test_workers_that_do_not_end_after_the_chief_are_ended(folder):
    assert launch(folder, grace=0.3, worker_0="stay") == ["result of chief:0\n"]
    assert gone(folder, "worker:0")


def test_a_log_that_cannot_be_written_is_named(folder):
    (folder / "logs" / "worker-0.log").mkdir(parents=True)
    with pytest.raises(errors.RunError, match=r"worker-0\.log must be a file that can be written"):
        launch(folder, chief_0="stay")
    assert not (folder / "chief:0.json").exists() or gone(folder, "chief:0")


def test_one_launcher_at_a_time_writes_logs(folder):
    with started(folder, chief_0="stay", worker_0="stay") as process:
        wait_for((folder / "chief:0.at").exists)
        with pytest.raises(
            errors.RunError, match=rf"`replicate launch` at a time; .*{process.pid}"
        ):
            launch(folder)
        assert process.poll() is None


@contextlib.contextmanager
def started(folder, **what):
    """Starts a launcher in a process of its own; ends it and its children, whatever happens."""
    names = {name.replace("_", ":"): one for name, one in what.items()}
    (folder / "what.json").write_text(json.dumps(names))
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for name in what:
            with contextlib.suppress(OSError):
                os.kill(process_of(folder, name.replace("_", ":"))[0], signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_processes_after_they_have_saved(folder, number):
    with started(folder, chief_0="stay", worker_0="stay") as process:
        wait_for(lambda: all((folder / f"{name}.at").exists() for name in ("chief:0", "worker:0")))
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 130
        assert "stopping after this step" in said
        assert [line for line in said.splitlines() if line.startswith(("stopped", "saved"))] == [
            f"stopped; no checkpoint is saved in {folder} yet."
        ]
        assert gone(folder, "chief:0", "worker:0")
        for name in ("chief-0", "worker-0"):
            assert (folder / "logs" / f"{name}.log").read_text().endswith("saved\n")


def test_a_second_signal_waits_for_nobody(folder):
    with started(folder, chief_0="stubborn", worker_0="stubborn") as process:
        wait_for(lambda: all((folder / f"{name}.at").exists() for name in ("chief:0", "worker:0")))
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert gone(folder, "chief:0", "worker:0")


@pytest.mark.thorough
def test_processes_end_when_their_launcher_is_killed(folder):
    with started(folder, chief_0="stay", worker_0="stubborn") as process:
        wait_for(lambda: all((folder / f"{name}.at").exists() for name in ("chief:0", "worker:0")))
        process.kill()
        process.wait()
        wait_for(lambda: gone(folder, "chief:0", "worker:0"))  # the second one after its grace
        assert (folder / "logs" / "chief-0.log").read_text().endswith("as well\nsaved\n")
    launch(folder)  # no lock is left either


def test_off_a_terminal_the_chiefs_lines_are_shown(folder):
    screen = io.StringIO()
    launch(folder, display=progress.Display(file=screen))
    assert screen.getvalue().splitlines() == [
        f"logs: {folder}/logs",
        "train 0/20",
        "train 10/20",
        "train 20/20",
        "a line of chief:0",
    ]


def test_on_a_terminal_one_bar_shows_the_chiefs_steps(folder, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    launch(folder, display=progress.Display(file=screen), chief_0="slow")
    lines = re.split("[\r\n\033]", screen.getvalue())
    assert any("20/20" in line and "loss 2.5" in line for line in lines)
    assert not any(line.strip() == "train 10/20" for line in lines)  # it is the bar
    assert any("a line of chief:0" in line for line in lines)


def test_who_was_stopped_at_once_does_not_say_so_himself():
    said = []
    display = progress.Display(True)
    display.say = said.append
    one = Seen("chief:0", "ended", 130)
    one.new_lines = lambda: ["a line", "interrupted"]
    one.heard = lambda: []
    view.View(display, [one]).look()
    assert said == ["a line"]


class Seen:
    """A process as a view sees it."""

    def __init__(self, name, state, code=None):
        self.name, self.state, self.code = name, state, code


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"chief:0": "trains", "worker:0": "trains"}, ""),
        ({"chief:0": "waits", "worker:0": "waits", "worker:1": "starts"},
         "chief:0, worker:0: waits; worker:1: starts"),
        ({"chief:0": "trains", "worker:0": "trains", "ps:0": "serves", "evaluator:0": "waits"}, ""),
        ({f"worker:{n}": "starts" for n in range(6)},
         "worker:0, worker:1, worker:2 and 3 more: starts"),
    ],
)  # fmt: skip
def test_those_are_named_whose_state_is_another_one(states, expected):
    assert view.text_of_states([Seen(*one) for one in states.items()]) == expected


@pytest.mark.parametrize(("code", "expected"), [(0, ""), (130, ""), (1, "chief:0: ended")])
def test_who_has_ended_as_asked_is_not_named(code, expected):
    assert view.text_of_states([Seen("chief:0", "ended", code)]) == expected


def test_logs_need_a_folder_of_this_machine():
    with pytest.raises(errors.ConfigError, match="must be a folder of this machine"):
        launcher.launch(
            launcher.Wanted(places.Size(1, 1), 0, False, 1), lambda name: [], "gs://b/run",
            progress.Display(True),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("below", "reason"), [("", "it is a file"), ("run", "Not a directory")], ids=["file", "below"]
)
@pytest.mark.parametrize("what", ["config", "script"])
def test_nothing_is_started_where_model_dir_cannot_be_one(folder, capfd, what, below, reason):
    file = folder / "file"
    file.write_text("")
    where = ["--workers", "2", "--ps", "1", "--restarts", "3", "--model-dir", str(file / below)]
    script = ["--", sys.executable, str(folder / "child.py"), "chief:0", str(folder)]
    config = [str(TOP / "configs" / "digits.yaml")]
    line = [*where, *script] if what == "script" else [*config, *where]
    assert cli.main(["launch", *line]) == 1
    said = capfd.readouterr().err
    assert said.startswith(f"model_dir: {file / below} must be a directory that can be written: ")
    assert reason in said
    assert sorted(one.name for one in folder.iterdir()) == ["child.py", "file", "what.json"]


# Scripts of one's own.

SCRIPT = """
import json, os, pathlib, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])
name = "{type}:{index}".format(**task["task"])
what, folder = sys.argv[1:]
print("a line of", name)
assert "REPLICATE_LAUNCHER" not in os.environ  # whose line it is not
own = pathlib.Path(folder, f"{name}.json")
own.with_suffix(".part").write_text(json.dumps([os.getpid(), task]))
own.with_suffix(".part").rename(own)
while len(list(own.parent.glob("*:0.json"))) < len(task["cluster"]):
    time.sleep(0.01)  # until all are there
if what == "fail" and name == "worker:0":
    sys.exit("the reason")
while what != "work" or name == "ps:0":
    time.sleep(0.01)
"""


def command_of(folder, what, *options):
    """Returns the arguments of `replicate` that launch the script."""
    (folder / "script.py").write_text(SCRIPT)
    script = [sys.executable, str(folder / "script.py"), what, str(folder)]
    return ["launch", "--workers", "2", "--model-dir", str(folder), *options, "--", *script]


def test_a_script_of_ones_own_is_each_task(folder, capfd):
    assert cli.main(command_of(folder, "work", "--ps", "1")) == 0
    said = capfd.readouterr().err
    assert "a line of chief:0" in said
    assert "a line of worker:0" not in said
    told = {name: process_of(folder, name)[1] for name in ("chief:0", "worker:0", "ps:0")}
    jobs = told["chief:0"]["cluster"]
    assert {job: len(some) for job, some in jobs.items()} == {"chief": 1, "worker": 1, "ps": 1}
    assert told["worker:0"] == {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    assert "a line of worker:0\n" in (folder / "logs" / "worker-0.log").read_text()
    assert gone(folder, *told)


def test_a_script_that_fails_ends_the_others(folder, capfd):
    assert cli.main(command_of(folder, "fail")) == 1
    said = capfd.readouterr().err
    assert "worker:0 failed with exit code 1; the others were ended." in said
    assert f"    the reason\nLogs are in {folder}/logs." in said
    assert gone(folder, "chief:0")


def test_scripts_end_when_their_launcher_is_killed(folder):
    line = [sys.executable, "-m", "replicate", *command_of(folder, "stay")]
    process = subprocess.Popen(
        line, env={**os.environ, "PYTHONPATH": str(TOP)}, stderr=subprocess.DEVNULL
    )
    try:
        both = [folder / f"{name}.json" for name in ("chief:0", "worker:0")]
        wait_for(lambda: all(one.exists() and one.read_text() for one in both))
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: gone(folder, "chief:0", "worker:0"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workers", "2"], "CONFIG: must be one, or a command behind --; got 0 configs"),
        (["a.yaml", "b.yaml", "--workers", "2"], "got 2 configs"),
        (["--workers", "2", "--"], "got 0 configs"),
        (["a.yaml", "--workers", "2", "--", "python"], "a.yaml: must not come with a command"),
        (["--workers", "2", "--seed", "3", "--", "python"], "--seed=3: must not come with"),
        (["--workers", "2", "--json", "--", "python"], "--json: must not come with"),
    ],
)
def test_one_thing_is_launched(arguments, text, capsys):
    assert cli.main(["launch", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_script_that_is_no_program_is_named(folder, capfd):
    line = ["launch", "--workers", "1", "--model-dir", str(folder), "--", "pyton", "x.py"]
    assert cli.main(line) == 1
    assert "pyton must be a program: No such file" in capfd.readouterr().err
