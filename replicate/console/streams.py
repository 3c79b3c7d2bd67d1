"""File descriptors and text streams of this process: opened, discarded, spelt out."""

import codecs
import os
import sys
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


def discard(number: int) -> None:
    """Sends what is still written to a file descriptor nowhere: its reader has gone."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


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
