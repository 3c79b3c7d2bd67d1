"""`replicate init`: a config to begin with, from a model_fn and a data file."""

import contextlib
import os
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app.config import catalog, config, documents, schema, types
from replicate.app.inspect import samples
from replicate.app.runs import atomic_files

_HEAD = """\
# Written by `replicate init`; what is guessed says "change". `replicate check {name}` names
# all faults, with --print-config it shows all keys; `replicate train {name}` trains.
model_fn: {model_fn}
# params: {{}}  # change: what model_fn gets as params, where it names them
"""
_NO_OPTIMIZER = """
# Change: an optimizer is needed where model_fn has no train_op of its own.
# optimizer: {name: Adam, learning_rate: 0.001}
"""
_INPUTS = """
train:
  steps: 1000  # change: when training is over
  input: &data
{}
eval:
  every_steps: 250
  input: &held_out
    <<: *data
{}"""
_PREDICT = """
# For `replicate predict` and `replicate export`: remove them where model_fn has no predictions.
predict:
  input: *held_out  # change: what to predict for; or name a file: replicate predict {name} FILE

export:
  after_training: false  # change: whether training ends with an export
"""
_VALUES = {"learning_rate": 0.01, "momentum": 0.9}  # of arguments without a default
_NOTES = {
    "batch_size": "change: rows of all devices together",
    "columns": "dtypes as of the first rows; of lists, that of their values",
    "defaults": "change: what stands for an empty cell",
    "header": "change: name the columns above",
    "holdout": "change: of the rows, always the same, are for evaluation alone",
    "label": "change, if it is another one",
    "learning_rate": "change: tune it",
    "rows": "the rest is held out for evaluation",
}


def write(output: str, written: str, is_new: bool) -> list[str]:
    """Writes a config that passes `replicate check`, and a schema beside it, if it names that.

    Args:
        output: The file.
        written: The config's text.
        is_new: Whether there must be no such file yet.

    Returns:
        The files that are written.

    Raises:
        ConfigError: If there is one, or it cannot be written.
    """
    folder = os.path.dirname(output)
    if is_new and os.path.lexists(output):
        raise errors.ConfigError(
            f"{output}: is there already. Name another file with --output, or give --force."
        )
    path, files = output, [output]
    try:
        with atomic_files.replacing(output) as unfinished:
            Path(unfinished).write_text(written, encoding="utf-8")
            config.load(unfinished)
            os.chmod(unfinished, 0o644)
            if f"={schema.BESIDE}\n" in written:
                path = os.path.join(folder, schema.BESIDE)
                with atomic_files.replacing(path) as copy:
                    shutil.copyfile(schema.FILE, copy)
                files.append(path)
    except OSError as e:
        raise errors.ConfigError(
            f"{path}: must be a file that can be written: {e.strerror}. Check the path."
        ) from e
    return files


def text(model_fn: str, sample: samples.Sample, output: str, optimizer: str | None = None) -> str:
    """Returns the text of a config.

    Args:
        model_fn: `package.module:function`.
        sample: The data; see `look`.
        output: The file that the config is for; paths are relative to its folder.
        optimizer: Its name; None: the model_fn has one.

    Raises:
        ConfigError: If an argument is none.
    """
    if not types.is_function(model_fn):
        raise errors.ConfigError(
            f"MODEL_FN: must be a function's name as package.module:function, got {model_fn!r}."
        )
    folder = Path(output).absolute().parent
    parts = [
        schema.line(folder),
        _HEAD.format(name=Path(output).name, model_fn=model_fn),
        _optimizer(optimizer),
        "\ndevices: auto  # all GPUs, or the CPU; {cpu: 2} tries two towers on a CPU\n",
        _inputs(sample, folder),
        _PREDICT.format(name=Path(output).name),
    ]
    return "".join(parts)


def told(sample: samples.Sample, label: str | None) -> list[str]:
    """Returns what is said of columns, and of a label that is guessed, or cannot be."""
    lines = [f"{name}: left out, as {why}" for name, why in sample.left_out.items()]
    if sample.label is None and sample.names:
        listed = textwrap.shorten(", ".join(sample.names), 100, placeholder=" …")
        lines.append(f"label: none, as no name says it; --label takes one of {listed}")
    elif sample.label is not None and label is None:
        lines.append(f"label: {sample.label}, by its name; --label takes another one")
    return lines


def _optimizer(name: str | None) -> str:
    """Returns an optimizer with the arguments that it needs."""
    if name is None:
        return _NO_OPTIMIZER
    if name not in catalog.OPTIMIZERS:
        then = types.meant(name, catalog.OPTIMIZERS, "Name one of them.")
        raise errors.ConfigError(
            f"--optimizer: must be one of {', '.join(catalog.OPTIMIZERS)}, got {name!r}. {then}"
        )
    keys = {
        key: _VALUES[key] if one is catalog.REQUIRED else one
        for key, one in catalog.OPTIMIZERS[name].items()
        if key == "learning_rate" or one is catalog.REQUIRED
    }
    return "\noptimizer:\n" + textwrap.indent(_block({"name": name, **keys}), "  ")


def _inputs(sample: samples.Sample, folder: Path) -> str:
    """Returns the sections that train and evaluate; paths are relative to the config's folder."""
    label = {"label": sample.label} if sample.names else {}
    keys = _block({**_relative(sample.keys, folder), **label, "batch_size": 32})
    others = f"# {sample.others}\n"
    if not isinstance(sample.others, str):
        others = _block(_relative(sample.others, folder))
    return _INPUTS.format(textwrap.indent(keys, "    "), textwrap.indent(others, "    "))


def _relative(keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    if "file" not in keys:
        return dict(keys)
    path = keys["file"]
    with contextlib.suppress(ValueError):  # on another drive
        path = os.path.relpath(path, folder)
    return {**keys, "file": Path(path).as_posix()}


def _block(keys: Mapping[str, Any]) -> str:
    """Returns keys as lines of YAML, each with what there is to say about it."""
    lines = []
    for name, value in keys.items():
        is_short = isinstance(value, list | dict) and name != "columns"
        first, *more = documents.dump({name: value}, flow=is_short).splitlines()
        lines += [f"{first}  # {_NOTES[name]}" if name in _NOTES else first, *more]
    return "\n".join(lines) + "\n"
