"""The task of a cluster that evaluates while others train, and does what follows from that."""

import time

from replicate import errors
from replicate.app.cluster import tasks
from replicate.app.config import config
from replicate.app.console import interrupts, progress
from replicate.app.runs import checkpoint_choice, checkpoints
from replicate.app.training import estimators, goals, outcomes, trainings
from replicate.compat.tensorflow import tf

__all__ = ["evaluate_new", "is_last"]

_PAUSE = 0.5  # seconds between two looks for a checkpoint


def evaluate_new(
    settings: config.Config, display: progress.Display, task: tasks.Task
) -> trainings.Trained:
    """Evaluates new checkpoints until the last one; returns what that came to.

    It is due where it would be the chief's: at the first checkpoint after each
    `eval.every_steps` steps, and at the end.

    Args:
        settings: The config.
        display: Where progress goes.
        task: The evaluator.

    Raises:
        Interrupted: If a signal came.
    """
    display.say(f"{settings.name}: {task.name}, of checkpoints in {settings.model_dir}")
    start = checkpoints.step_of(settings.model_dir) or 0
    with interrupts.StopRequest() as stop, display:
        goal = goals.Goal(settings, start, task)
        following = outcomes.Outcomes(settings, display, stop, goal, estimators.build(settings))
        rounds = _rounds(settings, start)
        display.state("waits")
        while not stop.requested:
            path = checkpoint_choice.path_in(settings.model_dir)
            step = None if path is None else checkpoints.step_in(path)
            if step is not None and is_last(settings, goal, step, task):
                if checkpoints.is_finished(settings.model_dir, step):
                    return trainings.Trained(step, False, None, None)
                ended_by = goal.reason_at(step) or goals.INPUT
                found, exported = following.finish(step, ended_by, path)
                return trainings.Trained(step, True, found, exported)
            if step is not None and _rounds(settings, step) > rounds:
                rounds = _rounds(settings, step)
                _evaluate(following, path, step, display)
            else:
                time.sleep(_PAUSE)
    raise interrupts.Interrupted("the evaluator stopped; the same command does what is left")


def _rounds(settings: config.Config, step: int) -> int:
    every = settings.eval.every_steps if settings.eval is not None else None
    return 0 if every is None else step // every


def is_last(settings: config.Config, goal: goals.Goal, step: int, task: tasks.Task) -> bool:
    """Tells whether a checkpoint is the training's last one.

    With parameter servers the steps of other workers go on while the chief saves: a checkpoint
    of the last step may be followed by another one, and the chief says which was the last.

    Args:
        settings: The config.
        goal: Where the training ends.
        step: The step of the checkpoint.
        task: The evaluator.
    """
    is_end = goal.end is not None and step >= goal.end
    if task.has_servers:
        is_end = is_end and checkpoints.is_finished(settings.model_dir, step)
    return is_end or checkpoints.is_trained(settings.model_dir, step, goal.wanted)


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
