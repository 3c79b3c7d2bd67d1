"""Ctrl-C and SIGTERM in training: finish the step, save a checkpoint, then stop."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "StopRequest", "terminable"]


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
    """While entered, the first signal asks to stop; a second one stops at once.

    After the first, the signals act as the operating system has it, so that a second one
    also ends a process that is busy inside TensorFlow.

    Attributes:
        requested: Whether a signal came.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in self._SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for each in self._SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        sys.stderr.write("stopping after this step; once more stops at once, without saving\n")
