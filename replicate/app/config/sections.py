"""The sections of a config: training, evaluation, prediction, export, devices, session, cluster."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

import pydantic
from pydantic import Field

from replicate.app.config import catalog, input_config, types

_MAX_KEPT = 2**31 - 1  # what a Saver can count
_DEVICE = re.compile(
    r"(/job:\w+)?(/replica:\d{1,9})?(/task:\d{1,9})?(/device:|/?)(CPU|GPU|TPU):\d{1,9}",
    re.ASCII | re.IGNORECASE,
)
_MAX_SECONDS = 10**9  # 31 years; a system's clocks and waits can take no number whatever
_Seconds = Annotated[types.Number, Field(gt=0, le=_MAX_SECONDS)]
# With some ten thousand threads TensorFlow does not come to its first step.
_Threads = Annotated[int, Field(ge=1, le=2**12), types.WHOLE]


class Compared(types.Section):
    """The metric by which evaluations are compared."""

    metric: types.Text = "loss"
    """The metric of eval that is compared."""
    higher_is_better: bool | None = Field(None, validate_default=True)
    """Whether more of it is better; null: as the metric's name says, such as loss, accuracy or auc.
    Must be given where the name does not say it."""

    @pydantic.field_validator("higher_is_better")
    @classmethod
    def _say_which(cls, given: bool | None, info: pydantic.ValidationInfo) -> bool | None:
        if given is None and (metric := info.data.get("metric")) is not None:
            given = catalog.higher_is_better(metric)
            if given is None:
                raise ValueError(
                    f"must be given, true or false: the name {metric!r} does not say whether more "
                    "of it is better"
                )
        return given


class KeepBest(Compared):
    """Which checkpoint is kept in `best` below model_dir."""


class EarlyStopping(Compared):
    """When training ends before its last step: its evaluations get no better any more."""

    patience: types.Positive = 3
    """After how many evaluations without an improvement training ends."""
    min_delta: types.AtLeastZero = 0.0
    """An improvement must be better by more than this."""


class Train(types.Section):
    """How to train."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["steps"]}, {"required": ["epochs"]}]}
    )

    input: input_config.TrainingInput
    """The training data."""
    epochs: types.Positive | None = None
    """How many passes over the training data; absolute like steps. A pass is cut into batches by
    itself, and N epochs are N times as many steps as it has batches. Of a stream they are counted
    when a run continues."""
    steps: types.Positive | None = None
    """The global step at which training is over; absolute, so a finished run stays so. This or
    epochs must be given; with both, training ends with the first."""
    early_stopping: EarlyStopping | None = None
    """Ends training when evaluations get no better; needs eval.every_steps. A run that continues
    remembers them."""
    keep_best: KeepBest | None = None
    """Keeps the checkpoint with the best evaluation in the folder best of model_dir, whatever
    keep_checkpoint_max says: `--checkpoint best`."""
    hooks: types.Items[types.Function] = ()
    """Functions that return a SessionRunHook, or a list of them, for training; they get what they
    name of params, model_dir and config, the RunConfig."""
    mixed_precision: bool = False
    """Whether to compute in float16 on GPUs, with a loss scale, or bfloat16 on CPUs, where
    TensorFlow finds that safe; weights stay float32. Needs an optimizer in the config."""

    save_checkpoints_steps: types.Positive | None = None
    """Saves a checkpoint at each multiple of so many steps."""
    save_checkpoints_secs: Annotated[int, Field(ge=1, le=_MAX_SECONDS), types.WHOLE] | None = None
    """Seconds between checkpoints, in place of steps. With neither: every eval.every_steps, else
    every 600 seconds."""
    keep_checkpoint_max: Annotated[int, Field(ge=0, le=_MAX_KEPT), types.WHOLE] = 5
    """How many checkpoints to keep; 0 keeps all."""
    log_every_steps: types.Positive = 100
    """Where there is no terminal, the first step and the last have a line, and between them
    multiples of this, one in ten seconds at most."""
    save_summary_steps: types.Positive = 100
    """Steps between summaries."""

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        if self.save_checkpoints_steps and self.save_checkpoints_secs:
            yield (
                ("save_checkpoints_secs",),
                "must be alone: save_checkpoints_steps is set. Keep one.",
            )
        if self.steps is None and self.epochs is None:
            yield ("steps",), "must be given, or epochs: how long to train. Add one of them."


