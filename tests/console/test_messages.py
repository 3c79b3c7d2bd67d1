"""Messages come once a process, wrapped at words, each with a page that is there."""

import ast
import io
import logging
import os
import pathlib
import tempfile

import pytest

from replicate.console import messages
from tests.console.terminal import Terminal
from tests.test_docs import anchors

ROOT = pathlib.Path(__file__).parents[2]
ONE_THING = "One thing. See docs/python.md in replicate's repository."
LONG = "Partitioned variables are turned off under a strategy: https://example.org/a-long-path"


def pages():
    """Yields the page that each call of `messages.warn` names."""
    for path in sorted((ROOT / "replicate").glob("**/*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "messages.warn(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "messages.warn":
                yield node.args[1].value


def test_each_message_leads_to_a_page():
    found = list(pages())
    assert len(found) > 4
    for page in found:
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
        ONE_THING,
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


@pytest.mark.parametrize(
    ("level", "is_set_up", "shown"),
    [
        (
            "NOTSET",
            False,
            ["2 devices.", ONE_THING],
        ),
        ("NOTSET", True, []),
        ("ERROR", False, []),
    ],
)
def test_messages_are_shown_where_nobody_has_set_up_logging(level, is_set_up, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()] if is_set_up else [])
    monkeypatch.setattr(messages.log, "level", getattr(logging, level))
    monkeypatch.setattr(messages, "_shows_news", True)
    messages.log.manager._clear_cache()
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    for _ in range(2):
        messages.tell("2 devices.")
        messages.warn("One thing.", "python.md")
    assert terminal.getvalue().splitlines() == shown


def test_who_has_set_up_logging_gets_levels(caplog):
    with caplog.at_level(logging.INFO):
        messages.tell("2 devices.")
        messages.warn("One thing.", "python.md")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


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

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    load(NOISE)
    assert capfd.readouterr().err == NOISE.decode()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_terminal_is_told_what_is_loaded(wanted, capfd, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(messages, "_shows_progress", wanted)
    load(NOISE + b"another word\n")
    told = "loading TensorFlow ...\r\033[K" if wanted else ""
    assert capfd.readouterr().err == f"{told}another word\n"
