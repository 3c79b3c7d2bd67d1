"""A config as a document: read from a file, overridden key by key, written again."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from replicate import errors
from replicate.app.config import variables, yaml_walk

__all__ = [
    "Document",
    "KeyPath",
    "Text",
    "dotted",
    "dump",
    "override",
    "parse",
    "read",
    "source_of",
]

Document, KeyPath, Text, dotted = (
    yaml_walk.Document,
    yaml_walk.KeyPath,
    yaml_walk.Text,
    yaml_walk.dotted,
)

_MAX_BYTES = 2**24  # of a file; a device may have no end


class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes what this room's loader, or PyYAML's, takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """See base class."""
        return True


_Dumper.add_implicit_resolver(*yaml_walk.FLOAT)


def read(path: Path | str, folder: Path | None = None) -> Document:
    """Reads a config file.

    Args:
        path: The file.
        folder: What paths in its texts are relative to; None: left to who reads them.

    Raises:
        ConfigError: If the file cannot be read or is no YAML mapping; names file and line.
    """
    try:
        with open(path, "rb") as file:
            written = file.read(_MAX_BYTES + 1)
        if len(written) > _MAX_BYTES:
            raise errors.ConfigError(
                f"{path}: a config file has at most {_MAX_BYTES} bytes. Check the path."
            )
        text = written.decode("utf-8-sig")
    except FileNotFoundError:
        raise errors.ConfigError(
            f"{path}: a config file must exist, but there is none by this name. "
            "Check the path; it is looked up from the working directory."
        ) from None
    except UnicodeDecodeError as e:
        raise errors.ConfigError(
            f"{path}: a config file is UTF-8 text; byte {e.start} is not. Save it as UTF-8."
        ) from e
    except OSError as e:
        raise errors.ConfigError(
            f"{path}: a config file must be readable: {e.strerror}. Check the path."
        ) from e
    return parse(text, str(path), folder)


def parse(text: str, source: str, folder: Path | None = None) -> Document:
    """Reads a config from text; see `read`.

    Raises:
        ConfigError: If the text is no YAML mapping.
    """
    document = Document(source, folder=folder)
    value = yaml_walk.Walk(document, f"{source}:{{line}}").run(text)
    if value is None and not document.faults:
        value = {}
    if not isinstance(value, dict):
        document.faults.append(
            f"{source}:1: a config is a mapping of keys to values, "
            f"got {_kind_of(value)}. Start with e.g. `model_fn: package.module:function`."
        )
        raise errors.ConfigError("\n".join(document.faults))
    document.data = value
    return document


def source_of(assignment: str) -> str:
    """Returns an assignment as it stood on the command line: `--set a.b=c` or `--a.b=c`."""
    return assignment if assignment.startswith("--") else f"--set {assignment}"


def override(document: Document, assignments: Iterable[str]) -> None:
    """Sets keys from `a.b=value` texts, typed as in the file.

    Raises:
        ConfigError: If a text has no `=`, is no YAML, or goes through a value that has no keys.
    """
    for text in assignments:
        key, equals, written = text.removeprefix("--").partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise errors.ConfigError(
                f"{source_of(text)}: must be key=value, with dots between the parts of the key. "
                "Write e.g. --set train.steps=1000."
            )
        _assign(document, path, written, source_of(text))


def dump(data: Mapping[str, Any], flow: bool = False) -> str:
    """Returns YAML that `parse` reads back as equal data, keys in the order given.

    Args:
        data: Plain values.
        flow: Whether short lists and mappings stand in one line.
    """
    return yaml.dump(
        _escaped(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None if flow else False,
        width=2**20 if flow else None,
    )


def _escaped(value: Any) -> Any:
    """Returns plain values in which no text is taken for a variable."""
    if isinstance(value, Mapping):
        return {name: _escaped(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    return variables.escaped(value) if isinstance(value, str) else value


def _assign(document: Document, path: tuple[str, ...], written: str, source: str) -> None:
    """Puts one value at `path`, making the mappings on the way where there are none."""
    fresh = Document(source)
    value = yaml_walk.Walk(fresh, source).run(written)
    if fresh.faults:
        raise errors.ConfigError("\n".join(fresh.faults))
    at: Any = document.data
    for depth, part in enumerate(path[:-1]):
        if at.get(part) is None:
            at[part] = {}
        at = at[part]
        if not isinstance(at, dict):
            raise errors.ConfigError(
                f"{source}: {dotted(path[: depth + 1])} is {_kind_of(at)} in "
                f"{document.source} and has no keys. Set {dotted(path[: depth + 1])} itself."
            )
    at[path[-1]] = value
    for known in [known for known in document.places if known[: len(path)] == path]:
        del document.places[known]
    document.places[path] = source


def _kind_of(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "true/false"}
    return names.get(type(value), "nothing" if value is None else f"{value!r}")
