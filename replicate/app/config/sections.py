"""The sections of a config: training, evaluation, prediction, export, devices, session, cluster."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from replicate.app.config import catalog, input_config, types

_MAX_KEPT = 2**31 - 1  # what a Saver can count
_DEVICE = re.compile(
    r"(/job:(?P<job>\w+))?(/replica:(?P<replica>\d{1,9}))?(/task:(?P<task>\d{1,9}))?"
    r"(/device:|/?)(?P<kind>[A-Za-z]+):(?P<index>\d{1,9})",
    re.ASCII,
)
_DEVICE_TYPES = ("CPU", "GPU", "TPU")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_UNITS = (86400, 3600, 60, 1)  # seconds
_MAX_SECONDS = 10**9  # 31 years; a system's clocks and waits can take no number whatever
# With some ten thousand threads TensorFlow does not come to its first step.
_Threads = Annotated[int, types.number(int, 1, 2**12)]


class Compared(types.Section):
    """The metric by which evaluations are compared."""

    metric: types.Text = Field("loss", description="The metric of eval that is compared.")
    higher_is_better: types.Boolean | None = Field(
        None,
        validate_default=True,
        description="Whether more of it is better; null: as the metric's name says, such as loss, "
        "accuracy or auc. Must be given where the name does not say it.",
    )

    @pydantic.field_validator("higher_is_better")
    @classmethod
    def _say_which(cls, given: bool | None, info: pydantic.ValidationInfo) -> bool | None:
        metric = info.data.get("metric")
        if given is None and metric is not None:
            given = catalog.higher_is_better(metric)
            if given is None:
                raise types.fault(
                    f"must be given, true or false: the name {metric!r} does not say whether more "
                    "of it is better. Add it."
                )
        return given


class KeepBest(Compared):
    """Which checkpoint is kept in `best` below model_dir."""

    FORM = "a mapping such as {metric: accuracy}"


class EarlyStopping(Compared):
    """When training ends before its last step: its evaluations get no better any more."""

    FORM = "a mapping such as {metric: accuracy, patience: 3}"
    patience: types.Positive = Field(
        3, description="After how many evaluations without an improvement training ends."
    )
    min_delta: Annotated[float, types.number(ge=0)] = Field(
        0.0, description="An improvement must be better by more than this."
    )


def _seconds(value: object) -> object:
    """Takes 1h30m for its seconds."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value)
    if found is None:
        raise types.expected("seconds above 0, or a time such as 1h30m", value)
    return sum(int(count or 0) * unit for count, unit in zip(found.groups(), _UNITS, strict=True))


def _limited(seconds: float) -> float:
    """Takes a time that can pass."""
    if seconds > _MAX_SECONDS:
        raise types.expected(f"at most {_MAX_SECONDS} seconds", seconds)
    return seconds


_Seconds = Annotated[types.AboveZero, pydantic.AfterValidator(_limited)]
_Time = Annotated[
    _Seconds,
    pydantic.BeforeValidator(
        _seconds, json_schema_input_type=_Seconds | Annotated[str, Field(min_length=2)]
    ),
]


