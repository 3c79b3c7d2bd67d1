"""What is written while bars are shown comes in whole lines, and nothing of it is lost."""

import os
import pathlib
import pty
import signal
import subprocess
import sys
import threading

import pytest

from replicate.console import screen

TOP = pathlib.Path(__file__).parents[2]


@pytest.fixture(name="number")
def make_number(tmp_path):
    """Returns a file descriptor that stands for the terminal."""
    number = os.open(tmp_path / "terminal", os.O_WRONLY | os.O_CREAT)
    yield number
    os.close(number)


def test_lines_are_handed_on_whole(number):
    shown = []
    with screen.Capture([number], shown.append):
        for part in (b"half ", b"a line\nten %\r", "100 %\nλ".encode()[:-1], "λ".encode()[-1:]):
            os.write(number, part)
    assert shown == ["half a line", "100 %", "λ"]


def test_a_bar_that_ends_no_line_holds_its_last_state_alone(number):
    shown = []
    capture = screen.Capture([number], shown.append)
    for count in range(1000):
        capture._take(b"\r%d of 1000\r" % count)
        assert len(capture._rest) < 20
    capture._take(b"\n")
    assert shown == ["999 of 1000"]


def test_the_descriptor_leads_where_it_led_before(number, tmp_path):
    with screen.Capture([number], lambda line: None) as capture:
        os.write(number, b"held back\n")
        print("shown", file=capture.terminal)
    os.write(number, b"after\n")
    assert (tmp_path / "terminal").read_text() == "shown\nafter\n"


def test_much_output_from_many_threads_is_all_there(number):
    shown = []

    def write(name):
        for count in range(2000):
            os.write(number, f"{name} {count}\n".encode())

    with screen.Capture([number], shown.append):
        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(shown) == sorted(f"{name} {count}" for name in "abc" for count in range(2000))


def test_what_is_no_terminal_is_not_captured():
    assert screen.terminals() == []  # pytest holds both


def on_terminal(code):
    """Runs code on a terminal of its own; returns what it wrote there, and its exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(TOP), "TERM": "xterm", "COLUMNS": "60"},
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:
        pass  # so Linux says that the other side is closed
    os.close(ours)
    return shown.decode(), process.wait()


SHOWN = """
import logging, os, sys, time
handler = logging.StreamHandler()  # keeps the stream it was made with
from replicate.console import progress
logger = logging.getLogger("theirs")
logger.addHandler(handler)
with progress.Display() as display:
    task = display.task("train", 10)
    task.update(5, 0.25)
"""


def test_bars_do_not_cut_what_others_write():
    shown, code = on_terminal(
        SHOWN + "    logger.warning('a warning')\n"
        "    os.write(2, b'half a ')\n"
        "    time.sleep(0.5)\n"  # long enough for a bar to be drawn
        "    os.write(2, b'line\\n')\n"
        "    print('a print')\n"
        "print('a result')\n"
    )
    assert code == 0
    assert "train" in shown
    for line in ("a warning", "half a line", "a print", "a result"):
        assert f"{line}\r\n" in shown


@pytest.mark.parametrize("wanted", [True, False])
def test_a_terminal_is_told_what_is_loaded(wanted):
    shown, code = on_terminal(
        "import os\n"
        "from replicate.console import messages\n"
        f"messages.show_progress({wanted})\n"
        "with messages.loading('TensorFlow'):\n"
        "    os.write(2, b'I0000 00:00:1 port.cc:153] a greeting\\nanother word\\n')\n"
    )
    told = "loading TensorFlow ...\r\033[K" if wanted else ""
    assert (shown, code) == (f"{told}another word\r\n", 0)


def test_the_last_words_of_a_process_that_dies_are_shown():
    shown, code = on_terminal(
        "import os; files = [os.dup(0) for _ in range(20)]\n" + SHOWN + "    sys.stdout.flush()\n"
        "    os.write(2, b'Check failed: 1 == 2\\n')\n"
        "    os.abort()\n"
    )
    assert code == -signal.SIGABRT
    assert "Check failed: 1 == 2" in shown
    assert shown.rfind("\033[?25h") > shown.rfind("\033[?25l")  # the cursor is back
    assert "\r\033[2K" in shown.rpartition("5/10")[2]  # the bar is gone
