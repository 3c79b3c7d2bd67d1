"""A run of a config: what it works with, and where its training ends."""

from typing import NamedTuple

from replicate.app.config import config, sections
from replicate.app.data import section_inputs
from replicate.app.training import device_choice, improvement
from replicate.console import interrupts, progress
from replicate.strategy.cluster import cluster as clusters

STEPS, EPOCHS, EARLY_STOPPING = "steps", "epochs", "early_stopping"
INPUT, HOOK = "input", "hook"  # which no goal is, but which end trainings as well


class Run(NamedTuple):
    """What a command works with.

    Attributes:
        settings: The config.
        display: Where progress goes.
        stop: Asks to stop, once it is entered.
        task: Which part of a training this process has.
    """

    settings: config.Config
    display: progress.Display
    stop: interrupts.StopRequest
    task: clusters.Cluster = clusters.ALONE

    @property
    def model_dir(self) -> str:
        """Where its checkpoints are."""
        return self.settings.model_dir

    @property
    def text(self) -> str:
        """Where it runs, for people."""
        return device_choice.text_of(self.settings, self.task)


class Goal:
    """All that may end a training.

    Args:
        run: The run.
        start: The step that it begins at.

    Attributes:
        start: See the argument.
        epochs: The passes over the training data; None where they are not counted.
    """

    def __init__(self, run: Run, start: int):
        self.start = start
        self._model_dir = run.model_dir
        self._wanted = wanted = run.settings.section(sections.Train)
        self.epochs = None
        if wanted.epochs is not None:
            # Before a session can start TensorFlow's runtime.
            device_choice.devices_of(run.settings)
            self.epochs = section_inputs.in_epochs(run.settings, wanted.epochs, start, run.task)

    @property
    def end(self) -> int | None:
        """The last step, where it is known."""
        ends = (self._wanted.steps, self.epochs.end if self.epochs is not None else None)
        return min((end for end in ends if end is not None), default=None)

    @property
    def is_reached(self) -> bool:
        """Whether no step is left to make."""
        return self.reason_at(self.start) is not None

    def reason_at(self, step: int) -> str | None:
        """Returns in a word what has ended a training at a step; None where nothing has."""
        if self._wanted.steps is not None and step >= self._wanted.steps:
            return STEPS
        if self.end is not None and step >= self.end:
            return EPOCHS
        return EARLY_STOPPING if self.early_reason(step) is not None else None

    def early_reason(self, step: int) -> str | None:
        """Returns why evaluations end it at a step, in a sentence; None where they do not."""
        wanted = self._wanted.early_stopping
        return None if wanted is None else improvement.why_over(self._model_dir, wanted, step)

    def text(self, unit: str = "") -> str:
        """Returns where it ends, for people: `to 12`; with a unit `to step 12`."""
        count = self._wanted.epochs
        passes = "" if count is None else f"{count} epoch{'' if count == 1 else 's'}"
        if self.end is None:
            return f"for {passes}"
        is_by_epochs = self.epochs is not None and self.end == self.epochs.end
        return f"to {unit}{self.end}{f' ({passes})' if is_by_epochs else ''}"
