"""Ctrl-C, SIGTERM, a closed terminal: in training, finish the step, save, then stop."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130  # the exit code, as shells have it
AT_ONCE = "interrupted"
_MEANINGS: dict[int, str] = {signal.SIGINT: AT_ONCE, signal.SIGTERM: "terminated"}
STOPPING = "stopping after this step; a second Ctrl-C stops at once, without saving"
LAST_DEEDS: list[Callable[[], None]] = []
"""What is done before a signal ends the process at once."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by the user; the text says what was saved."""


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """While entered, Ctrl-C ends the process without a word more than that it did.

    For imports: they take seconds, nothing is half-written by them, and libraries make of an
    exception in their midst whatever they like. And for who has nothing to save.
    """
    with contextlib.ExitStack() as leave:
        shown = os.dup(2)  # whatever stderr leads to meanwhile
        leave.callback(os.close, shown)

        def end(number: int, frame: FrameType | None) -> None:
            _do_last()
            with contextlib.suppress(OSError):
                text = f"\n{AT_ONCE}\n" if os.isatty(shown) else f"{AT_ONCE}\n"
                os.write(shown, text.encode())
            os._exit(INTERRUPTED)

        leave.enter_context(_handled_by(end))
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """While entered, a function hears of the signals that ask this process to stop."""
    with contextlib.ExitStack() as leave:
        for number in _heeded():
            leave.callback(signal.signal, number, signal.signal(number, handler))
        yield


def _do_last() -> None:
    for deed in list(LAST_DEEDS):
        deed()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While entered, signals raise Interrupted: what is half-written is removed on the way out.

    So does what a library makes of that: native code may turn it into an error of its own.
    """
    raised: list[Interrupted] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        raised.append(Interrupted(_MEANINGS.get(number, "the terminal was closed")))
        raise raised[0]

    with _handled_by(interrupt):
        try:
            yield
        except Exception as e:
            if raised:
                raise raised[0] from e
            raise


def _heeded() -> list[signal.Signals]:
    """Returns the signals that ask this process to stop; none of them outside the main thread.

    A closed terminal is not for whoever ignores that, as nohup has it.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    found = [signal.SIGINT, signal.SIGTERM]
    closed = getattr(signal, "SIGHUP", None)  # Windows has none
    if closed is not None and signal.getsignal(closed) is not signal.SIG_IGN:
        found.append(closed)
    return found


class StopRequest:
    """While entered, the first signal asks to stop; a second one ends the process at once.

    A thread of its own hears the signals: the main thread may be inside TensorFlow for as
    long as a step takes, and Python calls handlers only when that is over.

    Attributes:
        requested: Whether a signal came.
    """

    def __init__(self) -> None:
        self.requested = False
        self._signals: list[signal.Signals] = []
        self._leave = contextlib.ExitStack()

    def __enter__(self) -> "StopRequest":
        self._signals = _heeded()
        if not self._signals:
            return self
        heard, told = os.pipe()
        os.set_blocking(told, False)
        listener = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        listener.start()
        self._leave.callback(listener.join)
        self._leave.callback(os.close, told)
        self._leave.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(told))
        self._leave.enter_context(_handled_by(lambda number, frame: None))  # not the default
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave.close()

    def _listen(self, heard: int) -> None:
        """Reads the numbers of the signals that come, until the other end is closed."""
        with open(heard, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] not in self._signals:
                    continue
                if self.requested:
                    _do_last()
                    os._exit(INTERRUPTED)
                self.requested = True
                with contextlib.suppress(OSError):  # the terminal may be gone
                    sys.stderr.write(f"{STOPPING}\n")
                    sys.stderr.flush()
