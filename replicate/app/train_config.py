"""The parts of a config that say how to train, evaluate and predict."""

from collections.abc import Iterator

from pydantic import Field

from replicate.app import catalog, checks, input_config

__all__ = ["Eval", "Predict", "Train"]


class Train(checks.Section):
    """How to train."""

    input: input_config.TrainingInput = Field(description="The training data.")
    steps: checks.whole(1) = Field(
        description="The global step at which training is over; absolute, so a finished run "
        "stays so."
    )
    save_checkpoints_steps: checks.whole(1) | None = Field(
        None, description="Steps between checkpoints."
    )
    save_checkpoints_secs: checks.whole(1) | None = Field(
        None,
        description="Seconds between checkpoints, in place of steps. With neither: every "
        "eval.every_steps, else every 600 seconds.",
    )
    keep_checkpoint_max: checks.whole(0) = Field(
        5, description="How many checkpoints to keep; 0 keeps all."
    )
    log_every_steps: checks.whole(1) = Field(
        100, description="Steps between two log lines where there is no terminal."
    )
    save_summary_steps: checks.whole(1) = Field(100, description="Steps between summaries.")

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.save_checkpoints_steps and self.save_checkpoints_secs:
            yield "save_checkpoints_secs", "must be alone: save_checkpoints_steps is set. Keep one."


class Eval(checks.Section):
    """How to evaluate."""

    input: input_config.OtherInput = Field(description="The data to evaluate on.")
    steps: checks.whole(1) | None = Field(None, description="How many batches; null: all.")
    every_steps: checks.whole(1) | None = Field(
        None,
        description="In training, evaluate at the first checkpoint after so many steps; null: "
        "when training is over.",
    )
    metric_reductions: dict[str, checks.word_or_function(*catalog.METRIC_REDUCTIONS)] = Field(
        {},
        description="For a metric that does not add up over towers (a running maximum), by a "
        "part of its variables' names between slashes: sum, mean, max, min, first, or the name "
        "of a function of the list of the towers' tensors.",
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.steps is None and self.input.repeat is True:
            yield "steps", "must be set: eval.input repeats for ever. Set one or the other."


class Predict(checks.Section):
    """How to predict."""

    input: input_config.OtherInput = Field(
        description="The data to predict for; its label, if it has one, is not used."
    )
    keys: checks.listing(checks.Text, 1) | None = Field(
        None, description="Which predictions to write; null: all."
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.input.repeat is True:
            yield "input", "must come to an end, got repeat: true. Remove repeat."
