"""The parts of a config that say how to train, evaluate and predict."""

from collections.abc import Iterator

import pydantic
from pydantic import Field

from replicate.app.config import catalog, checks, input_config

__all__ = ["EarlyStopping", "Eval", "KeepBest", "Predict", "Train"]

_MAX_KEPT = 2**31 - 1  # what a Saver can count


class EarlyStopping(checks.Section):
    """When training ends before its last step: its evaluations get no better any more."""

    metric: checks.Text = Field("loss", description="The metric of eval that is watched.")
    higher_is_better: checks.Boolean = Field(
        False, description="Whether more of it is better, as of an accuracy."
    )
    patience: checks.whole(1) = Field(
        3, description="After how many evaluations without an improvement training ends."
    )
    min_delta: checks.number(0) = Field(
        0.0, description="An improvement must be better by more than this."
    )


class KeepBest(checks.Section):
    """Which checkpoint is kept in `best` below model_dir."""

    metric: checks.Text = Field("loss", description="The metric of eval that is compared.")
    higher_is_better: checks.Boolean = Field(
        False, description="Whether more of it is better, as of an accuracy."
    )


class Train(checks.Section):
    """How to train."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["steps"]}, {"required": ["epochs"]}]}
    )

    input: input_config.TrainingInput = Field(description="The training data.")
    epochs: checks.whole(1) | None = Field(
        None,
        description="How many passes over the training data; absolute like steps. A pass is cut "
        "into batches by itself, and N epochs are N times as many steps as it has batches. Of a "
        "stream they are counted while it is first read.",
    )
    steps: checks.whole(1) | None = Field(
        None,
        validate_default=True,
        description="The global step at which training is over; absolute, so a finished run "
        "stays so. This or epochs must be given; with both, training ends with the first.",
    )
    early_stopping: EarlyStopping | None = Field(
        None,
        description="Ends training when evaluations get no better; needs eval.every_steps. A run "
        "that continues remembers them.",
    )
    keep_best: KeepBest | None = Field(
        None,
        description="Keeps the checkpoint with the best evaluation in the folder best of "
        "model_dir, whatever keep_checkpoint_max says: `--checkpoint best`.",
    )
    hooks: checks.listing(checks.Function) = Field(
        (),
        description="Functions that return a SessionRunHook, or a list of them, for training; "
        "they get what they name of params, model_dir and config, the RunConfig.",
    )
    mixed_precision: checks.Boolean = Field(
        False,
        description="Whether to compute in float16 on GPUs, with a loss scale, or bfloat16 on "
        "CPUs, where TensorFlow finds that safe; weights stay float32. Needs an optimizer in "
        "the config.",
    )

    @pydantic.field_validator("steps")
    @classmethod
    def _end_somewhere(cls, steps: int | None, info: pydantic.ValidationInfo) -> int | None:
        if steps is None and info.data.get("epochs", 0) is None:
            raise checks.fault("must be given, or epochs: how long to train. Add one of them.")
        return steps

    save_checkpoints_steps: checks.whole(1) | None = Field(
        None, description="Steps between checkpoints."
    )
    save_checkpoints_secs: checks.whole(1) | None = Field(
        None,
        description="Seconds between checkpoints, in place of steps. With neither: every "
        "eval.every_steps, else every 600 seconds.",
    )
    keep_checkpoint_max: checks.whole(0, _MAX_KEPT) = Field(
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
        description="With tower_building call: for a metric that does not add up over towers (a "
        "running maximum), by a part of its variables' names between slashes: sum, mean, max, min, "
        "first, or the name of a function of the list of the towers' tensors.",
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
