"""The commands that run a model: one function each, from a checked config."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replicate import errors, estimator, verification
from replicate.app import (
    checkpoints,
    config,
    directories,
    estimators,
    exported,
    exports,
    inputs,
    interrupts,
    locks,
    progress,
    reading,
    report,
)
from replicate.compat.tensorflow import tf, tf1

__all__ = ["Trained", "evaluate", "export", "predict", "train", "verify"]


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


def train(settings: config.Config, display: progress.Display) -> Trained:
    """Trains to `train.steps`, from the last checkpoint if there is one.

    Where a run was stopped between its last step and its end, only the end is made up for:
    the last evaluation and what is exported after it.

    Raises:
        Interrupted: If a signal came; a checkpoint is saved.
        RunError: If another process trains in the same directory.
    """
    directories.make(settings.model_dir, "model_dir")
    with checkpoints.naming_full_disk(settings.model_dir), locks.training(settings.model_dir):
        return _train(settings, display)


def _train(settings: config.Config, display: progress.Display) -> Trained:
    start = checkpoints.step_of(settings.model_dir) or 0
    is_trained = start >= settings.train.steps
    if is_trained and _is_over(settings, start):
        display.say(f"{settings.model_dir} is at step {start} already; nothing left to do.")
        return Trained(start, False, None, None)
    display.say(f"{settings.name}: {estimators.towers_of(settings)}")
    display.say(_start_text(settings, start))
    found, path, is_over, began = None, None, False, time.monotonic()
    with interrupts.StopRequest() as stop, display:
        run = _Training(settings, display, stop, start)
        try:
            step = start if is_trained else run.train()
            if step == start and not is_trained and not stop.requested:
                raise errors.RunError("train.input: must have rows, has none. Check its files.")
            if not stop.requested:
                found, path = run.finish()
                checkpoints.note_finished(settings.model_dir, step)
                is_over = True
        except interrupts.Interrupted:
            step = checkpoints.step_of(settings.model_dir) or 0
    if not is_over:
        raise interrupts.Interrupted(_stopped_text(settings, step))
    if step < settings.train.steps:
        display.say(f"train.input came to its end at step {step} of {settings.train.steps}.")
    took = progress.clock(time.monotonic() - began)
    display.say(f"done at step {step} in {took}; checkpoints and summaries: {settings.model_dir}")
    return Trained(step, True, found, path)


def _start_text(settings: config.Config, start: int) -> str:
    end = settings.train.steps
    if start >= end:
        return f"{settings.model_dir} is at step {start} already; doing what follows it."
    if start:
        return f"continuing from step {start} in {settings.model_dir}, to step {end}"
    return f"training from step 0 to {end}, in {settings.model_dir}"


def _is_over(settings: config.Config, step: int) -> bool:
    """Tells whether nothing follows the last step, or it has been done."""
    is_wanted = settings.eval is not None or settings.export is not None
    return not is_wanted or checkpoints.is_finished(settings.model_dir, step)


def evaluate(settings: config.Config, display: progress.Display) -> dict[str, Any]:
    """Evaluates the last checkpoint.

    Returns:
        Metrics by name, with `loss` and `global_step`.
    """
    checkpoints.require(settings.model_dir)
    step = checkpoints.step_of(settings.model_dir)
    display.say(
        f"{settings.name}: evaluating {settings.model_dir} at step {step}, "
        f"{estimators.towers_of(settings)}"
    )
    made = estimators.build(settings)
    input_fn = _input(settings, "eval")
    with checkpoints.naming_full_disk(settings.model_dir), display:
        return _evaluate(made, input_fn, settings, display, None)


def predict(
    settings: config.Config,
    display: progress.Display,
    saved_model: exported.Source | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields predictions, row by row, in the order of the input.

    Args:
        settings: The config.
        display: Where progress goes.
        saved_model: What predicts; None: the last checkpoint.
    """
    input_fn = _input(settings, "predict")
    keys = settings.predict.keys
    if saved_model is not None:
        rows = exported.rows(saved_model, input_fn, keys, display.say)
    else:
        checkpoints.require(settings.model_dir)
        rows = estimators.build(settings, keys=keys).predict(input_fn, predict_keys=keys)
    with display:
        task = display.task("predict", None, every=10_000, unit="rows")
        with reading.naming(settings, "predict"):
            for count, row in enumerate(rows, start=1):
                yield row if isinstance(row, dict) else {"prediction": row}
                task.update(count)
        task.finish()


def export(settings: config.Config) -> str:
    """Exports the last checkpoint as a SavedModel; returns its path."""
    checkpoints.require(settings.model_dir)
    with checkpoints.naming(settings.model_dir):
        return exports.Exports(settings, estimators.build(settings), _inputs_of(settings)).save()


def verify(settings: config.Config, display: progress.Display) -> verification.Verification:
    """Compares the towers of a config with one device, on the training data.

    Returns:
        What was found; nothing is trained or written.
    """
    described = estimators.describe(settings)
    input_fn = _input(settings, "train", cached=False)  # of which some batches are read, often
    with display:
        task = display.task("verify", None, every=1, unit="rounds")
        try:
            with reading.naming(settings, "train"):
                return verification.verify(
                    described.model_fn,
                    input_fn,
                    optimizer_fn=described.optimizer_fn,
                    devices=described.devices,
                    params=described.params,
                    config=described.config,
                    watch=task.update_of,
                    **described.options,
                )
        finally:
            task.finish()


