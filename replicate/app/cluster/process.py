"""One process that `replicate launch` has started: its log, what it tells, and its end."""

import collections
import contextlib
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from replicate import errors
from replicate.app.cluster import lifeline
from replicate.console import interrupts

# Codes of processes that have ended as those do that are asked to.
AS_ASKED = (interrupts.INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)
BAD_USAGE = 2  # the exit code of a process whose options or config were refused
_MARK = "==== "  # begins the launcher's own lines in a log
_KEPT = 12  # lines
_CHUNK = 1 << 16
# Runs a command, which the system then ends with who has started it; it becomes that command.
_PDEATHSIG = 1  # PR_SET_PDEATHSIG
_WITH_US = (
    *(sys.executable, "-ISc"),
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PDEATHSIG}, {int(signal.SIGTERM)}); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
)


class Process:
    """A process of a cluster.

    It is the leader of a session of its own: Ctrl-C reaches it through the launcher alone, and
    what it has started itself can be ended with it.

    Args:
        name: What people call it, e.g. worker:1.
        command: Its command line.
        variables: What its environment has beside ours.
        log: The path of the file that its output is added to.
        line: For how many seconds it goes on without the launcher, and then goes on ending; None:
            it knows of no launcher, and gets SIGTERM where the system sees to that (Linux).
        has_result: Whether its stdout is ours.

    Attributes:
        name: See the argument.
        log: See the argument.
        code: Its exit code, negative: the number of the signal that ended it; None: it runs.
        is_refused: Whether it has failed at what it was given: no restart would help.
        last_lines: Of what was read of its log.

    Raises:
        RunError: If its log cannot be written, or its command is none.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: str,
        line: tuple[float, float] | None,
        has_result: bool,
    ):
        if shutil.which(command[0]) is None:
            raise errors.RunError(f"{command[0]} must be a program, is none. Check the command.")
        self.name = name
        self.log = log
        self.code: int | None = None
        self.is_refused = False
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_KEPT)
        self._rest = b""
        self._heard, told = os.pipe()
        os.set_blocking(self._heard, False)
        more = {"PYTHONUNBUFFERED": "1", **variables}
        with open(told, "wb"), _begun(log, command) as file:
            if line is not None:
                more[lifeline.NAME] = f"{told} {line[0]:g} {line[1]:g}"
            elif sys.platform == "linux":
                command = [*_WITH_US, *command]
            self._read = file.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if line is None else subprocess.PIPE,
                stdout=None if has_result else file,
                stderr=file,
                env={**os.environ, **more},
                pass_fds=[] if line is None else [told],
                start_new_session=True,
            )
            with contextlib.suppress(OSError):  # a disk that is full is the process's to tell
                file.write(f"{_MARK}process {self._process.pid}\n".encode())

    def heard(self) -> Iterator[dict[str, Any]]:
        """Yields what the process has told since."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._heard, _CHUNK):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for told in map(json.loads, lines):
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
        lines = data.decode("utf-8", "replace").splitlines()
        lines = [line for line in lines if not line.startswith(_MARK)]
        self.last_lines.extend(line.rstrip() for line in lines if line.strip())
        return lines

    def has_ended(self) -> bool:
        """Tells whether the process has ended; then nothing of it is left."""
        # Until the process is waited for, no other one can have its number.
        seen = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.code is None and os.waitid(os.P_PID, self._process.pid, seen) is not None:
            self._take_code()
        return self.code is not None

    def end(self) -> None:
        """Asks the process to end, as Ctrl-C would."""
        # NOTE: a method of Popen that sends a signal waits for a process that has ended.
        if self.code is None:
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process, and what it has started."""
        if self.code is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._take_code()

    def close(self) -> None:
        """Ends the process if it runs, and lets the line to it and its files go."""
        self.kill()
        os.close(self._heard)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _take_code(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.code = self._process.wait()
        self.is_refused |= self.code == BAD_USAGE


def _begun(log: str, command: Sequence[str]) -> IO[bytes]:
    """Returns a log that says what begins."""
    try:
        file = open(log, "ab", buffering=0)
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        file.write(f"{_MARK}{now}: {shlex.join(command)}\n".encode())
        return file
    except OSError as e:
        raise errors.RunError(
            f"{log} must be a file that can be written: {e.strerror}. Check its permissions and "
            "the free space on the disk, or choose another --model-dir."
        ) from e
