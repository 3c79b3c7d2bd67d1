"""The steps of a training: what every worker does, be it the chief, another one or alone."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.app.cluster import tasks
from replicate.app.config import config
from replicate.app.console import interrupts, progress
from replicate.app.data import reading, section_inputs, shares
from replicate.app.runs import checkpoints
from replicate.app.training import (
    estimators,
    goals,
    hooks,
    saving,
    session_hooks,
    towers,
    train_summaries,
)
from replicate.compat.tensorflow import tf, tf1

__all__ = ["Steps"]


# What TensorFlow raises where another process does not answer any more.
_OF_OTHERS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


class Steps:
    """One call of Estimator.train.

    Args:
        settings: The config.
        display: Where progress goes.
        task: Which part of the training this process has.
        goal: Where it ends.
        start: The step that it begins at.
        stop: Asks to stop.
        watch: Makes further hooks from the number of rows of a batch.

    Attributes:
        estimator: The Estimator.
        made_optimizers: Those that the config's function has made.
        shown: Its progress.
    """

    def __init__(
        self,
        settings: config.Config,
        display: progress.Display,
        task: tasks.Task,
        goal: goals.Goal,
        start: int,
        stop: interrupts.StopRequest,
        watch: Callable[[Any], Sequence[tf1.train.SessionRunHook]] = lambda rows: (),
    ):
        self._settings = settings
        self._display = display
        self._task = task
        self._goal = goal
        self._start = start
        self._stop = stop
        self._watch_too = watch
        self._losses = session_hooks.LossHook()
        self._progress: session_hooks.TrainingHook | None = None
        self._are_saved_by_others = False
        self.made_optimizers: list[Any] = []
        strategy = towers.strategy_of(settings, task)
        if task.is_together:  # passes over the input go on from there, in each worker by itself
            strategy.compared["model_dir, its last checkpoint"] = f"step {start}"
        if task.is_together or task.has_servers:
            strategy.is_stopping = lambda: stop.requested
        self.estimator = estimators.build(
            settings,
            self._watch,
            note_optimizer=self.made_optimizers.append,
            task=task,
            strategy=strategy,
            save=self._save,
        )
        self._across = strategy.across if task.is_together else lambda: None
        self._ending = session_hooks.StopHook(stop, self._across)
        self._input = self._input_fn()
        self.shown = display.task(
            "train", goal.end, start=start, every=settings.train.log_every_steps
        )

    @property
    def were_stopped(self) -> bool:
        """Whether they ended because somebody asked for it, here or in another worker."""
        return self._ending.was_stopped

    @property
    def ended_by(self) -> str:
        """What ended them where no goal did, in a word."""
        is_input = self._progress is None or self._progress.is_waiting
        return goals.INPUT if is_input else goals.HOOK

    def make(self, listeners: Sequence[Any] = ()) -> int:
        """Makes the steps; returns the step at which that ended.

        Args:
            listeners: What is told of checkpoints; they are saved by the chief alone.
        """
        settings = self._settings
        offered = {
            "params": dict(settings.params),
            "model_dir": settings.model_dir,
            "config": self.estimator.config,
        }
        made = hooks.made(settings.train.hooks, offered)
        self._are_saved_by_others = any(
            isinstance(one, tf1.train.CheckpointSaverHook) for one in made
        )
        with reading.naming(settings, "train"), self._others_may_be_gone():
            self.estimator.train(
                self._input,
                hooks=[self._losses, *made],
                max_steps=self._goal.end,
                saving_listeners=listeners,
            )
        self.shown.finish()
        if self._task.is_chief:
            return checkpoints.step_of(settings.model_dir) or 0
        ended_at = self._progress.ended_at if self._progress is not None else None
        return self._start if ended_at is None else ended_at

    def _input_fn(self) -> Callable[[], tf.data.Dataset]:
        source, passes, task = self._settings.train.input, self._goal.epochs, self._task
        if passes is None:
            made = section_inputs.input_fn(self._settings, "train", task=task)
        else:
            passes.counted = lambda end: self.shown.end_at(self._goal.end)

            def made() -> tf.data.Dataset:
                found = passes.dataset(source.repeat, source.prefetch)
                return shares.own_part(found, task) if task.has_servers else found

        return section_inputs.alike(made, self._settings, task)

    def _watch(self, loss: tf.Tensor, features: Any) -> Sequence[tf1.train.SessionRunHook]:
        self._losses.loss = loss
        # NOTE: features are not what workers take their steps with: to read them takes a batch.
        across = self._across()
        rows = train_summaries.rows_of(features) if across is None else across.rows
        self._progress = session_hooks.TrainingHook(self.shown, loss, rows)
        meeting = _Meeting(self._display, self._task, self._settings.cluster.timeout)
        return [self._progress, self._ending, *self._watch_too(rows), meeting]

    def _save(self, spec: Any, config: Any) -> Sequence[tf1.train.SessionRunHook]:
        return () if self._are_saved_by_others else saving.hooks(spec, config)

    @contextlib.contextmanager
    def _others_may_be_gone(self) -> Iterator[None]:
        """Lets who was asked to stop do so where others have stopped already."""
        try:
            yield
        except (errors.ClusterError, *_OF_OTHERS):
            is_alone = self._task.size == 1 and not self._task.has_servers
            if is_alone or not self._stop.requested:
                raise
            raise interrupts.Interrupted(
                f"{self._task.name} stopped; others were not there"
            ) from None


class _Meeting(tf1.train.SessionRunHook):
    """Tells when this worker waits for the others, and when all are there."""

    def __init__(self, display: progress.Display, task: tasks.Task, timeout: float):
        self._display = display
        self._task = task
        self._timeout = timeout

    def begin(self) -> None:
        """See base class."""
        self._display.state("waits")
        others = self._task.size - 1
        if self._task.is_together:
            self._display.say(
                f"{self._task.name} is ready, and waits for {others} other worker"
                f"{'' if others == 1 else 's'}, for {self._timeout:g} seconds at most"
            )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See base class."""
        self._display.state("trains")
        if self._task.is_together:
            self._display.say(f"all {self._task.size} workers are there")