class Train(types.Section):
    """How to train."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["steps"]}, {"required": ["epochs"]}]}
    )

    input: input_config.TrainingInput = Field(description="The training data.")
    epochs: types.Positive | None = Field(
        None,
        description="How many passes over the training data; absolute like steps. A pass is cut "
        "into batches by itself, and N epochs are N times as many steps as it has batches. Of a "
        "stream they are counted when a run continues.",
    )
    steps: types.Positive | None = Field(
        None,
        description="The global step at which training is over; absolute, so a finished run "
        "stays so. This or epochs must be given; with both, training ends with the first.",
    )
    max_time: _Time | None = Field(
        None,
        description="Ends training after so many seconds, or so long as 1d, 1h30m or 90s, from its "
        "beginning, when a step is made; what follows training is done then. The same command "
        "goes on from there.",
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
    hooks: tuple[types.Function, ...] = Field(
        (),
        description="Functions that return a SessionRunHook, or a list of them, for training; "
        "they get what they name of params, model_dir and config, the RunConfig.",
    )
    check_numerics: types.Boolean = Field(
        False,
        description="Whether to end training at the first NaN in any tensor, and to name the "
        "operation that made it; steps take longer.",
    )
    mixed_precision: types.Boolean = Field(
        False,
        description="Whether to compute in float16 on GPUs, with a loss scale, or bfloat16 on "
        "CPUs, where TensorFlow finds that safe; weights stay float32. Needs an optimizer in "
        "the config.",
    )

    save_checkpoints_steps: types.Positive | None = Field(
        None, description="Saves a checkpoint at each multiple of so many steps."
    )
    save_checkpoints_secs: Annotated[int, types.number(int, 1, _MAX_SECONDS)] | None = Field(
        None,
        description="Seconds between checkpoints, in place of steps. With neither: every "
        "eval.every_steps, else every 600 seconds.",
    )
    keep_checkpoint_max: Annotated[int, types.number(int, 0, _MAX_KEPT)] = Field(
        5, description="How many checkpoints to keep; 0 keeps all."
    )
    log_every_steps: types.Positive = Field(
        100,
        description="Where there is no terminal, the first step and the last have a line, and "
        "between them multiples of this, one in ten seconds at most.",
    )
    save_summary_steps: types.Positive = Field(100, description="Steps between summaries.")

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.save_checkpoints_steps and self.save_checkpoints_secs:
            yield "save_checkpoints_secs", "must be alone: save_checkpoints_steps is set. Keep one."
        if self.steps is None and self.epochs is None:
            yield "steps", "must be given, or epochs: how long to train. Add one of them."


_Reduction = Annotated[str, types.word_or_function(*catalog.METRIC_REDUCTIONS)]


class Eval(types.Section):
    """How to evaluate."""

    input: input_config.OtherInput = Field(description="The data to evaluate on.")
    steps: types.Positive | None = Field(None, description="How many batches; null: all.")
    every_steps: types.Positive | None = Field(
        None,
        description="In training, evaluate at each multiple of so many steps, where a checkpoint "
        "is saved as well; null: when training is over.",
    )
    metric_reductions: dict[str, _Reduction] = Field(
        {},
        description="With tower_building call: for a metric that does not add up over towers (a "
        "running maximum), by a part of its variables' names between slashes: sum, mean, max, min, "
        "first, or the name of a function of the list of the towers' tensors.",
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.steps is None and self.input.repeat is True:
            yield "steps", "must be set: eval.input repeats for ever. Set one or the other."


class Predict(types.Section):
    """How to predict."""

    input: input_config.OtherInput = Field(
        description="The data to predict for; its label, if it has one, is not used."
    )
    keys: types.Several[types.Text] | None = Field(
        None, description="Which predictions to write; null: all."
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.input.repeat is True:
            yield "input", "must come to an end, got repeat: true. Remove repeat."


def _folder_name(value: object) -> str:
    """Takes the name of a folder that cannot be taken for an export's own number."""
    name = value if isinstance(value, str) else ""
    is_name = name.strip(". ") and name.isprintable() and not name.isdecimal()
    if not is_name or set(name) & set('/\\:*?"<>|'):
        raise types.expected("a folder's name that is no number", value)
    return name


def _asset(name: str) -> str:
    """Takes a path within an export."""
    is_plain = name and "\0" not in name and posixpath.normpath(name) == name
    if not is_plain or name.startswith(("/", "..", "~")):
        raise types.expected("named by a path within assets.extra, such as vocabulary.txt", name)
    return name


WITH_INPUT: Mapping[str, type[Train | Eval | Predict]] = {
    "train": Train,
    "eval": Eval,
    "predict": Predict,
}


class ServingInput(types.Section):
    """One tensor that a served model is fed."""

    FORM = "a mapping such as {dtype: float32, shape: [8]}"
    dtype: catalog.Dtype = Field(description="Its type.")
    shape: Annotated[tuple[types.NotNegative | None, ...], input_config.SHAPE] = Field(
        (), description="Its shape without the batch; null where a dimension is not known."
    )


_Inputs = Annotated[
    types.Named[ServingInput],
    types.form(dict, "a mapping of features to what is fed, as {age: {dtype: float32}}"),
]


class Exporter(types.Section):
    """What every kind of exporter has."""

    kind: str
    name: Annotated[str, pydantic.BeforeValidator(_folder_name)] | None = Field(
        None, description="The folder of its exports, in export.directory; null: its kind."
    )

    @property
    def folder(self) -> str:
        """The name, or the kind in its place."""
        return self.name or self.kind


class Final(Exporter):
    """Exports once, when training is over."""

    kind: Literal["final"] = Field("final", description="final: once, when training is over.")


class Repeated(Exporter):
    """What every exporter has that exports after evaluations."""

    exports_to_keep: types.Positive | None = Field(
        5, description="How many exports to keep, the newest; null: all."
    )


class Latest(Repeated):
    """Exports after each evaluation."""

    kind: Literal["latest"] = Field("latest", description="latest: after each evaluation.")


class Best(Compared, Repeated):
    """Exports after an evaluation that is better than those of all exports before."""

    kind: Literal["best"] = Field(
        "best", description="best: after an evaluation that is better than all exported before."
    )


