"""A worker that is not the chief: it makes the steps, and writes nothing to model_dir."""

from replicate.app.cluster import tasks
from replicate.app.config import config
from replicate.app.console import interrupts, progress
from replicate.app.runs import checkpoints
from replicate.app.training import goals, steps, towers, trainings

__all__ = ["follow"]


def follow(
    settings: config.Config, display: progress.Display, task: tasks.Task
) -> trainings.Trained:
    """Makes the steps of a training together with its chief; returns where that ended.

    Args:
        settings: The config.
        display: Where progress goes.
        task: Which worker this is.

    Raises:
        Interrupted: If a signal came.
    """
    start = checkpoints.step_of(settings.model_dir) or 0
    goal = goals.Goal(settings, start, task)
    if goal.reason_at(start) is not None:
        display.say(f"{settings.model_dir} is at step {start} already; no step is left to make.")
        return trainings.Trained(start, False, None, None)
    display.say(f"{settings.name}: {task.name}, {towers.text_of(settings, task)}")
    with interrupts.StopRequest() as stop, display:
        made = steps.Steps(settings, display, task, goal, start, stop)
        step = made.make()
        if stop.requested:
            raise interrupts.Interrupted(
                f"{task.name} stopped at step {step}; the chief saves the checkpoint"
            )
    if step == start:
        display.say(f"{task.name} has made no step: none was left, or its input has no rows")
    else:
        display.say(f"{task.name} has made its last step, {step}")
    return trainings.Trained(step, True, None, None)
