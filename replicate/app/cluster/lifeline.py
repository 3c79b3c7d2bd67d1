"""What `replicate launch` and a process of `replicate` that it has started know of each other.

The process tells on a pipe where it is. That its stdin is closed tells it that the launcher is
gone, however that happened: then it ends, too, in training with a checkpoint.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

NAME = "REPLICATE_LAUNCHER"  # of a variable: the number of the pipe, the delay and the grace
REFUSED = {"refused": True}  # what a process tells that failed at what it was given


class Lifeline:
    """The end that a launched process has.

    Args:
        pipe: The number of what it tells on.
    """

    def __init__(self, pipe: int):
        self._pipe = pipe

    def tell(self, said: Mapping[str, Any]) -> None:
        """Tells the launcher something, or nothing where it does not listen."""
        with contextlib.suppress(OSError):  # the pipe is full, or the launcher gone
            os.write(self._pipe, json.dumps(said).encode() + b"\n")  # short, so whole or not at all


def attached() -> Lifeline | None:
    """Returns the line of this process, watched from now on; None where nobody launched it."""
    said = os.environ.pop(NAME, "").split()  # it is not for our children
    if not said:
        return None
    pipe, times = int(said[0]), [float(seconds) for seconds in said[1:]]
    os.set_inheritable(pipe, False)
    os.set_blocking(pipe, False)
    threading.Thread(target=watch, args=[os.dup(0), *times], daemon=True).start()
    return Lifeline(pipe)


def watch(held: int, delay: float, grace: float) -> None:
    """Ends this process, and what it has started, once the launcher is gone.

    Args:
        held: The number of what the launcher holds open.
        delay: For how many seconds it goes on then.
        grace: For how many it may then go on ending.
    """
    while os.read(held, 1):
        pass
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("replicate launch is gone; this process ends as well\n")
        sys.stderr.flush()
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.killpg(0, signal.SIGKILL)