class Export(types.Section):
    """How to export SavedModels."""

    directory: types.PathText | None = Field(
        None, description="Each export is a new folder in it; null: `export` in model_dir."
    )
    towers: Literal["one", "merged"] = Field(
        "one", description="one: an unplaced single tower; merged: all towers."
    )
    as_text: types.Boolean = Field(False, description="Whether to write graphs as text.")
    assets_extra: dict[Annotated[str, pydantic.AfterValidator(_asset)], types.PathText] = Field(
        {},
        description="Path below `assets.extra` in the export, and the file to copy there.",
    )
    after_training: types.Boolean = Field(
        True, description="Whether `train` writes an export into directory when it is over."
    )
    exporters: tuple[Annotated[Exporter, types.one_section(Final, Latest, Best)], ...] = Field(
        (), description="More exports of `train`: after evaluations, or when it is over."
    )
    inputs: _Inputs | None = Field(
        None,
        description="The tensors that the served model takes, by the names of features; null: the "
        "features of predict.input, or of eval.input or train.input if there is none.",
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        for name, count in Counter(one.folder for one in self.exporters).items():
            if count > 1:
                yield (
                    "exporters",
                    f"must have different names, got {count} times {name!r}. Set their name.",
                )


def _device_id(value: object) -> tuple[str, int, int, str, int] | None:
    """Returns what is the same for all spellings of a device; None where it is none."""
    match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match["kind"].upper() not in _DEVICE_TYPES:
        return None
    replica, task, index = (int(match[part] or 0) for part in ("replica", "task", "index"))
    return match["job"] or "localhost", replica, task, match["kind"].upper(), index


def _different(names: Sequence[object]) -> Sequence[object]:
    """Takes devices in any usual spelling, each once; whether they exist is known in use."""
    known = [_device_id(name) for name in names]
    rules = [
        "a device such as /gpu:0, GPU:0 or /device:CPU:1"
        if one is None
        else "a device that is not listed yet" * (one in known[:index])
        for index, one in enumerate(known)
    ]
    types.refuse(
        ((index,), name, types.expected(rule, name).message())
        for index, (name, rule) in enumerate(zip(names, rules, strict=True))
        if rule
    )
    return names


def _devices(value: object) -> object:
    """Refuses other texts than auto, and other mappings than of one kind, such as `{cpus: 2}`."""
    for kind, count in value.items() if isinstance(value, dict) else ():
        if kind not in ("gpu", "cpu") and str(kind).lower() in ("gpu", "gpus", "cpu", "cpus"):
            meant = f"{{{kind[:3].lower()}: {count}}}"
            raise types.expected(_DEVICES, value, f"Did you mean {meant}?")
    is_unknown = isinstance(value, dict) and list(value) not in (["gpu"], ["cpu"])
    if is_unknown or (isinstance(value, str) and value != "auto"):
        raise types.expected(_DEVICES, value)
    return value


_DEVICES = "auto, a list of devices, how many, {gpu: n} or {cpu: n}"
Devices = Annotated[
    Annotated[Literal["auto"], types.tag("text")]
    | types.Positive
    | Annotated[types.Several[str], pydantic.BeforeValidator(_different), types.tag("list")]
    | Annotated[dict[Literal["gpu", "cpu"], types.Positive], types.tag("mapping")],
    types.either(_DEVICES),
    pydantic.BeforeValidator(_devices),
]


class Run(types.Section):
    """Settings of the TensorFlow session, by the names they have in its ConfigProto."""

    allow_soft_placement: types.Boolean = Field(
        True, description="Whether an operation may run elsewhere when its device cannot."
    )
    log_device_placement: types.Boolean = Field(
        False, description="Whether to log where each operation is placed."
    )
    gpu_allow_growth: types.Boolean = Field(
        False, description="Whether to take GPU memory as needed."
    )
    per_process_gpu_memory_fraction: types.AboveZero | None = Field(
        None, description="Share of each GPU's memory to take; null: TensorFlow chooses."
    )
    intra_op_parallelism_threads: _Threads | None = Field(
        None, description="Threads within one operation; null: TensorFlow chooses."
    )
    inter_op_parallelism_threads: _Threads | None = Field(
        None, description="Operations at a time; null: TensorFlow chooses."
    )


class Cluster(types.Section):
    """What TF_CONFIG does not say of a cluster; without one nothing of it counts."""

    timeout: _Seconds = Field(
        600.0,
        description="After how many seconds a worker fails that waits for another one: at the "
        "start, in a step, and while the chief evaluates or exports.",
    )
    communication: Literal["auto", "ring", "nccl"] = Field(
        "auto", description="How workers reach each other; auto: NCCL between GPUs, else a ring."
    )
    pack_bytes: types.NotNegative | None = Field(
        None,
        description="Tensors of workers share a transfer, up to so many bytes; 0: none do; null: "
        "4 MiB, or 128 KiB for each worker where that is more.",
    )
    evaluator: types.Boolean = Field(
        False,
        description="Evaluate, keep the best checkpoint and export in a separate task instead of "
        "the chief; the job evaluator in TF_CONFIG, or `replicate launch --evaluator`, says so as "
        "well.",
    )
    grace: _Seconds = Field(
        20.0,
        description="For how many seconds `replicate launch` waits for processes that it has "
        "asked to end, before it kills them.",
    )
