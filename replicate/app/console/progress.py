"""How long work shows where it is: a bar on a terminal, plain lines elsewhere."""

import contextlib
import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rich import console as rich_console
from rich import progress as rich_progress
from rich import text as rich_text

from replicate.app.console import screen

__all__ = ["Display", "Task", "clock"]

_LEAST_BAR = 8  # columns
_REMEMBERED = 50  # updates over which the speed is taken
_TOLD_EVERY = 0.1  # seconds


class Display:
    """Where progress and remarks go: stderr, so that stdout has only results.

    Args:
        quiet: Whether to show nothing at all.
        console: A rich console; None: one on stderr.
        tell: Is told of all tasks, for who shows them elsewhere; None: nobody does.
    """

    def __init__(
        self,
        quiet: bool = False,
        console: rich_console.Console | None = None,
        tell: Callable[[Mapping[str, Any]], None] | None = None,
    ):
        self.quiet = quiet
        self.tell = tell or _tell_nobody
        self._numbers = itertools.count()
        self._console = console or _Console(stderr=True, highlight=False)
        self._is_own = console is None
        self._bars: rich_progress.Progress | None = None
        self._leave = contextlib.ExitStack()

    def __enter__(self) -> "Display":
        if self.quiet or not self._console.is_terminal or self._console.is_dumb_terminal:
            return self
        numbers = screen.terminals() if self._is_own else []
        if 2 in numbers:
            self._leave.callback(setattr, self, "_console", self._console)
            capture = self._leave.enter_context(screen.Capture(numbers, self._show_line))
            self._console = rich_console.Console(file=capture.terminal, highlight=False)
        self._bars = _Bars(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=None),
            rich_progress.TextColumn("{task.fields[count]}  {task.fields[note]}"),
            console=self._console,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._leave.enter_context(self._bars)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave.close()
        self._bars = None

    @property
    def has_bars(self) -> bool:
        """Whether tasks are bars, and not lines."""
        return self._bars is not None

    def state(self, text: str) -> None:
        """Tells whoever shows several processes what this one does."""
        self.tell({"state": text})

    def status(self, text: str) -> None:
        """Shows a line below the bars in place of the one before; an empty text: none."""
        if self._bars is not None:
            self._bars.status = text

    def _show_line(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(rich_text.Text.from_ansi(line), soft_wrap=True)

    def say(self, text: str) -> None:
        """Shows a remark, above the bars; that nobody hears it any more ends no work."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                self._console.print(text, markup=False, soft_wrap=True)

    def task(
        self,
        label: str,
        total: int | None,
        *,
        start: int = 0,
        every: int | None = None,
        unit: str = "steps",
    ) -> "Task":
        """Begins a task.

        Args:
            label: What is done, e.g. train.
            total: Where it ends; None: not known.
            start: Where it begins.
            every: Units between two lines where there is no terminal; None: no lines.
            unit: What is counted.
        """
        return Task(self, label, total, start=start, every=every, unit=unit)


class _Console(rich_console.Console):
    """A console whose reader may leave, as `head` does: that ends no work either."""

    def on_broken_pipe(self) -> None:
        """See base class, which ends the process."""
        self.quiet = True
        # What is left of the line would fail once more when the process ends.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nobody:
            os.dup2(nobody.fileno(), self.file.fileno())


def _tell_nobody(_: Mapping[str, Any]) -> None:
    """Stands for a listener."""


class _Bars(rich_progress.Progress):
    """Bars with a line below them."""

    status = ""

    def get_renderables(self) -> Any:
        """See base class."""
        yield from super().get_renderables()
        if self.status:
            yield rich_text.Text(self.status, no_wrap=True, overflow="ellipsis")


class Task:
    """One piece of long work; made by `Display.task`."""

    def __init__(
        self,
        display: Display,
        label: str,
        total: int | None,
        *,
        start: int,
        every: int | None,
        unit: str,
    ):
        self._display = display
        self._label = label
        self._total = total
        self._every = every
        self._unit = unit
        self._lines_shown = start // every if every else 0
        self._times: deque[tuple[float, int, int]] = deque(maxlen=_REMEMBERED)
        self._examples = 0
        self._loss: float | None = None
        self._number = next(display._numbers)
        self._told = -math.inf
        self._bars = display._bars
        self._bar = None
        if self._bars is not None:
            self._bar = self._bars.add_task(
                label, total=total, completed=start, count=self._count(start), note=""
            )
        self._tell("begin", label=label, total=total, start=start, unit=unit)

    def update(self, done: int, loss: float | None = None, examples: int = 0) -> None:
        """Shows that `done` units are done.

        Args:
            done: How many in all.
            loss: The newest loss; None: there is none.
            examples: How many examples these took since the last update; 0: nobody knows.
        """
        self._examples += examples
        now = time.monotonic()
        self._times.append((now, done, self._examples))
        self._loss = self._loss if loss is None else loss
        if now - self._told > _TOLD_EVERY or done == self._total:
            self._told = now
            self._tell("update", done=done, loss=self._loss, examples=self._examples)
        if self._bars is not None:
            count = self._count(done)
            room = self._bars.console.width - _LEAST_BAR - len(f"{self._label}  {count}  ")
            self._bars.update(self._bar, completed=done, count=count, note=self._note(done, room))
        elif self._every and done // self._every > self._lines_shown:
            self._lines_shown = done // self._every
            line = f"{self._label} {self._count(done)}  {self._note(done)}"
            self._tell("line", text=line)
            self._display.say(line)

    def _tell(self, what: str, **about: Any) -> None:
        self._display.tell({"task": self._number, "what": what, **about})

    def update_of(self, done: int, total: int) -> None:
        """Shows that `done` of `total` units are done, where only the work tells how many."""
        self.end_at(total)
        self.update(done)

    def end_at(self, total: int) -> None:
        """Says where the task ends, where that was not known at its beginning."""
        if self._total != total:
            self._total = total
            self._tell("end_at", total=total)
            if self._bars is not None:
                self._bars.update(self._bar, total=total)

    def pause(self) -> None:
        """Leaves the time until the next update out of the speed."""
        self._times.clear()
        self._tell("pause")

    def finish(self) -> None:
        """Ends the task; its bar goes away."""
        self._tell("finish")
        if self._bars is not None:
            self._bars.remove_task(self._bar)
            self._bars = None

    def _count(self, done: int) -> str:
        return f"{done}" if self._total is None else f"{done}/{self._total}"

    def _note(self, done: int, room: float = math.inf) -> str:
        """Returns loss, speed and time left; where room lacks, without the speed or the loss."""
        loss = "" if self._loss is None else f"loss {self._loss:.4g}"
        speed = left = ""
        if len(self._times) > 1:
            (first_time, *first), (last_time, *last) = self._times[0], self._times[-1]
            seconds = max(last_time - first_time, 1e-9)
            steps, examples = [(b - a) / seconds for a, b in zip(first, last, strict=True)]
            speed = _examples(examples) if examples else f"{steps:.1f} {self._unit}/s"
            if self._total is not None and steps > 0:
                left = f"{clock((self._total - done) / steps)} left"
        for parts in ((loss, speed, left), (loss, left), (left,)):
            text = "  ".join(filter(None, parts))
            if len(text) <= room:
                return text
        return ""


def _examples(speed: float) -> str:
    return f"{speed:,.0f} examples/s" if speed >= 10 else f"{speed:.1f} examples/s"


def clock(seconds: float) -> str:
    """Returns a time as 0:07, 12:30 or 3:00:00."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
