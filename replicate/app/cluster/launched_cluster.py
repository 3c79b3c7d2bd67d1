"""The processes of a cluster that `replicate launch` has started, and how all of them end."""

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from replicate import errors
from replicate.app.cluster import launch_view, launched
from replicate.app.console import interrupts, progress

__all__ = ["LaunchedCluster", "Process", "Wanted", "saved_step"]

_PAUSE = 0.05  # seconds between two looks at the processes
_LAST_LINES = 12
_BAD_USAGE = 2  # the exit code of a process whose config was refused


class Wanted(NamedTuple):
    """What is to be launched.

    Attributes:
        workers: How many workers, the chief among them.
        servers: How many parameter servers.
        evaluator: Whether an evaluator.
        grace: How many seconds processes have to end that are asked to.
    """

    workers: int
    servers: int
    evaluator: bool
    grace: float


class Process(NamedTuple):
    """One process to be.

    Attributes:
        name: What people call it.
        cluster: What `TF_CONFIG` says to it; None: nothing.
    """

    name: str
    cluster: Mapping[str, Any] | None

    @property
    def log(self) -> str:
        """The name of its log."""
        return f"{self.name.replace(' ', '-')}.log"


class LaunchedCluster:
    """The processes of a cluster, and what becomes of them."""

    def __init__(self, wanted: Wanted, logs: str, model_dir: str, display: progress.Display):
        self._wanted = wanted
        self._logs = logs
        self._model_dir = model_dir
        self._display = display
        self._processes: list[launched.Launched] = []
        self._outputs: dict[str, IO[bytes]] = {}
        self._view: launch_view.View | None = None
        self._done_at: float | None = None  # since when the training is over
        self._ends_at: float | None = None  # when those that were asked to end are killed

    def start(self, planned: Sequence[Process], command: Callable[[str], Sequence[str]]) -> None:
        """Starts the processes."""
        for one in planned:
            output = None
            if one.name in ("chief", "evaluator"):
                output = self._outputs[one.name] = tempfile.TemporaryFile()
            # Servers are there until the others have saved what they keep.
            delay = self._wanted.grace if _is_server(one) else 0.0
            made = launched.Launched(
                one.name,
                command(one.name),
                {"TF_CONFIG": json.dumps(one.cluster), **_importable()},
                os.path.join(self._logs, one.log),
                delay,
                self._wanted.grace,
                output,
            )
            self._processes.append(made)
        self._view = launch_view.View(self._display, self._processes)

    def to_its_end(self, stop: interrupts.StopRequest) -> list[str]:
        """Waits for the end, and sees to it where one fails; see `launch`."""
        failed = None
        while self._running():
            time.sleep(_PAUSE)
            self._view.look()
            if failed is None and not stop.requested:
                failed = self._failed()
            if failed is not None or stop.requested:
                self._end_all()
            elif self._is_done():
                self._end_idle()
        self._view.look()
        self._view.close()
        if stop.requested:
            raise interrupts.Interrupted(f"stopped; {self._saved()}")
        failed = failed or self._failed()
        if failed is not None:
            raise self._fault(failed)
        return [self._output(name) for name in self._outputs]

    def kill(self) -> None:
        """Ends all processes at once, without saving."""
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """Ends what still runs, and lets all files go."""
        for process in self._processes:
            process.close()
        for output in self._outputs.values():
            output.close()

    def _running(self) -> list[launched.Launched]:
        return [process for process in self._processes if not process.has_ended()]

    def _failed(self) -> launched.Launched | None:
        """Returns the process that has failed; of several, one that was killed.

        Where servers keep what is trained, nothing fails any more when the training is over: all is
        saved, and whoever still made a step made it for nobody.
        """
        if self._wanted.servers and self._is_done():
            return None
        asked = self._ends_at is not None
        wrong = [one for one in self._processes if one.code and not (asked and _is_asked(one))]
        return min(wrong, key=lambda one: one.code, default=None)

    def _is_done(self) -> bool:
        """Tells whether the training is over, and only those are left who wait for nothing."""
        done = {process.name for process in self._processes if process.code == 0}
        return {"chief", *(["evaluator"] if self._wanted.evaluator else [])} <= done

    def _end_idle(self) -> None:
        """Ends the servers, and after a while workers that have not ended by themselves."""
        running = self._running()
        if all(map(_is_server, running)):
            self._end_all()
        elif self._done_at is None:
            self._done_at = time.monotonic()
        elif time.monotonic() > self._done_at + self._wanted.grace:
            self._end_all()

    def _end_all(self) -> None:
        """Asks all to end, the servers last; after a while it does not ask any more."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._wanted.grace
            for process in self._processes:
                if not _is_server(process):
                    process.end()
        running = self._running()
        if time.monotonic() > self._ends_at:
            for process in running:
                self._display.say(
                    f"{process.name} has not ended within {self._wanted.grace:g} seconds; killed"
                )
                process.kill()
        elif all(map(_is_server, running)):
            for process in running:
                process.end()

    def _fault(self, failed: launched.Launched) -> errors.ReplicateError:
        said = failed.last_lines(_LAST_LINES) or ["(it has said nothing)"]
        lines = "\n".join(f"    {line}" for line in said)
        saved = self._saved()
        how = f"failed with exit code {failed.code}"
        if failed.code == interrupts.INTERRUPTED:
            how = "was interrupted"
        elif failed.code < 0:
            how = f"was ended by {_signal_name(-failed.code)}"
        others = "" if len(self._processes) == 1 else "; the others were ended"
        text = (
            f"{failed.name} {how}{others}. The end of {failed.log}:\n{lines}\n"
            f"{saved[:1].upper()}{saved[1:]}"
        )
        if failed.code == _BAD_USAGE:
            return errors.ConfigError(text)
        return errors.RunError(text)

    def _saved(self) -> str:
        step = saved_step(self._model_dir)
        if step is None:
            return f"no checkpoint is saved in {self._model_dir} yet."
        return f"step {step} is saved in {self._model_dir}; the same command goes on from there."

    def _output(self, name: str) -> str:
        file = self._outputs[name]
        file.seek(0)
        return file.read().decode("utf-8", "replace")


def _importable() -> dict[str, str]:
    """Returns what lets other processes import this package, wherever that was found."""
    place = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))}


def _is_server(process: Process | launched.Launched) -> bool:
    return process.name.startswith("ps ")


def _is_asked(process: launched.Launched) -> bool:
    """Tells whether a process has ended as one does that is asked to."""
    return process.code in (interrupts.INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)


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
    found = re.search(r'^model_checkpoint_path: ".*-(\d+)"$', text, re.MULTILINE)
    return None if found is None else int(found[1])
