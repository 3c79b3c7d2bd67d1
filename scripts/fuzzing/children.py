"""A process that grows and judges models; a crash or a hang ends it, and nothing else."""

import logging
import multiprocessing
import os
import warnings
from multiprocessing.connection import Connection
from typing import NamedTuple

from scripts.fuzzing import programs, running

PATIENCE = 120.0  # seconds that one model may take
LIFE = 150  # models of one process


class Judged(NamedTuple):
    """A model and what came of it.

    Attributes:
        program: The model; None: it was not grown.
        verdict: What came of it.
    """

    program: programs.Program | None
    verdict: running.Verdict


class Child:
    """Asks a process of its own, which is started again where it ended.

    Args:
        lines: The most that a model has.
    """

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._process: multiprocessing.Process | None = None
        self._connection: Connection | None = None
        self._left = 0

    def grown(self, seed: int) -> Judged:
        """Grows the model of a seed, and judges it."""
        program = self._ask("grow", seed, self._lines)
        if isinstance(program, running.Verdict):
            return Judged(None, program._replace(kind="discarded"))
        return Judged(program, self.judged(program))

    def judged(self, program: programs.Program) -> running.Verdict:
        """Judges a model."""
        return self._ask("judge", program.source())

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _ask(self, task: str, *of: object):
        if self._left <= 0:
            self.close()
        if self._process is None:
            self._start()
        self._left -= 1
        self._connection.send((task, of))
        if not self._connection.poll(PATIENCE):
            self.close()
            return running.Verdict("fails", "hang while it is built", f"{PATIENCE} s")
        try:
            return self._connection.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self.close()
            return running.Verdict("fails", f"crash, exit code {code}")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._left = 2 * LIFE


def _serve(connection: Connection) -> None:
    """Does what it is asked, until the other end is closed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from scripts.fuzzing import growing

    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # advice to the models' authors
    warnings.simplefilter("ignore")  # the same; `running.judge` hears what K devices add
    running.make_devices()
    tasks = {"grow": growing.grow, "judge": running.judge}
    while True:
        try:
            task, of = connection.recv()
        except EOFError:
            return
        connection.send(tasks[task](*of))
