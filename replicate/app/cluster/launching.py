"""`replicate launch`: one training as several processes on this machine, from start to end."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence

from replicate import errors
from replicate.app.cluster import launched_cluster
from replicate.app.console import interrupts, progress
from replicate.app.runs import locks

__all__ = ["launch", "plan"]

_HOST = "127.0.0.1"


def plan(
    wanted: launched_cluster.Wanted, addresses: Sequence[str]
) -> list[launched_cluster.Process]:
    """Returns the processes of a cluster, the chief first.

    Args:
        wanted: What is to be launched.
        addresses: Those of the workers, then of the parameter servers.
    """
    jobs = {"chief": [addresses[0]], "worker": list(addresses[1 : wanted.workers])}
    jobs["ps"] = list(addresses[wanted.workers :])
    jobs = {job: listed for job, listed in jobs.items() if listed}
    tasks = [("chief", "chief", 0)]
    tasks += [(f"worker {n}", "worker", n - 1) for n in range(1, wanted.workers)]
    tasks += [(f"ps {n}", "ps", n) for n in range(wanted.servers)]
    tasks += [("evaluator", "evaluator", 0)] if wanted.evaluator else []
    return [
        launched_cluster.Process(name, {"cluster": jobs, "task": {"type": job, "index": index}})
        for name, job, index in tasks
    ]


def launch(
    wanted: launched_cluster.Wanted,
    command: Callable[[str], Sequence[str]],
    model_dir: str,
    display: progress.Display,
) -> list[str]:
    """Runs a cluster to its end; none of its processes is there afterwards.

    Args:
        wanted: What is to be launched.
        command: Returns the command line of the process of a name.
        model_dir: Where the training is; logs are below it.
        display: Where progress goes.

    Returns:
        What the chief, and then the evaluator, wrote to stdout.

    Raises:
        Interrupted: If a signal came.
        RunError: If a process failed.
        ConfigError: If a process refused its config.
    """
    logs = _logs_in(model_dir)
    with locks.launching(logs), contextlib.ExitStack() as leave:
        leave.enter_context(display)
        ports = leave.enter_context(_held_ports(wanted.workers + wanted.servers))
        run = launched_cluster.LaunchedCluster(wanted, logs, model_dir, display)
        leave.callback(run.close)
        stop = leave.enter_context(interrupts.StopRequest(run.kill))
        run.start(plan(wanted, [f"{_HOST}:{port}" for port in ports]), command)
        display.say(f"logs: {logs}")
        return run.to_its_end(stop)


def _logs_in(model_dir: str) -> str:
    """Makes the folder of the logs; returns its path."""
    if "://" in model_dir:
        raise errors.ConfigError(
            f"model_dir: must be a folder of this machine for `replicate launch`, got {model_dir}. "
            "Give another --model-dir."
        )
    logs = os.path.join(model_dir, "logs")
    try:
        os.makedirs(logs, exist_ok=True)
    except OSError as e:
        raise errors.RunError(
            f"model_dir: {model_dir} must be a directory that can be written: {e.strerror}. "
            "Check the path and its permissions."
        ) from e
    return logs


@contextlib.contextmanager
def _held_ports(number: int) -> Iterator[list[int]]:
    """Yields free ports, which the system gives to nobody else while this is entered.

    Whoever asks to share a port may have it, as TensorFlow's servers do.
    """
    with contextlib.ExitStack() as leave:
        found = []
        for _ in range(number):
            held = leave.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((_HOST, 0))
            found.append(held.getsockname()[1])
        yield found
