"""What a run writes beside its checkpoints: its config, its metrics."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from replicate.app.config import documents
from replicate.app.runs import atomic_files
from replicate.compat.tensorflow import tf
from replicate.console import json_output

CONFIG, METRICS = documents.RECORD, "metrics.json"
_NOT_THERE = object()


def changes(model_dir: str, text: str) -> list[str]:
    """Returns in which keys a config differs from the one that the directory's run had.

    Args:
        model_dir: Where the run is.
        text: The whole config, as YAML.

    Returns:
        One line for each key; none where there is no record of the run's config.
    """
    before = _plain(atomic_files.read_text(os.path.join(model_dir, CONFIG)) or "")
    if before is None or not is_ours(model_dir, CONFIG):
        return []
    old, new = dict(_flat(before)), dict(_flat(_plain(text) or {}))
    return [
        f"{key}: {_change(old, new, key)}"
        for key in {**old, **new}
        if _differ(old.get(key, _NOT_THERE), new.get(key, _NOT_THERE))
    ]


def write(model_dir: str, name: str, text: str, say: Callable[[str], None]) -> None:
    """Writes a record; a file of somebody else's by its name stays, which people are told."""
    path = os.path.join(model_dir, name)
    if tf.io.gfile.exists(path) and not is_ours(model_dir, name):
        say(
            f"{model_dir}/{name} is not a run's; it stays, and what would be in it of this run is "
            "not written down."
        )
    else:
        atomic_files.write_text(path, text)


def of_metrics(step: int, metrics: Mapping[str, Any], ended_by: str) -> str:
    """Returns what a training came to, as JSON.

    Args:
        step: The step at which it ended.
        metrics: Those of the last evaluation, if there was one.
        ended_by: What ended it, in a word.
    """
    found = {name: metrics[name] for name in sorted(metrics) if name != "global_step"}
    record = {"step": step, "ended_by": ended_by, "metrics": json_output.plain(found)}
    return atomic_files.as_json(record)


def is_finished(model_dir: str, step: int) -> bool:
    """Tells whether what follows training has been done at a step."""
    return atomic_files.read_json(os.path.join(model_dir, METRICS)).get("step") == step


def is_ours(model_dir: str, name: str) -> bool:
    """Tells whether a file by the name of a record is one."""
    path = os.path.join(model_dir, name)
    if name == CONFIG:
        return documents.is_record(atomic_files.read_text(path) or "")
    return {"step", "metrics"} <= set(atomic_files.read_json(path))


class _Loader(yaml.SafeLoader):
    """The safe loader without aliases (*), of which `documents.dump` writes none."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """See base class."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError
        return super().compose_node(parent, index)


def _plain(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except Exception:  # noqa: BLE001 - what has a record's first line need not be one
        return None


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted key -> value of everything that is no mapping."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, one in value.items():
        yield from _flat(one, f"{path}.{name}" if path else str(name))


def _differ(one: Any, other: Any) -> bool:
    are_no_numbers = one != one and other != other  # NaN, which equals nothing
    return one != other and not are_no_numbers


def _change(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> str:
    if key not in old:
        return f"added, is {_shown(new[key])}"
    if key not in new:
        return f"removed, was {_shown(old[key])}"
    return f"was {_shown(old[key])}, is {_shown(new[key])}"


def _shown(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
