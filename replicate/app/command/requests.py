"""A command as it was asked for: its options, its configs, where its result goes."""

import contextlib
import dataclasses
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from replicate import errors
from replicate.app.cluster import launcher, lifeline
from replicate.app.config import (
    config,
    documents,
    files,
    functions,
    input_config,
    schema,
    sections,
)
from replicate.app.inspect import absences
from replicate.console import json_output

_SECTIONS = {
    **dict.fromkeys(("describe", "launch", "train", "verify"), "train"),
    "evaluate": "eval",
    "predict": "predict",
}
_CALL_NOTHING = ("check", "launch")


@dataclasses.dataclass(frozen=True)
class Request:
    """What a command is to do.

    Attributes:
        options: Those of the command line.
        line: The whole command line.
        launcher: The line to `replicate launch`; None: it has not started this process.
        configs: The configs that can be read, by path.
        faults: What is wrong with the others, by path.
        out: Where the result goes; with `--json` nobody else writes there.
    """

    options: types.SimpleNamespace
    line: Sequence[str]
    launcher: lifeline.Lifeline | None
    configs: Mapping[str, config.Config]
    faults: Mapping[str, str]
    out: TextIO

    @property
    def settings(self) -> config.Config:
        """The config of a command that takes one."""
        (found,) = self.configs.values()
        return found

    def print_json(self, value: object) -> None:
        """Prints a result as one line of JSON."""
        json_output.write(json_output.plain(value), self.out)


def read_configs(options: types.SimpleNamespace) -> tuple[dict[str, config.Config], dict[str, str]]:
    """Returns the configs that can be read, and what is wrong with the others, by path."""
    found, faults = {}, {}
    for path in options.configs:
        try:
            data = getattr(options, "data", None)
            settings = config.load(path, options.assignments, options.model_dir, data is not None)
            if data is not None:
                settings = _predicting(settings, data)
            _require_section(settings, path, options)
            found[path] = settings
        except errors.ConfigError as e:
            faults[path] = str(e)
    return found, faults


def _predicting(settings: config.Config, path: str) -> config.Config:
    """Returns a config that predicts for a file, read as its inputs read files of this kind."""
    named = [one for one in (settings.predict, settings.eval, settings.train) if one is not None]
    known = [one.input for one in named if input_config.files_of(one.input)]
    kind = files.KINDS.get(files.form_of(path))
    source = next((one for one in known if kind in (None, one.kind)), None)
    if source is None:
        told = f"; it is {kind}" if kind else ""
        raise errors.ConfigError(
            f"FILE: {path}: must be of a kind that predict.input, eval.input or train.input reads, "
            f"of which {', '.join(one.kind for one in known) or 'none'} reads files{told}. Add "
            "predict.input, which says how to read it."
        )
    source = source.of_file(path if "://" in path else os.path.abspath(path))
    predict = settings.predict or sections.Predict(input=source)
    return settings.model_copy(update={"predict": predict.model_copy(update={"input": source})})


def _require_section(settings: config.Config, path: str, options: types.SimpleNamespace) -> None:
    section = _SECTIONS.get(options.command)
    if section is None or getattr(settings, section) is not None:
        return
    place = f"{documents.file_of(path)}:1"
    for text in options.assignments:
        if text.removeprefix("--").partition("=")[0].strip() == section:
            place = documents.source_of(text)
    then = ", or name the FILE to predict for" if section == "predict" else ""
    raise errors.ConfigError(
        f"{place}: {section}: this section is required for `replicate {options.command}`. Add "
        f"it{then}."
    )


def require_data(request: Request) -> None:
    """Looks at the files that a command is to read, before TensorFlow is loaded.

    A task of a cluster may need none of them, and a run that has begun may be over.

    Raises:
        RunError: If a file is not there, or a table does not fit.
    """
    options, section = request.options, _SECTIONS.get(request.options.command)
    if section is None or not options.configs or "TF_CONFIG" in os.environ:
        return
    settings, wanted = request.settings, [section]
    if options.command in ("train", "launch"):
        is_trial, is_new = (getattr(options, name, False) for name in ("fast_dev_run", "fresh"))
        if not (is_trial or is_new) and launcher.saved_step(settings.model_dir) is not None:
            return
        wanted += ["eval"] * (settings.eval is not None)
        wanted += ["predict"] * (is_trial and settings.predict is not None)
    absences.require_data(settings, wanted)


def print_configs(found: Iterable[config.Config], as_json: bool) -> None:
    """Prints configs with all defaults; as JSON one by itself, several as a list."""
    texts = [config.to_yaml(one) for one in found]
    if not as_json:
        print("---\n".join(schema.line() + text for text in texts), end="")
        return
    plain: list[json_output.Json] = [documents.parse(text, "config").data for text in texts]
    json_output.write(plain[0] if len(plain) == 1 else plain, sys.stdout)


@contextlib.contextmanager
def surroundings(
    options: types.SimpleNamespace, configs: Iterable[config.Config]
) -> Iterator[TextIO]:
    """While entered, this process is as a command wants it.

    Modules beside the first config can be imported, where its functions are to be called, and
    only training is part of a cluster.

    Yields:
        Where the result goes.
    """
    with contextlib.ExitStack() as leave:
        for settings in [] if options.command in _CALL_NOTHING else list(configs)[:1]:
            leave.enter_context(functions.importable(settings.folder))
        if options.command != "train" or options.fast_dev_run:
            leave.enter_context(_without_cluster())
        # What a launched process tells goes straight to stdout.
        is_alone = options.json and options.command != "launch"
        yield leave.enter_context(json_output.alone()) if is_alone else sys.stdout


@contextlib.contextmanager
def _without_cluster() -> Iterator[None]:
    """While entered, the environment says nothing of a cluster."""
    told = os.environ.pop("TF_CONFIG", None)
    try:
        yield
    finally:
        if told is not None:
            os.environ["TF_CONFIG"] = told
