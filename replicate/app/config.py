"""What a config file may say, and the one way to read it; does not import TensorFlow.

Every key is a field of a dataclass below, with its check and its default beside it.
`load` reads a file, applies `--set`, checks everything and reports all faults at once.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app import catalog, checks, documents, export_config, input_config

__all__ = [
    "Config",
    "Eval",
    "Optimizer",
    "Predict",
    "Run",
    "Schedule",
    "Train",
    "load",
    "to_yaml",
]

_MAX_THREADS = 2**15  # per kind


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A learning rate that changes with the global step.

    Attributes:
        name: A function of `tf.compat.v1.train`, e.g. exponential_decay.
        arguments: Its arguments, all of them.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of `tf.compat.v1.train`.

    Attributes:
        name: Its name there without the ending Optimizer, e.g. Momentum.
        arguments: Its arguments, all of them; learning_rate may be a Schedule.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """How to train.

    Attributes:
        input: The training data.
        steps: The global step at which training is over; absolute, so a finished run stays so.
        save_checkpoints_steps: Steps between checkpoints.
        save_checkpoints_secs: Seconds between checkpoints, in place of steps. With neither:
            every eval.every_steps, else every 600 seconds.
        keep_checkpoint_max: How many checkpoints to keep; 0 keeps all.
        log_every_steps: Steps between two log lines where there is no terminal.
        save_summary_steps: Steps between summaries.
    """

    input: input_config.Input = checks.key(input_config.input_of(training=True))
    steps: int = checks.key(checks.whole(1))
    save_checkpoints_steps: int | None = checks.key(checks.optional(checks.whole(1)), None)
    save_checkpoints_secs: int | None = checks.key(checks.optional(checks.whole(1)), None)
    keep_checkpoint_max: int = checks.key(checks.whole(0), 5)
    log_every_steps: int = checks.key(checks.whole(1), 100)
    save_summary_steps: int = checks.key(checks.whole(1), 100)

    def faults(self):
        """Yields rules between keys that are broken."""
        if self.save_checkpoints_steps and self.save_checkpoints_secs:
            yield "save_checkpoints_secs", "must be alone: save_checkpoints_steps is set. Keep one."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eval:
    """How to evaluate.

    Attributes:
        input: The data to evaluate on.
        steps: How many batches; null: all.
        every_steps: In training, evaluate at the first checkpoint after so many steps; null:
            when training is over.
        metric_reductions: For a metric that does not add up over towers (a running maximum),
            by a part of its variables' names between slashes: sum, mean, max, min, first, or
            the name of a function of the list of the towers' tensors.
    """

    input: input_config.Input = checks.key(input_config.input_of(training=False))
    steps: int | None = checks.key(checks.optional(checks.whole(1)), None)
    every_steps: int | None = checks.key(checks.optional(checks.whole(1)), None)
    metric_reductions: dict[str, str] = checks.key(
        checks.mapping(checks.word_or_function(*catalog.METRIC_REDUCTIONS)), dict
    )

    def faults(self):
        """Yields rules between keys that are broken."""
        if self.steps is None and self.input.repeat is True:
            yield "steps", "must be set: eval.input repeats for ever. Set one or the other."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """How to predict.

    Attributes:
        input: The data to predict for; its label, if it has one, is not used.
        keys: Which predictions to write; null: all.
    """

    input: input_config.Input = checks.key(input_config.input_of(training=False))
    keys: tuple[str, ...] | None = checks.key(checks.optional(checks.listing(checks.text, 1)), None)

    def faults(self):
        """Yields rules between keys that are broken."""
        if self.input.repeat is True:
            yield "input", "must come to an end, got repeat: true. Remove repeat."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Settings of the TensorFlow session, by the names they have in its ConfigProto.

    Attributes:
        allow_soft_placement: Whether an operation may run elsewhere when its device cannot.
        log_device_placement: Whether to log where each operation is placed.
        gpu_allow_growth: Whether to take GPU memory as needed.
        per_process_gpu_memory_fraction: Share of each GPU's memory to take.
        intra_op_parallelism_threads: Threads within one operation; null: TensorFlow chooses.
        inter_op_parallelism_threads: Operations at a time; null: TensorFlow chooses.
    """

    allow_soft_placement: bool = checks.key(checks.boolean, True)
    log_device_placement: bool = checks.key(checks.boolean, False)
    gpu_allow_growth: bool = checks.key(checks.boolean, False)
    per_process_gpu_memory_fraction: float | None = checks.key(
        checks.optional(checks.number(above=0)), None
    )
    intra_op_parallelism_threads: int | None = checks.key(
        checks.optional(checks.whole(1, _MAX_THREADS)), None
    )
    inter_op_parallelism_threads: int | None = checks.key(
        checks.optional(checks.whole(1, _MAX_THREADS)), None
    )


