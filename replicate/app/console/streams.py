"""File descriptors and text streams of this process: opened, redirected, spelt out."""

import codecs
import contextlib
import os
import sys
import tempfile
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


def is_own(stream: TextIO, number: int) -> bool:
    """Tells whether a stream of `sys` writes to this process's file descriptor `number`."""
    try:
        return stream.fileno() == number
    except (AttributeError, OSError, ValueError):
        return False


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


def discard(number: int) -> None:
    """Sends what is still written to a file descriptor nowhere: its reader has gone."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


@contextlib.contextmanager
def stderr_held() -> Iterator[None]:
    """Holds back what libraries write to stderr while they load; shows it if that fails.

    Newer versions of TensorFlow print a greeting before any of their settings can prevent it.
    """
    with tempfile.TemporaryFile() as held, redirected(2, held.fileno()) as shown:
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(shown, held.read())
            raise


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


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
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end
