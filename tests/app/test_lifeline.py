"""A launched process tells its launcher what happens, and ends when the launcher is gone."""

import contextlib
import json
import signal
import socket
import types

import pytest

from replicate.app.cluster import lifeline


@pytest.fixture(name="ends")
def make_ends():
    theirs, ours = socket.socketpair()
    yield theirs, ours
    theirs.close()
    ours.close()


@pytest.fixture(name="done")
def make_done(monkeypatch):
    """What would end processes, in order; nothing is ended, and nothing is waited for."""
    done = []
    monkeypatch.setattr(lifeline.os, "kill", lambda pid, number: done.append(("kill", number)))
    monkeypatch.setattr(lifeline.os, "killpg", lambda pid, number: done.append(("all", number)))
    monkeypatch.setattr(lifeline.time, "sleep", lambda seconds: done.append(("wait", seconds)))
    return done


def test_a_process_ends_when_its_launcher_is_gone(ends, done, capsys):
    theirs, ours = ends
    line = lifeline.Lifeline(ours, 0.5, 20.0)
    theirs.send(b"a word")
    theirs.close()
    line._watch()
    assert done == [
        ("wait", 0.5), ("kill", signal.SIGTERM), ("wait", 20.0), ("all", signal.SIGKILL)
    ]  # fmt: skip
    assert capsys.readouterr().err == "replicate launch is gone; this process ends as well\n"


def test_what_a_launcher_does_not_read_is_bounded(ends):
    theirs, ours = ends
    line = lifeline.Lifeline(ours, 0.5, 20.0)
    for number in range(200_000):
        line.tell({"state": number})
        if len(line._waiting) >= lifeline._MOST:
            break
    before = line._waiting
    assert lifeline._MOST <= len(before) < lifeline._MOST + 100
    line.tell({"state": "more"})
    assert line._waiting == before
    read = theirs.recv(1 << 12)
    theirs.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            read += theirs.recv(1 << 20)
    line.tell({"state": "more"})  # what waits is sent first
    assert len(line._waiting) < len(before)
    assert json.loads(read.splitlines()[3]) == {"state": 3}


@pytest.mark.parametrize("code", [0, 3, -signal.SIGSEGV])
def test_a_command_that_a_signal_ended_ends_its_runner_so(monkeypatch, done, code):
    running = types.SimpleNamespace(wait=lambda: code, terminate=lambda: done.append("asked"))
    monkeypatch.setattr(lifeline.subprocess, "Popen", lambda command, env: running)
    handlers = {}
    monkeypatch.setattr(lifeline.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(lifeline, "attached", lambda: None)
    assert lifeline.main(["a", "command"]) == code
    if code < 0:
        assert done == [("kill", signal.SIGSEGV)]
        assert handlers[signal.SIGTERM] is signal.SIG_DFL
    else:
        assert done == []
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        assert done == ["asked"]


@pytest.mark.parametrize("is_launched", [True, False])
def test_a_command_that_is_no_program_is_told(monkeypatch, capsys, is_launched):
    told = []
    line = types.SimpleNamespace(tell=told.append) if is_launched else None
    monkeypatch.setattr(lifeline, "attached", lambda: line)
    assert lifeline.main(["/no/such/program"]) == 1
    assert told == [lifeline.REFUSED] * is_launched
    assert "/no/such/program must be a program: No such file" in capsys.readouterr().err
