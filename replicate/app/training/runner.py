"""The commands that run a model: one function each, from a checked config."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from replicate import errors, verification
from replicate.app.config import config, sections
from replicate.app.data import reading, section_inputs
from replicate.app.runs import averaging, checkpoints, folders
from replicate.app.training import (
    device_choice,
    estimators,
    exports,
    outcomes,
    running,
    trainings,
)
from replicate.console import interrupts, progress
from replicate.strategy.cluster import membership

_T = TypeVar("_T")


def train(settings: config.Config, display: progress.Display) -> trainings.Trained:
    """Trains to its end, from the last checkpoint if there is one.

    In a cluster (`TF_CONFIG`) this process has a part of that; see `trainings`.

    Args:
        settings: The config.
        display: Where progress goes.

    Raises:
        Interrupted: If a signal came; a checkpoint is saved.
        RunError: If another process trains in the same directory.
        ConfigError: If `TF_CONFIG` is malformed, or the config is none for such a cluster.
    """
    task = device_choice.task_of(settings)
    run = running.Run(settings, display, interrupts.StopRequest(), task)
    if task.position != 0:
        return _beside_chief(run)

    def trained(fallen_back_to: str | None) -> trainings.Trained:
        if fallen_back_to and (task.size > 1 or task.servers):
            raise errors.ClusterError(
                "model_dir: all tasks must begin at the same checkpoint, but others may have begun "
                f"at a damaged one. The same command continues from {fallen_back_to}."
            )
        return trainings.train(run)

    folders.make(run.model_dir, "model_dir")
    with checkpoints.naming_full_disk(run.model_dir), folders.training(run.model_dir):
        return checkpoints.retried(run.model_dir, trained, renames=True)


def _beside_chief(run: running.Run) -> trainings.Trained:
    """Does the part of a task that is no chief's; the chief goes back from damaged checkpoints.

    Raises:
        ClusterError: If one cannot be read.
    """
    settings, task = run.settings, run.task
    if task.own.job == "evaluator":
        run.display.say(f"{task.name}: the chief evaluates; there is nothing to do here")
        return trainings.Trained(0, False)
    if task.own.job == "ps":
        run.display.say(f"{settings.name}: {task.name}, keeps variables until it is ended")
        # A server has nothing to save; to take it down in order may fail while others are there.
        with interrupts.at_once():
            membership.serve(task)
    try:
        return trainings.follow(run)
    except checkpoints.Unreadable as e:
        raise errors.ClusterError(
            f"model_dir: all tasks must be able to read {e.path or run.model_dir}, but "
            f"{task.name} cannot. Look at what the chief says, then give the same command."
        ) from e


def evaluate(
    settings: config.Config,
    display: progress.Display,
    named: str | None = None,
    each: bool = False,
) -> list[outcomes.Metrics]:
    """Evaluates the newest checkpoint, whose metrics are in the curve of its training, or others.

    Args:
        settings: The config.
        display: Where progress goes.
        named: What `--checkpoint` says.
        each: Whether each checkpoint in model_dir is evaluated.

    Returns:
        Metrics by name, with `loss` and `global_step`, by rising steps.
    """
    run = running.Run(settings, display, interrupts.StopRequest())
    where, input_fn = run.text, section_inputs.input_fn(settings, "eval")
    curve = "checkpoints" if each or named is not None else None

    def evaluated(path: str) -> outcomes.Metrics:
        shown, step = path if curve else settings.model_dir, checkpoints.step_in(path)
        display.say(f"{settings.name}: evaluating {shown} at step {step}, {where}")
        made = estimators.build(estimators.describe(settings), checkpoint=path)
        with checkpoints.naming_full_disk(settings.model_dir), display:
            return outcomes.evaluate(run, made, input_fn, path, curve)

    paths = list(checkpoints.all_of(settings.model_dir).values()) if each else []
    return [evaluated(path) for path in paths] or [_of(settings, named, evaluated)]


def predict(
    settings: config.Config,
    display: progress.Display,
    named: str | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Yields predictions, row by row, in the order of the input.

    Args:
        settings: The config.
        display: Where progress goes.
        named: What `--checkpoint` says; else the newest one is taken.
    """
    keys = settings.section(sections.Predict).keys or ()

    def restored(checkpoint: str) -> Iterator[Any]:
        """Returns the rows, once the first one has shown that the checkpoint is whole."""
        made = estimators.build(estimators.describe(settings), keys=keys, checkpoint=checkpoint)
        input_fn = section_inputs.input_fn(settings, "predict")
        with reading.naming(settings, "predict", checkpoint):
            rows = made.predict(input_fn, predict_keys=keys or None, checkpoint_path=checkpoint)
            return itertools.chain(list(itertools.islice(rows, 1)), rows)

    with display:
        task = display.task("predict", None, unit="rows")
        rows = _of(settings, named, restored)
        with reading.naming(settings, "predict"):
            for count, row in enumerate(rows, start=1):
                yield row if isinstance(row, dict) else {"prediction": row}
                task.update(count)
        task.finish()


def export(settings: config.Config, named: str | None = None) -> str:
    """Exports a checkpoint as a SavedModel; returns its path.

    Args:
        settings: The config.
        named: What `--checkpoint` says; else the newest one is taken.
    """

    def save(checkpoint: str) -> str:
        made = estimators.build(estimators.describe(settings), checkpoint=checkpoint)
        with checkpoints.naming(settings.model_dir, checkpoint):
            return exports.saver(settings, made)(checkpoint)

    return _of(settings, named, save)


def average(settings: config.Config, last: int) -> tuple[str, list[str]]:
    """Averages the weights of the newest checkpoints into a new one, in `averaged` of model_dir.

    Args:
        settings: The config.
        last: How many.

    Returns:
        The path of the new one, and those that it was made of.

    Raises:
        RunError: If there are not as many, or they are not of one model.
    """
    known = list(checkpoints.all_of(settings.model_dir).values())
    if len(known) < last:
        raise errors.RunError(
            f"--last: must be at most as many as there are checkpoints, got {last}; "
            f"{settings.model_dir} has {len(known)}. Keep more with train.keep_checkpoint_max."
        )
    folder = os.path.join(settings.model_dir, checkpoints.AVERAGED)
    folders.make(folder, "model_dir")
    with checkpoints.naming_full_disk(settings.model_dir):
        return averaging.average(known[-last:], folder), known[-last:]


def verify(settings: config.Config, display: progress.Display) -> verification.Verification:
    """Compares the towers of a config with one device, on the training data.

    Returns:
        What was found; nothing is trained or written.
    """
    described = estimators.describe(settings)
    # Some batches of it are read, and often.
    input_fn = section_inputs.input_fn(settings, "train", cached=False)
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


def _of(settings: config.Config, named: str | None, work: Callable[[str], _T]) -> _T:
    """Returns what is made of the checkpoint that is named, or else of the newest."""
    model_dir = settings.model_dir
    if named is not None:
        return work(checkpoints.chosen(model_dir, named))
    return checkpoints.retried(model_dir, lambda path: work(path or checkpoints.newest(model_dir)))