def _arguments(reader, path, value, table, kind):
    """Reads `name` and arguments against a table; returns (name, arguments) or None."""
    name = value.get("name")
    if name is None:
        reader.fault(path, f"the key name is required here: one of {', '.join(table)}. Add it.")
        return None
    before = len(reader.faults)
    checks.one_of(*table)(reader, (*path, "name"), name)
    if len(reader.faults) > before:
        return None
    known = table[name]
    for argument in value:
        if argument not in known and argument != "name":
            reader.unknown((*path, argument), known)
    arguments = {}
    for argument, default in known.items():
        if argument in value:
            check = _argument_check(argument, default)
            arguments[argument] = check(reader, (*path, argument), value[argument])
        elif default is catalog.REQUIRED:
            example = f"{{name: {name}, {argument}: ...}}"
            reader.fault(path, f"{kind} {name} needs the key {argument}. Add it: {example}")
        else:
            arguments[argument] = default
    return (name, arguments) if len(reader.faults) == before else None


def _argument_check(argument: str, default: Any) -> checks.Check:
    """Returns the check for an argument, from its name or the type of its default."""
    by_name = {
        "learning_rate": checks.number(0),
        "decay_steps": checks.whole(1),
        "first_decay_steps": checks.whole(1),
        "boundaries": checks.listing(checks.whole(0), 1),
        "values": checks.listing(checks.number(0), 2),
    }
    if argument in by_name:
        return by_name[argument]
    return checks.boolean if isinstance(default, bool) else checks.number()


