"""Progress is a bar on a terminal, lines elsewhere, and nothing when quiet."""

import contextlib
import io
import itertools
import os
import subprocess
import sys

import pytest
from rich import console

from replicate.console import progress


@pytest.fixture(name="screen")
def make_screen():
    """Returns where a console writes."""
    return io.StringIO()


@pytest.fixture(name="seconds", autouse=True)
def make_seconds(monkeypatch):
    """Lets every look at the clock be half a second after the one before."""
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))


def display_on(screen, *, terminal=False, quiet=False):
    return progress.Display(
        quiet, console.Console(file=screen, force_terminal=terminal, width=200, color_system=None)
    )


@pytest.fixture(name="slow")
def make_slow(monkeypatch):
    """Lets every look at the clock be ten seconds after the one before."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))


def test_lines_come_at_multiples_of_steps_with_speed_loss_and_time_left(screen, slow):
    with display_on(screen) as display:
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
    with display_on(screen) as display:
        task = display.task("train", 40, every=2)
        for step in range(1, 41):
            task.update(step)
        task.finish()
    # 1 at once; 20 updates are ten seconds: 22 is the next multiple of 2; the last one.
    steps = [line.split()[1] for line in screen.getvalue().splitlines()]
    assert steps == ["1/40", "22/40", "40/40"]


def test_other_work_has_a_line_every_ten_seconds_alone(screen):
    with display_on(screen) as display:
        task = display.task("predict", None, unit="rows")
        for count in range(1, 30):
            task.update(count)
        task.finish()
    assert screen.getvalue() == "predict 20  2.0 rows/s\n"


def test_examples_stand_for_steps_where_they_are_known(screen, slow):
    with display_on(screen) as display:
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


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(screen, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with display_on(screen, terminal=True) as display:
        display.task("train", 100, every=10).update(10, 0.5)
    assert screen.getvalue() == "train 10/100  loss 0.5\n"


@pytest.mark.parametrize(("no_color", "is_colored"), [("", True), ("1", False)])
def test_no_color_is_respected(screen, monkeypatch, no_color, is_colored):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = console.Console(file=screen, force_terminal=True, width=200)
    with progress.Display(False, shown) as display:
        display.task("train", 100).update(60, 0.5)
        display._bars.refresh()
    assert ("\x1b[38;" in screen.getvalue()) is is_colored


def test_a_pause_does_not_count(screen):
    with display_on(screen) as display:
        task = display.task("train", 100, every=10)
        task.update(1)
        task.pause()
        task.update(10)
        task.finish()
    assert screen.getvalue() == "train 1/100\ntrain 10/100\n"


def test_a_terminal_gets_a_bar(screen):
    with display_on(screen, terminal=True) as display:
        task = display.task("train", 100, every=10)
        task.update(10, 0.5)
        task.update(60, 0.25)
        display.say("a remark")
        display._bars.refresh()
    shown = screen.getvalue()
    assert "━" in shown
    assert "60/100  loss 0.25  100.0 steps/s  0:00 left" in shown
    assert "a remark" in shown


def bars(display, screen):
    """Returns the lines that a terminal shows now."""
    before = len(screen.getvalue())
    display._bars.refresh()
    return screen.getvalue()[before:].replace("\r", "\n").splitlines()


def test_no_bar_stands_still_beside_one_that_goes_on(screen):
    told = []
    with display_on(screen, terminal=True) as display:
        display.tell = told.append
        train = display.task("train", 100)
        train.update(60, 0.25)
        evaluate = display.task("evaluate", 8)
        evaluate.update(3)
        assert ["evaluate" in line for line in bars(display, screen) if "━" in line] == [True]
        assert told[-2:] == [{"task": id(train)}, {"task": id(evaluate), "bar": evaluate._bar}]
        evaluate.finish()
        assert ["60/100" in line for line in bars(display, screen) if "━" in line] == [True]
        assert told[-2:] == [{"task": id(train), "bar": train._bar}, {"task": id(evaluate)}]
        train.finish()
        assert not display._bars.live.is_started


def test_a_bar_moves_until_it_is_known_how_far_it_is(screen):
    with display_on(screen, terminal=True) as display:
        task = display.task("evaluate", 8)
        assert display._bars.tasks[0].total is None  # which pulses
        task.update(1)
        assert display._bars.tasks[0].total == 8


@pytest.mark.parametrize(
    ("width", "note"),
    [
        (80, "60/100  loss 0.0005678  6,400 examples/s  0:00 left"),
        (60, "60/100  loss 0.0005678  0:00 left"),
        (40, "60/100  0:00 left"),
        (20, "60/100"),
    ],
)
def test_a_narrow_terminal_gets_what_matters_most(screen, width, note):
    shown = console.Console(file=screen, force_terminal=True, width=width, color_system=None)
    with progress.Display(False, shown) as display:
        task = display.task("train", 100)
        for step in (28, 60):  # 32 steps of 100 rows in half a second
            task.update(step, 0.0005678, 100 * (step - 28))
        display._bars.refresh()
    lines = screen.getvalue().replace("\r", "\n").splitlines()
    assert any(line.rstrip().endswith(note) and "━━━" in line for line in lines)
    assert "…" not in screen.getvalue()


def test_no_bar_stays_whatever_ends_it(screen):
    with contextlib.suppress(KeyboardInterrupt), display_on(screen, terminal=True) as display:
        display.task("train", 10).update(5)
        display.status("worker:1: waits")
        raise KeyboardInterrupt
    after = screen.getvalue().rpartition("worker:1: waits")[2]
    assert after.count("\x1b[2K") == 2  # both lines are erased


def test_nothing_is_drawn_where_there_is_nothing(screen):
    with display_on(screen, terminal=True) as display:
        display.task("train", 10).finish()
        display.status("worker:1: waits")
        display.status("")
        before = screen.getvalue()
        display._bars.live.refresh()
        assert not display._bars.live.is_started
        assert screen.getvalue().removeprefix(before).strip() == ""
        display.task("evaluate", 10)
        assert display._bars.live.is_started


def test_a_line_without_notes_ends_at_its_numbers(screen):
    with display_on(screen) as display:
        task = display.task("evaluate", 2, every=1)
        task.update(1)
        task.finish()
    assert screen.getvalue() == "evaluate 1/2\n"


def test_a_remark_ends_its_lines_at_words_on_a_terminal_alone(screen):
    path = "/a/path/that/is/longer/than/the/terminal/is"
    for terminal in (True, False):
        shown = console.Console(file=screen, force_terminal=terminal, width=20, color_system=None)
        progress.Display(False, shown).say(f"it was written to {path}")
    assert screen.getvalue().splitlines() == [
        "it was written to",
        path,
        f"it was written to {path}",
    ]


def test_quiet_shows_nothing(screen):
    with display_on(screen, terminal=True, quiet=True) as display:
        display.task("train", 100, every=1).update(1, 0.5)
        display.say("a remark")
    assert screen.getvalue() == ""


def test_a_reader_that_has_gone_ends_no_work():
    ours, theirs = os.pipe()
    os.close(ours)  # as `head` does
    said = "import sys; from replicate.console import progress; shown = progress.Display(); " + (
        "shown.say('one'); shown.say('two'); print('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", said], stdout=subprocess.PIPE, stderr=theirs, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stdout) == (0, b"done\n")
