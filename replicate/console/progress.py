"""How far long work is: a bar in the last rows of a terminal, plain lines elsewhere."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from replicate.console import interrupts, messages, streams

_LEAST_BAR = 8  # columns
_REMEMBERED = 50  # updates over which the speed is taken
_SHOWN_EVERY = 0.1  # seconds
_LINE_EVERY = 10.0  # seconds


class Bar(NamedTuple):
    """What is shown of a task.

    Attributes:
        label: What is done, e.g. train.
        done: How many units are done.
        total: Where it ends; None where that is not known.
        note: Loss, speed and time left.
    """

    label: str
    done: int
    total: int | None
    note: str = ""

    @property
    def units(self) -> str:
        """The units done, of all where that is known."""
        return f"{self.done}" if self.total is None else f"{self.done}/{self.total}"

    def row(self, columns: int) -> str:
        """Returns the row of a terminal that shows it."""
        end = f"{self.units}  {self.note}".rstrip()
        width = max(columns - len(f"{self.label}  {end}"), _LEAST_BAR)
        full = width * self.done // self.total if self.total else 0
        return f"{self.label} {'#' * full}{'.' * (width - full)} {end}"[:columns]


class Display:
    """Where progress and remarks go: stderr, so that stdout has only results.

    Args:
        quiet: Whether to show nothing at all.
        file: A stream in place of stderr.
        tell: Gets messages for a launcher, which shows the bars of several processes:
            `{"line": a line of progress that was shown}`, `{"task": 0, "bar": a Bar}` and, once
            there is none any more, `{"task": 0}`.

    Attributes:
        quiet: See the argument.
        tell: See the argument.
    """

    def __init__(
        self,
        quiet: bool = False,
        file: TextIO | None = None,
        tell: Callable[[Mapping[str, Any]], None] = lambda told: None,
    ):
        self._file = sys.stderr if file is None else file
        self.quiet = quiet or self._file is None
        self.tell = tell
        self._rows: _Rows | None = None
        self._bars: dict[Hashable, Bar] = {}
        self._tasks: list[Task] = []

    def __enter__(self) -> "Display":
        if not self.quiet and streams.is_terminal(self._file):
            self._rows = _Rows(self._file)
            interrupts.LAST_DEEDS.append(self._rows.close)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._rows is not None:
            interrupts.LAST_DEEDS.remove(self._rows.close)
            self._rows.close()
            self._rows = None

    @property
    def has_bars(self) -> bool:
        """Whether tasks are bars, and not lines."""
        return self._rows is not None

    def say(self, text: str) -> None:
        """Shows a remark; that nobody reads it any more ends no work."""
        if not self.quiet:
            streams.write(f"{messages.for_stream(text, self._file)}\n", self._file)

    def task(
        self,
        label: str,
        total: int | None,
        *,
        start: int = 0,
        every: int | None = None,
        unit: str = "steps",
    ) -> "Task":
        """Begins a task; one that is not at its end waits for it, and is not shown meanwhile.

        Args:
            label: What is done, e.g. train.
            total: Where it ends; None: not known.
            start: Where it begins.
            every: Where there is no terminal the first and the last unit have a line, and between
                them multiples of this, one in ten seconds at most. None: one in ten seconds.
            unit: What is counted.
        """
        made = Task(self, Bar(label, start, total), every, unit)
        self._tasks.append(made)
        self.show_task()
        return made

    def end(self, task: "Task") -> None:
        """Ends a task; its bar goes away, and that of the one that waited comes back."""
        self._tasks = [one for one in self._tasks if one is not task]
        self.show_task()

    def show_task(self) -> None:
        """Shows the newest task, here and where a launcher shows it."""
        bar = self._tasks[-1].bar if self._tasks else None
        self.tell({"task": 0} if bar is None else {"task": 0, "bar": bar})
        self.show(None, bar)

    def show(self, key: Hashable, bar: Bar | None) -> None:
        """Shows a bar, if there are bars.

        Args:
            key: Which one; a new one is added below the others.
            bar: What to show; None: it goes away.
        """
        if bar is not None:
            self._bars[key] = bar
        else:
            self._bars.pop(key, None)
        if self._rows is not None:
            columns = streams.size(self._file).columns - 1  # the last one would begin a new row
            self._rows.show([bar.row(columns) for bar in self._bars.values()])


class _Rows:
    """The last rows of a terminal, below those that scroll.

    So what others write, native code and other processes too, stays in whole lines, and goes to
    the terminal by itself.

    Args:
        file: The terminal.
    """

    def __init__(self, file: TextIO):
        self._file = file
        self._shape = (0, 0)  # rows, and all that the terminal had
        self._lock = threading.RLock()

    def show(self, rows: Sequence[str]) -> None:
        """Shows some rows in place of those that there are."""
        height = streams.size(self._file).lines
        rows = rows[: max(height - 2, 0)]
        top = height - len(rows)
        with self._lock:
            before, _ = self._shape
            text = ""
            if self._shape != (len(rows), height) and (rows or before):
                more = max(len(rows) - before, 0)
                room = "\033D" * more + (f"\033[{more}A" if more else "")  # below the cursor
                old = f"\033[{height - before + 1};1H\033[J" if before else ""
                text = f"{room}\0337{old}\033[{f'1;{top}' if rows else ''}r\0338"
            for place, row in enumerate(rows, top + 1):
                text += f"\0337\033[{place};1H\033[2K{row}\0338"
            self._shape = len(rows), height
            if text:
                streams.write(text, self._file)

    def close(self) -> None:
        """Lets the rows go; all of the terminal scrolls again."""
        self.show([])


class Task:
    """One piece of long work; made by `Display.task`.

    Attributes:
        bar: What is shown of it.
    """

    def __init__(self, display: Display, bar: Bar, every: int | None, unit: str):
        self.bar = bar
        self._display = display
        self._every = every or 1
        self._unit = unit
        self._times: deque[tuple[float, int, int]] = deque(maxlen=_REMEMBERED)
        self._first: tuple[float, int] | None = None  # when the first update came, and with what
        self._examples = 0
        self._loss = ""
        self._shown_at = -math.inf
        self._has_ends = every is not None  # a line for the first unit and the last
        self._line_at = -math.inf if self._has_ends else time.monotonic()
        self._in_line = bar.done

    def update(self, done: int, loss: float | None = None, examples: int = 0) -> None:
        """Shows that `done` units are done.

        Args:
            done: How many in all.
            loss: The newest loss; None: the last one stays.
            examples: How many examples these took since the last update; 0: nobody knows.
        """
        now = time.monotonic()
        self._examples += examples
        self._times.append((now, done, self._examples))
        self._first = self._first or (now, done)
        if loss is not None:
            self._loss = f"loss {loss:.4g}"
        is_multiple = done // self._every > self.bar.done // self._every
        self.bar = self.bar._replace(done=done, note=self._note(done))
        if now - self._shown_at > _SHOWN_EVERY or done == self.bar.total:
            self._shown_at = now
            self._display.show_task()
        is_due = is_multiple or (done > self._in_line and self._line_at == -math.inf)
        if is_due and now - self._line_at >= _LINE_EVERY:
            self._line_at = now
            self._show_line()

    def _show_line(self) -> None:
        if not self._display.has_bars:
            self._in_line = self.bar.done
            line = f"{self.bar.label} {self.bar.units}  {self.bar.note}".rstrip()
            self._display.tell({"line": line})
            self._display.say(line)

    def update_of(self, done: int, total: int) -> None:
        """Shows that `done` of `total` units are done, where only the work tells how many."""
        self.bar = self.bar._replace(total=total)
        self.update(done)

    def pause(self) -> None:
        """Leaves the time until the next update out of the speed."""
        self._times.clear()

    def finish(self) -> None:
        """Ends the task; its bar goes away."""
        if self._has_ends and self.bar.done != self._in_line:
            self._show_line()
        self._display.end(self)

    def _note(self, done: int) -> str:
        """Returns loss, speed and time left."""
        speed = left = ""
        if len(self._times) > 1 and self._first is not None:
            (first_time, *first), (last_time, *last) = self._times[0], self._times[-1]
            seconds = max(last_time - first_time, 1e-9)
            units, examples = [(b - a) / seconds for a, b in zip(first, last, strict=True)]
            speed = f"{units:.1f} {self._unit}/s"
            if examples:
                speed = f"{examples:,.{0 if examples >= 10 else 1}f} examples/s"
            if self.bar.total is not None and units > 0:
                began, begun = self._first
                pace = (last_time - began) / (done - begun)  # evaluations take their time as well
                left = f"{clock((self.bar.total - done) * pace)} left"
        return "  ".join(filter(None, (self._loss, speed, left)))


def clock(seconds: float) -> str:
    """Returns a time as 0:07, 12:30 or 3:00:00."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
