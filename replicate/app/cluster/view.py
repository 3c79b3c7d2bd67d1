"""What `replicate launch` shows: the chief's and the evaluator's progress and lines."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from replicate.app.cluster import process
from replicate.console import interrupts, progress

CHIEF, EVALUATOR = SHOWN = ("chief:0", "evaluator:0")  # whose lines are shown


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

    def look(self) -> None:
        """Shows what has come since the last look."""
        for one in self._processes:
            heard, lines = list(one.heard()), one.new_lines()
            if one.name not in SHOWN:
                continue
            for told in heard:
                self._take(one.name, told)
            label = "" if one.name == CHIEF else f"{one.name}: "
            for line in lines:
                if self._left_out[one.name, line] > 0:
                    self._left_out[one.name, line] -= 1
                elif line not in (interrupts.STOPPING, interrupts.AT_ONCE):  # the launcher says so
                    self._display.say(f"{label}{line}")

    def close(self) -> None:
        """Lets the bars go."""
        for key in self._bars:
            self._display.show(key, None)

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
