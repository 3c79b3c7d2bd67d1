"""What the package tells people on stderr: messages once a process, wrapped at words; progress."""

import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from typing import TextIO

log = logging.getLogger("replicate")
_said: set[str] = set()
_shows_progress = True
_CLEAR_LINE = b"\r\033[K"
_LOGGED = re.compile(  # by TensorFlow, whatever its level is set to
    rb"WARNING: All log messages before|[IWE]\d{4} |\d{4}-\d\d-\d\d \S+ [IWE] |To enable the foll"
)


def warn(text: str, page: str) -> None:
    """Warns, once a process: an Estimator builds its model again and again.

    Args:
        text: One or two sentences.
        page: Where there is more to know, in docs, e.g. `python.md#options`.
    """
    if text not in _said:
        _said.add(text)
        log.warning("%s See docs/%s.", text, page)


def for_stream(text: str, stream: TextIO) -> str:
    """Returns a text as a stream shows it: a terminal in lines that end at words."""
    return at_words(text, shutil.get_terminal_size().columns) if stream.isatty() else text


def at_words(text: str, columns: int) -> str:
    """Returns a text in lines of so many columns, which end at words; a longer word is a line."""
    wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrapper.fill, text.splitlines()))


class _Stderr(logging.Handler):
    """Shows what Python shows of a logger that nobody has set up, but wrapped at words."""

    def emit(self, record: logging.LogRecord) -> None:
        """See base class."""
        if logging.root.handlers or log.handlers != [self]:
            return
        try:
            sys.stderr.write(for_stream(self.format(record), sys.stderr) + "\n")
        except Exception:  # noqa: BLE001 - as each handler of logging
            self.handleError(record)


log.addHandler(_Stderr(logging.WARNING))


def show_progress(wanted: bool) -> None:
    """Says whether progress is shown on a terminal: at first it is."""
    global _shows_progress
    _shows_progress = wanted


def shows_progress() -> bool:
    """Tells whether progress is shown: where that is wanted, and stderr is a terminal."""
    return _shows_progress and sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """While entered, a library is imported, which takes seconds: a terminal is told so.

    TensorFlow logs to stderr before any of its settings can prevent that: such lines are left out,
    but where the import fails. What others write there comes when it is over.
    """
    try:
        os.fstat(2)
    except OSError:  # there is no stderr
        yield
        return
    told = f"loading {name} ...".encode() if shows_progress() else b""
    with tempfile.TemporaryFile() as held:
        has_failed = True
        try:
            with redirected(2, held.fileno()) as shown:
                os.write(shown, told)
                yield
            has_failed = False
        finally:
            held.seek(0)
            lines = [line for line in held if has_failed or not _LOGGED.match(line)]
            with contextlib.suppress(OSError):  # its reader may be gone
                os.write(2, b"".join([_CLEAR_LINE if told else b"", *lines]))


@contextlib.contextmanager
def redirected(number: int, target: int) -> Iterator[int]:
    """While entered, a file descriptor leads where another one does, for native code as well.

    Args:
        number: The descriptor: 1 or 2.
        target: The other descriptor.

    Yields:
        A descriptor that leads where `number` led before.
    """
    _flush()
    before = os.dup(number)
    try:
        os.dup2(target, number)
        yield before
    finally:
        _flush()
        os.dup2(before, number)
        os.close(before)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
