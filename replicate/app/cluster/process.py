"""One process that `replicate launch` has started: its log, what it tells, and its end."""

import contextlib
import datetime
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from replicate import errors
from replicate.app.cluster import lifeline
from replicate.console import interrupts

# Codes of processes that have ended as those do that are asked to.
AS_ASKED = (interrupts.INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)
BAD_USAGE = 2  # the exit code of a process whose options or config were refused
_MARK = "==== "  # begins the launcher's own lines in a log
_ENOUGH = 1 << 14  # bytes at the end of a log, for its last lines


class Start(NamedTuple):
    """How a process is started.

    Attributes:
        name: What people call it, e.g. worker:1.
        command: Its command line.
        variables: What its environment has beside ours.
        log: The path of the file that its output is added to.
        delay: For how many seconds it goes on without the launcher.
        grace: For how many it may then go on ending.
        has_result: Whether its stdout is kept apart from the log.
    """

    name: str
    command: Sequence[str]
    variables: Mapping[str, str]
    log: str
    delay: float
    grace: float
    has_result: bool


class Process:
    """A process of a cluster.

    It is the leader of a session of its own: Ctrl-C reaches it through the launcher alone, and
    what it has started itself can be ended with it.

    Args:
        start: How it is started.

    Attributes:
        name: What people call it.
        log: The path of its log.
        code: Its exit code, negative: the number of the signal that ended it; None: it runs.
        state: What it does, in a word.
        is_refused: Whether it has failed at what it was given: no restart would help.

    Raises:
        RunError: If its log cannot be written.
    """

    def __init__(self, start: Start):
        self.name = start.name
        self.log = start.log
        self.code: int | None = None
        self.state = "starts"
        self.is_refused = False
        self._result = tempfile.TemporaryFile() if start.has_result else None
        with _opened(start.log) as file:
            self._begin = file.tell()
            _note(file, start)
            self._read = file.tell()
            self._ear = lifeline.Ear(start.delay, start.grace)
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.DEVNULL,
                stdout=self._result or file,
                stderr=file,
                env={**os.environ, **start.variables, **self._ear.variables},
                pass_fds=[self._ear.theirs],
                start_new_session=True,
            )
            with contextlib.suppress(OSError):  # a disk that is full is the process's to tell
                file.write(f"{_MARK}process {self._process.pid}\n".encode())
        self._ear.started()

    def heard(self) -> Iterator[dict[str, Any]]:
        """Yields what the process has told since; notes what it says of its state."""
        for told in self._ear.heard():
            if "state" in told:
                self.state = str(told["state"])
            self.is_refused |= "refused" in told
            yield told

    def new_lines(self) -> list[str]:
        """Returns the whole lines that came to the log since; the rest once it has ended."""
        with open(self.log, "rb") as file:
            file.seek(self._read)
            data = file.read()
        if self.code is None:
            data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        return _lines(data)

    def last_lines(self, number: int) -> list[str]:
        """Returns the last lines of the log, without those of earlier launches."""
        with open(self.log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._begin, size - _ENOUGH))
            return [line.rstrip() for line in _lines(file.read()) if line.strip()][-number:]

    def result(self) -> str:
        """Returns what the process wrote to stdout, where that is kept."""
        if self._result is None:
            return ""
        self._result.seek(0)
        return self._result.read().decode("utf-8", "replace")

    def has_ended(self) -> bool:
        """Tells whether the process has ended; then nothing of it is left."""
        if self.code is None and _is_dead(self._process.pid):
            # Until the process is waited for, no other one can have its number.
            self._take_code()
        return self.code is not None

    def end(self) -> None:
        """Asks the process to end, as Ctrl-C would."""
        if self.code is None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends the process, and what it has started."""
        if self.code is None:
            self._process.kill()
            self._take_code()

    def close(self) -> None:
        """Ends the process if it runs, and lets the line to it and its files go."""
        self.kill()
        self._ear.close()
        if self._result is not None:
            self._result.close()

    def _take_code(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.code = self._process.wait()
        self.is_refused |= self.code == BAD_USAGE
        self.state = "ended"


def _opened(log: str) -> IO[bytes]:
    try:
        return open(log, "ab", buffering=0)
    except OSError as e:
        raise _fault(log, e) from e


def _note(file: IO[bytes], start: Start) -> None:
    """Writes down what is started."""
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    try:
        file.write(f"{_MARK}{now}: {shlex.join(start.command)}\n".encode())
    except OSError as e:
        raise _fault(start.log, e) from e


def _fault(log: str, reason: OSError) -> errors.RunError:
    return errors.RunError(
        f"{log} must be a file that can be written: {reason.strerror}. Check its permissions and "
        "the free space on the disk, or choose another --model-dir."
    )


def _lines(data: bytes) -> list[str]:
    """Returns lines of a log, without our own."""
    lines = data.decode("utf-8", "replace").splitlines()
    return [line for line in lines if not line.startswith(_MARK)]


def _is_dead(number: int) -> bool:
    try:
        return os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another thread has waited for it
        return True
