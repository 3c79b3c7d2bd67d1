"""Progress is a bar on a terminal, lines elsewhere, and nothing when quiet."""

import contextlib
import io
import itertools
import os
import pathlib
import pty
import signal
import subprocess
import sys

import pytest

from replicate.console import interrupts, progress
from tests.console.terminal import Terminal

TOP = pathlib.Path(__file__).parents[2]


@pytest.fixture(name="screen")
def make_screen():
    """Returns what is no terminal."""
    return io.StringIO()


@pytest.fixture(name="terminal")
def make_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "81")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.fixture(name="seconds", autouse=True)
def make_seconds(monkeypatch):
    """Lets every look at the clock be half a second after the one before."""
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))


@pytest.fixture(name="slow")
def make_slow(monkeypatch):
    """Lets every look at the clock be ten seconds after the one before."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))


def test_lines_come_at_multiples_of_steps_with_speed_loss_and_time_left(screen, slow):
    with progress.Display(file=screen) as display:
        task = display.task("train", 700, start=100, every=200)
        for step in range(150, 700, 50):
            task.update(step, loss=2.0 - step / 1000)
        task.finish()
    # The first and the last update, and multiples of 200 between them: 50 steps in ten seconds.
    assert screen.getvalue().splitlines() == [
        "train 150/700  loss 1.85",
        "train 200/700  loss 1.8  5.0 steps/s  1:40 left",
        "train 400/700  loss 1.6  5.0 steps/s  1:00 left",
        "train 600/700  loss 1.4  5.0 steps/s  0:20 left",
        "train 650/700  loss 1.35  5.0 steps/s  0:10 left",
    ]


def test_lines_come_every_ten_seconds_at_most(screen):
    with progress.Display(file=screen) as display:
        task = display.task("train", 40, every=2)
        for step in range(1, 41):
            task.update(step)
        task.finish()
    # 1 at once; 20 updates are ten seconds: 22 is the next multiple of 2; the last one.
    steps = [line.split()[1] for line in screen.getvalue().splitlines()]
    assert steps == ["1/40", "22/40", "40/40"]


def test_other_work_has_a_line_every_ten_seconds_alone(screen):
    with progress.Display(file=screen) as display:
        task = display.task("predict", None, unit="rows")
        for count in range(1, 30):
            task.update(count)
        task.finish()
    assert screen.getvalue() == "predict 20  2.0 rows/s\n"


def test_examples_stand_for_steps_where_they_are_known(screen, slow):
    with progress.Display(file=screen) as display:
        task = display.task("train", 40, every=10)
        for step, rows in ((10, 64), (20, 64), (30, 16)):
            task.update(step, 0.5, rows)
        task.update(40, 0.5, 1)
        task.finish()
    # The first update is where the time begins: 64 in ten seconds, 80 in 20, 81 in 30.
    assert screen.getvalue().splitlines() == [
        "train 10/40  loss 0.5",
        "train 20/40  loss 0.5  6.4 examples/s  0:20 left",
        "train 30/40  loss 0.5  4.0 examples/s  0:10 left",
        "train 40/40  loss 0.5  2.7 examples/s  0:00 left",
    ]


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with progress.Display(file=terminal) as display:
        display.task("train", 100, every=10).update(10, 0.5)
    assert terminal.getvalue() == "train 10/100  loss 0.5\n"


def test_a_pause_does_not_count(screen):
    with progress.Display(file=screen) as display:
        task = display.task("train", 100, every=10)
        task.update(1)
        task.pause()
        task.update(10)
        task.finish()
    assert screen.getvalue() == "train 1/100\ntrain 10/100\n"


BAR = "train ######################................ 60/100  loss 0.25  100.0 steps/s  0:00 left"


def test_the_last_row_of_a_terminal_is_a_bar_and_what_others_write_scrolls_above(
    terminal, monkeypatch
):
    monkeypatch.setenv("COLUMNS", f"{len(BAR) + 1}")
    print("before", file=terminal)
    with progress.Display(file=terminal) as display:
        task = display.task("train", 100)
        task.update(10, 0.5)
        for number in range(30):
            print(f"line {number}", file=terminal)
        print("half a ", end="", file=terminal)
        task.update(60, 0.25)
        assert terminal.rows[-1] == BAR  # 50 steps in half a second; 22 of 38 are 60 %
        print("line", file=terminal)
        display.say("a remark")
        task.finish()
        assert terminal.rows[-1] == ""
    lines = ["before", *(f"line {number}" for number in range(30)), "half a line", "a remark"]
    assert terminal.written == lines
    assert terminal.scrolls_all


def test_no_bar_stands_still_beside_one_that_goes_on(terminal):
    told = []
    with progress.Display(file=terminal, tell=told.append) as display:
        train = display.task("train", 100)
        train.update(60, 0.25)
        evaluate = display.task("evaluate", 8)
        evaluate.update(3)
        assert [row.split()[0] for row in terminal.written] == ["evaluate"]
        assert told[-1] == {"task": 0, "bar": evaluate.bar}
        evaluate.finish()
        assert [row.split()[0] for row in terminal.written] == ["train"]
        assert told[-1] == {"task": 0, "bar": train.bar}
        train.finish()
    assert terminal.written == []
    assert told[-1] == {"task": 0}


def test_others_bars_have_rows_of_their_own(terminal):
    print("\n" * 30, file=terminal)
    with progress.Display(file=terminal) as display:
        display.show("a", progress.Bar("a", 1, None))
        display.show("b", progress.Bar("b", 2, None))
        print("above", file=terminal)
        assert [row.partition(" ")[0] for row in terminal.written] == ["above", "a", "b"]
        display.show("a", None)
        assert [row.split()[0] for row in terminal.written] == ["above", "b"]
    assert terminal.written == ["above"]


def test_a_terminal_that_has_grown_has_its_bar_in_its_last_row(terminal, monkeypatch):
    with progress.Display(file=terminal) as display:
        task = display.task("train", 2)
        terminal.rows += [""] * 6
        monkeypatch.setenv("LINES", "30")
        task.update(2)
        assert "2/2" in terminal.rows[-1]
    assert terminal.scrolls_all


def test_a_narrow_terminal_gets_the_units_first(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    with progress.Display(file=terminal) as display:
        display.task("train", 100).update(50, 0.5)
        assert terminal.rows[-1] == "train ####.... 50/100  loss 0"


def test_no_bar_stays_whatever_ends_it(terminal):
    with contextlib.suppress(KeyboardInterrupt), progress.Display(file=terminal) as display:
        display.task("train", 10).update(5)
        deeds = list(interrupts.LAST_DEEDS)
        raise KeyboardInterrupt
    assert terminal.written == []
    assert interrupts.LAST_DEEDS == []
    assert len(deeds) == 1  # a signal that ends the process at once does the same


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_remark_ends_its_lines_at_words_on_a_terminal_alone(
    is_terminal, terminal, screen, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "20")
    path = "/a/path/that/is/longer/than/the/terminal/is"
    shown = terminal if is_terminal else screen
    progress.Display(file=shown).say(f"it was written to {path}")
    lines = ["it was written to", path] if is_terminal else [f"it was written to {path}"]
    assert shown.getvalue().splitlines() == lines


def test_quiet_shows_nothing(terminal):
    with progress.Display(True, terminal) as display:
        display.task("train", 100, every=1).update(1, 0.5)
        display.say("a remark")
    assert terminal.getvalue() == ""


def test_a_reader_that_has_gone_ends_no_work():
    ours, theirs = os.pipe()
    os.close(ours)  # as `head` does
    said = (
        "from replicate.console import progress; shown = progress.Display(); "
        "shown.say('one'); shown.say('two'); print('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", said], stdout=subprocess.PIPE, stderr=theirs, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stdout) == (0, b"done\n")


SHOWN = """
import logging, os
handler = logging.StreamHandler()  # keeps the stream it was made with
from replicate.console import progress
logger = logging.getLogger("theirs")
logger.addHandler(handler)
with progress.Display() as display:
    display.task("train", 10).update(5, 0.25)
    logger.warning("a warning")
    os.write(2, b"half a ")
    os.write(2, b"line\\n")
    print("a print", flush=True)
    os.write(2, b"Check failed: 1 == 2\\n")
    os.abort()
"""


def test_what_native_code_and_loggers_write_is_whole_to_the_last_words_of_a_process_that_dies():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(TOP), "TERM": "xterm", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOWN], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:
        pass  # so Linux says that the other side is closed
    os.close(ours)
    terminal = Terminal()
    terminal.write(shown.decode())
    assert process.wait() == -signal.SIGABRT
    said = ["a warning", "half a line", "a print", "Check failed: 1 == 2"]
    assert terminal.written[:4] == said
    assert "5/10" in terminal.rows[-1]
