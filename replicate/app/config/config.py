"""What a config file may say, and the one way to read it; does not import TensorFlow.

Every key is a field of a section: its type, its bounds, its default and its description
stand in one place. `load` reads a file, applies `--set`, checks everything and reports all
faults at once.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from replicate import errors
from replicate.app.config import (
    catalog,
    documents,
    faults,
    files,
    input_config,
    optimizer_config,
    sections,
    types,
)

_RUNS = "runs"  # where a run is by its name


def _model_dir(path: str) -> str:
    """Takes a path; a relative one stays relative to the working directory.

    TensorFlow finds checkpoints by patterns, and would not find those of such a place again.
    """
    path = os.path.expanduser(types.path_of(path, None))
    if path.startswith("~"):
        raise types.expected("a path in a home folder that is known", "Write the path without ~.")
    if set(path.replace(os.sep, "/")) & set("*?[\\"):
        raise types.expected("a path without * ? [ and \\, by which TensorFlow finds no checkpoint")
    return path


class Config(types.Section):
    """A whole config."""

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
    seed: Annotated[int, types.whole()] | None = Field(
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

    @classmethod
    def known_keys(cls) -> tuple[str, ...]:
        """See base class; one key is for `documents`."""
        return (documents.EXTENDS, *super().known_keys())

    @classmethod
    def filled_in(cls) -> dict[str, str]:
        """See base class."""
        return {"name": "the file's name", "model_dir": "runs/<name>"}

    def model_post_init(self, context: types.Reading | None) -> None:
        """See base class."""
        self._folder = str(context.folder) if context is not None else ""

    @property
    def folder(self) -> str:
        """Where the config stands; functions may be imported from here."""
        return self._folder

    @property
    def evaluated_every(self) -> int | None:
        """The steps between two evaluations in training; None where there are none."""
        return self.eval.every_steps if self.eval is not None else None

    def section(self, kind: type[types.S]) -> types.S:
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
        return types.known(
            self._faults_of_name(),
            self._faults_of_exporters(),
            self._faults_of_building(),
            self._faults_of_evaluation(),
            self._faults_of_training(),
        )

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

    def _faults_of_name(self) -> Iterator[tuple[str, str]]:
        """Yields a name by which the run would be anywhere but in the folder of runs."""
        inside = os.path.join(_RUNS, "")
        is_by_name = self.model_dir == os.path.join(_RUNS, self.name)
        if is_by_name and not os.path.normpath(self.model_dir).startswith(inside):
            rule = f"must not lead out of {_RUNS}, where the run is by its name, got {self.name!r}"
            yield "name", f"{rule}. Choose another one, or set model_dir."

    def _faults_of_exporters(self) -> Iterator[tuple[str, str]]:
        exporters = self.export.exporters if self.export is not None else ()
        for kind in types.each(lambda one: one.kind, exporters):
            if kind != "final" and self.eval is None:
                yield "export", f"must have no {kind} exporter without an eval section. Add one."

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

    def _faults_of_evaluation(self) -> Iterator[tuple[str, str]]:
        if self.train and self.eval and self.eval.input.is_trained_on(self.train.input):
            yield "eval", "must have the input.holdout that train has, or it has rows of training."

    def _faults_of_training(self) -> Iterator[tuple[str, str]]:
        """Yields what training lacks; a key that cannot be read hides only what is about it."""
        train = self.train
        if train is None:
            return
        rules: dict[str, Callable[[], object]] = {
            "early_stopping without eval.every_steps. Set that.": lambda: (
                train.early_stopping and not (self.eval and self.eval.every_steps)
            ),
            "keep_best without an eval section. Add one.": lambda: (
                train.keep_best and not self.eval
            ),
            "mixed_precision where model_fn has an optimizer of its own. Name the optimizer in the "
            "config, or scale the loss in model_fn.": lambda: (
                train.mixed_precision and self.optimizer is None
            ),
        }
        for rule, is_broken in rules.items():
            with contextlib.suppress(types.UnreadError):
                if is_broken():
                    yield "train", f"must have no {rule}"


_PLACEHOLDER = "in.place:of"  # an input that another one replaces


def load(path: str, assignments: Sequence[str] = (), model_dir: str | None = None) -> Config:
    """Reads a config file.

    Args:
        path: The file; or the folder of a run, whose config and model_dir are taken.
        assignments: `a.b=value` texts that override keys, in order; one that stood for itself
            on the command line begins with `--`.
        model_dir: Overrides the key model_dir.

    Raises:
        ConfigError: If anything is wrong; one line for each fault, with file, line and key.
    """
    made, broken = read(path, assignments, model_dir)
    if broken:
        raise errors.ConfigError("\n".join(broken))
    return made


def read(
    path: str,
    assignments: Sequence[str] = (),
    model_dir: str | None = None,
    has_input: bool = False,
) -> tuple[Config, list[str]]:
    """Reads a config file as far as it can be read.

    Args:
        path: See `load`.
        assignments: See `load`.
        model_dir: See `load`.
        has_input: Whether predict.input may be missing, as something else takes its place.

    Returns:
        The config, which has no attributes for keys that are wrong, and its faults.

    Raises:
        ConfigError: If nothing can be read.
    """
    made, broken = _checked(path, assignments, model_dir, has_input)
    return made, list(_blamed(broken, path, assignments)) if broken else []


def _checked(
    path: str, assignments: Sequence[str], model_dir: str | None, has_input: bool = False
) -> tuple[Config, list[tuple[str, str]]]:
    """Reads and checks; returns the config, and for each fault its place and its text."""
    document, folder = documents.read(documents.file_of(path))
    if os.path.isdir(path):
        document.data["model_dir"] = os.path.normpath(path)
    documents.override(document, assignments)
    if model_dir is not None:
        document.data["model_dir"] = model_dir
        document.places[("model_dir",)] = "--model-dir"
    name = document.data.setdefault("name", Path(path).stem)
    document.data.setdefault("model_dir", os.path.join(_RUNS, str(name)))
    if has_input and isinstance(predict := document.data.get("predict"), dict):
        predict.setdefault("input", _PLACEHOLDER)
    reading = types.Reading(folder)
    error = None
    try:
        made = Config.model_validate(document.data, context=reading)
    except pydantic.ValidationError as e:
        made, error = reading.section_of(document.data, Config), e
    broken = [("", text) for text in document.faults]
    return made, broken + faults.found(error, document, reading)


def _blamed(broken: list[tuple[str, str]], path: str, assignments: Sequence[str]) -> Iterator[str]:
    """Yields faults as lines; one that came with an assignment has that for its place.

    A key that `--set` makes wanted stands in no line of the file.
    """
    texts = [{text for _, text in broken}]
    for count in reversed(range(len(assignments))):
        texts.insert(0, {text for _, text in _checked(path, assignments[:count], None)[1]})
    for place, text in broken:
        came = [i for i in range(len(assignments)) if text not in texts[i] and text in texts[i + 1]]
        if came and not place.startswith("--"):
            place = documents.source_of(assignments[came[-1]])
        yield f"{place}: {text}" if place else text


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
