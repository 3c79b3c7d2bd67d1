"""One training of a config: from the last checkpoint to its end, and what follows that.

It is the part of the chief, or of a process that is alone: nobody else writes to model_dir.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.app.cluster import tasks
from replicate.app.config import config
from replicate.app.console import interrupts, progress
from replicate.app.runs import checkpoints
from replicate.app.training import (
    goals,
    optimizers,
    outcomes,
    run_records,
    steps,
    towers,
    train_summaries,
)
from replicate.compat.tensorflow import tf1

__all__ = ["Trained", "train"]


class Trained(NamedTuple):
    """What a training came to.

    Attributes:
        step: The global step it ended at.
        is_new: Whether there was anything left to do.
        metrics: Those of the last evaluation; None where there was none.
        path: The SavedModel of the end; None where the config wants none.
    """

    step: int
    is_new: bool
    metrics: dict[str, Any] | None
    path: str | None


def train(
    settings: config.Config,
    display: progress.Display,
    command: Sequence[str] = (),
    task: tasks.Task = tasks.ALONE,
) -> Trained:
    """Trains to its end, from the last checkpoint if there is one.

    Where a run was stopped between its last step and its end, only the end is made up for:
    the last evaluation and what is exported after it. Nobody else may train in model_dir
    meanwhile.

    Args:
        settings: The config.
        display: Where progress goes.
        command: The command line, for the run's record.
        task: Which task of a cluster this is: its chief.

    Raises:
        Interrupted: If a signal came; a checkpoint is saved.
    """
    start = checkpoints.step_of(settings.model_dir) or 0
    goal = goals.Goal(settings, start, task)
    is_trained = goal.reason_at(start) is not None
    if is_trained and _is_over(settings, start):
        early = goal.reason_at(start) == goals.EARLY_STOPPING
        why = f", where it stopped early ({goal.early_reason()})" if early else ""
        display.say(f"{settings.model_dir} is at step {start} already{why}; nothing left to do.")
        return Trained(start, False, None, None)
    _record(settings, display, goal, start, command, task)
    found, path, is_over, began = None, None, False, time.monotonic()
    with interrupts.StopRequest() as stop, display:
        run = _Training(settings, display, stop, goal, start, task)
        try:
            step = start if is_trained else run.train()
            ended_by = goal.reason_at(step) or run.steps.ended_by
            was_stopped = run.steps.were_stopped
            if step == start and ended_by == goals.INPUT and not was_stopped:
                raise errors.RunError("train.input: must have rows, has none. Check its files.")
            if not was_stopped:
                found, path = run.finish(step, ended_by)
                is_over = True
        except interrupts.Interrupted:
            step = checkpoints.step_of(settings.model_dir) or 0
    if not is_over:
        raise interrupts.Interrupted(_stopped_text(settings, goal, step))
    _tell_end(display, goal, step, ended_by)
    took = progress.clock(time.monotonic() - began)
    display.say(f"done at step {step} in {took}; checkpoints and summaries: {settings.model_dir}")
    return Trained(step, True, found, path)


def _record(
    settings: config.Config,
    display: progress.Display,
    goal: goals.Goal,
    start: int,
    command: Sequence[str],
    task: tasks.Task,
) -> None:
    """Says what begins, and what differs from the run before; writes both down."""
    display.say(f"{settings.name}: {towers.text_of(settings, task)}")
    display.say(_start_text(settings, goal, start))
    text = config.to_yaml(settings)
    for change in run_records.changes(settings.model_dir, text) if start else ():
        display.say(f"config: {change}")  # of a run that has begun
    if not run_records.write_config(settings.model_dir, text, settings.folder):
        display.say(run_records.kept_text(settings.model_dir, run_records.CONFIG))
    if not run_records.write_run(
        settings.model_dir,
        towers=towers.devices_of(settings),
        strategy=settings.strategy or ("multi_worker" if task.is_together else "parameter_server"),
        workers=task.size,
        start=start,
        command=command,
    ):
        display.say(run_records.kept_text(settings.model_dir, run_records.RUN))


def _start_text(settings: config.Config, goal: goals.Goal, start: int) -> str:
    if goal.reason_at(start) is not None:
        return f"{settings.model_dir} is at step {start} already; doing what follows it."
    if start:
        return f"continuing from step {start} in {settings.model_dir}, {goal.text('step ')}"
    return f"training from step 0 {goal.text()}, in {settings.model_dir}"


def _tell_end(display: progress.Display, goal: goals.Goal, step: int, ended_by: str) -> None:
    of = "" if goal.end is None else f" of {goal.end}"
    if ended_by == goals.EARLY_STOPPING:
        display.say(f"stopped early at step {step}: {goal.early_reason()}.")
    elif ended_by == goals.INPUT:
        display.say(f"train.input came to its end at step {step}{of}.")
    elif ended_by == goals.HOOK:
        display.say(f"a hook ended training at step {step}{of}.")


def _is_over(settings: config.Config, step: int) -> bool:
    """Tells whether nothing follows the last step, or it has been done."""
    is_wanted = settings.eval is not None or settings.export is not None
    return not is_wanted or checkpoints.is_finished(settings.model_dir, step)


def _stopped_text(settings: config.Config, goal: goals.Goal, step: int) -> str:
    if not step and checkpoints.step_of(settings.model_dir) is None:
        return f"stopped before the first step; no checkpoint is saved in {settings.model_dir} yet."
    if goal.reason_at(step) is None:
        then = "The same command continues from there."
    else:
        then = "Training is over; the same command does what follows it."
    return f"stopped at step {step}; a checkpoint is saved in {settings.model_dir}. {then}"


class _Training:
    """The steps, and what follows from their checkpoints.

    An evaluator, where there is one, has the second half.
    """

    def __init__(
        self,
        settings: config.Config,
        display: progress.Display,
        stop: interrupts.StopRequest,
        goal: goals.Goal,
        start: int,
        task: tasks.Task,
    ):
        self._settings = settings
        self._goal = goal
        self._start = start
        self._task = task
        self._summaries: train_summaries.SummaryHook | None = None
        self._began_evaluation = 0.0
        self.steps = steps.Steps(settings, display, task, goal, start, stop, self._watch)
        self._outcomes = None
        if not task.has_evaluator:
            self._outcomes = outcomes.Outcomes(
                settings, display, stop, goal, self.steps.estimator, self._end_evaluation
            )

    def train(self) -> int:
        """Trains; returns the step at which that ended."""
        settings = self._settings
        checkpoints.note_finished(settings.model_dir, None)
        checkpoints.note_trained(settings.model_dir, None)
        listeners = []
        if self._task.has_evaluator:
            listeners.append(_Judgements(self._goal))
        elif settings.eval is not None and settings.eval.every_steps:
            every = settings.eval.every_steps
            listeners.append(_Evaluations(every, self._goal, self._evaluate, self._task))
            if self._lacks_evaluation(every):
                self._evaluate()
                if self._goal.early_reason() is not None:
                    return self._start
        return self.steps.make(listeners)

    def _lacks_evaluation(self, every: int) -> bool:
        """Tells whether the run before was stopped in an evaluation that early_stopping misses."""
        stopping = self._goal.stopping
        return stopping is not None and self._start // every > stopping.last_step // every

    def finish(self, step: int, ended_by: str) -> tuple[dict[str, Any] | None, str | None]:
        """Evaluates and exports what training came to; returns metrics and path."""
        if self._outcomes is not None:
            return self._outcomes.finish(step, ended_by)
        checkpoints.note_trained(self._settings.model_dir, step, self._goal.wanted)
        return None, None

    def _evaluate(self) -> None:
        self._began_evaluation = time.monotonic()
        self._outcomes.evaluate()

    def _end_evaluation(self) -> None:
        """Leaves the time of an evaluation out of what is measured of steps."""
        self.steps.shown.pause()
        if self._summaries is not None:
            self._summaries.leave_out(time.monotonic() - self._began_evaluation)

    def _watch(self, rows: Any) -> Sequence[tf1.train.SessionRunHook]:
        self._summaries = train_summaries.SummaryHook(
            self._settings.model_dir,
            self._settings.train.save_summary_steps,
            rows,
            lambda: optimizers.learning_rate(self._settings.optimizer, self.steps.made_optimizers),
        )
        return (self._summaries,)


class _Judgements(tf1.train.CheckpointSaverListener):
    """Looks at each checkpoint whether the evaluator's evaluations end the training."""

    def __init__(self, goal: goals.Goal):
        self._goal = goal

    def after_save(self, session: Any, global_step_value: int) -> bool:
        """Returns whether training is to end."""
        if self._goal.stopping is not None:
            self._goal.stopping.read(int(global_step_value))
        return self._goal.early_reason() is not None


class _Evaluations(tf1.train.CheckpointSaverListener):
    """Evaluates at the first checkpoint after each `eval.every_steps` steps.

    The last step of a training is left out: an evaluation follows it anyhow.
    """

    def __init__(
        self, every: int, goal: goals.Goal, evaluate_now: Callable[[], None], task: tasks.Task
    ):
        self._every = every
        self._goal = goal
        self._evaluate_now = evaluate_now
        self._task = task
        self._rounds: int | None = None

    def after_save(self, session: Any, global_step_value: int) -> bool:
        """Returns whether training is to end."""
        rounds = int(global_step_value) // self._every
        is_due = self._rounds is not None and rounds > self._rounds
        self._rounds = rounds
        is_last = self._goal.end is not None and global_step_value >= self._goal.end
        if not is_due or is_last:
            return False
        try:
            self._evaluate_now()
        except interrupts.Interrupted:
            if self._task.size == 1:
                raise
            return True  # as a session ends, so that the other workers are told
        return self._goal.early_reason() is not None
