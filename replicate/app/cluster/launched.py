"""One process that `replicate launch` has started: its log, what it tells, and its end."""

import contextlib
import datetime
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from replicate import errors
from replicate.app.cluster import lifeline

__all__ = ["Launched"]

_CHUNK = 1 << 16
_MARK = "==== "  # begins the launcher's own lines in a log
_ENOUGH = 1 << 14  # bytes at the end of a log, for its last lines


class Launched:
    """A process of a cluster.

    It is the leader of a session of its own: Ctrl-C reaches it through the launcher alone, and
    what it has started itself can be ended with it.

    Args:
        name: What people call it, e.g. worker 1.
        command: Its command line.
        variables: What its environment has beside ours.
        log: The path of the file that its output is added to.
        delay: For how many seconds it goes on without the launcher.
        grace: For how many it may then go on ending.
        output: Where its stdout goes; None: to the log as well.

    Attributes:
        name: See above.
        log: See above.
        code: Its exit code, negative: the number of the signal that ended it; None: it runs.
        state: What it does, in a word.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: str,
        delay: float,
        grace: float,
        output: IO[bytes] | None = None,
    ):
        self.name = name
        self.log = log
        self.code: int | None = None
        self.state = "starts"
        self._begin = self._read = 0
        with self._begun(command) as file:
            self._ear = lifeline.Ear(delay, grace)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file if output is None else output,
                stderr=file,
                env={**os.environ, **variables, **self._ear.variables},
                pass_fds=[self._ear.theirs],
                start_new_session=True,
            )
            with contextlib.suppress(OSError):  # a disk that is full is the process's to tell
                file.write(f"{_MARK}process {self._process.pid}\n".encode())
        self._ear.started()

    def _begun(self, command: Sequence[str]) -> IO[bytes]:
        """Opens the log, and writes down what is started.

        Raises:
            RunError: If it cannot be written.
        """
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        with contextlib.ExitStack() as leave:
            try:
                file = leave.enter_context(open(self.log, "ab", buffering=0))
                self._begin = file.tell()
                file.write(f"{_MARK}{now}: {shlex.join(command)}\n".encode())
            except OSError as e:
                raise errors.RunError(
                    f"{self.log} must be a file that can be written: {e.strerror}. Check its "
                    "permissions and the room on the disk, or choose another --model-dir."
                ) from e
            self._read = file.tell()
            leave.pop_all()
            return file

    def heard(self) -> Iterator[dict[str, Any]]:
        """Yields what the process has told since; notes what it says of its state."""
        for told in self._ear.heard():
            if "state" in told:
                self.state = str(told["state"])
            yield told

    def new_lines(self) -> list[str]:
        """Returns the whole lines that came to the log since; the rest once it has ended."""
        with open(self.log, "rb") as file:
            file.seek(self._read)
            data = file.read()
        if self.code is None:
            data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        lines = data.decode("utf-8", "replace").splitlines()
        return [line for line in lines if not _is_ours(line)]

    def last_lines(self, number: int) -> list[str]:
        """Returns the last lines of the log, without those of earlier launches."""
        with open(self.log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._begin, size - _ENOUGH))
            lines = file.read().decode("utf-8", "replace").splitlines()
        shown = [line.rstrip() for line in lines if line.strip() and not _is_ours(line)]
        return shown[-number:]

    def has_ended(self) -> bool:
        """Tells whether the process has ended; then nothing of it is left."""
        if self.code is None and _is_dead(self._process.pid):
            # Until the process is waited for, no other one can have its number.
            self._signal_all(signal.SIGKILL)
            self.code = self._process.wait()
            self.state = "ended"
        return self.code is not None

    def end(self) -> None:
        """Asks the process to end, as Ctrl-C would."""
        if self.code is None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends the process, and what it has started."""
        if self.code is None:
            self._signal_all(signal.SIGKILL)
            self._process.kill()
            self.code = self._process.wait()
            self.state = "ended"

    def close(self) -> None:
        """Ends the process if it runs, and lets the line to it go."""
        self.kill()
        self._ear.close()

    def _signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _is_ours(line: str) -> bool:
    return line.startswith(_MARK)


def _is_dead(number: int) -> bool:
    try:
        return os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another thread has waited for it
        return True
