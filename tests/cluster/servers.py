"""Runs a whole cluster with parameter servers, of which nothing is left."""

import json
import os
import pathlib
import socket
import time

from tests.cluster import forks

_TASK = pathlib.Path(__file__).with_name("task.py")
SERVERS = 2
_TASKS = ("ps:0", "ps:1", "chief:0", "worker:0", "evaluator:0")


class Cluster:
    """A chief, a worker, two parameter servers and an evaluator, each a process.

    Args:
        folder: Where they write.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.codes: dict[str, int | None] = {}
        self._jobs = {"ps": SERVERS, "chief": 1, "worker": 1}
        self._addresses = free_addresses(self._jobs)
        self._running: dict[str, forks.Forked] = {}

    def run(self, seconds: float) -> None:
        """Starts all tasks, does to them what they ask for, and ends when those have that train."""
        deadline = time.monotonic() + seconds
        try:
            for task in _TASKS:
                self._start(task)
            while time.monotonic() < deadline and not self._is_over():
                self._serve_requests()
                time.sleep(0.05)
        finally:
            self.codes = {task: running.poll() for task, running in self._running.items()}
            for running in self._running.values():
                running.kill()
                running.wait()

    def _is_over(self) -> bool:
        chief, evaluator = (self._running[task].poll() for task in ("chief:0", "evaluator:0"))
        worker = self._running["worker:0"].poll()
        return bool(worker and worker > 0) or bool(chief) or None not in (chief, evaluator)

    def _serve_requests(self) -> None:
        """Kills what a task wants to see killed."""
        if self._is_asked("kill-ps"):
            self._kill("ps:1")
            self._start("ps:1")
            self._tell("ps-again")
        if self._running["worker:0"].poll() == -9 and not self._has("worker-is-gone"):
            self._tell("worker-is-gone")
        if self._is_asked("kill-ps-at-first"):
            self._kill("ps:1")
            self._tell("ps-was-killed")
        if self._is_asked("start-ps"):
            self._start("ps:1")
        if self._is_asked("kill-ps-for-good"):
            self._kill("ps:1")
            self._tell("ps-is-gone")

    def _is_asked(self, name: str) -> bool:
        if self._has(f"{name}.done") or not self._has(name):
            return False
        self._tell(f"{name}.done")
        return True

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _tell(self, name: str) -> None:
        (self.folder / name).write_text("")

    def _kill(self, task: str) -> None:
        self._running[task].kill()
        self._running[task].wait()

    def _start(self, task: str) -> None:
        job, number = task.split(":")
        config = {"cluster": self._addresses, "task": {"type": job, "index": int(number)}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        log = self.folder / f"{task}.log"
        self._running[task] = forks.Forked(_TASK, [str(self.folder)], environment, log)

    def log(self, task: str) -> str:
        """Returns the end of what a task wrote."""
        return (self.folder / f"{task}.log").read_text()[-6000:]


def free_addresses(jobs: dict) -> dict:
    """Returns addresses for all tasks, of ports that are chosen by the system."""
    held = {job: [socket.socket() for _ in range(number)] for job, number in jobs.items()}
    found: dict = {}
    for job, sockets in held.items():
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        found[job] = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for sockets in held.values():
        for one in sockets:
            one.close()
    return found
