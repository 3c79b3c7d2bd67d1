"""How long work shows where it is: a bar on a terminal, plain lines elsewhere."""

import contextlib
import logging
import math
import time
import warnings
from collections import deque
from typing import Any

from rich import console as rich_console
from rich import progress as rich_progress
from rich import text as rich_text

from replicate import errors
from replicate.app import interrupts, screen
from replicate.compat.tensorflow import tf, tf1

__all__ = ["Display", "EvaluationHook", "LossHook", "Task", "TrainingHook", "calm_logging", "clock"]

_MAX_IDLE_RUNS = 1000  # a loss scale that is too high may take some to come down
_NO_NEWS = ("is deprecated and will be removed", "It seems that global step")
_LEAST_BAR = 8  # columns
_REMEMBERED = 50  # updates over which the speed is taken


class Display:
    """Where progress and remarks go: stderr, so that stdout has only results.

    Args:
        quiet: Whether to show nothing at all.
        console: A rich console; None: one on stderr.
    """

    def __init__(self, quiet: bool = False, console: rich_console.Console | None = None):
        self.quiet = quiet
        self._console = console or rich_console.Console(stderr=True, highlight=False)
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
        self._bars = rich_progress.Progress(
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
        self._bars = display._bars
        self._bar = None
        if self._bars is not None:
            self._bar = self._bars.add_task(
                label, total=total, completed=start, count=self._count(start), note=""
            )

    def update(self, done: int, loss: float | None = None, examples: int = 0) -> None:
        """Shows that `done` units are done.

        Args:
            done: How many in all.
            loss: The newest loss; None: there is none.
            examples: How many examples these took since the last update; 0: nobody knows.
        """
        self._examples += examples
        self._times.append((time.monotonic(), done, self._examples))
        self._loss = self._loss if loss is None else loss
        if self._bars is not None:
            count = self._count(done)
            room = self._bars.console.width - _LEAST_BAR - len(f"{self._label}  {count}  ")
            self._bars.update(self._bar, completed=done, count=count, note=self._note(done, room))
        elif self._every and done // self._every > self._lines_shown:
            self._lines_shown = done // self._every
            self._display.say(f"{self._label} {self._count(done)}  {self._note(done)}")

    def update_of(self, done: int, total: int) -> None:
        """Shows that `done` of `total` units are done, where only the work tells how many."""
        self.end_at(total)
        self.update(done)

    def end_at(self, total: int) -> None:
        """Says where the task ends, where that was not known at its beginning."""
        if self._total != total:
            self._total = total
            if self._bars is not None:
                self._bars.update(self._bar, total=total)

    def pause(self) -> None:
        """Leaves the time until the next update out of the speed."""
        self._times.clear()

    def finish(self) -> None:
        """Ends the task; its bar goes away."""
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


def calm_logging(quiet: bool) -> None:
    """Keeps TensorFlow's notes on its old API off the screen; with quiet, its warnings too.

    Nor does it tell of a global step that stood still: it reads that while the step is being
    made, and `TrainingHook` knows better.
    """
    logger = tf.get_logger()
    logger.addFilter(_is_news)
    warnings.filterwarnings("ignore", r"`tf\.layers\.\w+` is deprecated", UserWarning)
    if quiet:
        logger.setLevel(logging.ERROR)


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not any(words in text for words in _NO_NEWS)


def clock(seconds: float) -> str:
    """Returns a time as 0:07, 12:30 or 3:00:00."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class TrainingHook(tf1.train.SessionRunHook):
    """Shows training steps, and stops the session when that is asked for.

    Args:
        task: Where to show them.
        loss: The reduced loss.
        stop: Asks to stop.
        rows: How many rows a batch has: a number, or a tensor of shape []; 0: nobody knows.

    Attributes:
        is_waiting: Whether a step was begun that did not end: at the end of a training, whether
            there was no batch for it any more.
    """

    def __init__(
        self, task: Task, loss: tf.Tensor, stop: interrupts.StopRequest, rows: tf.Tensor | int = 0
    ):
        self._task = task
        self._rows = rows
        self._loss = loss
        self._stop = stop
        self._step: Any = None
        self._last_step: int | None = None
        self._idle_runs = 0
        self.is_waiting = False

    def begin(self) -> None:
        """See base class."""
        self._step = tf1.train.get_global_step()

    def before_run(self, run_context: Any) -> tf1.train.SessionRunArgs:
        """See base class."""
        self.is_waiting = True
        rows = [self._rows] if tf.is_tensor(self._rows) else []
        return tf1.train.SessionRunArgs([self._step, self._loss, *rows])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        self.is_waiting = False
        step, loss, *rows = run_values.results
        self._need_progress(int(step))
        self._task.update(int(step), float(loss), int(rows[0] if rows else self._rows))
        if self._stop.requested:
            run_context.request_stop()

    def _need_progress(self, step: int) -> None:
        """Ends what would go on for ever: optimizers may skip a few steps, not all."""
        self._idle_runs = self._idle_runs + 1 if step == self._last_step else 0
        self._last_step = step
        if self._idle_runs >= _MAX_IDLE_RUNS:
            raise errors.RunError(
                f"model_fn: its train_op must raise the global step; it is still {step} after "
                f"{_MAX_IDLE_RUNS} runs. Pass global_step to minimize, or name an optimizer."
            )

    def end(self, session: Any) -> None:
        """See base class."""
        self._task.update(int(session.run(self._step)))


class LossHook(tf1.train.SessionRunHook):
    """Ends a training whose loss is no number, and says at which step.

    It goes to `Estimator.train`, whose hooks run before TensorFlow's own look at the loss.

    Attributes:
        loss: The reduced loss; whoever builds the model sets it.
    """

    def __init__(self) -> None:
        self.loss: tf.Tensor | None = None

    def before_run(self, run_context: Any) -> tf1.train.SessionRunArgs:
        """See base class."""
        return tf1.train.SessionRunArgs(self.loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        if math.isnan(run_values.results):
            step = run_context.session.run(tf1.train.get_global_step())
            raise errors.RunError(
                f"the loss must stay a number, but became NaN at step {step}. Lower the learning "
                "rate, set clip_global_norm, or look for bad values in train.input."
            )


class EvaluationHook(tf1.train.SessionRunHook):
    """Shows evaluation steps, and leaves when stopping is asked for.

    Args:
        task: Where to show them.
        stop: Asks to stop; None: nobody does.

    Attributes:
        done: How many steps were made.
    """

    def __init__(self, task: Task, stop: interrupts.StopRequest | None = None):
        self._task = task
        self._stop = stop
        self.done = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        self.done += 1
        self._task.update(self.done)
        if self._stop is not None and self._stop.requested:
            raise interrupts.Interrupted("stopped in an evaluation")
