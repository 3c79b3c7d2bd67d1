"""Reads values against rules and collects every fault, instead of stopping at the first.

A check is a function `(reader, path, value) -> value`: it returns the value as the
config is to hold it, or notes a fault and returns None. `section` makes a check from a
frozen dataclass whose fields carry their checks, so that a section's keys, defaults and
rules stand in one place.
"""

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from replicate.app import catalog, documents

__all__ = [
    "Reader",
    "anything",
    "boolean",
    "device_id",
    "device_name",
    "either",
    "function",
    "is_path",
    "key",
    "listing",
    "mapping",
    "nearest",
    "number",
    "one_kind",
    "one_of",
    "optional",
    "path_text",
    "section",
    "text",
    "text_of_one",
    "whole",
    "word_or_function",
]

KeyPath = documents.KeyPath
Check = Callable[["Reader", KeyPath, Any], Any]

_FUNCTION = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_DEVICE = re.compile(
    r"(/job:(?P<job>\w+))?(/replica:(?P<replica>\d{1,9}))?(/task:(?P<task>\d{1,9}))?"
    r"(/device:|/?)(?P<kind>[A-Za-z]+):(?P<index>\d{1,9})",
    re.ASCII,
)
_MAX_WHOLE = 2**63 - 1
_DEVICE_TYPES = ("CPU", "GPU", "TPU")


class Reader:
    """The faults found in one document.

    Args:
        document: What is read; tells where a key stands.
        folder: What relative paths are relative to.
    """

    def __init__(self, document: documents.Document, folder: Path):
        self._document = document
        self.folder = folder
        self.faults: list[tuple[str, str]] = []  # place and text

    def fault(self, path: KeyPath, rule: str) -> None:
        """Notes that a rule is broken at `path`; one line of text."""
        key_text = f"{documents.dotted(path)}: " if path else ""
        self.faults.append((self._document.place(path), f"{key_text}{rule}"))

    def expected(self, path: KeyPath, rule: str, value: Any, then: str = "") -> None:
        """Notes that a value is not what the rule says; returns None for the caller."""
        self.fault(path, f"must be {rule}, got {value!r}.{' ' + then if then else ''}")

    def unknown(self, path: KeyPath, known: Iterable[str]) -> None:
        """Notes a key that nobody knows, with the nearest one that somebody does."""
        known = list(known)
        near = nearest(str(path[-1]), known)
        then = f"Did you mean {near}?" if near else f"Known here: {', '.join(sorted(known))}."
        self.fault(path, f"is no key that is known here. {then}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word most like this one, or meant by it; None where none is.

    Where several may be meant: `int32 or int64`.
    """
    known = list(known)
    meant = [name for name in catalog.OTHER_NAMES.get(word.lower(), ()) if name in known]
    if meant and word not in known:
        return " or ".join(meant)
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def key(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """Returns a dataclass field with its check; without default the key is required."""
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"check": check})
    return dataclasses.field(default=default, metadata={"check": check})


def section(cls: type, rule: str = "a mapping of keys to values") -> Check:
    """Returns a check that reads a mapping into a dataclass of `key` fields.

    The rule is told where there is no mapping. A method `faults(self)` of the class may yield
    `(key, rule)` for rules between keys.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if "check" in f.metadata}

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if not isinstance(value, dict):
            reader.expected(path, rule, value)
            return None
        before = len(reader.faults)
        for name in value:
            if name not in fields:
                reader.unknown((*path, name), fields)
        for name, field in fields.items():
            if _is_required(field) and name not in value:
                reader.fault(path, f"the key {name} is required here. Add it.")
        made = {
            name: field.metadata["check"](reader, (*path, name), value[name])
            for name, field in fields.items()
            if name in value
        }
        if len(reader.faults) > before:
            return None
        result = cls(**made)
        for name, broken in getattr(result, "faults", tuple)():
            reader.fault((*path, name), broken)
        return result

    return read


def one_kind(classes: Mapping[str, type], or_else: str = "") -> Check:
    """Returns a check that reads a mapping into the dataclass that its key `kind` names.

    Args:
        classes: Kind -> dataclass of `key` fields.
        or_else: What else the caller takes, for the fault's text.
    """

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if not isinstance(value, dict):
            reader.expected(path, f"a mapping with its kind{or_else}", value)
            return None
        if "kind" not in value:
            kinds = ", ".join(classes)
            reader.fault(path, f"the key kind is required here: one of {kinds}. Add it.")
            return None
        before = len(reader.faults)
        kind = one_of(*classes)(reader, (*path, "kind"), value["kind"])
        if len(reader.faults) > before:
            return None
        rest = {name: one for name, one in value.items() if name != "kind"}
        return section(classes[kind])(reader, path, rest)

    return read


