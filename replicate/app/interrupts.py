"""Ctrl-C and SIGTERM in training: finish the step, save a checkpoint, then stop."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["INTERRUPTED", "Interrupted", "StopRequest", "terminable"]

INTERRUPTED = 130  # the exit code, as shells have it


class Interrupted(KeyboardInterrupt):
    """A run was stopped by the user; the text says what was saved."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While entered, SIGTERM is Ctrl-C: what is half-written is removed on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted("terminated")


class StopRequest:
    """While entered, the first signal asks to stop; a second one ends the process at once.

    A thread of its own hears the signals: the main thread may be inside TensorFlow for as
    long as a step takes, and Python calls handlers only when that is over.

    Attributes:
        requested: Whether a signal came.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._leave = contextlib.ExitStack()

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            return self
        heard, told = os.pipe()
        os.set_blocking(told, False)
        listener = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        listener.start()
        self._leave.callback(listener.join)
        self._leave.callback(os.close, told)
        self._leave.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(told))
        for number in self._SIGNALS:
            self._leave.callback(signal.signal, number, signal.signal(number, _do_nothing))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave.close()

    def _listen(self, heard: int) -> None:
        """Reads the numbers of the signals that come, until the other end is closed."""
        with open(heard, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] not in self._SIGNALS:
                    continue
                if self.requested:
                    os._exit(INTERRUPTED)
                self.requested = True
                sys.stderr.write(
                    "stopping after this step; once more stops at once, without saving\n"
                )
                sys.stderr.flush()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Stands for the default, which would end the process."""
