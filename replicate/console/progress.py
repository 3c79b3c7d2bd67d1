"""How long work shows where it is: a bar on a terminal, plain lines elsewhere."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from rich import console as rich_console
from rich import progress as rich_progress
from rich import text as rich_text

from replicate.console import messages, screen, streams

_LEAST_BAR = 8  # columns
_REMEMBERED = 50  # updates over which the speed is taken
_TOLD_EVERY = 0.1  # seconds
_LINE_EVERY = 10.0  # seconds


class Bar(NamedTuple):
    """What is shown of a task.

    Attributes:
        label: What is done, e.g. train.
        done: How many units are done.
        total: Where it ends; None where that is not known.
        notes: Loss, speed and time left, then the same in fewer words; the first that fits counts.
    """

    label: str
    done: int
    total: int | None
    notes: tuple[str, ...]

    @property
    def units(self) -> str:
        """The units done, of all where that is known."""
        return f"{self.done}" if self.total is None else f"{self.done}/{self.total}"


class Display:
    """Where progress and remarks go: stderr, so that stdout has only results.

    Args:
        quiet: Whether to show nothing at all.
        console: A rich console; else one on stderr.
        tell: Gets messages for a launcher, which shows the bars of several processes:
            `{"state": what this process does}`, `{"line": a line of progress that was shown}`,
            `{"task": a number, "bar": a Bar}` and, once that task has ended, `{"task": a number}`.

    Attributes:
        quiet: See the argument.
        tell: See the argument.
    """

    def __init__(
        self,
        quiet: bool = False,
        console: rich_console.Console | None = None,
        tell: Callable[[Mapping[str, Any]], None] = lambda told: None,
    ):
        self.quiet = quiet
        self.tell = tell
        self._console = console or _Console(stderr=True, highlight=False)
        self._is_on_stderr = console is None
        self._bars: _Bars | None = None
        self._tasks: list[Task] = []
        self._leave = contextlib.ExitStack()

    def __enter__(self) -> "Display":
        if self.quiet or not self._console.is_terminal or self._console.is_dumb_terminal:
            return self
        numbers = screen.terminals() if self._is_on_stderr else []
        if 2 in numbers:
            self._leave.callback(setattr, self, "_console", self._console)
            capture = self._leave.enter_context(screen.Capture(numbers, self._show_line))
            self._console = rich_console.Console(file=capture.terminal, highlight=False)
        self._bars = self._leave.enter_context(_Bars(self._console))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave.close()
        self._bars = None

    @property
    def has_bars(self) -> bool:
        """Whether tasks are bars, and not lines."""
        return self._bars is not None

    def state(self, text: str) -> None:
        """Tells a launcher what this process does."""
        self.tell({"state": text})

    def status(self, text: str) -> None:
        """Shows a line below the bars in place of the one before; an empty text: none."""
        if self._bars is not None:
            self._bars.tell(text)

    def say(self, text: str) -> None:
        """Shows a remark, above the bars; that nobody reads it any more ends no work."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                if self._console.is_terminal:
                    text = messages.at_words(text, self._console.width)
                self._console.print(text, markup=False, soft_wrap=True)

    def _show_line(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(rich_text.Text.from_ansi(line), soft_wrap=True)

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
        made = Task(self, Bar(label, start, total, ("",)), every, unit)
        made.show()
        if self._tasks:
            self._tasks[-1].hide()
        self._tasks.append(made)
        return made

    def end(self, task: "Task") -> None:
        """Ends a task; its bar goes away, and that of the one that waited comes back."""
        is_shown = self._tasks[-1:] == [task]
        self._tasks = [one for one in self._tasks if one is not task]
        if is_shown and self._tasks:
            self._tasks[-1].show()
        task.hide()

    def show(self, key: Hashable, bar: Bar | None) -> None:
        """Shows a bar, if there are bars.

        Args:
            key: Which one; a new one is added below the others.
            bar: What to show; None: it goes away.
        """
        if self._bars is not None:
            self._bars.show(key, bar)


class _Console(rich_console.Console):
    """A console whose reader may leave, as `head` does: that ends no work either."""

    def on_broken_pipe(self) -> None:
        """See base class, which ends the process."""
        self.quiet = True
        streams.discard(self.file.fileno())  # else the rest fails again when the process ends


class _Bars(rich_progress.Progress):
    """Bars with a line below them."""

    def __init__(self, console: rich_console.Console):
        self._status = ""
        self._numbers: dict[Hashable, rich_progress.TaskID] = {}
        super().__init__(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=None),
            rich_progress.TextColumn("{task.fields[text]}"),
            console=console,
            expand=True,
            transient=True,  # whatever ends them, Ctrl-C too
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def get_renderables(self) -> Iterator[rich_console.RenderableType]:
        """See base class."""
        yield from super().get_renderables()
        if self._status:
            yield rich_text.Text(self._status, no_wrap=True, overflow="ellipsis")

    def show(self, key: Hashable, bar: Bar | None) -> None:
        """Adds, changes or removes a bar; see `Display.show`."""
        if bar is None:
            if key in self._numbers:
                self.remove_task(self._numbers.pop(key))
            self._start_or_stop()
            return
        if key not in self._numbers:
            self._numbers[key] = self.add_task(bar.label, total=None, text="")
            self._start_or_stop()
        total = bar.total if bar.done else None  # nobody knows how far: it pulses
        room = self.console.width - _LEAST_BAR - len(f"{bar.label}  {bar.units}  ")
        note = next((note for note in bar.notes if len(note) <= room), "")
        text = f"{bar.units}  {note}"
        self.update(self._numbers[key], completed=bar.done, total=total, text=text)

    def tell(self, status: str) -> None:
        """Changes the line below the bars; see `Display.status`."""
        self._status = status
        self._start_or_stop()

    def _start_or_stop(self) -> None:
        """Draws while there is something: of nothing a terminal's log gets ten lines a second."""
        if self._numbers or self._status:
            self.start()
        else:
            self.stop()


class Task:
    """One piece of long work; made by `Display.task`."""

    def __init__(self, display: Display, bar: Bar, every: int | None, unit: str):
        self._display = display
        self._bar = bar
        self._every = every or 1
        self._unit = unit
        self._times: deque[tuple[float, int, int]] = deque(maxlen=_REMEMBERED)
        self._first: tuple[float, int] | None = None  # when the first update came, and with what
        self._examples = 0
        self._loss = ""
        self._told = -math.inf
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
        is_multiple = done // self._every > self._bar.done // self._every
        self._bar = self._bar._replace(done=done, notes=self._notes(done))
        self._display.show(self, self._bar)
        if now - self._told > _TOLD_EVERY or done == self._bar.total:
            self._told = now
            self._display.tell({"task": id(self), "bar": self._bar})
        is_due = is_multiple or (done > self._in_line and self._line_at == -math.inf)
        if is_due and now - self._line_at >= _LINE_EVERY:
            self._line_at = now
            self._show_line()

    def _show_line(self) -> None:
        self._in_line = self._bar.done
        if not self._display.has_bars:
            line = f"{self._bar.label} {self._bar.units}  {self._bar.notes[0]}".rstrip()
            self._display.tell({"line": line})
            self._display.say(line)

    def update_of(self, done: int, total: int) -> None:
        """Shows that `done` of `total` units are done, where only the work tells how many."""
        self.end_at(total)
        self.update(done)

    def end_at(self, total: int) -> None:
        """Says where the task ends, where that was not known at its beginning."""
        self._bar = self._bar._replace(total=total)
        self._display.show(self, self._bar)

    def show(self) -> None:
        """Shows the bar."""
        self._display.tell({"task": id(self), "bar": self._bar})
        self._display.show(self, self._bar)

    def hide(self) -> None:
        """Lets the bar go away."""
        self._display.tell({"task": id(self)})
        self._display.show(self, None)

    def pause(self) -> None:
        """Leaves the time until the next update out of the speed."""
        self._times.clear()

    def finish(self) -> None:
        """Ends the task; its bar goes away."""
        if self._has_ends and self._bar.done != self._in_line:
            self._show_line()
        self._display.end(self)

    def _notes(self, done: int) -> tuple[str, ...]:
        """Returns loss, speed and time left; then the same without the speed, and the loss."""
        speed = left = ""
        if len(self._times) > 1 and self._first is not None:
            (first_time, *first), (last_time, *last) = self._times[0], self._times[-1]
            seconds = max(last_time - first_time, 1e-9)
            units, examples = [(b - a) / seconds for a, b in zip(first, last, strict=True)]
            speed = _examples(examples) if examples else f"{units:.1f} {self._unit}/s"
            if self._bar.total is not None and units > 0:
                began, begun = self._first
                pace = (last_time - began) / (done - begun)  # evaluations take their time as well
                left = f"{clock((self._bar.total - done) * pace)} left"
        choices = (self._loss, speed, left), (self._loss, left), (left,)
        return tuple("  ".join(filter(None, parts)) for parts in choices)


def _examples(speed: float) -> str:
    return f"{speed:,.0f} examples/s" if speed >= 10 else f"{speed:.1f} examples/s"


def clock(seconds: float) -> str:
    """Returns a time as 0:07, 12:30 or 3:00:00."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
