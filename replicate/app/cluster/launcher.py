"""`replicate launch`: one training as several processes on this machine, from start to end.

The processes are called what `TF_CONFIG` calls their tasks.
"""

import collections
import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from replicate import errors
from replicate.app.cluster import places, process
from replicate.app.runs import folders
from replicate.console import interrupts, progress

CHIEF = "chief:0"  # whose lines and result are shown
_HOST = "127.0.0.1"
_PAUSE = 0.05  # seconds between two looks at the processes


class Wanted(NamedTuple):
    """What is to be launched.

    Attributes:
        workers: How many workers, the chief among them; a fixed number beside servers.
        servers: How many parameter servers.
        grace: How many seconds processes have to end that are asked to.
        is_own: Whether `replicate` is run, which tells where it is, saves checkpoints, and writes a
            result to stdout; else any command.
        restarts: How often they may be started again because one is lost.
    """

    workers: places.Size
    servers: int
    grace: float
    is_own: bool = True
    restarts: int = 0


def launch(
    wanted: Wanted,
    command: Callable[[str], Sequence[str]],
    model_dir: str,
    display: progress.Display,
) -> None:
    """Runs a cluster to its end; none of its processes is there afterwards.

    If a process is lost, or lost workers may return, the cluster is ended and started again, on
    other ports: it goes on from its last checkpoint, with the workers that there are then.

    Args:
        wanted: What is to be launched.
        command: Returns the command line of the process of a name.
        model_dir: Where the training is; logs are below it.
        display: Where progress goes.

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
    cluster = _Cluster(wanted, command, model_dir, display)
    with contextlib.ExitStack() as leave:
        leave.enter_context(folders.launching(logs))
        leave.enter_context(display)
        interrupts.LAST_DEEDS.append(cluster.kill)
        leave.callback(interrupts.LAST_DEEDS.remove, cluster.kill)
        stop = leave.enter_context(interrupts.StopRequest())
        display.say(f"logs: {logs}")
        while not cluster.run(stop):
            begin = time.monotonic() + cluster.delay
            while time.monotonic() < begin and not stop.requested:
                time.sleep(_PAUSE)
            cluster.end_if(stop)


class _Cluster:
    """The processes of a cluster, and what becomes of them; see `launch`.

    Attributes:
        delay: In how many seconds they are to be started again.
    """

    def __init__(
        self,
        wanted: Wanted,
        command: Callable[[str], Sequence[str]],
        model_dir: str,
        display: progress.Display,
    ):
        self.delay = 0.0
        self._wanted = wanted
        self._command = command
        self._model_dir = model_dir
        self._display = display
        self._members = places.Places(wanted.workers)
        self._processes: list[process.Process] = []
        self._ends_at: float | None = None  # when those that are to end are killed
        self._resizes = False  # whether all were asked to end so that lost workers may return
        self._left_out: collections.Counter[str] = collections.Counter()  # lines of the chief

    def run(self, stop: interrupts.StopRequest) -> bool:
        """Runs the processes to their end; returns whether that is the training's.

        Raises:
            Interrupted: If a signal came.
            RunError: If a process failed, and no restart is left, or none would help.
            ConfigError: If a process refused its config.
        """
        self._ends_at, self._resizes = None, False
        with contextlib.ExitStack() as leave:
            leave.callback(self._processes.clear)
            self._start(leave)
            failed = self._watch(stop)
            self.end_if(stop)
            failed = failed or self._failed()
            if failed and (failed[0].is_refused or not self._may_restart):
                raise self._fault(failed[0])
            if failed:
                self._lose(failed)
            elif not self._is_done():
                self._take_in()
            return not failed and self._is_done()

    def kill(self) -> None:
        """Ends all processes at once."""
        for one in self._processes:
            one.kill()

    def end_if(self, stop: interrupts.StopRequest) -> None:
        """Raises Interrupted if a signal came."""
        if stop.requested:
            raise interrupts.Interrupted(f"stopped; {self._saved()}")

    # The start.

    def _start(self, leave: contextlib.ExitStack) -> None:
        """Starts the processes, the chief first; they are ended when the stack is left."""
        workers = self._members.up
        ports = leave.enter_context(_held_ports(workers + self._wanted.servers))
        addresses = [f"{_HOST}:{port}" for port in ports]
        jobs = {"chief": addresses[:1], "worker": addresses[1:workers], "ps": addresses[workers:]}
        jobs = {job: listed for job, listed in jobs.items() if listed}
        tasks = [(job, index) for job, listed in jobs.items() for index in range(len(listed))]
        # Others are to find this package, too, wherever it was found.
        found = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]
        path = os.pathsep.join(filter(None, found))
        is_own, grace = self._wanted.is_own, self._wanted.grace
        for job, index in tasks:
            name = f"{job}:{index}"
            told = {"cluster": jobs, "task": {"type": job, "index": index}}
            one = process.Process(
                name,
                self._command(name),
                {"TF_CONFIG": json.dumps(told), "PYTHONPATH": path},
                os.path.join(self._model_dir, "logs", f"{job}-{index}.log"),
                # Servers are there until the others have saved what they keep.
                (grace if job == "ps" else 0.0, grace) if is_own else None,
                is_own and name == CHIEF,
            )
            self._processes.append(leave.enter_context(contextlib.closing(one)))

    # The end.

    def _watch(self, stop: interrupts.StopRequest) -> list[process.Process]:
        """Waits until all have ended, and sees to it where one fails or may return."""
        failed: list[process.Process] = []
        while running := self._running():
            time.sleep(_PAUSE)
            self._show()
            if not failed and not stop.requested:
                failed = self._failed()
            if failed and self._may_restart and self._is_vain_without(failed[0]):
                self.kill()
            elif failed or stop.requested:
                self._end_all()
            elif self._is_done():
                self._end_all(asks=False)
            elif self._members.is_one_due and len(running) == len(self._processes):
                self._resizes = True
            if self._resizes:
                self._end_all()
        self._show()
        self._display.show(0, None)
        return failed

    def _show(self) -> None:
        """Shows what the chief has told since, and has written: a bar in place of its lines.

        That it was stopped the launcher says itself.
        """
        for one in self._processes:
            heard, lines = list(one.heard()), one.new_lines()
            for told in heard if one.name == CHIEF else ():
                line = told.get("stopped", told.get("line") if self._display.has_bars else None)
                if line is not None:
                    self._left_out[line] += 1
                elif "task" in told:
                    bar = progress.Bar(*told["bar"]) if "bar" in told else None
                    self._display.show(told["task"], bar)
            for line in lines if one.name == CHIEF else ():
                if self._left_out[line] > 0:
                    self._left_out[line] -= 1
                elif line not in (interrupts.STOPPING, interrupts.AT_ONCE):
                    self._display.say(line)

    def _running(self) -> list[process.Process]:
        return [one for one in self._processes if not one.has_ended()]

    @property
    def _may_restart(self) -> bool:
        return self._members.restarts < self._wanted.restarts

    def _failed(self) -> list[process.Process]:
        """Returns the processes that have failed, first one that was refused or killed.

        Nobody fails who is asked to end so that more may begin: an exit code may be that of a
        signal, or of who has lost the others. And where servers keep what is trained, nothing fails
        any more when the training is over: all is saved, and whoever still made a step made it for
        nobody.
        """
        if self._resizes or (self._wanted.servers and self._is_done()):
            return []
        as_asked = process.AS_ASKED if self._ends_at is not None else ()
        failed = [one for one in self._processes if one.code and one.code not in as_asked]
        return sorted(failed, key=lambda one: (not one.is_refused, one.code or 0))

    def _is_vain_without(self, lost: process.Process) -> bool:
        """Tells whether those that are left cannot save before they end, so need not be asked to.

        Without a worker no other one ends its step, but for workers of servers. What a command can
        do is not known.
        """
        may_save = lost.name.startswith("worker:") and self._wanted.servers > 0
        return self._wanted.is_own and not lost.is_refused and not may_save

    def _is_done(self) -> bool:
        """Tells whether the chief has ended well: then the training is over."""
        return self._processes[0].code == 0

    def _end_all(self, asks: bool = True) -> None:
        """Sees all end, the servers last; after a while they are killed.

        Args:
            asks: Whether those that are no servers are asked to; else they do so by themselves.
        """
        grace = self._wanted.grace
        if self._ends_at is None:
            self._ends_at = time.monotonic() + grace
            for one in self._processes:
                if asks and not _is_server(one):
                    one.end()
        running = self._running()
        for one in running:
            if time.monotonic() > self._ends_at:
                self._display.say(f"{one.name} has not ended within {grace:g} seconds; killed")
                one.kill()
            elif all(map(_is_server, running)):
                one.end()

    # What follows.

    def _lose(self, failed: Sequence[process.Process]) -> None:
        """Goes on without those that are lost: that were killed, or else the first that failed.

        An exit code may follow from another one's end.
        """
        lost = [one for one in failed if (one.code or 0) < 0] or failed[:1]
        lost = [one for one in self._processes if one in lost]
        workers = sum(one.name.startswith(("chief:", "worker:")) for one in lost)
        self.delay = self._members.lose(workers)
        ends = ", ".join(f"{one.name} {_end_of(one)}" for one in lost)
        when = f" in {self.delay:g} s" if self.delay else " at once"
        restart = f"restart {self._members.restarts} of {self._wanted.restarts}"
        self._say_begin(f"{ends}; {restart}", when)

    def _take_in(self) -> None:
        """Goes on with those that were lost."""
        before = self._members.up
        self._members.take_in()
        self.delay = 0.0
        names = [f"worker:{number - 1}" for number in range(before, self._members.up)]
        self._say_begin(f"taken in: {', '.join(names)}; goes on", "")

    def _say_begin(self, text: str, when: str) -> None:
        step, size = saved_step(self._model_dir), self._wanted.workers
        if step is not None:
            text += f" from step {step}"
        elif self._wanted.is_own:
            text += " from the start"
        if not size.is_fixed:
            text += f" with {self._members.up} of {size.most} workers"
        self._display.say(text + when)

    def _fault(self, failed: process.Process) -> errors.ReplicateError:
        lines = "\n".join(f"    {line}" for line in failed.last_lines or ["(it wrote nothing)"])
        saved = self._saved()
        others = "" if len(self._processes) == 1 else "; the others were ended"
        text = (
            f"{failed.name} {_end_of(failed)}{others}. The end of {failed.log}:\n{lines}\n"
            f"{saved[:1].upper()}{saved[1:]}"
        )
        is_usage = failed.code == process.BAD_USAGE
        return errors.ConfigError(text) if is_usage else errors.RunError(text)

    def _saved(self) -> str:
        model_dir = self._model_dir
        if not self._wanted.is_own:
            return f"logs are in {os.path.join(model_dir, 'logs')}."
        step = saved_step(model_dir)
        if step is None:
            return f"no checkpoint is saved in {model_dir} yet."
        return f"step {step} is saved in {model_dir}; the same command goes on from there."


@contextlib.contextmanager
def _held_ports(number: int) -> Iterator[list[int]]:
    """Yields free ports, which the system gives to nobody else while this is entered.

    Whoever asks to share a port may have it, as TensorFlow's servers do.
    """
    with contextlib.ExitStack() as leave:
        held = [leave.enter_context(socket.socket()) for _ in range(number)]
        for one in held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((_HOST, 0))
        yield [one.getsockname()[1] for one in held]


def _end_of(failed: process.Process) -> str:
    if failed.code == interrupts.INTERRUPTED:
        return "was interrupted"
    if failed.code is not None and failed.code < 0:
        known = {one.value: one.name for one in signal.Signals}
        return f"was ended by {known.get(-failed.code, f'signal {-failed.code}')}"
    return f"failed with exit code {failed.code}"


def _is_server(one: process.Process) -> bool:
    return one.name.startswith("ps:")


def saved_step(model_dir: str) -> int | None:
    """Returns the step of the newest checkpoint by its name; None where there is none."""
    try:
        text = Path(model_dir, "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r'^model_checkpoint_path: ".*-([0-9]{1,18})"$', text, re.MULTILINE)
    return None if found is None else int(found[1])
