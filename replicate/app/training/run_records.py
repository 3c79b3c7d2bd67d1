"""What a run writes beside its checkpoints: its config, its versions, its metrics."""

import datetime
import os
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

import replicate
from replicate.app.console import json_output
from replicate.app.runs import whole_files
from replicate.compat.tensorflow import tf

__all__ = [
    "CONFIG",
    "METRICS",
    "RUN",
    "changes",
    "is_ours",
    "kept_text",
    "write_config",
    "write_metrics",
    "write_run",
]

CONFIG, RUN, METRICS = "config.yaml", "run.json", "metrics.json"
_MARK = "# Written by `replicate train`"
_NOT_THERE = object()


def changes(model_dir: str, text: str) -> list[str]:
    """Returns in which keys a config differs from the one that the directory's run had.

    Args:
        model_dir: Where the run is.
        text: The whole config, as YAML.

    Returns:
        One line for each key; none where there is no record of the run's config.
    """
    before = _plain(whole_files.read_text(os.path.join(model_dir, CONFIG)))
    if before is None or not is_ours(model_dir, CONFIG):
        return []
    old, new = dict(_flat(before)), dict(_flat(_plain(text) or {}))
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"{key}: was {_shown(old, key)}, is {_shown(new, key)}"
        for key in keys
        if _differ(old.get(key, _NOT_THERE), new.get(key, _NOT_THERE))
    ]


def write_config(model_dir: str, text: str, folder: str) -> bool:
    """Writes the whole config down; a file of somebody else's by that name stays.

    Args:
        model_dir: Where the run is.
        text: The whole config, as YAML.
        folder: The folder of the file that it was read from.

    Returns:
        Whether it was written.
    """
    path = os.path.join(model_dir, CONFIG)
    if _is_taken(model_dir, CONFIG):
        return False
    head = f"{_MARK}: the config of this run, with all defaults. Its functions: {folder}\n"
    whole_files.write_text(path, head + text)
    return True


def write_run(
    model_dir: str,
    *,
    towers: Sequence[str],
    strategy: str,
    start: int,
    command: Sequence[str],
    workers: int = 1,
) -> bool:
    """Writes down what runs, on what, since when; a file of somebody else's stays.

    Args:
        model_dir: Where the run is.
        towers: The device of each tower.
        strategy: Where variables live and how they are updated.
        start: The step that the run begins at.
        command: The command line, word by word.
        workers: How many processes have such towers.

    Returns:
        Whether it was written.
    """
    record = {
        "replicate": replicate.__version__,
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "devices": list(dict.fromkeys(towers)),
        "towers": len(towers) * workers,
        "workers": workers,
        "strategy": strategy,
        "start_step": start,
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "directory": os.getcwd(),
    }
    return _write(model_dir, RUN, record)


def write_metrics(
    model_dir: str, step: int, metrics: Mapping[str, Any] | None, ended_by: str
) -> bool:
    """Writes down what a training came to; a file of somebody else's stays.

    Args:
        model_dir: Where the run is.
        step: The step at which it ended.
        metrics: Those of the last evaluation; None where there was none.
        ended_by: What ended it, in a word.

    Returns:
        Whether it was written.
    """
    found = json_output.plain(dict(sorted((metrics or {}).items())))
    found.pop("global_step", None)
    record = {"step": step, "ended_by": ended_by, "metrics": found}
    return _write(model_dir, METRICS, record)


def _write(model_dir: str, name: str, record: Mapping[str, Any]) -> bool:
    if _is_taken(model_dir, name):
        return False
    whole_files.write_json(os.path.join(model_dir, name), record)
    return True


def kept_text(model_dir: str, name: str) -> str:
    """Returns what people are told where a record is not written."""
    return (
        f"{model_dir}/{name} is not a run's; it stays, and what would be in it of this run is not "
        "written down."
    )


def _is_taken(model_dir: str, name: str) -> bool:
    """Tells whether there is a file by the name of a record that is none."""
    return tf.io.gfile.exists(os.path.join(model_dir, name)) and not is_ours(model_dir, name)


def is_ours(model_dir: str, name: str) -> bool:
    """Tells whether a file by the name of a record is one."""
    path = os.path.join(model_dir, name)
    if name == CONFIG:
        return (whole_files.read_text(path) or "").startswith(_MARK)
    needed = {RUN: {"replicate", "start_step"}, METRICS: {"step", "metrics"}}[name]
    return needed <= set(whole_files.read_json(path) or {})


def _plain(text: str | None) -> Any:
    try:
        return yaml.safe_load(text) if text is not None else None
    except yaml.YAMLError:
        return None


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted key -> value of everything that is no mapping."""
    if not isinstance(value, Mapping) or (path and not value):
        yield path, value
        return
    for name, one in value.items():
        yield from _flat(one, f"{path}.{name}" if path else str(name))


def _differ(one: Any, other: Any) -> bool:
    are_no_numbers = one != one and other != other  # NaN, which equals nothing
    return one != other and not are_no_numbers


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "not there"
    text = yaml.safe_dump(values[key], default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