class _Training:
    """One call of Estimator.train, with evaluations at its checkpoints."""

    def __init__(
        self,
        settings: config.Config,
        display: progress.Display,
        stop: interrupts.StopRequest,
        start: int,
    ):
        self._settings = settings
        self._display = display
        self._stop = stop
        self._losses = progress.LossHook()
        self._estimator = estimators.build(settings, self._watch)
        self._input = _input(settings, "train")
        self._eval_input = _input(settings, "eval") if settings.eval is not None else None
        self._exports = None
        if settings.export is not None:
            self._exports = exports.Exports(settings, self._estimator, _inputs_of(settings))
        self._task = display.task(
            "train", settings.train.steps, start=start, every=settings.train.log_every_steps
        )

    def train(self) -> int:
        """Trains; returns the step at which that ended."""
        checkpoints.note_finished(self._settings.model_dir, None)
        listeners = []
        if self._settings.eval is not None and self._settings.eval.every_steps:
            listeners.append(_Evaluations(self._settings, lambda: self._evaluate(is_final=False)))
        with reading.naming(self._settings, "train"):
            self._estimator.train(
                self._input,
                hooks=[self._losses],
                max_steps=self._settings.train.steps,
                saving_listeners=listeners,
            )
        self._task.finish()
        return checkpoints.step_of(self._settings.model_dir) or 0

    def finish(self) -> tuple[dict[str, Any] | None, str | None]:
        """Evaluates and exports what training came to; returns metrics and path."""
        found = None
        if self._settings.eval is not None:
            found = self._evaluate(is_final=True)
        else:
            self._export(None, is_final=True)
        if self._exports is None or not self._settings.export.after_training:
            return found, None
        return found, self._exports.save()

    def _evaluate(self, is_final: bool) -> dict[str, Any]:
        """Evaluates the newest checkpoint, shows the metrics in one line, exports."""
        found = _evaluate(
            self._estimator, self._eval_input, self._settings, self._display, self._stop
        )
        step = found.get("global_step")
        self._display.say(f"evaluated at step {step}: {report.summary_line(found)}")
        self._export(found, is_final)
        self._task.pause()
        return found

    def _export(self, metrics: dict[str, Any] | None, is_final: bool) -> None:
        if self._exports is not None:
            for name, path in self._exports.run_exporters(metrics, is_final).items():
                self._display.say(f"exported {name}: {path}")

    def _watch(self, loss: tf.Tensor) -> progress.TrainingHook:
        self._losses.loss = loss
        return progress.TrainingHook(self._task, loss, self._stop)


class _Evaluations(tf1.train.CheckpointSaverListener):
    """Evaluates at the first checkpoint after each `eval.every_steps` steps.

    The last step of a training is left out: an evaluation follows it anyhow.
    """

    def __init__(self, settings: config.Config, evaluate_now: Callable[[], Any]):
        self._every = settings.eval.every_steps
        self._last_step = settings.train.steps
        self._evaluate_now = evaluate_now
        self._rounds: int | None = None

    def after_save(self, session: Any, global_step_value: int) -> None:
        """See base class."""
        rounds = int(global_step_value) // self._every
        is_due = self._rounds is not None and rounds > self._rounds
        self._rounds = rounds
        if is_due and global_step_value < self._last_step:
            self._evaluate_now()


def _evaluate(
    made: Any,
    input_fn: Callable[[], tf.data.Dataset],
    settings: config.Config,
    display: progress.Display,
    stop: interrupts.StopRequest | None,
) -> dict[str, Any]:
    task = display.task("evaluate", settings.eval.steps, every=1000)
    try:
        hook = progress.EvaluationHook(task, stop)
        with reading.naming(settings, "eval"):
            found = made.evaluate(input_fn, steps=settings.eval.steps, hooks=[hook])
        if not hook.done:
            raise errors.RunError("eval.input: must have rows, has none. Check its files.")
        return found
    finally:
        task.finish()


def _stopped_text(settings: config.Config, step: int) -> str:
    if step < settings.train.steps:
        then = "The same command continues from there."
    else:
        then = "Training is over; the same command does what follows it."
    return f"stopped at step {step}; a checkpoint is saved in {settings.model_dir}. {then}"


def _inputs_of(settings: config.Config) -> Callable[[str], Callable[[], tf.data.Dataset]]:
    return lambda section: _input(settings, section)


def _input(
    settings: config.Config, section: str, cached: bool = True
) -> Callable[[], tf.data.Dataset]:
    modes = {
        "train": estimator.ModeKeys.TRAIN,
        "eval": estimator.ModeKeys.EVAL,
        "predict": estimator.ModeKeys.PREDICT,
    }
    source = getattr(settings, section).input
    if not cached and hasattr(source, "cache"):
        source = source.model_copy(update={"cache": False})
    return inputs.input_fn(source, f"{section}.input", modes[section], settings.params)
