"""A cluster on loopback for each measurement: W fresh processes, of which none is left."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading

from benchmarking import names, processes, relays

WORK = "--work-for-a-cluster"  # what the script is called with to be a task
SECONDS = 180.0  # after which a measurement is ended


class Clusters:
    """Runs a cluster for each request.

    Args:
        python: The interpreter.
        root: The checkout whose `replicate` is measured.
        steps: How many steps are timed.
        servers: M, how many parameter servers there are for those who want some.
        trace: A folder for profiles, if steps are traced.
    """

    def __init__(
        self,
        python: str,
        root: pathlib.Path,
        steps: int,
        servers: int,
        trace: str | None,
    ):
        self._python, self._root, self._steps, self._trace = python, root, steps, trace
        self._servers = servers
        worker = processes.Worker(python, root)
        self.versions = worker.versions
        worker.close()

    def ask(self, request: names.Request) -> dict:
        """Returns the measurements, or `{"error": text}`."""
        found: dict = {}
        # NOTE: relays take part of the cores. So bytes are counted in a run of their own.
        for measure, is_relayed in (("steps", False), ("sent", True)):
            if measure in request.measures and "error" not in found:
                found |= self._run(request, is_relayed)
        wanted = {*request.measures, "error"}
        return {name: value for name, value in found.items() if name in wanted}

    def close(self) -> None:
        """Nothing is left that could be closed."""

    def _run(self, request: names.Request, is_relayed: bool) -> dict:
        servers = self._servers if request.subject in names.ON_SERVERS else 0
        ports = _free_ports(request.workers + servers)
        with contextlib.ExitStack() as leave:
            made = tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True)
            folder = pathlib.Path(leave.enter_context(made))
            mesh = relays.Mesh(ports) if is_relayed else None
            if mesh is not None:
                leave.callback(mesh.close)
            tasks = [
                self._start(request, number, mesh.seen_by(number) if mesh else ports, folder)
                for number in range(len(ports))
            ]
            leave.callback(_end, tasks)
            watch = threading.Timer(SECONDS, _end, [tasks])
            watch.start()
            leave.callback(watch.cancel)
            found = self._listened(tasks[0], mesh)
            if found is None:
                _end(tasks)
                logs = [(folder / f"{number}.log").read_text() for number in range(len(ports))]
                return {"error": "; ".join(_last_line(log) for log in logs)}
        if is_relayed:
            found.pop("steps", None)  # slower, for the relays' sake
        return found

    def _start(
        self, request: names.Request, number: int, ports: list[int], folder: pathlib.Path
    ) -> subprocess.Popen:
        told = {
            "subject": request.subject,
            "model": request.model,
            "workers": request.workers,
            "servers": len(ports) - request.workers,
            "number": number,
            "warm": max(20, self._steps // 4),
            "steps": self._steps,
            "folder": str(folder / "model"),
            "trace": None,
        }
        if self._trace is not None and number == 0:
            told["trace"] = f"{self._trace}/{request.subject}-{request.model}.pb"
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._root),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        environment.pop("TF_CONFIG", None)
        if len(ports) > 1:
            environment["TF_CONFIG"] = json.dumps(_tf_config(number, ports, told["servers"]))
        command = [self._python, str(processes.SCRIPT), WORK, json.dumps(told)]
        with open(folder / f"{number}.log", "w", encoding="utf-8") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _listened(self, first: subprocess.Popen, mesh: relays.Mesh | None) -> dict | None:
        """Returns what the first task measures; None: it has failed."""
        counted = []
        for line in first.stdout:
            found = json.loads(line)
            if "at" not in found:
                if mesh is not None:
                    pairs = zip(*counted, strict=True)
                    sent, received = ((after - before) / self._steps for before, after in pairs)
                    found |= {"sent": sent, "received": received}
                return found
            counted.append(mesh.moved(0) if mesh is not None else None)
            with contextlib.suppress(OSError):
                first.stdin.write("\n")
                first.stdin.flush()
        return None


def _tf_config(number: int, ports: list[int], servers: int) -> dict:
    addresses = [f"127.0.0.1:{port}" for port in ports]
    workers = len(ports) - servers
    jobs = {"chief": addresses[:1], "worker": addresses[1:workers], "ps": addresses[workers:]}
    task = {"type": "chief", "index": 0}
    if number >= workers:
        task = {"type": "ps", "index": number - workers}
    elif number:
        task = {"type": "worker", "index": number - 1}
    return {"cluster": {job: found for job, found in jobs.items() if found}, "task": task}


def _free_ports(count: int) -> list[int]:
    """Returns ports that the system has just chosen, each another one."""
    with contextlib.ExitStack() as leave:
        held = [leave.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def _end(tasks: list[subprocess.Popen]) -> None:
    """Ends the processes that were started, those that have not ended yet."""
    for task in tasks:
        if task.poll() is None:
            task.kill()
        task.wait()


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:600] if lines else "it said nothing"
