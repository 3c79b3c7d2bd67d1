"""A config as a document: read from a file, overridden key by key, written again.

A config may begin with another one: `extends: base.yaml`. Mappings are merged, key by key, and
all else is replaced. So is a mapping that is of another `kind` than the base's, and an optimizer
or a schedule of another `name`: their keys would not fit.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from replicate import errors
from replicate.app.config import yaml_walk

EXTENDS = "extends"
RECORD = "config.yaml"  # what a run's folder has of its config

_MARK = "# Written by `replicate train`"
_FUNCTIONS = "Its functions: "
_HEAD = f"""{_MARK}: the config of this run, with all defaults. {_FUNCTIONS}{{}}
# Commands take this folder in place of a config, and paths are relative to it. To copy the config,
# run `replicate check FOLDER --print-config > COPY`, which prints absolute paths; put COPY beside
# its functions' modules, or run commands where these are.
"""
_MAX_BASES = 16
_MAX_BYTES = 2**24  # of a file; a device may have no end


class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes what our loader, or PyYAML's, takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """See base class."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Keeps a text in one line, whatever it has."""
    style = None if "".join(text.splitlines()) == text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_implicit_resolver(*yaml_walk.FLOAT)
_Dumper.add_representer(str, _represent_text)


def read(path: Path | str) -> tuple[yaml_walk.Document, Path]:
    """Reads a config file, and the files that it extends.

    Returns:
        The document, and the folder that its functions are imported from: its own, or, of what a
        run has written down, that of the run's config.

    Raises:
        ConfigError: If a file cannot be read or is no YAML mapping, or extends itself.
    """
    text, folder = _text_of(path), Path(path).absolute().parent
    if not is_record(text):
        return _with_bases(parse(text, str(path)), Path(path), ()), folder
    functions = text.partition("\n")[0].partition(_FUNCTIONS)[2]
    return parse(text, str(path), folder), Path(os.path.normpath(folder / functions))


def file_of(path: str) -> str:
    """Returns the file of a config; where a run's folder is given, what it has of its config.

    Raises:
        ConfigError: If it is another folder.
    """
    if not os.path.isdir(path):
        return path
    record = os.path.join(path, RECORD)
    if os.path.isfile(record) and is_record(_text_of(record)):
        return record
    raise errors.ConfigError(
        f"{path}: a folder in place of a config must be a run's, which has the {RECORD} that "
        "`replicate train` writes; this one has none. Name a config file."
    )


def record(text: str, functions: str) -> str:
    """Returns what a run's folder has of its config.

    Args:
        text: The whole config, as YAML; its paths are relative to that folder.
        functions: Where the config's functions are imported from, from that folder.
    """
    return _HEAD.format(functions) + text


def is_record(text: str) -> bool:
    """Tells whether a text is what a run has written down of its config."""
    return text.startswith(_MARK)


def _text_of(path: Path | str) -> str:
    try:
        with open(path, "rb") as file:
            written = file.read(_MAX_BYTES + 1)
        if len(written) <= _MAX_BYTES:
            return written.decode("utf-8-sig")
        fault = f"a config file has at most {_MAX_BYTES} bytes. Check the path."
    except FileNotFoundError:
        fault = (
            "a config file must exist, but there is none by this name. "
            "Check the path; it is looked up from the working directory."
        )
    except UnicodeDecodeError as e:
        fault = f"a config file is UTF-8 text; byte {e.start} is not. Save it as UTF-8."
    except OSError as e:
        fault = f"a config file must be readable: {e.strerror}. Check the path."
    raise errors.ConfigError(f"{path}: {fault}")


def parse(text: str, source: str, folder: Path | None = None) -> yaml_walk.Document:
    """Reads a config from text.

    Args:
        text: The YAML.
        source: What to call it in error texts.
        folder: What paths in its texts are relative to; None: left to who reads them.

    Raises:
        ConfigError: If the text is no YAML mapping; names source and line.
    """
    document = yaml_walk.Document(source, folder=folder)
    value = yaml_walk.Walk(document, f"{source}:{{line}}").run(text)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        if not document.faults:
            document.faults.append(
                f"{source}:1: a config is a mapping of keys to values, "
                f"got {_kind_of(value)}. Start with e.g. `model_fn: package.module:function`."
            )
        raise errors.ConfigError("\n".join(document.faults))
    document.data = value
    return document


