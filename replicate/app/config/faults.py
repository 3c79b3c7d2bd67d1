"""Faults of a config as lines of text: where, which key, what it must be, what came."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pydantic_core

from replicate.app.config import types, yaml_walk

_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "tuple_type": "a list",
}
_COUNTS = {"Tuple": "a list of at least {} values", "Dictionary": "a mapping of at least {} keys"}


def found(
    error: pydantic_core.ValidationError | None,
    document: yaml_walk.Document,
    reading: types.Reading,
) -> list[tuple[str, str]]:
    """Returns the place and the text of every fault, section by section.

    In a section come first the keys that nobody knows, then those that are missing. What is
    wrong behind an anchor is told once. What follows from another fault is not told: of a mistyped
    key that the right one is missing, of a value that is wrong that it breaks a rule.

    Args:
        error: What pydantic found; None: nothing.
        document: What was read; tells where a key stands.
        reading: What was read of which mapping.
    """
    data = document.data
    details = [_Detail(one, data) for one in (error.errors(include_url=False) if error else ())]
    lines, known = [], set()
    meant = set(_meant(details, data, reading))
    for *above, name in meant:
        vars(reading.section_of(_within(data, above), types.Section)).pop(str(name), None)
    details += [_Detail(one, data) for one in _broken_rules(data, (), reading)]
    for detail in _sorted(details):
        path, text = _told(detail, document.data, reading)
        once = document.origin(path), text
        is_noted = any(
            detail.path[:end] in document.unread for end in range(1, len(detail.path) + 1)
        )
        if not is_noted and once not in known and detail.path not in meant:
            key = f"{yaml_walk.dotted(path)}: " if path else ""
            lines.append((document.place(path), f"{key}{text}"))
        known.add(once)
    return lines


def _broken_rules(
    value: Any, path: yaml_walk.KeyPath, reading: types.Reading
) -> Iterator[pydantic_core.ErrorDetails]:
    """Yields the rules between keys that sections break, as far as the keys can be read."""
    if isinstance(value, dict):
        for name, rule in types.known(reading.section_of(value, types.Section).faults()):
            told, at = {"rule": rule}, (*path, name)
            yield {"type": "fault", "loc": at, "msg": "", "input": value.get(name), "ctx": told}
    listed = enumerate(value) if isinstance(value, list) else ()
    for part, one in value.items() if isinstance(value, dict) else listed:
        yield from _broken_rules(one, (*path, part), reading)


class _Detail:
    """One error: its type, the path of its key, the value that came, and more to know."""

    def __init__(self, detail: pydantic_core.ErrorDetails, data: object):
        self.type: str = detail["type"]
        self.value = detail["input"]
        self.context = detail.get("ctx", {})
        self.message = detail["msg"]
        self.path = _path(detail["loc"], data)

    @property
    def rank(self) -> int:
        """Where it comes in its section."""
        return {"extra_forbidden": 0, "missing": 1}.get(self.type, 2)


def _meant(
    details: Sequence[_Detail], data: Any, reading: types.Reading
) -> Iterator[tuple[str | int, ...]]:
    """Yields the keys that are not there, as unknown ones are in their place."""
    for detail in details:
        if detail.type == "extra_forbidden":
            section = _within(data, detail.path[:-1])
            known = reading.section_of(section, types.Section).known_keys()
            near = types.nearest(str(detail.path[-1]), known)
            if near not in section:
                yield (*detail.path[:-1], near)


def _path(place: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """Returns the keys on the way to an error, without what pydantic puts between them."""
    path = []
    for n, part in enumerate(place, 1):
        is_tag = str(part).startswith(types.TAG) and n < len(place)  # a last one may be a key
        is_key = isinstance(data, dict) and part in data and not is_tag
        if not is_key and (part == "[key]" or str(part).startswith(types.TAG)):
            continue  # a key that is wrong as such, or a member of a union
        path.append(part)
        has_it = is_key or (isinstance(data, list) and part in range(len(data)))
        data = data[part] if has_it else None
    return tuple(path)


def _sorted(details: Sequence[_Detail]) -> list[_Detail]:
    first: dict[tuple[str | int, ...], int] = {}
    for index, detail in enumerate(details):
        for end in range(len(detail.path) + 1):
            first.setdefault(detail.path[:end], index)

    def order(detail: _Detail) -> Iterator[tuple[int, int]]:
        for end in range(1, len(detail.path) + 1):
            is_last = end == len(detail.path)
            yield detail.rank if is_last else 2, first[detail.path[:end]]

    return sorted(details, key=lambda detail: list(order(detail)))


def _told(detail: _Detail, data: Any, reading: types.Reading) -> tuple[tuple[str | int, ...], str]:
    """Returns the path that is blamed, and the text."""
    if detail.type == "missing":
        section = reading.section_of(detail.value, types.Section)
        return detail.path[:-1], section.missing_text(str(detail.path[-1]))
    if detail.type == "extra_forbidden":
        return detail.path, _unknown(detail.path, data, reading)
    if detail.type == "fault":
        return detail.path, " ".join(filter(None, (detail.context["rule"], _spaced(detail.value))))
    rule, then = _rule(detail)
    if rule is None:
        return detail.path, f"must be valid, got {detail.value!r}: {detail.message}."
    then = then or _spaced(detail.value)
    return detail.path, f"must be {rule}, got {detail.value!r}.{' ' + then if then else ''}"


def _spaced(value: object) -> str:
    """Returns what to do about `{cpu:2}`, which YAML takes for a key `cpu:2` without a value."""
    keys = [key for key, one in value.items() if one is None] if isinstance(value, dict) else ()
    joined = [key.partition(":") for key in keys if isinstance(key, str) and ":" in key]
    if not joined:
        return ""
    key, _, rest = joined[0]
    return f"YAML wants a space after the colon: {key}: {rest}"


def _unknown(path: tuple[str | int, ...], data: Any, reading: types.Reading) -> str:
    """Returns what is said of a key that nobody knows, with the nearest one that somebody does."""
    data = _within(data, path[:-1])
    known = reading.section_of(data, types.Section).known_keys()
    meant = types.meant(str(path[-1]), known, f"Known: {', '.join(sorted(known))}.")
    return f"unknown key. {_spaced({path[-1]: data[path[-1]]}) or meant}"


def _within(data: Any, path: Iterable[str | int]) -> Any:
    for part in path:
        data = data[part]
    return data


def _rule(detail: _Detail) -> tuple[str | None, str]:
    """Returns what a value must be, and what to do about it."""
    if detail.type == "expected":
        return detail.context["rule"], detail.context["then"]
    if detail.type == "literal_error":
        names = re.findall(r"'([^']*)'", detail.context["expected"])
        told = types.one_of(names, detail.value).context or {}
        return told["rule"], told["then"]
    if detail.type == "too_short":
        return _COUNTS[detail.context["field_type"]].format(detail.context["min_length"]), ""
    return _TYPES.get(detail.type), ""
