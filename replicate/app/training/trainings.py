"""The part of each task in a training, from the last checkpoint to its end.

All workers make the steps, together. What follows from them is the chief's, or of a process that is
alone, and nobody else writes to model_dir: the lock, the run's records, checkpoints, summaries,
evaluations, the best checkpoint, exports. A worker that is no chief only makes steps.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from replicate import errors
from replicate.app.config import config, documents, files
from replicate.app.data import reading, section_inputs
from replicate.app.runs import checkpoints, records
from replicate.app.training import outcomes, running, steps
from replicate.console import interrupts, progress


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
    metrics: outcomes.Metrics | None = None
    path: str | None = None


def train(run: running.Run) -> Trained:
    """Trains to its end: the chief's part.

    Where a run was stopped between its last step and its end, only the end is made up for:
    the last evaluation and what is exported after it. Nobody else may train in model_dir
    meanwhile.

    Raises:
        Interrupted: If a signal came; a checkpoint is saved.
    """
    start = checkpoints.step_of(run.model_dir) or 0
    goal, say = running.Goal(run, start), run.display.say
    changes = records.changes(run.model_dir, config.to_yaml(run.settings, run.model_dir))
    is_left = run.settings.eval is not None or run.settings.export is not None
    if goal.is_reached and (records.is_finished(run.model_dir, start) or not is_left):
        reason, why = goal.reason_at(start), ""
        more = f"more --train.{reason}"
        if reason == running.EARLY_STOPPING:
            why = f", where it stopped early ({goal.early_reason(start)})"
            more = "a larger --train.early_stopping.patience"
        say(f"{run.model_dir} is at step {start} already{why}; nothing left to do.")
        for change in changes:
            say(f"config: {change}")
        say(f"Train on with {more}, or begin again in another --model-dir.")
        return Trained(start, False)
    say(f"{run.settings.name}: {run.text}")
    began = time.monotonic()
    try:
        with run.stop, run.display:
            done, ended_by = _trained(run, goal, changes)
    except interrupts.Interrupted:
        raise interrupts.Interrupted(_stopped_text(run, goal)) from None
    _tell_end(say, goal, done.step, ended_by)
    took = progress.clock(time.monotonic() - began)
    say(f"done at step {done.step} in {took}; checkpoints and summaries: {run.model_dir}")
    return done


def _tell_end(say: Callable[[str], None], goal: running.Goal, step: int, ended_by: str) -> None:
    at = f"at step {step}" + ("" if goal.end is None else f" of {goal.end}")
    told = {
        running.EARLY_STOPPING: f"stopped early at step {step}: {goal.early_reason(step)}.",
        running.INPUT: f"train.input came to its end {at}.",
        running.HOOK: f"a hook ended training {at}.",
    }
    if ended_by in told:
        say(told[ended_by])


def _stopped_text(run: running.Run, goal: running.Goal) -> str:
    model_dir = run.model_dir
    step = checkpoints.step_of(model_dir)
    if step is None:
        return f"stopped before the first step; no checkpoint is saved in {model_dir} yet."
    does = "continues from there" if goal.reason_at(step) is None else "does what follows training"
    return f"stopped at step {step}; a checkpoint is saved in {model_dir}. The same command {does}."


def _trained(run: running.Run, goal: running.Goal, changes: Sequence[str]) -> tuple[Trained, str]:
    """Makes the steps, and does what follows; returns what that came to, and what ended it."""
    start, settings = goal.start, run.settings
    training = steps.Steps(run, goal)
    following = outcomes.Outcomes(run, goal, training)
    begin = functools.partial(_write_down, run, goal, changes)
    if goal.is_reached:
        begin()
        step = start
    else:
        is_over = following.after_save(None, start)  # the run before may have been cut off
        step = start if is_over else training.make(following, begin)
    ended_by = goal.reason_at(step) or training.ended_by
    if training.were_stopped:
        raise interrupts.Interrupted
    if step == start and ended_by == running.INPUT:
        if not section_inputs.passed_over(settings, start):
            raise reading.without_rows(settings, "train")
        if start and any(one.startswith("train.input") for one in changes):
            raise errors.RunError(
                "train.input: is another one than that of the run before, and has no rows "
                f"behind the {start} batches that are passed over. Set repeat: true, or choose "
                "another model_dir."
            )
        if records.is_finished(run.model_dir, step):  # all rows were read before
            return Trained(step, False), ended_by
    return Trained(step, True, *following.finish(step, ended_by)), ended_by


def _write_down(run: running.Run, goal: running.Goal, changes: Sequence[str]) -> None:
    """Writes down, and says, what begins, and what differs from the run before."""
    settings, say, start = run.settings, run.display.say, goal.start
    folder = files.relative(settings.folder, run.model_dir)
    text = documents.record(config.to_yaml(settings, run.model_dir), folder)
    records.write(run.model_dir, records.CONFIG, text, say)
    if goal.is_reached:
        say(f"{run.model_dir} is at step {start} already; what follows training is left.")
    elif start:
        say(f"continuing from step {start} in {run.model_dir}, {goal.text('step ')}")
    else:
        say(f"training from step 0 {goal.text()}, in {run.model_dir}")
    for change in changes if start else ():
        say(f"config: {change}")  # of a run that has begun


def follow(run: running.Run) -> Trained:
    """Makes the steps together with the chief: the part of a worker that is not the chief.

    Raises:
        Interrupted: If a signal came.
    """
    start = checkpoints.step_of(run.model_dir) or 0
    goal, name, say = running.Goal(run, start), run.task.name, run.display.say
    if goal.is_reached:
        say(f"{run.model_dir} is at step {start} already; no step is left to make.")
        return Trained(start, False)
    say(f"{run.settings.name}: {name}, {run.text}")
    with run.stop, run.display:
        step = steps.Steps(run, goal).make()
        if run.stop.requested:
            raise interrupts.Interrupted(
                f"{name} stopped at step {step}; the chief saves the checkpoint"
            )
    if step == start:
        say(f"{name} has made no step: none was left, or its input has no rows")
    else:
        say(f"{name} has made its last step, {step}")
    return Trained(step, True)
