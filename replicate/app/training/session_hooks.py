"""What looks on while sessions run: progress, a loss that is no number, a request to stop."""

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

from replicate import errors
from replicate.app.console import interrupts, progress
from replicate.compat.tensorflow import tf, tf1

__all__ = ["EvaluationHook", "LossHook", "StopHook", "TrainingHook", "calm_logging"]

_MAX_IDLE_RUNS = 1000  # a loss scale that is too high may take some to come down
_NO_NEWS = ("is deprecated and will be removed", "It seems that global step")


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


class TrainingHook(tf1.train.SessionRunHook):
    """Shows training steps.

    Args:
        task: Where to show them.
        loss: The reduced loss.
        rows: How many rows a batch has: a number, or a tensor of shape []; 0: nobody knows.

    Attributes:
        is_waiting: Whether a step was begun that did not end: at the end of a training, whether
            there was no batch for it any more.
        ended_at: The global step at the end of the session; None: it has not ended.
    """

    def __init__(self, task: progress.Task, loss: tf.Tensor, rows: tf.Tensor | int = 0):
        self.is_waiting = False
        self.ended_at: int | None = None
        self._task = task
        self._rows = rows
        self._loss = loss
        self._step: Any = None
        self._last_step: int | None = None
        self._idle_runs = 0

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
        self.ended_at = int(session.run(self._step))
        self._task.update(self.ended_at)


class StopHook(tf1.train.SessionRunHook):
    """Ends the session after the step in which that is asked for.

    Args:
        stop: Asks for it.
        across: Returns what joins the workers of the current graph, or None.
    """

    def __init__(self, stop: interrupts.StopRequest, across: Callable[[], Any] = lambda: None):
        self._stop = stop
        self._across_of = across
        self._across: Any = None

    @property
    def was_stopped(self) -> bool:
        """Whether the session has ended by a request, here or in another worker."""
        return self._stop.requested or (self._across is not None and self._across.was_left)

    def begin(self) -> None:
        """See base class."""
        self._across = self._across_of()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        if self._stop.requested:
            run_context.request_stop()


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

    def __init__(self, task: progress.Task, stop: interrupts.StopRequest | None = None):
        self._task = task
        self._stop = stop
        self.done = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        self.done += 1
        self._task.update(self.done)
        if self._stop is not None and self._stop.requested:
            raise interrupts.Interrupted("stopped in an evaluation")
