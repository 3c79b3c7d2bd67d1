"""What `replicate launch` shows: the chief's progress and lines, and whose state differs."""

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

from replicate.app.cluster import launched
from replicate.app.console import interrupts, progress

__all__ = ["View", "text_of_states"]

_USUAL = ("trains", "evaluates", "serves")
_MAX_LISTED = 4  # names
_PATIENCE = 5.0  # seconds after which a state is worth a line, where there are no bars


class View:
    """The combined view of a cluster.

    Args:
        display: Where it goes.
        processes: All of them, the chief first.
    """

    def __init__(self, display: progress.Display, processes: Sequence[launched.Launched]):
        self._display = display
        self._processes = processes
        self._tasks: dict[tuple[str, int], _Mirrored] = {}
        self._lines_of_tasks: collections.Counter = collections.Counter()
        self._states = ""
        self._since = time.monotonic()
        self._said = ""

    def look(self) -> None:
        """Shows what has come since the last look."""
        for process in self._processes:
            for told in process.heard():
                if "task" in told and process.name in ("chief", "evaluator"):
                    self._take(process.name, told)
        for process in self._processes:
            if process.name in ("chief", "evaluator"):
                self._show_lines(process)
        self._show_states()

    def close(self) -> None:
        """Lets the bars go."""
        for shown in self._tasks.values():
            shown.finish()
        self._display.status("")

    def _take(self, name: str, told: Mapping[str, Any]) -> None:
        """Shows a task as the process would on a terminal of its own."""
        if not self._display.has_bars:
            return
        key, what = (name, told["task"]), told["what"]
        if what == "line":
            self._lines_of_tasks[name, told["text"]] += 1
        elif what == "begin":
            self._tasks[key] = _Mirrored(self._display, name, told)
        elif key in self._tasks:
            self._tasks[key].take(told)

    def _show_lines(self, process: launched.Launched) -> None:
        """Shows the lines of a log, but for those that are bars already."""
        label = "" if process.name == "chief" else f"{process.name}: "
        for line in process.new_lines():
            if self._lines_of_tasks[process.name, line] > 0:
                self._lines_of_tasks[process.name, line] -= 1
            elif line != interrupts.STOPPING:  # there is but one to whom one says so
                self._display.say(f"{label}{line}")

    def _show_states(self) -> None:
        states = text_of_states(self._processes)
        now = time.monotonic()
        if states != self._states:
            self._states, self._since = states, now
            self._display.status(states)
        is_old = now - self._since > _PATIENCE
        if states and is_old and states != self._said and not self._display.has_bars:
            self._said = states
            self._display.say(states)


def text_of_states(processes: Sequence[launched.Launched]) -> str:
    """Returns who does something else than train; an empty text where nobody does.

    An evaluator and servers have work of their own, which is as it should be.
    """
    by_state: dict[str, list[str]] = {}
    for process in processes:
        is_idle_evaluator = process.name == "evaluator" and process.state == "waits"
        is_over = process.state == "ended" and process.code == 0
        if process.state not in _USUAL and not is_idle_evaluator and not is_over:
            by_state.setdefault(process.state, []).append(process.name)
    return "; ".join(f"{_listed(names)}: {state}" for state, names in by_state.items())


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: _MAX_LISTED - 1])} and {len(names) - _MAX_LISTED + 1} more"


class _Mirrored:
    """A task of another process, on our display."""

    def __init__(self, display: progress.Display, name: str, told: Mapping[str, Any]):
        label = told["label"] if name == "chief" else f"{name}: {told['label']}"
        self._examples = 0
        self._is_finished = False
        self._shown = display.task(label, told["total"], start=told["start"], unit=told["unit"])

    def take(self, told: Mapping[str, Any]) -> None:
        """Does what the process did to it."""
        what = told["what"]
        if what == "update":
            examples = told["examples"] - self._examples
            self._examples = told["examples"]
            self._shown.update(told["done"], told["loss"], examples)
        elif what == "end_at":
            self._shown.end_at(told["total"])
        elif what == "pause":
            self._shown.pause()
        elif what == "finish":
            self.finish()

    def finish(self) -> None:
        """Ends it, if it has not ended."""
        if not self._is_finished:
            self._is_finished = True
            self._shown.finish()