def _optimizer(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes a function's name, an optimizer's name, or its `name` and arguments."""
    if isinstance(value, str) and ":" in value:
        return checks.function(reader, path, value)
    if isinstance(value, str) and value in catalog.OPTIMIZERS:
        value = {"name": value}
    if not isinstance(value, dict):
        near = checks.nearest(str(value), catalog.OPTIMIZERS)
        then = f"Did you mean {{name: {near}, ...}}?" if near else ""
        rule = "{name: Adam, ...}, or a function's name as package.module:function"
        reader.expected(path, rule, value, then)
        return None
    rate = value.get("learning_rate")
    schedule = None
    if isinstance(rate, dict):
        schedule = _schedule(reader, (*path, "learning_rate"), rate)
        value = value | {"learning_rate": 0.0}
    read = _arguments(reader, path, value, catalog.OPTIMIZERS, "the optimizer")
    if read is None:
        return None
    name, arguments = read
    return Optimizer(name, arguments | {"learning_rate": schedule} if schedule else arguments)


def _schedule(reader: checks.Reader, path: checks.KeyPath, value: dict[str, Any]) -> Any:
    read = _arguments(reader, path, value, catalog.SCHEDULES, "the schedule")
    if read is None:
        return None
    name, arguments = read
    if name == "piecewise_constant":
        boundaries, values = arguments["boundaries"], arguments["values"]
        if list(boundaries) != sorted(set(boundaries)):
            reader.expected((*path, "boundaries"), "rising steps", list(boundaries))
        if len(values) != len(boundaries) + 1:
            rule = f"a list of {len(boundaries) + 1} values, one more than boundaries"
            reader.expected((*path, "values"), rule, list(values))
    return Schedule(name, arguments)


def _devices(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes auto, a list of devices, how many, {gpu: n} or {cpu: n}."""
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return checks.whole(1)(reader, path, value)
    if isinstance(value, list):
        names = checks.listing(checks.device_name, 1)(reader, path, value)
        known = [checks.device_id(name) for name in value]
        for index, one in enumerate(known):
            if one is not None and one in known[:index]:
                reader.expected((*path, index), "a device that is not listed yet", value[index])
        return names
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("gpu", "cpu"):
        return checks.mapping(checks.whole(1))(reader, path, value)
    reader.expected(path, "auto, a list of devices, how many, {gpu: n} or {cpu: n}", value)
    return None


def _model_dir(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes a path; a relative one stays relative to the working directory."""
    value = checks.text(reader, path, value)
    if not isinstance(value, str) or not checks.is_path(reader, path, value):
        return value
    return os.path.expanduser(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole config.

    Attributes:
        name: What the run is called; default: the file's name without its ending.
        model_fn: The Estimator model_fn, as `package.module:function`.
        optimizer: By name with arguments, or a function that returns one; null: the
            model_fn's own train_op is used.
        params: What model_fn gets as `params`.
        devices: auto, a list of names, how many (GPUs, or CPU devices where there is no GPU),
            {gpu: n}, or {cpu: n} for n logical CPU devices.
        strategy: Where variables live and how they are updated; null: parameter_server.
        loss_reduction: sum or mean, whatever the model says; null: as the model reduces its rows.
        accumulate_steps: Batches whose gradients are added before an update.
        clip_global_norm: Clips reduced gradients to this norm; null: no clipping.
        update_ops: Whose UPDATE_OPS run: first, mean, all.
        tower_building: How towers are made: call runs the model_fn for each; auto may choose.
        seed: Of every random operation; null: another one in each run.
        model_dir: Checkpoints and summaries; relative to the working directory. Default:
            `runs/<name>`.
        train: How to train.
        eval: How to evaluate.
        predict: How to predict.
        export: How to export.
        run: Settings of the session.
        folder: Where the config stands; functions may be imported from here.
    """

    name: str = checks.key(checks.text)
    model_fn: str = checks.key(checks.function)
    optimizer: Optimizer | str | None = checks.key(checks.optional(_optimizer), None)
    params: dict[str, Any] = checks.key(checks.mapping(checks.anything), dict)
    devices: str | int | tuple[str, ...] | dict[str, int] = checks.key(_devices, "auto")
    strategy: str | None = checks.key(checks.optional(checks.one_of(*catalog.STRATEGIES)), None)
    loss_reduction: str | None = checks.key(checks.optional(checks.one_of("sum", "mean")), None)
    accumulate_steps: int = checks.key(checks.whole(1), 1)
    clip_global_norm: float | None = checks.key(checks.optional(checks.number(above=0)), None)
    update_ops: str = checks.key(checks.one_of("first", "mean", "all"), "first")
    tower_building: str = checks.key(checks.one_of("auto", "call"), "auto")
    seed: int | None = checks.key(checks.optional(checks.whole()), None)
    model_dir: str = checks.key(_model_dir)
    train: Train | None = checks.key(checks.optional(checks.section(Train)), None)
    eval: Eval | None = checks.key(checks.optional(checks.section(Eval)), None)
    predict: Predict | None = checks.key(checks.optional(checks.section(Predict)), None)
    export: export_config.Export | None = checks.key(
        checks.optional(checks.section(export_config.Export)), None
    )
    run: Run = checks.key(checks.section(Run), Run)
    folder: str = dataclasses.field(default="", compare=False)

    def faults(self):
        """Yields rules between keys that are broken."""
        exporters = self.export.exporters if self.export is not None else ()
        for kind in [one.KIND for one in exporters if one.KIND != "final"]:
            if self.eval is None:
                yield "export", f"must have no {kind} exporter without an eval section. Add one."


def load(path: str, assignments: Sequence[str] = (), model_dir: str | None = None) -> Config:
    """Reads a config file.

    Args:
        path: The file.
        assignments: `a.b=value` texts that override keys, in order.
        model_dir: Overrides the key model_dir.

    Raises:
        ConfigError: If anything is wrong; one line for each fault, with file, line and key.
    """
    made, faults = _checked(path, assignments, model_dir)
    if faults:
        raise errors.ConfigError("\n".join(_blamed(faults, path, assignments)))
    return dataclasses.replace(made, folder=str(Path(path).absolute().parent))


def _checked(
    path: str, assignments: Sequence[str], model_dir: str | None
) -> tuple[Config | None, list[tuple[str, str]]]:
    """Reads and checks; returns the config, and for each fault its place and its text."""
    document = documents.read(path)
    documents.override(document, assignments)
    if model_dir is not None:
        document.data["model_dir"] = model_dir
        document.places[("model_dir",)] = "--model-dir"
    name = document.data.setdefault("name", Path(path).stem)
    document.data.setdefault("model_dir", os.path.join("runs", str(name)))
    reader = checks.Reader(document, Path(path).absolute().parent)
    made = checks.section(Config)(reader, (), document.data)
    return made, [("", fault) for fault in document.faults] + reader.faults


def _blamed(faults: list[tuple[str, str]], path: str, assignments: Sequence[str]) -> Iterator[str]:
    """Yields faults as lines; one that came with an assignment has that for its place.

    A key that `--set` makes wanted stands in no line of the file.
    """
    texts = [{text for _, text in faults}]
    for count in reversed(range(len(assignments))):
        texts.insert(0, {text for _, text in _checked(path, assignments[:count], None)[1]})
    for place, text in faults:
        came = [i for i in range(len(assignments)) if text not in texts[i] and text in texts[i + 1]]
        if came and not place.startswith("--"):
            place = f"--set {assignments[came[-1]]}"
        yield f"{place}: {text}" if place else text


def to_yaml(config: Config) -> str:
    """Returns the config with all defaults as YAML that reads back as an equal config."""
    return documents.dump(_plain(config))


def _plain(value: Any) -> Any:
    if isinstance(value, Optimizer | Schedule):
        return {"name": value.name} | _plain(dict(value.arguments))
    if dataclasses.is_dataclass(value):
        kind = {"kind": value.KIND} if hasattr(value, "KIND") else {}
        fields = (f.name for f in dataclasses.fields(value) if "check" in f.metadata)
        return kind | {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
