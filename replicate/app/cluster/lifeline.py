"""What `replicate launch` and a process of `replicate` that it has started know of each other.

The process tells on a pipe where it is. That its stdin is closed tells it that the launcher is
gone, however that happened: then it ends, too, in training with a checkpoint.
"""

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

NAME = "REPLICATE_LAUNCHER"  # of a variable: the number of the pipe, the delay and the grace
Tell: TypeAlias = Callable[[Mapping[str, Any]], None]
REFUSED = {"refused": True}  # what a process tells that failed at what it was given


def attached() -> Tell | None:
    """Returns what tells the launcher of this process, from now on watched; None: it has none."""
    said = os.environ.pop(NAME, "").split()  # it is not for our children
    if not said:
        return None
    pipe, times = int(said[0]), [float(seconds) for seconds in said[1:]]
    os.set_inheritable(pipe, False)
    os.set_blocking(pipe, False)
    threading.Thread(target=watch, args=[os.dup(0), *times], daemon=True).start()
    return functools.partial(tell, pipe)


def tell(pipe: int, said: Mapping[str, Any]) -> None:
    """Tells the launcher something on a pipe, or nothing where it does not listen."""
    with contextlib.suppress(OSError):  # the pipe is full, or the launcher gone
        os.write(pipe, json.dumps(said).encode() + b"\n")  # short, so whole or not at all


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
