"""What `replicate launch` shows: the chief's progress and lines, and whose state differs."""

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

from replicate.app.cluster import process
from replicate.console import interrupts, progress

CHIEF, EVALUATOR = SHOWN = ("chief:0", "evaluator:0")  # whose lines are shown
_USUAL = ("trains", "evaluates", "serves")
_MAX_LISTED = 4  # names
_PATIENCE = 5.0  # seconds after which a state is worth a line, where there are no bars


class View:
    """The combined view of a cluster.

    Args:
        display: Where it goes.
        processes: All of them, the chief first.
    """

    def __init__(self, display: progress.Display, processes: Sequence[process.Process]):
        self._display = display
        self._processes = processes
        self._bars: set[tuple[str, int]] = set()
        self._left_out: collections.Counter[tuple[str, str]] = collections.Counter()
        self._states = ""
        self._since = time.monotonic()
        self._said = ""

    def look(self) -> None:
        """Shows what has come since the last look."""
        for one in self._processes:
            for told in one.heard():
                if one.name in SHOWN:
                    self._take(one.name, told)
        for one in self._processes:
            if one.name in SHOWN:
                self._show_lines(one)
        self._show_states()

    def close(self) -> None:
        """Lets the bars go."""
        for key in self._bars:
            self._display.show(key, None)
        self._display.status("")

    def _take(self, name: str, told: Mapping[str, Any]) -> None:
        """Shows a bar as the process would on a terminal of its own; notes lines to leave out."""
        if "stopped" in told or ("line" in told and self._display.has_bars):
            # The launcher says itself that all have stopped; the others are bars.
            self._left_out[name, told.get("stopped", told.get("line"))] += 1
        elif "task" in told:
            key, bar = (name, told["task"]), None
            if "bar" in told:
                self._bars.add(key)
                bar = progress.Bar(*told["bar"])
                bar = bar if name == CHIEF else bar._replace(label=f"{name}: {bar.label}")
            self._display.show(key, bar)

    def _show_lines(self, one: process.Process) -> None:
        """Shows the lines of a log, but for those that are to be left out."""
        label = "" if one.name == CHIEF else f"{one.name}: "
        for line in one.new_lines():
            if self._left_out[one.name, line] > 0:
                self._left_out[one.name, line] -= 1
            elif line not in (interrupts.STOPPING, interrupts.AT_ONCE):  # the launcher says so
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


def text_of_states(processes: Sequence[process.Process]) -> str:
    """Returns who does something else than train; an empty text where nobody does.

    An evaluator and servers have work of their own, which is as it should be; that all have
    stopped who were asked to is for the launcher to say.
    """
    by_state: dict[str, list[str]] = {}
    for one in processes:
        is_idle_evaluator = one.name == EVALUATOR and one.state == "waits"
        is_over = one.state == "ended" and one.code in (0, *process.AS_ASKED)
        if one.state not in _USUAL and not is_idle_evaluator and not is_over:
            by_state.setdefault(one.state, []).append(one.name)
    return "; ".join(f"{_listed(names)}: {state}" for state, names in by_state.items())


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: _MAX_LISTED - 1])} and {len(names) - _MAX_LISTED + 1} more"
