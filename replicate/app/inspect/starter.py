"""`replicate init`: a config to begin with, from a model_fn and a data file."""

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app.config import catalog, config, documents, files, schema, types
from replicate.app.data import samples
from replicate.app.inspect import absences
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
_PREDICT = """
# For `replicate predict` and `replicate export`: remove them where model_fn has no predictions.
predict:
  input: *held_out  # change: what to predict for; or name a file: replicate predict {name} FILE

export:
  after_training: false  # change: whether training ends with an export
"""
_VALUES = {"learning_rate": 0.01, "momentum": 0.9}  # of arguments without a default
_RATE = "change: tune it"
_MAX_NOTE = 100  # characters


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
    try:
        with atomic_files.replacing(output) as unfinished:
            Path(unfinished).write_text(written, encoding="utf-8")
            config.load(unfinished)
            os.chmod(unfinished, 0o644)
        if f"={schema.BESIDE}\n" not in written:
            return [output]
        return [output, shutil.copyfile(schema.FILE, os.path.join(folder, schema.BESIDE))]
    except OSError as e:
        raise errors.ConfigError(
            f"{output}: must be a file that can be written: {e.strerror}. Check the path."
        ) from e


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
        _train(sample, folder),
        _eval(sample, folder),
        _PREDICT.format(name=Path(output).name),
    ]
    return "".join(parts)


def look(data: str, label: str | None = None) -> samples.Sample:
    """Looks at the data.

    Args:
        data: A file, or a function that returns a dataset.
        label: The column, array or feature that is the label; None: the one that is called so.

    Raises:
        ConfigError: If there is no label by this name.
        RunError: If the data cannot be read.
    """
    if types.is_function(data) and not os.path.exists(data):
        named = absences.arguments(data, [os.getcwd(), *sys.path]) or ()
        return samples.of_function(data, "mode" in named)
    path = os.path.abspath(data)
    sample = samples.look(_kind(path, data), path, label)
    if label is not None and label not in sample.names:
        then = types.meant(label, sample.names, f"It has {sample.listed}.")
        told = [one.partition(": ")[2] for one in sample.remarks if one.startswith(f"{label}: ")]
        then = f"It is {told[0]}." if told else then
        raise errors.ConfigError(f"--label {label}: must be in {data}. {then}")
    return sample


def told(sample: samples.Sample) -> list[str]:
    """Returns what is said of columns, and of a label that is guessed, or cannot be."""
    if sample.is_guessed:
        label = [f"label: {sample.label}, by its name; --label takes another one"]
    elif sample.label is None and sample.names:
        label = [f"label: none, as no name says it; --label takes one of {_short(sample.listed)}"]
    else:
        label = []
    return [*sample.remarks, *label]


def _kind(path: str, data: str) -> str:
    """Returns csv, npz, parquet or tfrecord, by the first bytes of a file.

    Args:
        path: The file, or a pattern of files of one kind.
        data: How it was named.

    Raises:
        RunError: If there is none, or it is of another kind.
    """
    if os.path.isdir(path) or files.absent([path]):
        raise errors.RunError(
            f"DATA: {data}: must be a file of this machine, a pattern of such files, or "
            "package.module:function; there is no such file. Check the path."
        )
    first = files.expanded([path], "DATA")[0]
    kind = files.KINDS.get(files.form_of(first))
    if kind == "npz" and first != path:
        raise errors.RunError(
            f"DATA: {data}: must be one file where it is npz, got a pattern. Name one."
        )
    if kind is None and not files.size(first):
        raise errors.RunError(f"DATA: {data}: must have rows, but the file is empty.")
    if kind is None:
        raise errors.RunError(
            f"DATA: {data}: must be CSV, npz, Parquet or TFRecord. Write it as one of them, or "
            "name a function that returns a tf.data.Dataset."
        )
    return kind


def _optimizer(name: str | None) -> str:
    """Returns an optimizer with the arguments that it needs.

    Raises:
        ConfigError: If there is none by this name.
    """
    if name is None:
        return _NO_OPTIMIZER
    if name not in catalog.OPTIMIZERS:
        then = types.meant(name, catalog.OPTIMIZERS, "Name one of them.")
        raise errors.ConfigError(
            f"--optimizer: must be one of {', '.join(catalog.OPTIMIZERS)}, got {name!r}. {then}"
        )
    row = catalog.OPTIMIZERS[name]
    needed = {key: one for key, one in row.items() if key == "learning_rate" or _is_needed(one)}
    arguments = {key: _VALUES[key] if _is_needed(one) else one for key, one in needed.items()}
    keys = _block({"name": name, **arguments}, {"learning_rate": _RATE})
    return "\noptimizer:\n" + textwrap.indent(keys, "  ")


def _is_needed(default: Any) -> bool:
    return default is catalog.REQUIRED


def _train(sample: samples.Sample, folder: Path) -> str:
    keys = _relative(sample.keys, folder)
    notes = dict(sample.notes)
    if sample.names:
        keys["label"] = sample.label
        notes["label"] = "guessed by its name: change, if it is another one" * sample.is_guessed
    if sample.label is None:
        notes["label"] = f"change: one of {sample.listed}"
    keys["batch_size"] = 32
    notes["batch_size"] = "change: rows of all devices together"
    return (
        "\ntrain:\n"
        "  steps: 1000  # change: when training is over\n"
        "  input: &data\n" + textwrap.indent(_block(keys, notes), "    ")
    )


def _eval(sample: samples.Sample, folder: Path) -> str:
    head = "\neval:\n  every_steps: 250\n  input: &held_out\n    <<: *data\n"
    if sample.goes_by_mode:
        return head + "    # The function is called with mode: eval.\n"
    if "holdout" in sample.keys:
        return head + "    # It has the rows that training leaves out.\n"
    if not sample.other_keys:
        return head + "    # Change: training sees these rows; name others here.\n"
    return head + textwrap.indent(_block(_relative(sample.other_keys, folder), {}), "    ")


def _relative(keys: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns keys whose file is relative to the config's folder."""
    if "file" not in keys:
        return dict(keys)
    try:
        path = os.path.relpath(keys["file"], folder)
    except ValueError:  # on another drive
        path = keys["file"]
    return {**keys, "file": Path(path).as_posix()}


def _block(keys: dict[str, Any], notes: dict[str, str]) -> str:
    """Returns keys as lines of YAML, each with what there is to say about it."""
    lines = []
    for name, value in keys.items():
        is_short = isinstance(value, list | dict) and name != "columns"
        first, *more = documents.dump({name: value}, flow=is_short).splitlines()
        note = _short(notes.get(name, ""))
        lines += [f"{first}  # {note}" if note else first, *more]
    return "\n".join(lines) + "\n"


def _short(note: str) -> str:
    """Returns what a comment can hold."""
    shown = "".join(one if one.isprintable() else " " for one in note)
    return textwrap.shorten(shown, _MAX_NOTE, placeholder=" …")
