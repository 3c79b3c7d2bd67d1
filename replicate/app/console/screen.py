"""A terminal with bars on it: whatever anybody writes comes above them, in whole lines.

Loggers that keep the stream they were made with, `tf.print` and other native code know nothing
of `sys.stderr`. So file descriptors themselves lead into a pipe while bars are shown, and a
thread shows line by line what comes out of it.
"""

import contextlib
import io
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

__all__ = ["Capture", "terminals"]

_CHUNK = 65536
_END_OF_ALL = "\033[?25h"  # shows the cursor, which bars hide


def terminals() -> list[int]:
    """Returns which of stdout and stderr are this process's own, and a terminal."""
    found = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(AttributeError, OSError, ValueError, io.UnsupportedOperation):
            if stream.fileno() == number and os.isatty(number):
                found.append(number)
    return found


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


class Capture:
    """While entered, what comes to some file descriptors is handed on in whole lines.

    Args:
        numbers: The descriptors; the last one leads to the terminal.
        show: Called with each line, without its end, in a thread of the capture's own.

    Attributes:
        terminal: What still leads to the terminal.
    """

    def __init__(self, numbers: Sequence[int], show: Callable[[str], None]):
        self._numbers = numbers
        self._show = show
        self._rest = b""
        self.terminal: TextIO
        self._leave = contextlib.ExitStack()

    def __enter__(self) -> "Capture":
        _flush()
        self.terminal = self._leave.enter_context(_like_stderr(os.dup(self._numbers[-1])))
        heard, told = os.pipe()
        woken, wake = os.pipe()
        os.set_blocking(heard, False)
        for number in (heard, woken):
            self._leave.callback(os.close, number)
        self._leave.enter_context(_heir(heard, self.terminal))
        reader = threading.Thread(target=self._read, args=(heard, woken), daemon=True)
        reader.start()
        self._leave.callback(reader.join)
        self._leave.callback(os.close, wake)
        for number in self._numbers:
            self._leave.callback(_put_back, os.dup(number), number)
            os.dup2(told, number)
        self._leave.callback(_flush)
        os.close(told)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave.close()

    def _read(self, heard: int, woken: int) -> None:
        """Shows lines until the other end of `woken` is closed and nothing more is there."""
        is_over = False
        while not is_over:
            ready, _, _ = select.select([heard, woken], [], [])
            is_over = woken in ready
            with contextlib.suppress(BlockingIOError):
                while data := os.read(heard, _CHUNK):
                    self._take(data)
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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _put_back(saved: int, number: int) -> None:
    os.dup2(saved, number)
    os.close(saved)


def _like_stderr(number: int) -> TextIO:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return _Terminal(
        io.FileIO(number, "w"), encoding=encoding, errors="replace", write_through=True
    )


@contextlib.contextmanager
def _heir(heard: int, terminal: TextIO):
    """While entered, a process waits for this one to die, and then shows what it still said.

    A thread of ours could not: native code that fails a check writes why, and aborts.
    """
    alive, held = os.pipe()
    script = f"cat <&{alive} >&2; printf '{_END_OF_ALL}'; exec cat <&{heard}"
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            pass_fds=(alive, heard),
            start_new_session=True,  # Ctrl-C is not for it
        )
    except OSError:
        process = None  # no such shell: then without an heir
    finally:
        os.close(alive)
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()
        os.close(held)
