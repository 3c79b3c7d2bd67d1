"""A config as a document: read from a file, overridden key by key, written again.

A config may begin with another one: `extends: base.yaml`. Mappings are merged, key by key, and
all else is replaced. So is a mapping that is of another `kind` than the base's, and an optimizer
or a schedule of another `name`: their keys would not fit.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
_MAX_BYTES = 2**24  # of a file; a device may have no end


class Document(NamedTuple):
    """What a config says.

    Attributes:
        source: Its file, as the user wrote it.
        folder: Where its functions are imported from: its own, or, of what a run has written
            down, that of the run's config.
        data: The plain values.
        places: Where each key stands, e.g. `("train", "steps")` at `digits.yaml:12`.
        faults: What is wrong with the YAML itself, as finished lines of text.
    """

    source: str
    folder: Path
    data: dict[str, Any]
    places: dict[yaml_nodes.KeyPath, yaml_nodes.Place]
    faults: list[str]

    def place(self, path: yaml_nodes.KeyPath) -> yaml_nodes.Place:
        """Returns where a key stands, or else the nearest key around it."""
        whole, top = path, yaml_nodes.Place(f"{self.source}:1", (self.source, 0))
        while path and path not in self.places:
            path = path[:-1]
        found = self.places.get(path, top)
        return found if path == whole else found._replace(origin=(str(whole), -1))


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
    text, folder = _text_of(path), Path(path).absolute().parent
    functions, tree = folder, _tree(text, str(path), folder if is_record(text) else None)
    if is_record(text):
        named = text.partition("\n")[0].partition(_FUNCTIONS)[2]
        functions = Path(os.path.normpath(folder / named))
    else:
        _extend(tree, Path(path), [])
    return _document(tree, str(path), functions, assignments)


def parse(text: str, source: str, assignments: Iterable[str] = ()) -> Document:
    """Reads a config from text, which extends no other one; see `read`."""
    return _document(_tree(text, source), source, Path(), assignments)


def _document(
    tree: yaml_nodes.Tree, source: str, folder: Path, assignments: Iterable[str]
) -> Document:
    for text in assignments:
        _assign(tree, text, source)
    return Document(source, folder, tree.read(), tree.places, tree.faults)


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


def _tree(text: str, source: str, folder: Path | None = None) -> yaml_nodes.Tree:
    """Returns the nodes of a config; its paths are relative to the folder, if one is given."""
    node = yaml_nodes.compose(text, source)
    if node is None:
        node = yaml_nodes.compose("{}", source)
    if isinstance(node, yaml.MappingNode):
        return yaml_nodes.Tree(node, folder)
    raise errors.ConfigError(
        f"{source}:1: a config is a mapping of keys to values, got {yaml_nodes.kind_of(node)}. "
        "Start with e.g. `model_fn: package.module:function`."
    )


def _extend(tree: yaml_nodes.Tree, file: Path, above: list[tuple[Path, str]]) -> None:
    """Puts what stands in a file over what it extends.

    Args:
        tree: What stands there.
        file: The file.
        above: The files that extend this one, the first of them first, with their names.
    """
    name, place = tree.pop(EXTENDS)
    if place is None or name is yaml_nodes.UNREAD:
        return
    place = f"{place}: {EXTENDS}"
    known = [*above, (file.resolve(), os.path.normpath(file))]
    base = _base(name, file, place)
    if any(base.resolve() == one for one, _ in known):
        names = " -> ".join([*(name for _, name in known), os.path.normpath(base)])
        raise errors.ConfigError(f"{place}: must not lead back to a file: {names}. Remove one.")
    below = _tree(_text_of(base), os.path.normpath(base), base.absolute().parent)
    _extend(below, base, known)
    tree.extend(below, _deciding)


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


def _deciding(path: yaml_nodes.KeyPath) -> str:
    """Returns the key by which a mapping at a path takes keys from the base's, or does not."""
    if path[:1] in ((), ("params",)):
        return ""
    return "name" if path[0] == "optimizer" else "kind"


def source_of(assignment: str) -> str:
    """Returns an assignment as it stood on the command line: `--set a.b=c` or `--a.b=c`."""
    return assignment if assignment.startswith("--") else f"--set {assignment}"


def _assign(tree: yaml_nodes.Tree, assignment: str, file: str) -> None:
    """Sets a key from an `a.b=value` text."""
    source = source_of(assignment)
    key, equals, written = assignment.removeprefix("--").partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise errors.ConfigError(
            f"{source}: must be key=value, with dots between the parts of the key. "
            "Write e.g. --set train.steps=1000."
        )
    if path[0] == EXTENDS:
        raise errors.ConfigError(f"{source}: {EXTENDS}: must stand in a config. Write it there.")
    value = yaml_nodes.compose(written, source) or yaml_nodes.compose("null", source)
    try:
        tree.assign(path, value)
    except yaml_nodes.NoKeysError as e:
        above, left = ".".join(path[: e.depth]), path[e.depth :]
        whole = "{" + ": {".join(left) + f": {written}" + "}" * len(left)
        option = f"--set {above}=" if source.startswith("--set ") else f"--{above}="
        raise errors.ConfigError(
            f"{source}: {above} is {yaml_nodes.kind_of(e.node)} in {file} and has no keys. "
            f"Set all of it: {option}'{whole}'"
        ) from None


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
    return yaml_nodes.escaped(value) if isinstance(value, str) else value
