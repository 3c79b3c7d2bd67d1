"""Runs workers as processes of their own, of which none is left."""

import os
import pathlib
import time
from typing import NamedTuple

from tests.cluster import forks

_WORKER = pathlib.Path(__file__).with_name("worker.py")


class Ended(NamedTuple):
    """What became of workers.

    Attributes:
        codes: Their exit codes; None: it had to be ended.
        lasted: After how many seconds each ended.
        logs: The end of what each wrote.
    """

    codes: list
    lasted: list
    logs: list


def run(
    folder: pathlib.Path,
    names: list,
    settings: dict | None = None,
    seconds: float = 240,
    is_patient: bool = False,
    number: int = 2,
    has_evaluator: bool = False,
    script: pathlib.Path = _WORKER,
) -> Ended:
    """Runs workers to their end.

    Args:
        folder: Where they write.
        names: The works that they do; see `worker`.
        settings: Environment variables; see `worker`.
        seconds: After how long they are ended.
        is_patient: Whether the others go on when one has failed.
        number: How many workers there are.
        has_evaluator: Whether an evaluator comes behind them.
        script: What they run.
    """
    for left in folder.glob("*.address"):
        left.unlink()  # of those that ran here before
    environment = {**os.environ, **(settings or {})}
    workers: list = []
    begun = time.monotonic()
    size, number = number, number + has_evaluator
    lasted = [seconds] * number
    try:
        for i in range(number):
            log = folder / f"{i}.log"
            log.write_text("")
            arguments = [str(folder), str(i), str(size), *names]
            workers.append(forks.Forked(script, arguments, environment, log))
        waiting = set(range(number))
        while waiting and time.monotonic() - begun < seconds:
            for i in [i for i in waiting if workers[i].poll() is not None]:
                waiting.discard(i)
                lasted[i] = time.monotonic() - begun
            if not is_patient and any(worker.poll() for worker in workers):
                break  # the others would wait for it
            time.sleep(0.05)
    finally:
        codes = [worker.poll() for worker in workers]
        for worker in workers:
            worker.kill()
            worker.wait()
    return Ended(codes, lasted, [(folder / f"{i}.log").read_text()[-4000:] for i in range(number)])


def is_alive(number):
    """Tells whether a process is there, and no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
