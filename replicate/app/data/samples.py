"""What a data file holds, found by looking at its beginning: for a config to begin with."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ROWS", "Sample", "beside", "counterpart", "label_of", "stem"]

ROWS = 10_000  # how many are looked at
_LABELS = ("label", "labels", "target", "targets", "y", "class", "classes", "output", "outcome")
_TRAIN = "train"
_OTHERS = ("test", "eval", "val", "valid", "validation", "dev")


@dataclasses.dataclass(frozen=True)
class Sample:
    """An input that a data file may be.

    Attributes:
        keys: Those of the config's input, in order.
        names: What may be the label: columns, arrays, features.
        label: What is taken for it; None where nothing is called so.
        other_keys: Those that an evaluation's input has in their place; empty where it is not
            known what to evaluate on.
        notes: Key -> what to say about it.
    """

    keys: dict[str, Any]
    names: Sequence[str]
    label: str | None
    other_keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: dict[str, str] = dataclasses.field(default_factory=dict)


def label_of(names: Iterable[str]) -> str | None:
    """Returns the name that a label usually has; None where there is none."""
    by_lower = {name.lower(): name for name in reversed(list(names))}
    return next((by_lower[word] for word in _LABELS if word in by_lower), None)


def counterpart(name: str, known: Iterable[str]) -> str | None:
    """Returns what is for evaluation where a name says that it is for training.

    E.g. `test.csv` for `train.csv`, and `x_test` for `x_train`.
    """
    known = set(known)
    parts = re.split(r"([^A-Za-z]+)", name)
    if _TRAIN not in parts:
        return None
    at = parts.index(_TRAIN)
    others = ("".join([*parts[:at], word, *parts[at + 1 :]]) for word in _OTHERS)
    return next((other for other in others if other in known), None)


def stem(name: str) -> str:
    """Returns a name without the word that says it is for training."""
    parts = [part for part in re.split(r"[^A-Za-z0-9]+", name) if part != _TRAIN]
    return "_".join(parts)


def beside(path: str) -> str | None:
    """Returns the file for evaluation that stands beside one for training; None: there is none."""
    file = Path(path)
    other = counterpart(file.name, (one.name for one in file.parent.iterdir()))
    return str(file.with_name(other)) if other is not None else None
