"""`replicate launch`: one training as several processes on this machine, from start to end.

The processes are called what `TF_CONFIG` calls their tasks.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicate import errors
from replicate.app.cluster import lifeline, places, process, view
from replicate.app.runs import folders
from replicate.console import interrupts, progress

_HOST = "127.0.0.1"
SCRIPT = (sys.executable, "-m", lifeline.__name__)  # runs a command that knows of no launcher
_PAUSE = 0.05  # seconds between two looks at the processes
_LAST_LINES = 12


class Wanted(NamedTuple):
    """What is to be launched.

    Attributes:
        workers: How many workers, the chief among them; a fixed number beside servers.
        servers: How many parameter servers.
        evaluator: Whether an evaluator.
        grace: How many seconds processes have to end that are asked to.
        has_result: Whether the chief and the evaluator write a result to stdout, apart from logs.
        restarts: How often they may be started again because one is lost.
    """

    workers: places.Size
    servers: int
    evaluator: bool
    grace: float
    has_result: bool = True
    restarts: int = 0


def launch(
    wanted: Wanted,
    command: Callable[[str], Sequence[str]],
    model_dir: str,
    display: progress.Display,
) -> list[str]:
    """Runs a cluster to its end; none of its processes is there afterwards.

    If a process is lost, or a lost worker may return, the cluster is ended and started again, on
    other ports: it goes on from its last checkpoint, with the workers that there are then.

    Args:
        wanted: What is to be launched.
        command: Returns the command line of the process of a name.
        model_dir: Where the training is; logs are below it.
        display: Where progress goes.

    Returns:
        What the chief, and then the evaluator, wrote to stdout.

    Raises:
        Interrupted: If a signal came.
        RunError: If a process failed, and no restart is left, or none would help.
        ConfigError: If a process refused its config.
    """
    if "://" in model_dir:
        raise errors.ConfigError(
            f"model_dir: must be a folder of this machine for `replicate launch`, got {model_dir}. "
            "Give another --model-dir."
        )
    logs = os.path.join(model_dir, "logs")
    for folder in filter(None, (model_dir, logs)):
        folders.make(folder, "model_dir")
    processes: list[process.Process] = []
    with contextlib.ExitStack() as leave:
        leave.enter_context(folders.launching(logs))
        leave.enter_context(display)
        stop = leave.enter_context(interrupts.StopRequest(lambda: _kill(processes)))
        display.say(f"logs: {logs}")
        members = places.Places(wanted.workers, wanted.restarts, saved_step(model_dir))
        while True:
            try:
                with _started(wanted, len(members), logs, command, processes):
                    return _Cluster(wanted, processes, model_dir, display).to_its_end(stop, members)
            except _EndedEarly as e:
                delay, text = _arranged(members, e, wanted, saved_step(model_dir))
                display.say(text)
            end = time.monotonic() + delay
            while time.monotonic() < end and not stop.requested:
                time.sleep(_PAUSE)
            if stop.requested:
                raise interrupts.Interrupted(f"stopped; {_saved(wanted, model_dir)}")


class _EndedEarly(Exception):
    """A cluster has ended, and is to be started again.

    Args:
        lost: Which processes are lost, by number, and how each one ended; none: all were asked to
            end, for lost workers may return.
    """

    def __init__(self, lost: Mapping[int, str]):
        super().__init__()
        self.lost = lost


def _arranged(
    members: places.Places, ended: _EndedEarly, wanted: Wanted, step: int | None
) -> tuple[float, str]:
    """Arranges with whom a cluster goes on; returns in how many seconds, and tells it."""
    before = len(members)
    if ended.lost:
        delay = members.lose([number for number in ended.lost if number < before], step)
        text = f"{', '.join(ended.lost.values())}; restart {members.restarts} of {wanted.restarts}"
        when = f" in {delay:g} s" if delay else " at once"
    else:
        members.take_in()
        names = [f"worker:{number - 1}" for number in range(before, len(members))]
        delay, text, when = 0.0, f"taken in: {', '.join(names)}; goes on", ""
    if step is not None:
        text += f" from step {step}"
    elif wanted.has_result:
        text += " from the start"
    if not wanted.workers.is_fixed:
        text += f" with {len(members)} of {wanted.workers.most} workers"
    return delay, f"{text}{when}"


@contextlib.contextmanager
def _started(
    wanted: Wanted,
    workers: int,
    logs: str,
    command: Callable[[str], Sequence[str]],
    processes: list[process.Process],
) -> Iterator[None]:
    """While entered, a list has the processes of a cluster; they are ended on the way out."""
    with contextlib.ExitStack() as leave:
        leave.callback(processes.clear)
        ports = leave.enter_context(_held_ports(workers + wanted.servers))
        addresses = [f"{_HOST}:{port}" for port in ports]
        for start in _planned(wanted, workers, addresses, logs, command):
            processes.append(leave.enter_context(contextlib.closing(process.Process(start))))
        yield


def _kill(processes: Sequence[process.Process]) -> None:
    for one in processes:
        one.kill()


def _planned(
    wanted: Wanted,
    workers: int,
    addresses: Sequence[str],
    logs: str,
    command: Callable[[str], Sequence[str]],
) -> Iterator[process.Start]:
    """Yields the processes of a cluster, the chief first.

    Args:
        wanted: What is to be launched.
        workers: How many of them are workers.
        addresses: Those of the workers, then of the parameter servers.
        logs: The folder of their logs.
        command: Returns the command line of the process of a name.
    """
    jobs = {"chief": [addresses[0]], "worker": list(addresses[1:workers])}
    jobs["ps"] = list(addresses[workers:])
    jobs = {job: listed for job, listed in jobs.items() if listed}
    tasks = [(job, index) for job, listed in jobs.items() for index in range(len(listed))]
    tasks += [("evaluator", 0)] if wanted.evaluator else []
    # Others are to find this package, too, wherever it was found.
    found = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, found))
    for job, index in tasks:
        name = f"{job}:{index}"
        told = {"cluster": jobs, "task": {"type": job, "index": index}}
        yield process.Start(
            name,
            command(name),
            {"TF_CONFIG": json.dumps(told), "PYTHONPATH": path},
            os.path.join(logs, f"{job}-{index}.log"),
            # Servers are there until the others have saved what they keep.
            wanted.grace if job == "ps" else 0.0,
            wanted.grace,
            wanted.has_result and name in view.SHOWN,
        )


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


class _Cluster:
    """The processes of a cluster, and what becomes of them."""

    def __init__(
        self,
        wanted: Wanted,
        processes: Sequence[process.Process],
        model_dir: str,
        display: progress.Display,
    ):
        self._wanted = wanted
        self._processes = processes
        self._model_dir = model_dir
        self._display = display
        self._done_at: float | None = None  # since when the training is over
        self._ends_at: float | None = None  # when those that were asked to end are killed
        self._resizes = False  # whether all were asked to end so that lost workers may return

    def to_its_end(self, stop: interrupts.StopRequest, members: places.Places) -> list[str]:
        """Waits for the end, and sees to it where one fails or may return; see `launch`.

        Raises:
            _EndedEarly: If the cluster is to be started again.
        """
        shown = view.View(self._display, self._processes)
        failed: list[process.Process] = []
        while running := self._running():
            time.sleep(_PAUSE)
            shown.look()
            if not failed and not stop.requested:
                failed = self._failed()
            if failed and members.may_restart and self._is_vain_without(failed[0]):
                _kill(self._processes)
            elif failed or stop.requested:
                self._end_all()
            elif self._is_done():
                self._end_idle()
            elif members.is_one_due and (self._resizes or len(running) == len(self._processes)):
                self._resizes = True
                self._end_all()
        shown.look()
        shown.close()
        if stop.requested:
            raise interrupts.Interrupted(f"stopped; {_saved(self._wanted, self._model_dir)}")
        failed = failed or self._failed()
        if failed and members.may_restart and not failed[0].is_refused:
            raise _EndedEarly(self._lost(failed))
        if failed:
            raise self._fault(failed[0])
        if not self._is_done():
            raise _EndedEarly({})
        return [one.result() for one in self._processes if one.name in view.SHOWN]

    def _running(self) -> list[process.Process]:
        return [one for one in self._processes if not one.has_ended()]

    def _failed(self) -> list[process.Process]:
        """Returns the processes that have failed, first one that was refused or killed.

        Nobody fails who is asked to end so that more may begin: an exit code may be that of a
        signal, or of who has lost the others. And where servers keep what is trained, nothing fails
        any more when the training is over: all is saved, and whoever still made a step made it for
        nobody.
        """
        if self._resizes or (self._wanted.servers and self._is_done()):
            return []
        asked = self._ends_at is not None
        wrong = [
            one
            for one in self._processes
            if one.code and not (asked and one.code in process.AS_ASKED)
        ]
        return sorted(wrong, key=lambda one: (not one.is_refused, one.code or 0))

    def _lost(self, failed: Sequence[process.Process]) -> dict[int, str]:
        """Tells of each process that is lost how it ended, by its number.

        Those are lost that were killed. An exit code may follow from another one's end, so without
        a killed one the first is.
        """
        lost = [one for one in failed if (one.code or 0) < 0] or failed[:1]
        numbered = enumerate(self._processes)
        return {number: f"{one.name} {_end_of(one)}" for number, one in numbered if one in lost}

    def _is_vain_without(self, lost: process.Process) -> bool:
        """Tells whether those that are left cannot save before they end, so need not be asked to.

        Without a worker no other one ends its step, but for workers of servers; only the chief
        saves, and not what a lost server kept. What a script can do is not known.
        """
        may_save = lost.name == view.EVALUATOR or (
            lost.name.startswith("worker:") and self._wanted.servers > 0
        )
        return self._wanted.has_result and not lost.is_refused and not may_save

    def _is_done(self) -> bool:
        """Tells whether the training is over, and only those are left who wait for nothing."""
        return all(one.code == 0 for one in self._processes if one.name in view.SHOWN)

    def _end_idle(self) -> None:
        """Ends the servers, and after a while workers that have not ended by themselves."""
        if all(map(_is_server, self._running())):
            self._end_all()
        elif self._done_at is None:
            self._done_at = time.monotonic()
        elif time.monotonic() > self._done_at + self._wanted.grace:
            self._end_all()

    def _end_all(self) -> None:
        """Asks all to end, the servers last; after a while it does not ask any more."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._wanted.grace
            for one in self._processes:
                if not _is_server(one):
                    one.end()
        running = self._running()
        if time.monotonic() > self._ends_at:
            for one in running:
                self._display.say(
                    f"{one.name} has not ended within {self._wanted.grace:g} seconds; killed"
                )
                one.kill()
        elif all(map(_is_server, running)):
            for one in running:
                one.end()

    def _fault(self, failed: process.Process) -> errors.ReplicateError:
        said = failed.last_lines(_LAST_LINES) or ["(it wrote nothing)"]
        lines = "\n".join(f"    {line}" for line in said)
        saved = _saved(self._wanted, self._model_dir)
        others = "" if len(self._processes) == 1 else "; the others were ended"
        text = (
            f"{failed.name} {_end_of(failed)}{others}. The end of {failed.log}:\n{lines}\n"
            f"{saved[:1].upper()}{saved[1:]}"
        )
        is_usage = failed.code == process.BAD_USAGE
        return errors.ConfigError(text) if is_usage else errors.RunError(text)


def _saved(wanted: Wanted, model_dir: str) -> str:
    if not wanted.has_result:
        return f"logs are in {os.path.join(model_dir, 'logs')}."
    step = saved_step(model_dir)
    if step is None:
        return f"no checkpoint is saved in {model_dir} yet."
    return f"step {step} is saved in {model_dir}; the same command goes on from there."


def _end_of(failed: process.Process) -> str:
    if failed.code == interrupts.INTERRUPTED:
        return "was interrupted"
    if failed.code is not None and failed.code < 0:
        return f"was ended by {_signal_name(-failed.code)}"
    return f"failed with exit code {failed.code}"


def _is_server(one: process.Process) -> bool:
    return one.name.startswith("ps:")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def saved_step(model_dir: str) -> int | None:
    """Returns the step of the newest checkpoint by its name; None where there is none."""
    try:
        text = Path(model_dir, "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r'^model_checkpoint_path: ".*-([0-9]{1,18})"$', text, re.MULTILINE)
    return None if found is None else int(found[1])
