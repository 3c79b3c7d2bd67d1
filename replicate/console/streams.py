"""File descriptors and text streams of this process."""

import codecs
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TextIO

_SPELL_OUT = "replicate.spell_out"


def open_missing() -> None:
    """Opens the standard streams that this process was started without, on nothing.

    Otherwise the next file that is opened gets its number, and what native code writes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def spell_out(*streams: TextIO) -> None:
    r"""Lets streams that are not Unicode write what they lack as `\uXXXX`, as JSON does."""
    codecs.register_error(_SPELL_OUT, _spelt_out)
    for stream in streams:
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
        if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_SPELL_OUT)


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = json.dumps(error.object[error.start : error.end])
    return text[1:-1], error.end


def is_terminal(stream: TextIO | None) -> bool:
    """Tells whether a stream is a terminal whose cursor can be moved."""
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return stream is not None and stream.isatty() and not is_dumb


def size(stream: TextIO) -> os.terminal_size:
    """Returns the size of a terminal; where it does not tell, what the environment says."""
    with contextlib.suppress(OSError):
        found = os.get_terminal_size(stream.fileno())
        if found.columns and found.lines:
            return found
    return shutil.get_terminal_size()


def write(text: str, stream: TextIO) -> None:
    """Writes a text; that nobody reads it any more ends no work."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # the latter if it is closed
        with contextlib.suppress(OSError, ValueError):
            discard(stream.fileno())  # else the rest fails again when the process ends


def discard(number: int) -> None:
    """Sends what is still written to a file descriptor nowhere: its reader has gone."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


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
