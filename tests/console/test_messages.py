"""Messages come once a process, wrapped at words, each with a page that is there."""

import ast
import io
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from replicate.console import messages
from tests.test_docs import anchors

ROOT = pathlib.Path(__file__).parents[2]
LONG = "Partitioned variables are turned off under a strategy: https://example.org/a-long-path"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def pages():
    """Yields the page that each call of `messages.warn` names."""
    for path in sorted((ROOT / "replicate").glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "messages.warn":
                yield node.args[1].value


def test_each_message_leads_to_a_page():
    assert len(list(pages())) > 4
    for page in pages():
        name, _, anchor = page.partition("#")
        assert not anchor or anchor in anchors(ROOT / "docs" / name), page


def test_tensorflows_listings_are_left_out():
    error = RuntimeError("Bad shape\n\t [[{{node x}}]]\n\nOriginal stack trace for 'x':\n File ...")
    assert messages.first_lines(error) == "Bad shape"
    error = RuntimeError(
        "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
        "  File ...\nNode: 'x'\nBad shape\n\t [[{{node x}}]]\n\nOriginal stack trace for 'x':"
    )
    assert messages.first_lines(error) == "Bad shape"
    error = RuntimeError("No space left\n\t [[node]]\nHint: If you want to see a list of tensors")
    assert messages.first_lines(error) == "No space left"


def test_a_message_comes_once(caplog):
    for _ in range(3):
        messages.warn("One thing.", "python.md")
    messages.warn("Another thing.", "python.md#options")
    assert [record.getMessage() for record in caplog.records] == [
        "One thing. See docs/python.md in replicate's repository.",
        "Another thing. See docs/python.md#options in replicate's repository.",
    ]


def test_on_a_terminal_lines_end_at_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert messages.for_stream(f"{LONG}\n  two", Terminal()).splitlines() == [
        "Partitioned variables are turned off",
        "under a strategy:",
        "https://example.org/a-long-path",
        "  two",
    ]
    assert messages.for_stream(LONG, io.StringIO()) == LONG


@pytest.mark.parametrize("is_set_up", [False, True])
def test_nothing_is_said_twice_where_logging_is_set_up(is_set_up, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()] if is_set_up else [])
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    messages.warn("One thing.", "python.md")
    assert shown.getvalue() == (
        "" if is_set_up else "One thing. See docs/python.md in replicate's repository.\n"
    )


@pytest.mark.parametrize(
    ("level", "is_set_up", "is_shown"),
    [("NOTSET", False, True), ("NOTSET", True, False), ("ERROR", False, False)],
)
def test_news_are_shown_where_nobody_has_set_up_logging(level, is_set_up, is_shown, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()] if is_set_up else [])
    monkeypatch.setattr(messages.log, "level", getattr(logging, level))
    monkeypatch.setattr(messages, "_shows_news", True)
    messages.log.manager._clear_cache()
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    for _ in range(2):
        messages.tell("2 devices.")
    assert shown.getvalue() == ("2 devices.\n" if is_shown else "")


def test_news_are_information_to_who_has_set_up_logging(caplog):
    with caplog.at_level(logging.INFO):
        messages.tell("2 devices.")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", "2 devices.")]


NOISE = b"I0000 00:00:1 port.cc:153] a greeting\n"


def load(words, error=None):
    """Loads what says something, and may fail."""
    with messages.loading("TensorFlow"):
        os.write(2, words)
        if error is not None:
            raise error


def test_noise_of_loading_is_left_out_but_where_that_fails(capfd):
    load(NOISE + b"words\n")
    assert capfd.readouterr().err == "words\n"
    with pytest.raises(ImportError):
        load(NOISE, ImportError())
    assert capfd.readouterr().err == NOISE.decode()


def test_what_cannot_be_held_back_comes_as_it_is(capfd, monkeypatch):
    def fail():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    load(NOISE)
    assert capfd.readouterr().err == NOISE.decode()


def test_the_last_words_of_an_import_that_aborts_are_shown():
    code = (
        "import os; from replicate.console import messages; "
        "files = [os.dup(0) for _ in range(20)]\n"
        "with messages.loading('TensorFlow'):\n"
        f"    os.write(2, {NOISE!r} + b'F0000 the CPU lacks AVX'); os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, b"F0000 the CPU lacks AVX\n")
