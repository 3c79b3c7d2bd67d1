"""The part of each task in a training, from the last checkpoint to its end.

The chief, or a process that is alone, trains and does what follows; nobody else writes to
model_dir. Another worker makes the steps. An evaluator, where there is one, does what follows.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from replicate import errors
from replicate.app.config import config, files
from replicate.app.data import reading, section_inputs
from replicate.app.runs import checkpoints, records
from replicate.app.training import device_choice, estimators, outcomes, running, steps
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts, progress

_PAUSE = 0.5  # seconds between two looks for a checkpoint


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
    changes = _changes(run)
    if goal.is_reached and _is_over(run.settings, start):
        early = goal.reason_at(start) == running.EARLY_STOPPING
        why = f", where it stopped early ({goal.early_reason()})" if early else ""
        say(f"{run.model_dir} is at step {start} already{why}; nothing left to do.")
        for change in changes:
            say(f"config: {change}")
        say(f"Train on with {goal.more}, or begin again with --fresh.")
        return Trained(start, False)
    say(f"{run.settings.name}: {run.text}")
    began = time.monotonic()
    try:
        with run.stop, run.display:
            training = _Training(run, goal, changes)
            done = training.to_its_end()
    except interrupts.Interrupted:
        raise interrupts.Interrupted(_stopped_text(run, goal)) from None
    _tell_end(say, goal, done.step, training.ended_by)
    took = progress.clock(time.monotonic() - began)
    say(f"done at step {done.step} in {took}; checkpoints and summaries: {run.model_dir}")
    return done


def _announce(run: running.Run, goal: running.Goal, changes: Sequence[str]) -> None:
    """Says what begins, and what differs from the run before."""
    say, start = run.display.say, goal.start
    if goal.is_reached:
        left = " and ".join(_left(run.settings))
        are = "is" if left == "evaluation" else "are"
        say(f"{run.model_dir} is at step {start} already; {left} {are} left.")
    elif start:
        say(f"continuing from step {start} in {run.model_dir}, {goal.text('step ')}")
    else:
        say(f"training from step 0 {goal.text()}, in {run.model_dir}")
    for change in changes if start else ():
        say(f"config: {change}")  # of a run that has begun


def _changes(run: running.Run) -> list[str]:
    """Returns in which keys the config differs from that of the run before."""
    kept = records.Records(run.model_dir, run.display.say)
    return kept.changes(config.to_yaml(run.settings, run.model_dir))


def _tell_end(say: Callable[[str], None], goal: running.Goal, step: int, ended_by: str) -> None:
    of = "" if goal.end is None else f" of {goal.end}"
    if ended_by == running.EARLY_STOPPING:
        say(f"stopped early at step {step}: {goal.early_reason()}.")
    elif ended_by == running.INPUT:
        say(f"train.input came to its end at step {step}{of}.")
    elif ended_by == running.TIME:
        say(f"train.max_time was over at step {step}{of}; the same command goes on from there.")
    elif ended_by == running.HOOK:
        say(f"a hook ended training at step {step}{of}.")


def _is_over(settings: config.Config, step: int) -> bool:
    """Tells whether nothing follows the last step, or it has been done."""
    return not _left(settings) or checkpoints.is_finished(settings.model_dir, step)


def _left(settings: config.Config) -> list[str]:
    """Returns what follows the last step."""
    wanted = {"evaluation": settings.eval, "exports": settings.export}
    return [name for name, section in wanted.items() if section is not None]


def _stopped_text(run: running.Run, goal: running.Goal) -> str:
    model_dir = run.model_dir
    step = checkpoints.step_of(model_dir)
    if step is None:
        return f"stopped before the first step; no checkpoint is saved in {model_dir} yet."
    left = " and ".join(_left(run.settings))
    then = f"Training is over{left and f'; left to the same command: {left}'}."
    if goal.reason_at(step) is None:
        then = "The same command continues from there."
    return f"stopped at step {step}; a checkpoint is saved in {model_dir}. {then}"


class _Training:
    """The steps, and what follows from their checkpoints; an evaluator may have this half.

    Attributes:
        ended_by: What has ended it, in a word.
    """

    def __init__(self, run: running.Run, goal: running.Goal, changes: Sequence[str]):
        self.ended_by = ""
        self._changes = changes
        self._run = run
        self._goal = goal
        self._steps = steps.Steps(run, goal)
        self._outcomes: outcomes.Outcomes | None = None
        if not run.task.has_evaluator:
            self._outcomes = outcomes.Outcomes(run, goal, self._steps.estimator)

    def to_its_end(self) -> Trained:
        """Trains, and does what follows.

        Raises:
            Interrupted: If a signal came, here or in another worker.
        """
        start = self._goal.start
        was_finished = checkpoints.is_finished(self._run.model_dir, start)
        if self._goal.is_reached:
            self._write_down()
            step = start
        else:
            step = self._train()
        self.ended_by = self._goal.reason_at(step) or self._steps.ended_by
        if self._steps.were_stopped:
            raise interrupts.Interrupted
        if step == start and self.ended_by == running.INPUT:
            if not section_inputs.passed_over(self._run.settings, start):
                raise reading.without_rows(self._run.settings, "train")
            has_new_rows = any(one.startswith("train.input") for one in self._changes)
            if start and has_new_rows:
                raise errors.RunError(
                    "train.input: is another one than that of the run before, and has no rows "
                    f"behind the {start} batches that are passed over. Set repeat: true, or choose "
                    "another model_dir."
                )
            if was_finished and self._outcomes is not None:  # all rows were read before
                checkpoints.note_finished(self._run.model_dir, step)
                return Trained(step, False)
        if self._outcomes is not None:
            newest = self._steps.estimator.latest_checkpoint()
            return Trained(step, True, *self._outcomes.finish(step, self.ended_by, newest))
        checkpoints.note_trained(self._run.model_dir, step, self._goal.wanted)
        return Trained(step, True)

    def _train(self) -> int:
        """Makes the steps; returns the step at which that ended."""
        goal, every = self._goal, self._run.settings.evaluated_every
        if self._outcomes is None:
            return self._steps.make([_Judgements(goal)], self._begin)
        if every is None:
            return self._steps.make(begin=self._begin)
        evaluate = functools.partial(self._evaluate, self._outcomes)
        # The run before may have been stopped in an evaluation, which early stopping misses.
        if goal.stopping is not None and goal.start // every > goal.stopping.last_step // every:
            evaluate()
            if goal.early_reason() is not None:
                return goal.start
        listener = _Evaluations(every, goal, evaluate, self._run.task.size)
        return self._steps.make([listener], self._begin)

    def _begin(self) -> None:
        checkpoints.note_begun(self._run.model_dir)
        self._write_down()

    def _write_down(self) -> None:
        """Writes down, and says, what begins, once nothing is found wrong with it."""
        run = self._run
        settings, kept = run.settings, records.Records(run.model_dir, run.display.say)
        folder = files.relative(settings.folder, run.model_dir)
        kept.write_config(config.to_yaml(settings, run.model_dir), folder)
        by_default = "multi_worker" if run.task.is_together else "parameter_server"
        kept.write_run(
            towers=device_choice.devices_of(settings),
            strategy=settings.strategy or by_default,
            workers=run.task.size,
            start=self._goal.start,
            command=run.command,
        )
        _announce(run, self._goal, self._changes)

    def _evaluate(self, following: outcomes.Outcomes) -> None:
        began = time.monotonic()
        following.evaluate(self._steps.estimator.latest_checkpoint())
        self._steps.leave_out(time.monotonic() - began)


class _Judgements(tf1.train.CheckpointSaverListener):
    """Looks at each checkpoint whether the evaluator's evaluations end the training."""

    def __init__(self, goal: running.Goal):
        self._goal = goal

    def after_save(self, session: tf1.Session, global_step_value: int) -> bool:
        """Returns whether training is to end."""
        if self._goal.stopping is not None:
            self._goal.stopping.read(int(global_step_value))
        return self._goal.early_reason() is not None


