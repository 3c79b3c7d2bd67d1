"""A config as a document: read, put on top of another one, overridden key by key, written again.

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
from replicate.app.config import yaml_nodes

EXTENDS = "extends"
RECORD = "config.yaml"  # what a run's folder has of its config

_MARK = "# Written by `replicate train`"
_FUNCTIONS = "Its functions: "
_HEAD = f"""{_MARK}: the config of this run, with all defaults. {_FUNCTIONS}{{}}
# Commands take this folder in place of a config, and paths are relative to it. To copy the config,
# run `replicate check FOLDER --print-config > COPY`, which prints absolute paths; put COPY beside
# its functions' modules, or run commands where these are.
"""


class Document(yaml_nodes.Values):
    """What a config says; its folder is where its functions are imported from.

    Raises:
        ConfigError: If it is no YAML mapping.
    """

    def __init__(self, text: str, source: str, folder: Path = Path()):
        super().__init__(text, source, folder)
        self.data = {} if self.data is None else self.data
        if not isinstance(self.data, dict):
            raise errors.ConfigError(
                f"{source}:1: a config is a mapping of keys to values, got {self.data!r:.99}. "
                "Start with e.g. `model_fn: package.module:function`."
            )

    def known(self, path: yaml_nodes.KeyPath) -> yaml_nodes.KeyPath:
        """Returns a path, or else the nearest one around it, whose place is known."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def place(self, path: yaml_nodes.KeyPath) -> yaml_nodes.Place:
        """Returns where a key stands, or else the nearest key around it."""
        top = yaml_nodes.Place(f"{self.source}:1", (self.source, 0))
        return self.places.get(self.known(path), top)

    def replace(
        self, path: yaml_nodes.KeyPath, places: dict[yaml_nodes.KeyPath, yaml_nodes.Place]
    ) -> None:
        """Forgets where all below a path stands, and notes other places."""
        kept = {one: at for one, at in self.places.items() if one[: len(path)] != path}
        self.places = kept | places

    def assign(self, assignment: str) -> None:
        """Sets a key from an `a.b=value` text; see `read`."""
        source = source_of(assignment)
        key, equals, written = assignment.removeprefix("--").partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise errors.ConfigError(
                f"{source}: must be key=value, with dots between the parts of the key. "
                "Write e.g. --set train.steps=1000."
            )
        if path[0] == EXTENDS:
            raise errors.ConfigError(
                f"{source}: {EXTENDS}: must stand in a config. Write it there."
            )
        values = yaml_nodes.Values(written, source, Path(self.source).absolute().parent)
        self.faults += values.faults
        within, value, above = self.data, values.data, 0
        for above, name in enumerate(path[:-1], 1):
            if within.get(name) is None:
                self.places[path[:above]] = yaml_nodes.Place(source, (source, -1))
                within[name] = {}
            within = within[name]
            if not isinstance(within, dict):
                left = path[above:]
                whole = "{" + ": {".join(left) + f": {written}" + "}" * len(left)
                key = ".".join(path[:above])
                option = f"--set {key}=" if source.startswith("--set ") else f"--{key}="
                raise errors.ConfigError(
                    f"{source}: {key} is {within!r} in {self.source} and has no keys. "
                    f"Set all of it: {option}'{whole}'"
                )
        within[path[-1]] = value
        places = {(*path, *below): place for below, place in values.places.items()}
        self.replace(path, {path: yaml_nodes.Place(source, (source, 0)), **places})


def read(path: Path | str, assignments: Iterable[str] = ()) -> Document:
    """Reads a config file, and the files that it extends.

    Args:
        path: The file.
        assignments: `a.b=value` texts that override keys, in order, typed as in the file; one that
            stood for itself on the command line begins with `--`.

    Raises:
        ConfigError: If a file cannot be read or is no YAML mapping, or extends itself; or an
            assignment has no `=`, is no YAML, or goes through a value that has no keys.
    """
    text, file = _text_of(path), Path(path)
    document = Document(text, str(path), file.absolute().parent)
    if is_record(text):
        named = text.partition("\n")[0].partition(_FUNCTIONS)[2]
        document.folder = Path(os.path.normpath(document.folder / named))
    else:
        _extend(document, file, [])
    for assignment in assignments:
        document.assign(assignment)
    return document


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
        with open(path, "rb") as file:  # a device may have no end
            written = file.read(yaml_nodes.MAX_SIZE + 1)
        if len(written) <= yaml_nodes.MAX_SIZE:
            return written.decode("utf-8-sig")
        fault = f"a config file has at most {yaml_nodes.MAX_SIZE:,} bytes. Check the path."
    except UnicodeDecodeError as e:
        fault = f"a config file is UTF-8 text; byte {e.start} is not. Save it as UTF-8."
    except (OSError, ValueError) as e:  # of a path that cannot be one
        fault = f"a config file must exist and be readable: {e}. Check the path."
    raise errors.ConfigError(f"{path}: {fault}")


def _extend(document: Document, file: Path, above: list[Path]) -> None:
    """Puts a document on top of what it extends.

    Args:
        document: What stands in a file.
        file: The file.
        above: The files that extend this one, the first of them first.
    """
    place, name = document.place((EXTENDS,)).text, document.data.pop(EXTENDS, None)
    if isinstance(name, yaml_nodes.Unread) or (EXTENDS,) not in document.places:
        document.faults += [f"{place}: {EXTENDS}: {name.fault}"] if name else []
        return
    if not isinstance(name, str) or not name.strip():
        raise errors.ConfigError(f"{place}: {EXTENDS}: must be the path of a config, got {name!r}.")
    base = file.parent / os.path.expanduser(name)
    if not os.path.isfile(base):
        raise errors.ConfigError(
            f"{place}: {EXTENDS}: must be a config file, but there is none by the name {name}. "
            "Check the path; it is relative to the file it stands in."
        )
    known = [*above, file]
    if any(base.resolve() == one.resolve() for one in known):
        names = " -> ".join(os.path.normpath(one) for one in [*known, base])
        rule = f"must not lead back to a file: {names}. Remove one."
        raise errors.ConfigError(f"{place}: {EXTENDS}: {rule}")
    below = Document(_text_of(base), os.path.normpath(base), base.absolute().parent)
    _extend(below, base, known)
    document.data = _over(document.data, below, below.data, ())
    document.places = below.places | document.places
    document.faults += below.faults


def _over(value: Any, base: Document, other: Any, path: yaml_nodes.KeyPath) -> Any:
    """Returns a value put over the base's one at the same path."""
    decides = "name" if path[:1] == ("optimizer",) else "kind"
    is_merged = isinstance(value, dict) and isinstance(other, dict)
    if is_merged and decides in value and path and path[0] != "params":
        is_merged = value[decides] == other.get(decides)
    if not is_merged:
        if path in base.places:
            base.replace(path, {})
        return value
    merged = {key: _over(one, base, other.get(key), (*path, key)) for key, one in value.items()}
    return other | merged


def source_of(assignment: str) -> str:
    """Returns an assignment as it stood on the command line: `--set a.b=c` or `--a.b=c`."""
    return assignment if assignment.startswith("--") else f"--set {assignment}"


class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes what our loader, or PyYAML's, takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """See base class."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Keeps a text in one line, whatever it has."""
    style = None if "".join(text.splitlines()) == text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_implicit_resolver(*yaml_nodes.FLOAT)
_Dumper.add_representer(str, _represent_text)


def dump(data: Mapping[str, Any], flow: bool = False) -> str:
    """Returns YAML that reads back as equal data, keys in the order given.

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
    return value.replace("${", "$${") if isinstance(value, str) else value
