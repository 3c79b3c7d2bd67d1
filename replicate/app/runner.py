"""The commands that run a model: one function each, from a checked config."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replicate import errors, estimator
from replicate.app import (
    config,
    estimators,
    failures,
    input_config,
    inputs,
    interrupts,
    progress,
    report,
    serving,
)
from replicate.compat.tensorflow import tf, tf1

__all__ = ["Trained", "evaluate", "export", "predict", "train"]


class Trained(NamedTuple):
    """What a training came to.

    Attributes:
        step: The global step it ended at.
        is_new: Whether there was anything left to do.
        metrics: Those of the last evaluation; None where there was none.
    """

    step: int
    is_new: bool
    metrics: dict[str, Any] | None


def train(settings: config.Config, display: progress.Display) -> Trained:
    """Trains to `train.steps`, from the last checkpoint if there is one.

    Raises:
        Interrupted: If a signal came; a checkpoint is saved.
    """
    _make_model_dir(settings.model_dir)
    start = _saved_step(settings.model_dir) or 0
    if start >= settings.train.steps:
        display.say(f"{settings.model_dir} is at step {start} already; nothing left to do.")
        return Trained(start, False, None)
    if start:
        display.say(f"continuing from step {start} in {settings.model_dir}")
    with interrupts.StopRequest() as stop, display:
        run = _Training(settings, display, stop, start)
        try:
            with _naming_data(settings, "train"):
                step = run.train()
            found = run.evaluate() if run.is_to_evaluate else None
        except interrupts.Interrupted:
            step = _saved_step(settings.model_dir) or 0
    if stop.requested:
        raise interrupts.Interrupted(
            f"stopped at step {step}; a checkpoint is saved in {settings.model_dir}. "
            "The same command continues from there."
        )
    if step < settings.train.steps:
        display.say(f"train.input came to its end at step {step} of {settings.train.steps}.")
    return Trained(step, True, found)


def evaluate(settings: config.Config, display: progress.Display) -> dict[str, Any]:
    """Evaluates the last checkpoint.

    Returns:
        Metrics by name, with `loss` and `global_step`.
    """
    _need_checkpoint(settings)
    made = estimators.build(settings)
    input_fn = _input(settings, "eval")
    with display:
        return _evaluate(made, input_fn, settings, display, None)


def predict(settings: config.Config, display: progress.Display) -> Iterator[dict[str, Any]]:
    """Yields predictions of the last checkpoint, row by row, in the order of the input."""
    _need_checkpoint(settings)
    made = estimators.build(settings)
    input_fn = _input(settings, "predict")
    keys = list(settings.predict.keys) if settings.predict.keys else None
    with display:
        task = display.task("predict", None, every=10_000, unit="rows")
        with _naming_data(settings, "predict"):
            for count, row in enumerate(made.predict(input_fn, predict_keys=keys), start=1):
                yield row if isinstance(row, dict) else {"prediction": row}
                task.update(count)
        task.finish()


def export(settings: config.Config) -> tuple[str, dict[str, Any]]:
    """Exports the last checkpoint as a SavedModel.

    Returns:
        Its path, and its signatures as `serving.signatures` has them.
    """
    _need_checkpoint(settings)
    made = estimators.build(settings)
    wanted = settings.export or config.Export()
    element_spec = None
    if wanted.inputs is None:
        element_spec = inputs.element_of(_input(settings, _section_to_serve(settings)))
    receiver_fn = serving.receiver_fn(wanted.inputs, element_spec)
    base = wanted.directory or os.path.join(settings.model_dir, "export")
    path = _save(made, base, receiver_fn, wanted.towers)
    return path, serving.signatures(path)


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
        self._estimator = estimators.build(settings, self._watch)
        self._input = _input(settings, "train")
        self._eval_input = _input(settings, "eval") if settings.eval is not None else None
        self._task = display.task(
            "train", settings.train.steps, start=start, every=settings.train.log_every_steps
        )

    @property
    def is_to_evaluate(self) -> bool:
        """Whether an evaluation follows."""
        return self._settings.eval is not None and not self._stop.requested

    def train(self) -> int:
        """Trains; returns the step at which that ended."""
        listeners = []
        if self._settings.eval is not None and self._settings.eval.every_steps:
            listeners.append(_Evaluations(self._settings, self.evaluate))
        self._estimator.train(
            self._input, max_steps=self._settings.train.steps, saving_listeners=listeners
        )
        self._task.finish()
        return _saved_step(self._settings.model_dir) or 0

    def evaluate(self) -> dict[str, Any]:
        """Evaluates the newest checkpoint and shows the metrics in one line."""
        found = _evaluate(
            self._estimator, self._eval_input, self._settings, self._display, self._stop
        )
        self._task.pause()
        step = found.get("global_step")
        self._display.say(f"evaluated at step {step}: {report.summary_line(found)}")
        return found

    def _watch(self, loss: tf.Tensor) -> progress.TrainingHook:
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
        hooks = [progress.EvaluationHook(task, stop)]
        with _naming_data(settings, "eval"):
            return made.evaluate(input_fn, steps=settings.eval.steps, hooks=hooks)
    finally:
        task.finish()


def _save(made: Any, base: str, receiver_fn: Callable[[], Any], towers: str) -> str:
    """Writes a SavedModel below `base`; returns its path."""
    del towers
    try:
        return os.fsdecode(made.export_saved_model(base, receiver_fn))
    except OSError as e:
        raise errors.RunError(
            f"export.directory: {base} must be a directory that can be written: {e.strerror or e}."
        ) from e


def _input(settings: config.Config, section: str) -> Callable[[], tf.data.Dataset]:
    modes = {
        "train": estimator.ModeKeys.TRAIN,
        "eval": estimator.ModeKeys.EVAL,
        "predict": estimator.ModeKeys.PREDICT,
    }
    source = getattr(settings, section).input
    return inputs.input_fn(source, f"{section}.input", modes[section], settings.params)


@contextlib.contextmanager
def _naming_data(settings: config.Config, section: str) -> Iterator[None]:
    """Says which input it was, where reading it fails while a session runs."""
    try:
        yield
    except tf1.train.NanLossDuringTrainingError as e:
        raise errors.RunError(
            "the loss must stay a number, but became NaN. Lower the learning rate, set "
            "clip_global_norm, or look for bad values in train.input."
        ) from e
    except tf.errors.OpError as e:
        is_reading = e.op is not None and e.op.type.startswith("Iterator")
        if not is_reading and not isinstance(e, tf.errors.DataLossError):
            raise
        source = getattr(settings, section).input
        named = source.function if isinstance(source, input_config.Function) else source.file
        named = ", ".join(named) if isinstance(named, tuple) else named
        raise errors.RunError(
            f"{section}.input: {named}: must be readable as the config says: "
            f"{failures.first_lines(e)}"
        ) from e


def _section_to_serve(settings: config.Config) -> str:
    for section in ("predict", "eval", "train"):
        if getattr(settings, section) is not None:
            return section
    raise errors.RunError(
        "export.inputs: must be given where the config has no predict, eval or train section. "
        "Write each feature's dtype and shape there."
    )


def _saved_step(model_dir: str) -> int | None:
    """Returns the global step of the newest checkpoint; None where there is none."""
    path = tf.train.latest_checkpoint(model_dir)
    if path is None:
        return None
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(tf1.GraphKeys.GLOBAL_STEP):
        return None
    return int(reader.get_tensor(tf1.GraphKeys.GLOBAL_STEP))


def _need_checkpoint(settings: config.Config) -> None:
    if tf.train.latest_checkpoint(settings.model_dir) is None:
        raise errors.RunError(
            f"model_dir: {settings.model_dir} must hold a checkpoint, there is none. "
            "Run `replicate train` first, or check model_dir; it is looked up from the "
            "working directory."
        )


def _make_model_dir(path: str) -> None:
    try:
        tf.io.gfile.makedirs(path)
        if "://" not in path and not os.access(path, os.W_OK):
            raise PermissionError(0, "it is not")
    except (OSError, tf.errors.OpError) as e:
        raise errors.RunError(
            f"model_dir: {path} must be a directory that can be written: "
            f"{getattr(e, 'strerror', None) or e}. Check the path and its permissions."
        ) from e
