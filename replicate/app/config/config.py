"""What a config file may say, and the one way to read it; does not import TensorFlow.

Every key is a field of a section: its type, its bounds, its default and its description
stand in one place. `load` reads a file, applies `--set`, checks everything and reports all
faults at once.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from replicate import errors
from replicate.app.config import (
    catalog,
    documents,
    faults,
    input_config,
    optimizer_config,
    sections,
    types,
)

_RUNS = "runs"  # where a run is by its name
_OF_ROWS = ("shuffle", "repeat", "holdout", "rows")  # what says which rows of a file, in what order


def _model_dir(path: str) -> str:
    """Takes a path that is no pattern: by one TensorFlow would not find checkpoints again."""
    if set(path.replace(os.sep, "/")) & set("*?[\\"):
        raise ValueError("must be a path without * ? [ and \\, by which TensorFlow finds none")
    if (path := os.path.expanduser(path)).startswith("~"):
        raise ValueError("must be a path in a home folder that is known")
    return path


class Config(types.Section):
    """A whole config."""

    extends: types.Text | None = Field(None, exclude=True)
    """A config that this one begins with, relative to this file: mappings are merged, all else is
    replaced."""
    name: types.Text = ""
    """What the run is called; else as the file without its ending."""
    model_fn: types.Function
    """The Estimator model_fn, as `package.module:function`."""
    optimizer: optimizer_config.OptimizerOrFunction | None = None
    """By name with arguments, or a function that returns one; null: the model_fn's own train_op is
    used."""
    params: dict[str, types.Anything] = Field({})
    """What model_fn gets as `params`."""
    devices: sections.Devices = "auto"
    """auto, a list of names, how many (GPUs, or CPU devices where there is no GPU), {gpu: n}, or
    {cpu: n} for n logical CPU devices."""
    strategy: sections.Strategy | None = None
    """Where variables live and how they are updated: by name, or, as in {name: balanced,
    slice_bytes: 64MB}, with larger variables cut into slices; null: parameter_server, or
    multi_worker where TF_CONFIG has several workers."""
    loss_reduction: Literal["sum", "mean"] | None = None
    """With tower_building call, which it chooses: how the towers' losses and gradients are joined,
    sum or mean (by rows); null: mean."""
    accumulate_steps: types.Positive = 1
    """Batches that make one update; their gradients are averaged, or added with loss_reduction:
    sum. Steps count batches."""
    micro_batches: types.Positive = 1
    """In how many parts each device computes its rows, one behind the other, so that a batch larger
    than memory fits; numbers stay the same."""
    clip_global_norm: types.AboveZero | None = None
    """Clips reduced gradients to this norm; null: no clipping."""
    update_ops: Literal["first", "mean", "all"] | None = None
    """With tower_building call, which it chooses: whose UPDATE_OPS run, first, mean or all towers';
    null: first."""
    tower_building: Literal["split", "call"] | None = None
    """split calls the model_fn once, on the whole batch, and splits one device's graph by rows,
    which changes no number; call calls it once per tower, on its rows; null: call where
    loss_reduction or update_ops is given, else split."""
    random_numbers: Literal["one_device", "per_device"] | None = None
    """With tower_building split: one_device draws what one device draws; per_device lets each
    device draw its own, of the same distribution; null: the latter. `replicate verify` takes the
    first."""
    seed: types.Whole | None = None
    """Of every random operation and initial value, and of Python's and NumPy's generators; null:
    another one in each run."""
    model_dir: Annotated[types.Text, pydantic.AfterValidator(_model_dir)] = ""
    """Where checkpoints and summaries are, relative to the working directory; else `runs/<name>`.
    """
    train: sections.Train | None = None
    """How to train."""
    eval: sections.Eval | None = None
    """How to evaluate."""
    predict: sections.Predict | None = None
    """How to predict."""
    export: sections.Export | None = None
    """How to export."""
    run: sections.Run = Field(default_factory=sections.Run)
    """Settings of the session."""
    cluster: sections.Cluster = Field(default_factory=sections.Cluster)
    """What TF_CONFIG does not say of a cluster."""
    _folder: str = pydantic.PrivateAttr("")

    def model_post_init(self, context: Path | None) -> None:
        """See base class."""
        self._folder = str(context or "")

    @property
    def folder(self) -> str:
        """Where the config stands; functions may be imported from here."""
        return self._folder

    @property
    def strategy_name(self) -> catalog.Strategy | None:
        """The name of the strategy; None where none is chosen."""
        chosen = self.strategy
        return chosen.name if isinstance(chosen, sections.Slices) else chosen

    @property
    def slice_bytes(self) -> int | None:
        """How large a variable may be that is not cut; None: of any size."""
        return self.strategy.slice_bytes if isinstance(self.strategy, sections.Slices) else None

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

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        train, of_eval = self.train, self.eval
        inside = os.path.join(_RUNS, "")
        is_by_name = self.model_dir == os.path.join(_RUNS, self.name)
        if is_by_name and not os.path.normpath(self.model_dir).startswith(inside):
            rule = f"must not lead out of {_RUNS}, where the run is by its name, got {self.name!r}"
            yield ("name",), f"{rule}. Choose another one, or set model_dir."
        if train and of_eval and of_eval.input.is_trained_on(train.input):
            rule = "must have the input.holdout that train has, or it has rows of training."
            yield ("eval",), rule
        if train and train.early_stopping and not self.evaluated_every:
            yield ("train", "early_stopping"), "must come with eval.every_steps. Set that."
        if train and train.keep_best and not of_eval:
            yield ("train", "keep_best"), "must come with an eval section. Add one."
        if train and train.mixed_precision and self.optimizer is None:
            rule = "must come with an optimizer: model_fn has one of its own. Name it in the config"
            yield ("train", "mixed_precision"), f"{rule}, or scale the loss in model_fn."
        of_towers = [n for n in ("loss_reduction", "update_ops") if getattr(self, n) is not None]
        then = "Leave out one of them."
        if self.tower_building == "split":
            for name in of_towers:
                rule = "must be left out with tower_building: split, which has one device's graph"
                yield (name,), f"{rule}. {then}"
        elif self.tower_building or of_towers:
            said = "tower_building: call" if self.tower_building else of_towers[0]
            if self.random_numbers:
                yield ("random_numbers",), f"must be left out with {said}: each tower draws. {then}"
            if self.micro_batches > 1:
                rule = f"must be left out with {said}, which splits no graph"
                yield ("micro_batches",), f"{rule}. {then}"

    def require_cluster(self, workers: int, servers: int) -> None:
        """Refuses a strategy that would leave the workers of a cluster alone.

        Raises:
            ConfigError: If it would; servers are parameter servers.
        """
        wanted = self.strategy_name
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


def load(
    path: str,
    assignments: Sequence[str] = (),
    model_dir: str | None = None,
    file: str | None = None,
    needed: str | None = None,
) -> Config:
    """Reads a config file.

    Args:
        path: The file; or the folder of a run, whose config and model_dir are taken.
        assignments: `a.b=value` texts that override keys, in order; one that stood for itself
            on the command line begins with `--`.
        model_dir: Overrides the key model_dir.
        file: What predictions are made for, read as predict.input is, eval.input or train.input.
        needed: A section that must be there.

    Raises:
        ConfigError: If anything is wrong; one line for each fault, with file, line and key.
    """
    check = functools.partial(_checked, path, model_dir=model_dir, file=file, needed=needed)
    made, found = check(assignments)
    if made is not None and not found:
        return made
    # What comes with an assignment has that for its place, also where it stands in no line.
    before = [check(assignments[:count])[1] for count in range(len(assignments))]
    lines = []
    for fault, place in found.items():
        came = [one for one, known in zip(assignments, before, strict=True) if fault not in known]
        place = documents.source_of(came[-1]) if came and place else place
        lines.append(f"{place}: {fault}" if place else fault)
    raise errors.ConfigError("\n".join(lines))


def _checked(
    path: str,
    assignments: Sequence[str],
    model_dir: str | None,
    file: str | None,
    needed: str | None,
) -> tuple[Config | None, dict[str, str]]:
    """Reads and checks; returns the config, and for each fault its place."""
    document = documents.read(documents.file_of(path), assignments)
    data, folder = document.data, document.folder
    if os.path.isdir(path):
        data["model_dir"] = os.path.normpath(path)
    if model_dir is not None:
        data["model_dir"] = model_dir
        document.places[("model_dir",)] = documents.Place("--model-dir", ("", 0))
    data.setdefault("name", Path(path).stem)
    data.setdefault("model_dir", os.path.join(_RUNS, str(data["name"])))
    if file is not None:
        _predict_for(document, file)
    try:
        made, details = Config.model_validate(data, context=folder), []
    except pydantic.ValidationError as e:
        made, details = None, e.errors(include_url=False)
    found = faults.told(details, document)
    if needed is not None and data.get(needed) is None:
        found[f"{needed}: this section is required. Add it."] = document.place((needed,)).text
    return made, found


def _predict_for(document: documents.Document, file: str) -> None:
    """Has predictions made for a file, read as the first input is that reads any."""
    for name in ("predict", "eval", "train"):
        section = document.data.get(name)
        source = section.get("input") if isinstance(section, dict) else None
        if isinstance(source, dict) and "file" in source:
            break
    else:
        raise errors.ConfigError(
            f"FILE: {file}: must be read as predict.input, eval.input or train.input is, of which "
            "none reads files. Add predict.input, which says how to read it."
        )
    kept = {key: one for key, one in source.items() if key not in _OF_ROWS}
    kept["file"] = file if "://" in file else os.path.abspath(file)
    predict = document.data.get("predict")
    document.data["predict"] = {**(predict if isinstance(predict, dict) else {}), "input": kept}
    document.places |= {
        ("predict", *path[1:]): place
        for path, place in document.places.items()
        if path[:2] == (name, "input")
    }


def to_yaml(config: Config, folder: str | None = None) -> str:
    """Returns the config with all defaults as YAML that reads back as an equal config.

    Args:
        config: The config.
        folder: Where the YAML will be, which names no other folder of this machine then.
    """
    return documents.dump(config.model_dump(mode="json", context=folder))
