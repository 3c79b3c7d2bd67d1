"""A config that begins with another one: `extends: base.yaml`.

Mappings are merged, key by key, and all else is replaced. So is a mapping that is of another
`kind` than the base's, and an optimizer or a schedule of another `name`: their keys would
not fit.
"""

import os
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app.config import documents

__all__ = ["KEY", "read", "refuse"]

KEY = "extends"
_MAX_BASES = 16


def read(path: str) -> documents.Document:
    """Reads a config file, and the files that it extends.

    Raises:
        ConfigError: If a file cannot be read or is no YAML mapping, or extends itself.
    """
    return _with_bases(documents.read(path), Path(path), ())


def _with_bases(
    document: documents.Document, file: Path, above: tuple[tuple[Path, str], ...]
) -> documents.Document:
    """Returns a document merged over what it extends.

    Args:
        document: What stands in the file.
        file: The file.
        above: The files that extend this one, the first of them first, with their names.
    """
    if KEY not in document.data:
        return document
    place = f"{document.place((KEY,))}: {KEY}"
    name = document.data.pop(KEY)
    known = (*above, (file.resolve(), document.source))
    if (KEY,) in document.unread:
        return document
    base = _path(name, file, place)
    if any(base.resolve() == one for one, _ in known):
        names = " -> ".join([*(name for _, name in known), os.path.normpath(base)])
        raise errors.ConfigError(f"{place}: must not lead back to a file: {names}. Remove one.")
    if len(known) > _MAX_BASES:
        raise errors.ConfigError(
            f"{place}: must go through at most {_MAX_BASES} files. Merge some of them."
        )
    below = documents.read(os.path.normpath(base), folder=base.absolute().parent)
    _merge(document, _with_bases(below, base, known))
    return document


def _path(name: Any, file: Path, place: str) -> Path:
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise errors.ConfigError(f"{place}: must be the path of a config, got {name!r}.")
    try:
        base = file.parent / Path(name).expanduser()
        if base.is_file():
            return base
    except (OSError, RuntimeError):  # a name that is too long, a home folder that is not known
        pass
    raise errors.ConfigError(
        f"{place}: must be a config file, but there is none by the name {name}. "
        "Check the path; it is relative to the file it stands in."
    )


def _merge(over: documents.Document, base: documents.Document) -> None:
    """Puts a document over its base, values and places."""
    data, replaced = _merged(over.data, base.data, ())
    kept = {path for path in base.places if not _is_below(path, replaced)}
    over.places.update({path: base.places[path] for path in kept - over.places.keys()})
    over.unread |= base.unread & kept
    over.faults += base.faults
    over.data = data


def _is_below(path: documents.KeyPath, others: set[documents.KeyPath]) -> bool:
    """Tells whether a path is one of others, or leads through one."""
    return any(path[:end] in others for end in range(1, len(path) + 1))


def _merged(
    over: dict[str, Any], base: dict[str, Any], path: documents.KeyPath
) -> tuple[dict[str, Any], set[documents.KeyPath]]:
    """Returns one mapping over another, and the paths at which it replaces."""
    made, replaced = dict(base), set()
    for name, value in over.items():
        below = (*path, name)
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            if _are_alike(value, base[name], below):
                made[name], more = _merged(value, base[name], below)
                replaced |= more
                continue
        made[name] = value
        replaced.add(below)
    return made, replaced


def _are_alike(over: dict[str, Any], base: dict[str, Any], path: documents.KeyPath) -> bool:
    if path[0] == "params":
        return True
    deciding = "name" if path[0] == "optimizer" else "kind"
    return over.get(deciding, base.get(deciding)) == base.get(deciding)


def refuse(document: documents.Document) -> None:
    """Refuses the key where it came after all files were read.

    Raises:
        ConfigError: If it did.
    """
    if KEY in document.data:
        raise errors.ConfigError(
            f"{document.place((KEY,))}: {KEY}: must stand in a config. Write it there."
        )
