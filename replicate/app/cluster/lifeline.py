"""The line between `replicate launch` and a process that it has started.

A process tells on it where it is. That the other end is closed tells the process that the
launcher is gone, however that happened: then it ends, too, in training with a checkpoint.

`python -m replicate.app.cluster.lifeline COMMAND...` holds it for a command that knows of none.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NAME = "REPLICATE_LAUNCHER"  # the number of the descriptor, the delay and the grace
REFUSED = {"refused": True}  # what a process tells that failed at what it was given
_MOST = 1 << 16  # bytes that may wait to be sent; a launcher that is stopped hears no more
_CHUNK = 1 << 16


class Lifeline:
    """The end that a launched process has.

    Args:
        line: A connected socket.
        delay: For how many seconds the process goes on once the launcher is gone.
        grace: For how many it may then go on ending.
    """

    def __init__(self, line: socket.socket, delay: float, grace: float):
        self._line = line
        self._delay = delay
        self._grace = grace
        self._waiting = b""
        self._lock = threading.Lock()
        line.setblocking(False)

    def tell(self, said: Mapping[str, Any]) -> None:
        """Tells the launcher something, or nothing where it does not listen."""
        with self._lock:
            if len(self._waiting) < _MOST:
                self._waiting += json.dumps(said).encode() + b"\n"
            with contextlib.suppress(OSError):
                while self._waiting:
                    self._waiting = self._waiting[self._line.send(self._waiting) :]

    def watch(self) -> None:
        """Ends this process when the launcher is gone, from a thread of its own."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._is_held():
            pass
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("replicate launch is gone; this process ends as well\n")
            sys.stderr.flush()
        time.sleep(self._delay)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace)
        os.killpg(0, signal.SIGKILL)  # and what it has started itself

    def _is_held(self) -> bool:
        """Waits until there is something to hear; tells whether the launcher is there."""
        select.select([self._line], [], [])
        try:
            return self._line.recv(_CHUNK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


class Ear:
    """The end that the launcher has.

    Args:
        delay: See `Lifeline`.
        grace: Likewise.

    Attributes:
        variables: What the environment of the launched process must have.
        theirs: The descriptor that it must inherit.
    """

    def __init__(self, delay: float, grace: float):
        self._line, self._theirs = socket.socketpair()
        self._line.setblocking(False)
        self._rest = b""
        self.theirs = self._theirs.fileno()
        self.variables = {_NAME: f"{self.theirs} {delay:g} {grace:g}"}

    def started(self) -> None:
        """Leaves the other end to the process, which has it now."""
        self._theirs.close()

    def heard(self) -> Iterator[dict[str, Any]]:
        """Yields what the process has told since."""
        with contextlib.suppress(OSError):
            while data := self._line.recv(_CHUNK):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError):
                        yield json.loads(line)

    def close(self) -> None:
        """Lets the line go."""
        self._theirs.close()
        self._line.close()


def attached() -> Lifeline | None:
    """Returns the line of this process, watched from now on; None where nobody launched it."""
    said = os.environ.pop(_NAME, "").split()  # it is not for our children
    if not said:
        return None
    number, delay, grace = int(said[0]), float(said[1]), float(said[2])
    os.set_inheritable(number, False)
    line = Lifeline(socket.socket(fileno=number), delay, grace)
    line.watch()
    return line


def main(command: Sequence[str]) -> int:
    """Runs a command to its end, and ends as it does; who asks this process to end, asks it."""
    variables = {name: value for name, value in os.environ.items() if name != _NAME}
    variables.setdefault("PYTHONUNBUFFERED", "1")  # lines are shown as they come
    try:
        running = subprocess.Popen(command, env=variables)
    except OSError as e:
        print(f"{command[0]} must be a program: {e.strerror}. Check the command.", file=sys.stderr)
        line = attached()
        if line is not None:
            line.tell(REFUSED)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: running.terminate())
    attached()
    code = running.wait()
    if code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
