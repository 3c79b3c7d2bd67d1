"""What pydantic finds wrong in a config, as lines with the key, its place and the nearest word."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from replicate.app.config import documents, types

_MAPPING = "must be a mapping of keys to values"
_TEXTS = {
    "bool_type": "must be true or false",
    "dict_type": _MAPPING,
    "float_type": "must be a number",
    "greater_than": "must be above {gt:,}",
    "greater_than_equal": "must be at least {ge:,}",
    "int_type": "must be a whole number",
    "less_than": "must be below {lt:,}",
    "less_than_equal": "must be at most {le:,}",
    "literal_error": "must be {words}",
    "missing": "the key is required here",
    "model_attributes_type": _MAPPING,
    "model_type": _MAPPING,
    "string_pattern_mismatch": "must be a function's name as package.module:function",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} values",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
    "union_tag_invalid": "must be {words}",
    "union_tag_not_found": "the key is required here",
}
_ABSENT = ("missing", "rule", "union_tag_invalid", "union_tag_not_found")
_WORD = re.compile(r"'([^']*)'")


def told(details: Iterable[Any], document: documents.Document) -> dict[str, str]:
    """Returns the place of each fault, in the document's order; behind an anchor each is told once.

    Args:
        details: pydantic's.
        document: What was read.
    """
    order = {path: number for number, path in enumerate(document.places)}
    texts = {**dict(_texts(details, document.data)), **dict(_unread(document.data, ()))}
    found, seen = dict.fromkeys(document.faults, ""), set()
    for path in sorted(texts, key=lambda path: order.get(document.known(path), -1)):
        place, text = document.place(path), texts[path]
        unlike = (place.origin, path[len(document.known(path)) :], text)
        if unlike not in seen:
            found[f"{documents.dotted(path)}: {text}" if path else text] = place.text
        seen.add(unlike)
    return found


def _unread(value: Any, path: types.KeyPath) -> Iterator[tuple[types.KeyPath, str]]:
    """Yields what cannot be read."""
    if isinstance(value, documents.Unread):
        yield path, value.fault
    items = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else items:
        yield from _unread(one, (*path, key))


def _texts(details: Iterable[Any], data: Any) -> Iterator[tuple[types.KeyPath, str]]:
    """Yields what is wrong with which key.

    Of the members of a union only what got furthest into the value is told, and of an unknown key
    not that the one that is meant by it is missing.
    """
    by_path: dict[types.KeyPath, list[Any]] = {}
    for one in details:
        if one["type"] == "union_tag_not_found" and not isinstance(one["input"], dict):
            one = {**one, "type": "model_type"}
        by_path.setdefault(_keys_of(one, data), []).append(one)
    within = {path[:depth] for path in by_path for depth in range(len(path))}
    intended = {
        (*path[:-1], types.nearest(str(path[-1]), one["input"].known))
        for path, (one, *_) in by_path.items()
        if isinstance(one["input"], types.Unknown)
    }
    for path, found in by_path.items():
        may_lack = found[0]["type"] in ("missing", "union_tag_not_found", "value_error")
        if path not in within and not (may_lack and path in intended):
            yield path, _text(path, found)


def _keys_of(detail: Any, data: Any) -> types.KeyPath:
    """Returns the keys on the way to an error, without what pydantic puts between them."""
    place: list[str | int] = list(detail["loc"])
    if detail["type"].startswith("union_tag"):
        place.append(detail["ctx"]["discriminator"].strip("'"))
    path: list[str | int] = []
    for n, part in enumerate(place, 1):
        is_dict, is_last = isinstance(data, dict), n == len(place)
        if is_dict and path and not is_last and part in (data.get("kind"), data.get("name")):
            continue  # a section's tag
        has_it = part in data if is_dict else isinstance(data, list) and part in range(len(data))
        is_missing = detail["type"] in _ABSENT or (is_dict and detail["type"] == "value_error")
        if has_it or (is_last and is_missing and part != "[key]"):
            path.append(part)
            data = data[part] if has_it else None
    return tuple(path)


def _text(path: types.KeyPath, found: Sequence[Any]) -> str:
    """Returns what is wrong with one key, by all members of a union that a value could be of."""
    exact = [one for one in found if not _is_of_type(one)] or found
    kind, value, name = exact[0]["type"], exact[0]["input"], str(path[-1])
    if kind == "rule":
        return str(exact[0]["msg"])
    if isinstance(value, types.Unknown):
        then = types.meant(name, value.known, f"Known: {', '.join(sorted(value.known))}.")
        if value.value is None and ":" in name:
            then = f"YAML wants a space after the colon: {name.replace(':', ': ')}"
        return f"unknown key. {then}"
    rules = list(dict.fromkeys(map(_rule, exact)))
    rule = " or ".join([rules[0], *(one.removeprefix("must be ") for one in rules[1:])])
    if kind in ("missing", "union_tag_not_found"):
        return f"{rule}. Add it."
    value = exact[0]["ctx"]["tag"] if kind == "union_tag_invalid" else value
    return f"{rule}, got {value!r}. {_meant(value, found)}".rstrip()


def _is_of_type(detail: Any) -> bool:
    """Tells whether a value is of another type than it must be, so that it may be another one's."""
    is_word = isinstance(detail["input"], str)
    return detail["type"].endswith("_type") or (detail["type"] == "literal_error" and not is_word)


def _rule(detail: Any) -> str:
    """Returns the rule that is broken."""
    text, context = _TEXTS.get(detail["type"]), detail.get("ctx", {})
    if text is None:
        return re.sub("^.*? should ", "must ", str(context.get("error", detail["msg"])))
    words = _words(detail)
    bounds = {name: int(one) for name, one in context.items() if isinstance(one, int | float)}
    return text.format(words=f"{'one of ' * (len(words) > 1)}{', '.join(words)}", **bounds)


def _words(detail: Any) -> list[str]:
    """Returns the words that a value may be."""
    context = detail.get("ctx", {})
    return _WORD.findall(str(context.get("expected", context.get("expected_tags"))))


def _meant(value: object, found: Iterable[Any]) -> str:
    """Returns what may be meant by a value."""
    if not isinstance(value, str):
        return ""
    with_colon = ":".join(value.rsplit(".", 1))
    is_function = any(one["type"] == "string_pattern_mismatch" for one in found)
    if is_function and types.is_function(with_colon):
        return f"Did you mean {with_colon}?"
    return types.meant(value, [word for one in found for word in _words(one)])
