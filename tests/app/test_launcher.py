"""`replicate launch` starts processes, shows where they are, and ends all of them."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types

import pytest

from replicate import errors
from replicate.app.cluster import launcher, lifeline, places, process
from replicate.app.command import cli
from replicate.console import progress
from tests.cluster import children
from tests.cluster.children import gone, launch, process_of, started, wait_for
from tests.console.terminal import Terminal

BOTH = ("chief:0", "worker:0")


def test_each_process_is_told_its_task_and_has_a_log(tmp_path, capfd):
    launch(tmp_path, size=(3, 3), ps=1)
    assert capfd.readouterr().out == "result of chief:0 in cluster 1\n"
    names = ["chief:0", "worker:0", "worker:1", "ps:0"]
    told = {name: process_of(tmp_path, name)[1] for name in names}
    tasks = [(told[name]["task"]["type"], told[name]["task"]["index"]) for name in names]
    assert tasks == [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    jobs = told["chief:0"]["cluster"]
    assert {job: len(some) for job, some in jobs.items()} == {"chief": 1, "worker": 2, "ps": 1}
    addresses = [address for some in jobs.values() for address in some]
    assert len(set(addresses)) == 4
    assert all(one.startswith("127.0.0.1:") for one in addresses)
    assert all(told[name]["cluster"] == jobs for name in names)
    for name in names:
        log = (tmp_path / "logs" / f"{name.replace(':', '-')}.log").read_text()
        assert f"a line of {name}\n" in log
        assert f"process {process_of(tmp_path, name)[0]}\n" in log
    assert gone(tmp_path, *names)
    for address in addresses:  # and each port is free again
        with socket.socket() as free:
            free.bind(("127.0.0.1", int(address.rpartition(":")[2])))


def test_where_one_fails_the_others_are_ended_and_its_last_lines_shown(tmp_path):
    with pytest.raises(errors.RunError) as caught:
        launch(tmp_path, {"chief:0": "stay", "worker:0": "fail"})
    assert str(caught.value) == (
        "worker:0 failed with exit code 3; the others were ended. "
        f"The end of {tmp_path}/logs/worker-0.log:\n"
        "    train 0/20\n    train 10/20\n    train 20/20\n    a line of worker:0\n"
        f"    the reason\nStep 20 is saved in {tmp_path}; the same command goes on from there."
    )
    assert "saved" in (tmp_path / "logs" / "chief-0.log").read_text()  # it was asked first
    assert gone(tmp_path, *BOTH)


def test_with_servers_nobody_fails_once_the_training_is_over(tmp_path, capfd):
    launch(tmp_path, {"worker:0": "fail late", "ps:0": "fail late"}, ps=1)
    assert capfd.readouterr().out == "result of chief:0 in cluster 1\n"
    with pytest.raises(errors.RunError, match=r"^worker:0 failed with exit code 3"):
        launch(tmp_path, {"worker:0": "fail late"})


@pytest.mark.thorough("stuck")
@pytest.mark.parametrize("worker", ["fail", "stuck"])
def test_who_does_not_end_in_time_is_killed(tmp_path, worker):
    if worker == "fail":
        with pytest.raises(errors.RunError, match=r"^worker:0 failed"):
            launch(tmp_path, {"chief:0": "stuck", "worker:0": worker}, grace=0.3)
    else:  # behind a chief that has ended well
        launch(tmp_path, {"worker:0": worker}, grace=0.3)
    assert gone(tmp_path, *BOTH)


def test_a_process_that_was_killed_is_named_with_the_signal(tmp_path):
    with pytest.raises(errors.RunError, match=r"^worker:0 was ended by SIGKILL; the others were"):
        launch(tmp_path, {"chief:0": "idle", "worker:0": "die"})


def test_what_a_process_has_started_itself_does_not_stay(tmp_path):
    launch(tmp_path, {"chief:0": "nurse"})
    number = int((tmp_path / "nursed").read_text())
    wait_for(lambda: not children.processes.is_alive(number))


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "logs" / "worker-0.log").mkdir(parents=True)
    with pytest.raises(errors.RunError, match=r"worker-0\.log must be a file that can be written"):
        launch(tmp_path)
    assert not (tmp_path / "chief:0.json").exists() or gone(tmp_path, "chief:0")


def test_one_launcher_at_a_time_writes_logs(tmp_path, capsys):
    with started(tmp_path, "stay") as process:
        line = ["launch", "--workers", "1", "--model-dir", str(tmp_path), "--", "true"]
        assert cli.main(line) == 1
        said = capsys.readouterr().err
        assert re.search(rf"one `replicate launch` at a time; process {process.pid} on ", said)
        assert process.poll() is None


@pytest.mark.thorough("15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_processes_after_they_have_saved(tmp_path, number):
    with started(tmp_path, "stay") as process:
        process.send_signal(number)
        said = process.communicate(timeout=children.PATIENCE)[1]
        assert process.returncode == 130
        assert "stopping after this step" in said
        assert [line for line in said.splitlines() if line.startswith(("stopped", "saved"))] == [
            f"stopped; step 20 is saved in {tmp_path}; the same command goes on from there."
        ]
        assert gone(tmp_path, *BOTH)
        for name in ("chief-0", "worker-0"):
            assert (tmp_path / "logs" / f"{name}.log").read_text().endswith("saved\n")


def test_a_second_signal_waits_for_nobody(tmp_path):
    with started(tmp_path, "stuck") as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=children.PATIENCE)
        assert process.returncode == 130
        assert gone(tmp_path, *BOTH)


@pytest.mark.thorough
def test_processes_end_when_their_launcher_is_killed(tmp_path):
    with started(tmp_path, "stay stuck") as process:
        process.kill()
        process.wait()
        wait_for(lambda: gone(tmp_path, *BOTH))  # the second one after its grace
        assert (tmp_path / "logs" / "chief-0.log").read_text().endswith("as well\nsaved\n")
    launch(tmp_path)  # no lock is left either


def test_off_a_terminal_the_chiefs_lines_are_shown(tmp_path):
    screen = io.StringIO()
    launch(tmp_path, display=progress.Display(file=screen))
    assert screen.getvalue().splitlines() == [
        f"logs: {tmp_path}/logs",
        "train 0/20",
        "train 10/20",
        "train 20/20",
        "a line of chief:0",
    ]


def test_on_a_terminal_one_bar_shows_the_chiefs_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    launch(tmp_path, {"chief:0": "slow"}, display=progress.Display(file=screen))
    lines = re.split("[\r\n\033]", screen.getvalue())
    assert any("20/20" in line and "loss 2.5" in line for line in lines)
    assert not any(line.strip() == "train 10/20" for line in lines)  # it is the bar
    assert any("a line of chief:0" in line for line in lines)


def test_who_was_stopped_at_once_does_not_say_so_himself():
    said = []
    display = progress.Display(True)
    display.say = said.append
    one = types.SimpleNamespace(
        name="chief:0", new_lines=lambda: ["a line", "interrupted"], heard=list
    )
    cluster = launcher._Cluster(launcher.Wanted(places.Size(1, 1), 0, 1.0), None, "", display)
    cluster._processes.append(one)
    cluster._show()
    assert said == ["a line"]


def test_logs_need_a_folder_of_this_machine(capsys):
    line = ["launch", "--workers", "1", "--model-dir", "gs://b/run", "--", "true"]
    assert cli.main(line) == 2
    assert "must be a folder of this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("below", "reason"), [("", "it is a file"), ("run", "Not a directory")], ids=["file", "below"]
)
@pytest.mark.parametrize("what", ["config", "script"])
def test_nothing_is_started_where_model_dir_cannot_be_one(tmp_path, capfd, what, below, reason):
    file = tmp_path / "file"
    file.write_text("")
    where = ["--workers", "2", "--ps", "1", "--restarts", "3", "--model-dir", str(file / below)]
    config = [str(children.TOP / "configs" / "digits.yaml")]
    line = [*where, "--", "true"] if what == "script" else [*config, *where]
    assert cli.main(["launch", *line]) == 1
    said = capfd.readouterr().err
    assert said.startswith(f"model_dir: {file / below} must be a directory that can be written: ")
    assert reason in said
    assert list(tmp_path.iterdir()) == [file]


# The line to a launcher.


@pytest.fixture(name="done")
def make_done(monkeypatch):
    """What would end processes, in order; nothing is ended, and nothing is waited for."""
    done = []
    monkeypatch.setattr(lifeline.os, "kill", lambda pid, number: done.append(("kill", number)))
    monkeypatch.setattr(lifeline.os, "killpg", lambda pid, number: done.append(("all", number)))
    monkeypatch.setattr(lifeline.time, "sleep", lambda seconds: done.append(("wait", seconds)))
    return done


def test_a_process_ends_when_its_launcher_is_gone(done, capsys):
    held, holds = os.pipe()
    os.write(holds, b"a word")
    os.close(holds)
    lifeline.watch(held, 0.5, 20.0)
    os.close(held)
    assert done == [
        ("wait", 0.5), ("kill", signal.SIGTERM), ("wait", 20.0), ("all", signal.SIGKILL)
    ]  # fmt: skip
    assert capsys.readouterr().err == "replicate launch is gone; this process ends as well\n"


def test_what_a_launcher_does_not_read_is_dropped_whole():
    heard, told = os.pipe()
    os.set_blocking(told, False)
    for number in range(20_000):  # more than a pipe holds
        lifeline.tell(told, {"line": f"train {number}"})
    os.close(told)
    with open(heard, encoding="utf-8") as file:
        lines = [json.loads(one)["line"] for one in file]
    assert 100 < len(lines) < 20_000
    assert lines == [f"train {number}" for number in range(len(lines))]


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
once = pathlib.Path(folder, "once")
if what == "once" and name == "worker:0" and not once.exists():
    once.touch()
    os.kill(os.getpid(), signal.SIGSEGV)
while what == "stay" or (what == "fail" or name == "ps:0"):
    time.sleep(0.01)
"""