def _is_required(field: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def optional(check: Check) -> Check:
    """Returns a check that lets null through."""
    return lambda reader, path, value: None if value is None else check(reader, path, value)


def anything(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes any plain value as it is."""
    return value


def boolean(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes true or false."""
    if not isinstance(value, bool):
        reader.expected(path, "true or false", value)
    return value


def text(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        reader.expected(path, "a text", value, "Put it in quotes if it looks like a number.")
    return value


def whole(minimum: int | None = None, maximum: int = _MAX_WHOLE) -> Check:
    """Returns a check for whole numbers that TensorFlow can hold; 1e3 is one."""
    rule = "a whole number" + ("" if minimum is None else f" of at least {minimum}")

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        wrong = isinstance(value, bool) or not isinstance(value, int)
        if wrong or (minimum is not None and value < minimum):
            reader.expected(path, rule, value)
        elif abs(value) > maximum:
            reader.expected(path, f"{rule} and at most {maximum}", value)
        return value

    return read


def number(minimum: float | None = None, *, above: float | None = None) -> Check:
    """Returns a check for finite numbers, at least `minimum` or truly above `above`."""
    rule = "a number"
    rule += "" if minimum is None else f" of at least {minimum:g}"
    rule += "" if above is None else f" above {above:g}"

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            reader.expected(path, rule, value)
        elif not _is_finite(value):
            reader.expected(path, "a finite number", value)
        elif (minimum is not None and value < minimum) or (above is not None and value <= above):
            reader.expected(path, rule, value)
        return value

    return read


def _is_finite(value: int | float) -> bool:
    """Tells whether a float can hold a number."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def one_of(*names: str) -> Check:
    """Returns a check for one of a few words."""

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            near = nearest(str(value), names)
            then = f"Did you mean {near}?" if near else ""
            reader.expected(path, f"one of {', '.join(names)}", value, then)
        return value

    return read


def listing(check: Check, minimum: int = 0) -> Check:
    """Returns a check for a list, each of whose values passes `check`; gives a tuple."""

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if not isinstance(value, list):
            reader.expected(path, "a list", value)
            return None
        if len(value) < minimum:
            reader.expected(path, f"a list of at least {minimum} values", value)
        return tuple(check(reader, (*path, i), one) for i, one in enumerate(value))

    return read


def mapping(check: Check, minimum: int = 0, rule: str = "a mapping of keys to values") -> Check:
    """Returns a check for a mapping, each of whose values passes `check`."""

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        if not isinstance(value, dict):
            reader.expected(path, rule, value)
            return None
        if len(value) < minimum:
            reader.expected(path, f"a mapping of at least {minimum} keys", value)
        return {name: check(reader, (*path, name), one) for name, one in value.items()}

    return read


def either(by_type: Mapping[type, Check], rule: str) -> Check:
    """Returns a check that goes by the value's type, e.g. a text or a list of texts."""

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        check = by_type.get(type(value))
        if check is None:
            reader.expected(path, rule, value)
            return None
        return check(reader, path, value)

    return read


def word_or_function(*names: str) -> Check:
    """Returns a check for one of a few words, or a function's name."""
    word = one_of(*names, "package.module:function")

    def read(reader: Reader, path: KeyPath, value: Any) -> Any:
        has_colon = isinstance(value, str) and ":" in value
        return (function if has_colon else word)(reader, path, value)

    return read


def text_of_one(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes a single character."""
    if not isinstance(value, str) or len(value) != 1:
        reader.expected(path, "a single character in quotes", value)
    return value


def function(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes `package.module:function`; whether it exists is known when it is used."""
    if not isinstance(value, str) or not _FUNCTION.match(value):
        reader.expected(path, "a function's name as package.module:function", value)
    return value


def path_text(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes a path; a relative one is put below the config's folder."""
    if not isinstance(value, str) or not value:
        reader.expected(path, "a path", value)
        return None
    if not is_path(reader, path, value) or "://" in value:
        return value
    try:
        return os.path.abspath(Path(reader.folder, Path(value).expanduser()))
    except RuntimeError:
        rule = "a path in a home folder that is known"
        reader.expected(path, rule, value, "Write the path without ~.")
        return None


def is_path(reader: Reader, path: KeyPath, value: str) -> bool:
    """Tells whether a text can be a path; notes the fault where it cannot."""
    is_one = "\0" not in value
    if not is_one:
        reader.expected(path, "a path without the character 0", value, "Remove it.")
    return is_one


def device_name(reader: Reader, path: KeyPath, value: Any) -> Any:
    """Takes a device in any usual spelling; whether it exists is known when it is used."""
    if device_id(value) is None:
        reader.expected(path, "a device such as /gpu:0, GPU:0 or /device:CPU:1", value)
    return value


def device_id(value: Any) -> tuple[str, int, int, str, int] | None:
    """Returns what is the same for all spellings of a device; None where it is none."""
    match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match["kind"].upper() not in _DEVICE_TYPES:
        return None
    replica, task, index = (int(match[part] or 0) for part in ("replica", "task", "index"))
    return match["job"] or "localhost", replica, task, match["kind"].upper(), index