class _Evaluations(tf1.train.CheckpointSaverListener):
    """Evaluates at each multiple of `eval.every_steps`, where a checkpoint is saved.

    The last step of a training is left out: an evaluation follows it anyhow.
    """

    def __init__(
        self, every: int, goal: running.Goal, evaluate: Callable[[], None], num_workers: int
    ):
        self._every = every
        self._goal = goal
        self._evaluate = evaluate
        self._num_workers = num_workers
        self._rounds: int | None = None

    def after_save(self, session: tf1.Session, global_step_value: int) -> bool:
        """Returns whether training is to end."""
        rounds = int(global_step_value) // self._every
        is_due = self._rounds is not None and rounds > self._rounds
        self._rounds = rounds
        is_last = self._goal.end is not None and global_step_value >= self._goal.end
        if not is_due or is_last:
            return False
        try:
            self._evaluate()
        except interrupts.Interrupted:
            if self._num_workers == 1:
                raise
            return True  # as a session ends, so that the other workers are told
        return self._goal.early_reason() is not None


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


def evaluate_new(run: running.Run) -> Trained:
    """Evaluates new checkpoints until the last one: the evaluator's part.

    An evaluation is due where it would be the chief's: at each multiple of `eval.every_steps`,
    and at the end. Of checkpoints that came meanwhile it takes the newest one.

    Raises:
        Interrupted: If a signal came.
    """
    settings, display, model_dir = run.settings, run.display, run.model_dir
    display.say(f"{settings.name}: {run.task.name} evaluates checkpoints in {model_dir}")
    start = checkpoints.step_of(model_dir) or 0
    every = settings.evaluated_every or math.inf
    with run.stop, display:
        goal = running.Goal(run, start)
        made = estimators.build(estimators.describe(settings))
        following = outcomes.Outcomes(run, goal, made)
        rounds = start // every
        display.state("waits")
        while not run.stop.requested:
            path = checkpoints.path_in(model_dir) or ""
            step = checkpoints.step_in(path) if path else None
            if step is not None and is_last(run, goal, step):
                if checkpoints.is_finished(model_dir, step):
                    return Trained(step, False)
                ended_by = goal.reason_at(step) or running.INPUT
                return Trained(step, True, *following.finish(step, ended_by, path))
            if step is not None and step // every > rounds:
                rounds = step // every
                _evaluate(following, path, step, display)
            else:
                time.sleep(_PAUSE)
    raise interrupts.Interrupted("the evaluator stopped; the same command does what is left")


def is_last(run: running.Run, goal: running.Goal, step: int) -> bool:
    """Tells an evaluator whether a checkpoint is the training's last one.

    With parameter servers the steps of other workers go on while the chief saves: a checkpoint
    of the last step may be followed by another one, and the chief says which was the last.

    Args:
        run: The evaluator's run.
        goal: Where the training ends.
        step: The step of the checkpoint.
    """
    is_end = goal.end is not None and step >= goal.end
    if run.task.servers:
        is_end = is_end and checkpoints.is_finished(run.model_dir, step)
    return is_end or checkpoints.is_trained(run.model_dir, step, goal.wanted)


def _evaluate(
    following: outcomes.Outcomes, path: str, step: int, display: progress.Display
) -> None:
    """Evaluates a checkpoint that its chief may delete meanwhile."""
    display.state("evaluates")
    try:
        following.evaluate(path)
    except (errors.RunError, tf.errors.OpError):
        if tf.io.gfile.exists(f"{path}.index"):
            raise
        display.say(
            f"the checkpoint of step {step} was deleted while it was evaluated; keep more with "
            "train.keep_checkpoint_max"
        )
    display.state("waits")
