"""A terminal with bars on it: whatever anybody writes comes above them, in whole lines.

Loggers that keep the stream they were made with, `tf.print` and other native code know nothing
of `sys.stderr`. So the file descriptors themselves lead into a pipe while bars are shown, and a
thread shows line by line what comes out of it.
"""

import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from replicate.console import messages, streams

_CHUNK = 65536
_TICK = 0.05  # seconds between two looks whether the capture is over
_SHOW_CURSOR = "\\r\\033[2K\\033[?25h"  # bars hide it, and the last one is still there


def terminals() -> list[int]:
    """Returns which of stdout and stderr are this process's own, and a terminal."""
    given = ((1, sys.stdout), (2, sys.stderr))
    return [number for number, it in given if streams.is_own(it, number) and os.isatty(number)]


class Capture:
    """While entered, what comes to some file descriptors is handed on in whole lines.

    Args:
        numbers: The descriptors; the last one leads to the terminal.
        show: Called with each line, without its end, in a thread of the capture's own.

    Attributes:
        terminal: A stream that still leads to the terminal.
    """

    def __init__(self, numbers: Sequence[int], show: Callable[[str], None]):
        self._numbers = numbers
        self._show = show
        self._rest = b""
        self._over = threading.Event()
        self._leave = contextlib.ExitStack()
        self.terminal: TextIO

    def __enter__(self) -> "Capture":
        self.terminal = self._leave.enter_context(_terminal(os.dup(self._numbers[-1])))
        heard, told = os.pipe()
        self._leave.callback(os.close, heard)
        show = f"printf '{_SHOW_CURSOR}'; exec cat"
        self._leave.enter_context(messages.at_death(show, heard, self.terminal.fileno()))
        reader = threading.Thread(target=self._read, args=(heard,), daemon=True)
        reader.start()
        self._leave.callback(reader.join)
        self._leave.callback(self._over.set)
        for number in self._numbers:
            self._leave.enter_context(messages.redirected(number, told))
        os.close(told)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave.close()

    def _read(self, heard: int) -> None:
        """Shows lines until the capture is over and nothing more is there.

        NOTE: the end of the pipe does not say so: children may hold its other end.
        """
        while True:
            is_over = self._over.is_set()
            ready, _, _ = select.select([heard], [], [], 0 if is_over else _TICK)
            data = os.read(heard, _CHUNK) if ready else b""
            if data:
                self._take(data)
            elif is_over:
                break
        if self._rest:
            self._take(b"\n")

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            # A bar of somebody else's returns to the start of its line; its last state counts.
            self._show(_last_state(line).rstrip(b"\r").decode("utf-8", "replace"))
        self._rest = _last_state(self._rest)  # such a bar may go on for hours


def _last_state(line: bytes) -> bytes:
    """Returns what of a line is not written over; a return at its end writes over nothing yet."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


class _Terminal(io.TextIOWrapper):
    """A terminal that may be closed meanwhile: that ends no work."""

    def write(self, text: str) -> int:
        """See base class."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """See base class."""
        with contextlib.suppress(OSError):
            super().flush()


def _terminal(number: int) -> TextIO:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return _Terminal(
        io.FileIO(number, "w"), encoding=encoding, errors="replace", write_through=True
    )
