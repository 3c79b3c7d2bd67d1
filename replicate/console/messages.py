"""What people are told on stderr: messages once a process, texts of errors, what is loaded."""

import contextlib
import logging
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from typing import TextIO

from replicate.console import streams

log = logging.getLogger("replicate")
_said: set[str] = set()
_shows_progress = True
_shows_news = True
_NO_ESTIMATOR = re.compile(r"module 'tensorflow[\w.]*' has no attribute 'estimator'")
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")
_LISTINGS = ("Traceback", "Original stack trace", "Detected at node", "Hint: ")
_MAX_LINES = 3
_PREFIXES = (  # what TensorFlow puts before a message, in this order
    re.compile(r"^Graph execution error:\s*"),
    re.compile(r"^\d+ root error\(s\) found\.\s*"),
    re.compile(r"^\(0\) [A-Z_]+: "),
    re.compile(r"^Error in user-defined function passed to \S+ transformation with iterator: "),
    re.compile(r"^Iterator::\S+: "),
    re.compile(r"^Name: <unknown>, "),
)
# What TensorFlow logs whatever its level is set to.
_LOGGED = re.compile(
    rb"WARNING: All log messages before|[IWE]\d{4} |\d{4}-\d\d-\d\d [^ ]+ [IWE] |To enable the foll"
)


def without_estimators(error: BaseException) -> str:
    """Returns what to do where an error says that TensorFlow has no Estimators, else nothing."""
    if not _NO_ESTIMATOR.search(str(error)):
        return ""
    return (
        "TensorFlow 2.16 and later have none. Take it from replicate.estimator, or call "
        "replicate.estimator.install() ahead of that line."
    )


def first_lines(error: BaseException) -> str:
    """Returns the message without the node and stack listings of TensorFlow around it."""
    lines = str(getattr(error, "message", None) or error).splitlines()
    nodes = [index for index, line in enumerate(lines) if line.startswith("Node: ")]
    if nodes:  # the listing came first
        lines = lines[nodes[-1] + 1 :]
    kept = []
    for line in map(str.strip, lines):
        if line.startswith((*_LISTINGS, "(1) ")):
            break
        if line and not line.startswith("[["):
            kept.append(line)
    text = " ".join(kept[:_MAX_LINES])
    for prefix in _PREFIXES:
        text = prefix.sub("", text)
    return text


def warn(text: str, page: str) -> None:
    """Warns, once a process: an Estimator builds its model again and again.

    Args:
        text: One or two sentences.
        page: Where there is more to know, in the repository's docs, e.g. `stopping.md#faults`.
    """
    _tell(f"{text} See docs/{page} in replicate's repository.", logging.WARNING)


def tell(text: str) -> None:
    """Tells, once a process, what everybody is to know: also who has not set up logging.

    Args:
        text: One line.
    """
    _tell(text, logging.INFO)


def _tell(text: str, level: int) -> None:
    if text in _said:
        return
    _said.add(text)
    is_set_up = log.hasHandlers() or not log.isEnabledFor(logging.WARNING)
    if sys.stderr is not None and not is_set_up and (_shows_news or level > logging.INFO):
        streams.write(f"{for_stream(text, sys.stderr)}\n", sys.stderr)
    else:
        log.log(level, "%s", text)


def for_stream(text: str, stream: TextIO) -> str:
    """Returns a text as a stream shows it: a terminal in lines that end at words.

    What would steer the terminal is spelt out: a file that is told of may have had it.
    """
    if not stream.isatty():
        return text
    shown = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))
    columns = streams.size(stream).columns
    wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrapper.fill, shown.splitlines()))


def show_news(wanted: bool) -> None:
    """Says whether `tell` shows what it tells where nobody has set up logging: at first it does."""
    global _shows_news
    _shows_news = wanted


def show_progress(wanted: bool) -> None:
    """Says whether progress is shown on a terminal: at first it is."""
    global _shows_progress
    _shows_progress = wanted


def shows_progress() -> bool:
    """Tells whether progress is shown: where that is wanted, and stderr is a terminal."""
    return _shows_progress and streams.is_terminal(sys.stderr)


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """While entered, a library is imported, which takes seconds: a terminal is told so.

    TensorFlow logs to stderr before any of its settings can prevent that: such lines are left out,
    but where the import fails. What others write there comes when it is over. Without a file to
    hold lines back they come as they are.
    """
    told, clear = (f"loading {name} ...", "\r\033[K") if shows_progress() else ("", "")
    with contextlib.ExitStack() as leave:
        noise = None
        with contextlib.suppress(OSError):
            os.fstat(2)  # else the file would be stderr
            noise = leave.enter_context(tempfile.TemporaryFile())
        if noise is None:
            yield
            return
        has_failed = True
        try:
            with streams.redirected(2, noise.fileno()) as shown:
                os.write(shown, told.encode())
                yield
            has_failed = False
        finally:
            noise.seek(0)
            lines = [line for line in noise if has_failed or not _LOGGED.match(line)]
            with contextlib.suppress(OSError):  # its reader may be gone
                os.write(2, b"".join([clear.encode(), *lines]))
