"""One training of a config: from the last checkpoint to its end, and what follows that."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.app import (
    best,
    checkpoints,
    config,
    estimators,
    evaluations,
    exports,
    goals,
    hooks,
    interrupts,
    optimizers,
    progress,
    reading,
    report,
    run_records,
    section_inputs,
    train_summaries,
)
from replicate.compat.tensorflow import tf, tf1

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
    settings: config.Config, display: progress.Display, command: Sequence[str] = ()
) -> Trained:
    """Trains to its end, from the last checkpoint if there is one.

    Where a run was stopped between its last step and its end, only the end is made up for:
    the last evaluation and what is exported after it. Nobody else may train in model_dir
    meanwhile.

    Args:
        settings: The config.
        display: Where progress goes.
        command: The command line, for the run's record.

    Raises:
        Interrupted: If a signal came; a checkpoint is saved.
    """
    start = checkpoints.step_of(settings.model_dir) or 0
    goal = goals.Goal(settings, start)
    is_trained = goal.reason_at(start) is not None
    if is_trained and _is_over(settings, start):
        early = goal.reason_at(start) == goals.EARLY_STOPPING
        why = f", where it stopped early ({goal.early_reason()})" if early else ""
        display.say(f"{settings.model_dir} is at step {start} already{why}; nothing left to do.")
        return Trained(start, False, None, None)
    _record(settings, display, goal, start, command)
    found, path, is_over, began = None, None, False, time.monotonic()
    with interrupts.StopRequest() as stop, display:
        run = _Training(settings, display, stop, goal, start)
        try:
            step = start if is_trained else run.train()
            ended_by = goal.reason_at(step) or run.ended_by()
            if step == start and ended_by == goals.INPUT and not stop.requested:
                raise errors.RunError("train.input: must have rows, has none. Check its files.")
            if not stop.requested:
                found, path = run.finish()
                if not run_records.write_metrics(settings.model_dir, step, found, ended_by):
                    _tell_kept(display, settings, run_records.METRICS)
                checkpoints.note_finished(settings.model_dir, step)
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
) -> None:
    """Says what begins, and what differs from the run before; writes both down."""
    display.say(f"{settings.name}: {estimators.towers_of(settings)}")
    display.say(_start_text(settings, goal, start))
    text = config.to_yaml(settings)
    for change in run_records.changes(settings.model_dir, text) if start else ():
        display.say(f"config: {change}")  # of a run that has begun
    if not run_records.write_config(settings.model_dir, text, settings.folder):
        _tell_kept(display, settings, run_records.CONFIG)
    if not run_records.write_run(
        settings.model_dir,
        towers=estimators.devices_of(settings),
        strategy=settings.strategy or "parameter_server",
        start=start,
        command=command,
    ):
        _tell_kept(display, settings, run_records.RUN)


def _tell_kept(display: progress.Display, settings: config.Config, name: str) -> None:
    display.say(
        f"{settings.model_dir}/{name} is not a run's; it stays, and what would be in it of this "
        "run is not written down."
    )


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
    if goal.reason_at(step) is None:
        then = "The same command continues from there."
    else:
        then = "Training is over; the same command does what follows it."
    return f"stopped at step {step}; a checkpoint is saved in {settings.model_dir}. {then}"


class _Training:
    """One call of Estimator.train, with evaluations at its checkpoints."""

    def __init__(
        self,
        settings: config.Config,
        display: progress.Display,
        stop: interrupts.StopRequest,
        goal: goals.Goal,
        start: int,
    ):
        self._settings = settings
        self._display = display
        self._stop = stop
        self._goal = goal
        self._start = start
        self._losses = progress.LossHook()
        self._made_optimizers: list[Any] = []
        self._steps: progress.TrainingHook | None = None
        self._summaries: train_summaries.SummaryHook | None = None
        self._latest: dict[str, Any] = {}  # metrics of the last evaluation
        self._estimator = estimators.build(
            settings, self._watch, note_optimizer=self._made_optimizers.append
        )
        self._input = self._input_fn()
        self._eval_input = None
        if settings.eval is not None:
            self._eval_input = section_inputs.input_fn(settings, "eval")
        self._exports = None
        if settings.export is not None:
            inputs_of = section_inputs.input_fns(settings)
            self._exports = exports.Exports(settings, self._estimator, inputs_of)
        self._task = display.task(
            "train", goal.end, start=start, every=settings.train.log_every_steps
        )

    def _input_fn(self) -> Callable[[], tf.data.Dataset]:
        source, passes = self._settings.train.input, self._goal.epochs
        if passes is None:
            return section_inputs.input_fn(self._settings, "train")
        passes.counted = lambda end: self._task.end_at(self._goal.end)
        return lambda: passes.dataset(source.repeat, source.prefetch)

    def train(self) -> int:
        """Trains; returns the step at which that ended."""
        settings = self._settings
        checkpoints.note_finished(settings.model_dir, None)
        listeners = []
        if settings.eval is not None and settings.eval.every_steps:
            listeners.append(_Evaluations(settings.eval.every_steps, self._goal, self._evaluate))
            if self._lacks_evaluation(settings.eval.every_steps):
                self._evaluate()
                if self._goal.early_reason() is not None:
                    return self._start
        offered = {
            "params": dict(settings.params),
            "model_dir": settings.model_dir,
            "config": self._estimator.config,
        }
        with reading.naming(settings, "train"):
            self._estimator.train(
                self._input,
                hooks=[self._losses, *hooks.made(settings.train.hooks, offered)],
                max_steps=self._goal.end,
                saving_listeners=listeners,
            )
        self._task.finish()
        return checkpoints.step_of(settings.model_dir) or 0

    def _lacks_evaluation(self, every: int) -> bool:
        """Tells whether the run before was stopped in an evaluation that early_stopping misses."""
        stopping = self._goal.stopping
        return stopping is not None and self._start // every > stopping.last_step // every

    def ended_by(self) -> str:
        """Returns in a word what ended training where no goal did."""
        return goals.INPUT if self._steps is None or self._steps.is_waiting else goals.HOOK

    def finish(self) -> tuple[dict[str, Any] | None, str | None]:
        """Evaluates and exports what training came to; returns metrics and path."""
        found = None
        if self._settings.eval is None:
            self._export(None, is_final=True)
        elif self._latest.get("global_step") == checkpoints.step_of(self._settings.model_dir):
            found = self._latest
            self._export(found, is_final=True)
        else:
            found = self._evaluate(is_final=True)
        if self._exports is None or not self._settings.export.after_training:
            return found, None
        return found, self._exports.save()

    def _evaluate(self, is_final: bool = False) -> dict[str, Any]:
        """Evaluates the newest checkpoint, shows the metrics in one line, exports."""
        began = time.monotonic()
        found = evaluations.evaluate(
            self._estimator, self._eval_input, self._settings, self._display, self._stop
        )
        step = found.get("global_step")
        self._display.say(f"evaluated at step {step}: {report.summary_line(found)}")
        self._latest = found
        self._judge(found)
        if is_final or self._goal.early_reason() is None:  # else the end of training exports
            self._export(found, is_final)
        self._task.pause()
        if self._summaries is not None:
            self._summaries.leave_out(time.monotonic() - began)
        return found

    def _judge(self, found: dict[str, Any]) -> None:
        """Lets what compares evaluations know of one."""
        wanted = self._settings.train.keep_best
        if wanted is not None:
            path = best.keep(
                self._settings.model_dir,
                self._estimator.latest_checkpoint(),
                found,
                wanted.metric,
                wanted.higher_is_better,
            )
            if path is not None:
                self._display.say(f"best so far by {wanted.metric}: {path}")
        if self._goal.stopping is not None:
            self._goal.stopping.take(found)

    def _export(self, metrics: dict[str, Any] | None, is_final: bool) -> None:
        if self._exports is not None:
            for name, path in self._exports.run_exporters(metrics, is_final).items():
                self._display.say(f"exported {name}: {path}")

    def _watch(self, loss: tf.Tensor, features: Any) -> Sequence[tf1.train.SessionRunHook]:
        self._losses.loss = loss
        rows = train_summaries.rows_of(features)
        self._summaries = train_summaries.SummaryHook(
            self._settings.model_dir,
            self._settings.train.save_summary_steps,
            rows,
            lambda: optimizers.learning_rate(self._settings.optimizer, self._made_optimizers),
        )
        self._steps = progress.TrainingHook(self._task, loss, self._stop, rows)
        return self._steps, self._summaries


class _Evaluations(tf1.train.CheckpointSaverListener):
    """Evaluates at the first checkpoint after each `eval.every_steps` steps.

    The last step of a training is left out: an evaluation follows it anyhow.
    """

    def __init__(self, every: int, goal: goals.Goal, evaluate_now: Callable[[], Any]):
        self._every = every
        self._goal = goal
        self._evaluate_now = evaluate_now
        self._rounds: int | None = None

    def after_save(self, session: Any, global_step_value: int) -> bool:
        """Returns whether training is to end."""
        rounds = int(global_step_value) // self._every
        is_due = self._rounds is not None and rounds > self._rounds
        self._rounds = rounds
        is_last = self._goal.end is not None and global_step_value >= self._goal.end
        if is_due and not is_last:
            self._evaluate_now()
            return self._goal.early_reason() is not None
        return False
