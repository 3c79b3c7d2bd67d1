"""What a config file may say, and the one way to read it; does not import TensorFlow.

Every key is a field of a section: its type, its bounds, its default and its description
stand in one place. `load` reads a file, applies `--set`, checks everything and reports all
faults at once.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from replicate import errors
from replicate.app.config import (
    catalog,
    documents,
    files,
    input_config,
    optimizer_config,
    sections,
    types,
    yaml_nodes,
)

_RUNS = "runs"  # where a run is by its name


def _model_dir(path: str) -> str:
    """Takes a path; a relative one stays relative to the working directory.

    TensorFlow finds checkpoints by patterns, and would not find those of such a place again.
    """
    path = os.path.expanduser(types.path_of(path, None))
    if path.startswith("~"):
        rule = "a path in a home folder that is known"
        raise types.expected(rule, path, "Write the path without ~.")
    if set(path.replace(os.sep, "/")) & set("*?[\\"):
        rule = "a path without * ? [ and \\, by which TensorFlow finds no checkpoint"
        raise types.expected(rule, path)
    return path


class Config(types.Section):
    """A whole config."""

    ALSO = (documents.EXTENDS,)
    FILLED_IN = {"name": "the file's name", "model_dir": "runs/<name>"}  # noqa: RUF012

    name: types.Text = Field(
        description="What the run is called; else as the file without its ending."
    )
    model_fn: types.Function = Field(
        description="The Estimator model_fn, as `package.module:function`."
    )
    optimizer: optimizer_config.OptimizerOrFunction | None = Field(
        None,
        description="By name with arguments, or a function that returns one; null: the "
        "model_fn's own train_op is used.",
    )
    params: dict[str, types.Anything] = Field({}, description="What model_fn gets as `params`.")
    devices: sections.Devices = Field(
        "auto",
        description="auto, a list of names, how many (GPUs, or CPU devices where there is no "
        "GPU), {gpu: n}, or {cpu: n} for n logical CPU devices.",
    )
    strategy: catalog.Strategy | None = Field(
        None,
        description="Where variables live and how they are updated; null: parameter_server, or "
        "multi_worker where TF_CONFIG has several workers.",
    )
    loss_reduction: Literal["sum", "mean"] | None = Field(
        None,
        description="With tower_building call, which it chooses: how the towers' losses and "
        "gradients are joined, sum or mean (by rows); null: mean.",
    )
    accumulate_steps: types.Positive = Field(
        1,
        description="Batches that make one update; their gradients are averaged, or added with "
        "loss_reduction: sum. Steps count batches.",
    )
    clip_global_norm: types.AboveZero | None = Field(
        None, description="Clips reduced gradients to this norm; null: no clipping."
    )
    update_ops: Literal["first", "mean", "all"] | None = Field(
        None,
        description="With tower_building call, which it chooses: whose UPDATE_OPS run, first, "
        "mean or all towers'; null: first.",
    )
    tower_building: Literal["split", "call"] | None = Field(
        None,
        description="split calls the model_fn once, on the whole batch, and splits one device's "
        "graph by rows, which changes no number; call calls it once per tower, on its rows; null: "
        "call where loss_reduction or update_ops is given, else split.",
    )
    random_numbers: Literal["one_device", "per_device"] | None = Field(
        None,
        description="With tower_building split: one_device draws what one device draws; "
        "per_device lets each device draw its own, of the same distribution; null: the latter. "
        "`replicate verify` takes the first.",
    )
    seed: Annotated[int, types.number(int)] | None = Field(
        None,
        description="Of every random operation and initial value, and of Python's and NumPy's "
        "generators; null: another one in each run.",
    )
    model_dir: Annotated[types.Text, pydantic.AfterValidator(_model_dir)] = Field(
        description="Where checkpoints and summaries are; relative to the working directory."
    )
    train: sections.Train | None = Field(None, description="How to train.")
    eval: sections.Eval | None = Field(None, description="How to evaluate.")
    predict: sections.Predict | None = Field(None, description="How to predict.")
    export: sections.Export | None = Field(None, description="How to export.")
    run: sections.Run = Field(default_factory=sections.Run, description="Settings of the session.")
    cluster: sections.Cluster = Field(
        default_factory=sections.Cluster,
        description="What TF_CONFIG does not say of a cluster.",
    )
    _folder: str = pydantic.PrivateAttr("")

    def model_post_init(self, context: Path | None) -> None:
        """See base class."""
        self._folder = str(context or "")

    @property
    def folder(self) -> str:
        """Where the config stands; functions may be imported from here."""
        return self._folder

    @property
    def evaluated_every(self) -> int | None:
        """The steps between two evaluations in training; None where there are none."""
        return self.eval.every_steps if self.eval is not None else None

    def section(self, kind: type[types.T]) -> types.T:
        """Returns a section that what is asked for needs.

        Raises:
            ConfigError: If the config has none of the kind.
        """
        name = kind.__name__.lower()
        found = getattr(self, name)
        if not isinstance(found, kind):
            raise errors.ConfigError(f"{name}: this section is required. Add it.")
        return found

    def input_of(self, section: str) -> input_config.AnyInput:
        """Returns the input of train, eval or predict; see `section`."""
        return self.section(sections.WITH_INPUT[section]).input

    def __eq__(self, other: object) -> bool:
        """Tells whether two configs say the same, wherever they stand."""
        return isinstance(other, Config) and self.__dict__ == other.__dict__

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        inside = os.path.join(_RUNS, "")
        is_by_name = self.model_dir == os.path.join(_RUNS, self.name)
        if is_by_name and not os.path.normpath(self.model_dir).startswith(inside):
            rule = f"must not lead out of {_RUNS}, where the run is by its name, got {self.name!r}"
            yield "name", f"{rule}. Choose another one, or set model_dir."
        for exporter in self.export.exporters if self.export is not None else ():
            if exporter.kind != "final" and self.eval is None:
                rule = f"must have no {exporter.kind} exporter without an eval section. Add one."
                yield "export", rule
        if self.train and self.eval and self.eval.input.is_trained_on(self.train.input):
            yield "eval", "must have the input.holdout that train has, or it has rows of training."
        yield from self._faults_of_building()
        yield from self._faults_of_training()

    def require_cluster(self, workers: int, servers: int) -> None:
        """Refuses a strategy that would leave the workers of a cluster alone.

        Raises:
            ConfigError: If it would; servers are parameter servers.
        """
        wanted = self.strategy
        if servers and wanted in ("multi_worker", "mirrored"):
            raise errors.ConfigError(
                f"strategy: must leave the variables to the parameter servers of the cluster, got "
                f"{wanted}. Leave strategy out, or the servers."
            )
        if not servers and workers > 1 and wanted not in (None, "multi_worker"):
            raise errors.ConfigError(
                f"strategy: must be multi_worker where a cluster has {workers} workers and no "
                f"parameter servers, got {wanted}. Set that, or leave strategy out."
            )

    def _faults_of_building(self) -> Iterator[tuple[str, str]]:
        """Yields what only the other way of building towers has."""
        of_towers = [n for n in ("loss_reduction", "update_ops") if getattr(self, n) is not None]
        if self.tower_building == "split":
            for name in of_towers:
                yield (
                    name,
                    "must be left out with tower_building: split, which computes what one device "
                    "computes. Leave out one of them.",
                )
        elif self.random_numbers is not None and (self.tower_building == "call" or of_towers):
            said = "tower_building: call" if self.tower_building else of_towers[0]
            yield (
                "random_numbers",
                f"must be left out with {said}: each tower draws its own. Leave out one of them.",
            )

    def _faults_of_training(self) -> Iterator[tuple[str, str]]:
        train = self.train
        if train is None:
            return
        if train.early_stopping and not (self.eval and self.eval.every_steps):
            yield "train", "must have no early_stopping without eval.every_steps. Set that."
        if train.keep_best and not self.eval:
            yield "train", "must have no keep_best without an eval section. Add one."
        if train.mixed_precision and self.optimizer is None:
            rule = "must have no mixed_precision where model_fn has an optimizer of its own. Name"
            yield "train", f"{rule} the optimizer in the config, or scale the loss in model_fn."


_PLACEHOLDER = "in.place:of"  # an input that another one replaces


def load(
    path: str,
    assignments: Sequence[str] = (),
    model_dir: str | None = None,
    has_input: bool = False,
) -> Config:
    """Reads a config file.

    Args:
        path: The file; or the folder of a run, whose config and model_dir are taken.
        assignments: `a.b=value` texts that override keys, in order; one that stood for itself
            on the command line begins with `--`.
        model_dir: Overrides the key model_dir.
        has_input: Whether predict.input may be missing, as something else takes its place.

    Raises:
        ConfigError: If anything is wrong; one line for each fault, with file, line and key.
    """
    made, faults = _checked(path, assignments, model_dir, has_input)
    if made is not None and not faults:
        return made
    # What comes with an assignment has that for its place, also where it stands in no line.
    counts = range(len(assignments))
    before = [_checked(path, assignments[:n], model_dir, has_input)[1] for n in counts]
    lines = []
    for fault, place in faults.items():
        came = [one for one, known in zip(assignments, before, strict=True) if fault not in known]
        place = documents.source_of(came[-1]) if came and place else place
        lines.append(f"{place}: {fault}" if place else fault)
    raise errors.ConfigError("\n".join(lines))


def _checked(
    path: str, assignments: Sequence[str], model_dir: str | None, has_input: bool
) -> tuple[Config | None, dict[str, str]]:
    """Reads and checks; returns the config, and for each fault its place."""
    document = documents.read(documents.file_of(path), assignments)
    data, folder = document.data, document.folder
    if os.path.isdir(path):
        data["model_dir"] = os.path.normpath(path)
    if model_dir is not None:
        data["model_dir"] = model_dir
        document.places[("model_dir",)] = yaml_nodes.Place("--model-dir", ("", 0))
    data.setdefault("name", Path(path).stem)
    data.setdefault("model_dir", os.path.join(_RUNS, str(data["name"])))
    if has_input and isinstance(predict := data.get("predict"), dict):
        predict.setdefault("input", _PLACEHOLDER)
    try:
        return Config.model_validate(data, context=folder), dict.fromkeys(document.faults, "")
    except pydantic.ValidationError as e:
        return None, {**dict.fromkeys(document.faults, ""), **_faults(e, document)}


def _faults(error: pydantic.ValidationError, document: documents.Document) -> dict[str, str]:
    """Returns the place of each fault; what is wrong behind an anchor is told once."""
    found, known = {}, set()
    for one in error.errors(include_url=False):
        path = types.keys_of(one["loc"], document.data)
        place = document.place(path)
        fault = place.origin, one["msg"]
        if one["input"] is not yaml_nodes.UNREAD and fault not in known:
            found[f"{yaml_nodes.dotted(path)}: {one['msg']}" if path else one["msg"]] = place.text
        known.add(fault)
    return found


def to_yaml(config: Config, folder: str | None = None) -> str:
    """Returns the config with all defaults as YAML that reads back as an equal config.

    Args:
        config: The config.
        folder: Where the YAML will be, which names no other folder of this machine then.
    """
    return documents.dump(_plain(config, folder))


def _plain(value: Any, folder: str | None) -> Any:
    if isinstance(value, types.File):
        return str(value) if folder is None else files.relative(value, folder)
    if isinstance(value, types.Section):
        return {name: _plain(getattr(value, name), folder) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {name: _plain(one, folder) for name, one in value.items()}
    return [_plain(one, folder) for one in value] if isinstance(value, tuple | list) else value