class Eval(types.Section):
    """How to evaluate."""

    input: input_config.OtherInput
    """The data to evaluate on."""
    steps: types.Positive | None = None
    """How many batches; null: all."""
    every_steps: types.Positive | None = None
    """In training, evaluate at each multiple of so many steps, where a checkpoint is saved as well;
    null: when training is over."""

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        if self.steps is None and self.input.repeat is True:
            yield ("steps",), "must be set: eval.input repeats for ever. Set one or the other."


class Predict(types.Section):
    """How to predict."""

    input: input_config.OtherInput
    """The data to predict for; its label, if it has one, is not used."""
    keys: types.Several[types.Text] | None = None
    """Which predictions to write; null: all."""

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        if self.input.repeat is True:
            yield ("input",), "must come to an end, got repeat: true. Remove repeat."


WITH_INPUT: Mapping[str, type[Train | Eval | Predict]] = {
    "train": Train,
    "eval": Eval,
    "predict": Predict,
}


class ServingInput(types.Section):
    """One tensor that a served model is fed."""

    dtype: catalog.Dtype
    """Its type."""
    shape: Annotated[types.Items[types.NotNegative | None], input_config.SHAPE] = ()
    """Its shape without the batch; null where a dimension is not known."""


class Export(types.Section):
    """How to export SavedModels."""

    directory: types.FilePath | None = None
    """Each export is a new folder in it; null: `export` in model_dir."""
    towers: Literal["one", "merged"] = "one"
    """one: an unplaced single tower; merged: all towers."""
    after_training: bool = True
    """Whether `train` writes an export into directory when it is over."""
    inputs: types.Named[ServingInput] | None = None
    """The tensors that the served model takes, by the names of features; null: the features of
    predict.input, or of eval.input or train.input if there is none."""


def _spelt(name: str) -> str:
    """Takes a device in any usual spelling; whether it exists is known in use."""
    if not _DEVICE.fullmatch(name):
        raise ValueError("must be a device such as /gpu:0, GPU:0 or /device:CPU:1")
    return name


Devices: TypeAlias = (
    Literal["auto"]
    | types.Positive
    | types.Several[Annotated[str, pydantic.AfterValidator(_spelt)]]
    | Annotated[dict[Literal["gpu", "cpu"], types.Positive], Field(min_length=1, max_length=1)]
)


class Slices(types.Section):
    """Variables on several devices, large ones in slices."""

    name: Literal["balanced", "round_robin"]
    """Where variables live."""
    slice_bytes: types.Bytes
    """Larger variables are cut into slices of rows, one on each device that holds variables; a
    number of bytes, or such as 64MB."""


Strategy: TypeAlias = catalog.Strategy | Slices


class Run(types.Section):
    """Settings of the TensorFlow session, by the names they have in its ConfigProto."""

    allow_soft_placement: bool = True
    """Whether an operation may run elsewhere when its device cannot."""
    log_device_placement: bool = False
    """Whether to log where each operation is placed."""
    gpu_allow_growth: bool = False
    """Whether to take GPU memory as needed."""
    per_process_gpu_memory_fraction: types.AboveZero | None = None
    """Share of each GPU's memory to take; null: TensorFlow chooses."""
    intra_op_parallelism_threads: _Threads | None = None
    """Threads within one operation; null: TensorFlow chooses."""
    inter_op_parallelism_threads: _Threads | None = None
    """Operations at a time; null: TensorFlow chooses."""


class Cluster(types.Section):
    """What TF_CONFIG does not say of a cluster; without one nothing of it counts."""

    timeout: _Seconds = 600.0
    """After how many seconds a worker fails that waits for another one: at the start, in a step,
    and while the chief evaluates or exports."""
    communication: Literal["auto", "ring", "nccl"] = "auto"
    """How workers reach each other; auto: NCCL between GPUs, else a ring."""
    pack_bytes: types.NotNegative | None = None
    """Tensors of workers share a transfer, up to so many bytes; 0: none do; null: 4 MiB, or 128 KiB
    for each worker where that is more."""
    grace: _Seconds = 20.0
    """For how many seconds `replicate launch` waits for processes that it has asked to end, before
    it kills them."""