def _with_bases(
    document: yaml_walk.Document, file: Path, above: tuple[tuple[Path, str], ...]
) -> yaml_walk.Document:
    """Returns a document merged over what it extends.

    Args:
        document: What stands in the file.
        file: The file.
        above: The files that extend this one, the first of them first, with their names.
    """
    if EXTENDS not in document.data:
        return document
    place = f"{document.place((EXTENDS,))}: {EXTENDS}"
    name = document.data.pop(EXTENDS)
    if (EXTENDS,) in document.unread:
        return document
    known = (*above, (file.resolve(), document.source))
    base = _base(name, file, place)
    if any(base.resolve() == one for one, _ in known):
        names = " -> ".join([*(name for _, name in known), os.path.normpath(base)])
        raise errors.ConfigError(f"{place}: must not lead back to a file: {names}. Remove one.")
    if len(known) > _MAX_BASES:
        raise errors.ConfigError(
            f"{place}: must go through at most {_MAX_BASES} files. Merge some of them."
        )
    source = os.path.normpath(base)
    below = parse(_text_of(source), source, folder=base.absolute().parent)
    _merge(document, _with_bases(below, base, known))
    return document


def _base(name: object, file: Path, place: str) -> Path:
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


def _merge(over: yaml_walk.Document, base: yaml_walk.Document) -> None:
    """Puts a document over its base, values and places."""
    over.data, replaced = _merged(over.data, base.data, ())
    kept = {
        path
        for path in base.places
        if not any(path[:end] in replaced for end in range(1, len(path) + 1))
    }
    over.places.update({path: base.places[path] for path in kept - over.places.keys()})
    over.unread |= base.unread & kept
    over.faults += base.faults


def _merged(
    over: dict[str, Any], base: dict[str, Any], path: yaml_walk.KeyPath
) -> tuple[dict[str, Any], set[yaml_walk.KeyPath]]:
    """Returns one mapping over another, and the paths at which it replaces."""
    made, replaced = dict(base), set()
    for name, value in over.items():
        below, other = (*path, name), base.get(name)
        if isinstance(value, dict) and isinstance(other, dict) and _are_alike(value, other, below):
            made[name], more = _merged(value, other, below)
            replaced |= more
        else:
            made[name] = value
            replaced.add(below)
    return made, replaced


def _are_alike(over: dict[str, Any], base: dict[str, Any], path: yaml_walk.KeyPath) -> bool:
    if path[0] == "params":
        return True
    deciding = "name" if path[0] == "optimizer" else "kind"
    return over.get(deciding, base.get(deciding)) == base.get(deciding)


def source_of(assignment: str) -> str:
    """Returns an assignment as it stood on the command line: `--set a.b=c` or `--a.b=c`."""
    return assignment if assignment.startswith("--") else f"--set {assignment}"


def override(document: yaml_walk.Document, assignments: Iterable[str]) -> None:
    """Sets keys from `a.b=value` texts, typed as in the file.

    Raises:
        ConfigError: If a text has no `=`, is no YAML, or goes through a value that has no keys;
            or if it is to extend a config when all files were read.
    """
    for text in assignments:
        source = source_of(text)
        key, equals, written = text.removeprefix("--").partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise errors.ConfigError(
                f"{source}: must be key=value, with dots between the parts of the key. "
                "Write e.g. --set train.steps=1000."
            )
        if path[0] == EXTENDS:
            raise errors.ConfigError(
                f"{source}: {EXTENDS}: must stand in a config. Write it there."
            )
        _assign(document, path, written, source)


def _assign(document: yaml_walk.Document, path: tuple[str, ...], written: str, source: str) -> None:
    """Puts one value at `path`, making the mappings on the way where there are none."""
    fresh = yaml_walk.Document(source)
    value = yaml_walk.Walk(fresh, source).run(written)
    if fresh.faults:
        raise errors.ConfigError("\n".join(fresh.faults))
    at: Any = document.data
    for depth, part in enumerate(path[:-1], start=1):
        if at.get(part) is None:
            at[part] = {}
        at = at[part]
        if not isinstance(at, dict):
            key = yaml_walk.dotted(path[:depth])
            left = path[depth:]
            whole = "{" + ": {".join(left) + f": {written}" + "}" * len(left)
            option = f"--set {key}=" if source.startswith("--set ") else f"--{key}="
            raise errors.ConfigError(
                f"{source}: {key} is {_kind_of(at)} in {document.source} and has no keys. "
                f"Set all of it: {option}'{whole}'"
            )
    at[path[-1]] = value
    for known in [known for known in document.places if known[: len(path)] == path]:
        del document.places[known]
    document.places[path] = source


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
        width=2**24,  # a text that is folded is in several lines
    )


def _escaped(value: Any) -> Any:
    """Returns plain values in which no text is taken for a variable."""
    if isinstance(value, Mapping):
        return {name: _escaped(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    return yaml_walk.escaped(value) if isinstance(value, str) else value


def _kind_of(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "true/false"}
    return names.get(type(value), "nothing" if value is None else f"{value!r}")
