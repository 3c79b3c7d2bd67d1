"""Where a training ends: at a step, after epochs, or when evaluations get no better."""

from replicate.app.cluster import tasks
from replicate.app.config import config
from replicate.app.data import section_inputs
from replicate.app.training import early_stopping, towers

__all__ = ["EARLY_STOPPING", "EPOCHS", "HOOK", "INPUT", "STEPS", "Goal"]

STEPS, EPOCHS, EARLY_STOPPING = "steps", "epochs", "early_stopping"
INPUT, HOOK = "input", "hook"  # which no goal is, but which end trainings as well


class Goal:
    """All that may end a training.

    Args:
        settings: The config.
        start: The step that the run begins at.
        task: Which part of the training this process has.

    Attributes:
        epochs: The passes over the training data; None where they are not counted.
        stopping: What ends it early; None where nothing does.
    """

    def __init__(self, settings: config.Config, start: int, task: tasks.Task = tasks.ALONE):
        self._settings = settings
        self.stopping = None
        wanted = settings.train.early_stopping
        if wanted is not None:
            rule = early_stopping.Rule(
                wanted.metric, wanted.higher_is_better, wanted.patience, wanted.min_delta
            )
            self.stopping = early_stopping.EarlyStopping(settings.model_dir, rule, start)
        self.epochs = None
        if settings.train.epochs is not None:
            towers.text_of(settings)  # makes devices, before a session can start TensorFlow
            self.epochs = section_inputs.in_epochs(settings, start, task)

    @property
    def end(self) -> int | None:
        """The last step, where it is known."""
        ends = (self._settings.train.steps, self.epochs.end if self.epochs is not None else None)
        return min((end for end in ends if end is not None), default=None)

    @property
    def wanted(self) -> str:
        """What the config wants, in words that all tasks of a cluster know from the start."""
        return f"{self._settings.train.steps} steps, {self._settings.train.epochs} epochs"

    def reason_at(self, step: int) -> str | None:
        """Returns in a word what has ended a training at a step; None where nothing has."""
        steps = self._settings.train.steps
        if steps is not None and step >= steps:
            return STEPS
        if self.end is not None and step >= self.end:
            return EPOCHS
        return EARLY_STOPPING if self.early_reason() is not None else None

    def early_reason(self) -> str | None:
        """Returns why evaluations end it, in a sentence; None where they do not."""
        return None if self.stopping is None else self.stopping.reason()

    def text(self, unit: str = "") -> str:
        """Returns where it ends, for people: `to 12`; with a unit `to step 12`."""
        count = self._settings.train.epochs
        passes = "" if count is None else f"{count} epoch{'' if count == 1 else 's'}"
        if self.end is None:
            return f"for {passes}"
        is_by_epochs = self.epochs is not None and self.end == self.epochs.end
        return f"to {unit}{self.end}{f' ({passes})' if is_by_epochs else ''}"