def command_of(folder, what, *options, workers="2"):
    """Returns the arguments of `replicate` that launch the script."""
    (folder / "script.py").write_text(SCRIPT)
    script = [sys.executable, str(folder / "script.py"), what, str(folder)]
    return ["launch", "--workers", workers, "--model-dir", str(folder), *options, "--", *script]


def test_a_script_of_ones_own_is_each_task(tmp_path, capfd):
    assert cli.main(command_of(tmp_path, "work", "--ps", "1")) == 0
    said = capfd.readouterr().err
    assert "a line of chief:0" in said
    assert "a line of worker:0" not in said
    told = {name: process_of(tmp_path, name)[1] for name in (*BOTH, "ps:0")}
    jobs = told["chief:0"]["cluster"]
    assert {job: len(some) for job, some in jobs.items()} == {"chief": 1, "worker": 1, "ps": 1}
    assert told["worker:0"] == {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    assert "a line of worker:0\n" in (tmp_path / "logs" / "worker-0.log").read_text()
    assert gone(tmp_path, *told)


def test_a_script_that_fails_ends_the_others(tmp_path, capfd):
    assert cli.main(command_of(tmp_path, "fail")) == 1
    said = capfd.readouterr().err
    assert "worker:0 failed with exit code 1; the others were ended." in said
    assert f"    the reason\nLogs are in {tmp_path}/logs." in said
    assert gone(tmp_path, "chief:0")


@pytest.mark.thorough("1:2-*")
@pytest.mark.parametrize(
    ("workers", "options", "text"),
    [
        ("2", ["--restarts", "1"], "worker:0 was ended by SIGSEGV; restart 1 of 1 in 1 s\n"),
        ("1:2", [], "worker:0 was ended by SIGSEGV; restart 1 of 10 with 1 of 2 workers at once\n"),
    ],
)
def test_a_script_is_started_again(tmp_path, capfd, workers, options, text):
    assert cli.main(command_of(tmp_path, "once", *options, workers=workers)) == 0
    assert text in capfd.readouterr().err


def test_scripts_end_when_their_launcher_is_killed(tmp_path):
    line = [sys.executable, "-m", "replicate", *command_of(tmp_path, "stay")]
    ours = {**os.environ, "PYTHONPATH": str(children.TOP)}
    process = subprocess.Popen(line, env=ours, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: all((tmp_path / f"{name}.json").exists() for name in BOTH))
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: gone(tmp_path, *BOTH))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workers", "2"], "CONFIG must be one, or a command behind --; got 0 configs"),
        (["a.yaml", "b.yaml", "--workers", "2"], "got 2 configs"),
        (["--workers", "2", "--"], "got 0 configs"),
        (["a.yaml", "--workers", "2", "--", "python"], "or a command behind --; got 1 configs"),
        (["--workers", "2", "--seed", "3", "--", "python"], "command behind -- reads no config"),
        (["--workers", "2", "--json", "--", "python"], "command behind -- reads no config"),
    ],
)
def test_one_thing_is_launched(arguments, text, capsys):
    assert cli.main(["launch", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_script_that_is_no_program_is_named_and_tried_once(tmp_path, capfd):
    line = ["launch", "--workers", "1", "--restarts", "3", "--model-dir", str(tmp_path)]
    assert cli.main([*line, "--", "pyton", "x.py"]) == 1
    said = capfd.readouterr().err
    assert "pyton must be a program, is none." in said
    assert "; restart" not in said


@pytest.mark.parametrize("ask", [process.Process.end, process.Process.kill])
def test_a_process_that_is_asked_to_end_when_it_has_ended_has_ended(tmp_path, ask):
    log = str(tmp_path / "log")
    one = process.Process("worker:0", [sys.executable, "-c", ""], {}, log, None, False)
    try:
        # Until it is waited for, the process that has ended is there.
        os.waitid(os.P_PID, one._process.pid, os.WEXITED | os.WNOWAIT)
        ask(one)
        assert one.has_ended()
        assert one.code == 0
    finally:
        one.close()
