"""One pass over YAML's node tree: plain values, and where each of them stands.

So the line of every key is known, a key written twice is found, and nothing but plain data can
come out. The types are those of PyYAML's safe loader with three differences: `1e-3` is a number,
`1:30` is text (not 90), and so is a date. Values may name environment variables, as `${NAME}` or
`${NAME:default}`; what comes from there is one value, typed as if it stood in the file.
"""

import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import yaml

from replicate import errors

KeyPath: TypeAlias = tuple[str | int, ...]

_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null")}
_NUMBER = r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$"""
_WHOLE = r"""^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"""
FLOAT = ("tag:yaml.org,2002:float", re.compile(_NUMBER, re.VERBOSE), list("-+0123456789."))
_STRING = "tag:yaml.org,2002:str"
_UNREAD = object()
_MAX_VALUES = 100_000  # aliases of aliases must not make a short file endless
_MAX_DEPTH = 64  # far from where Python's own limit would end a walk
_MAX_FILLED = 2**20  # characters, of all values with variables: they multiply as aliases do
_VARIABLE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^{}]*))?\}|\$\{", re.ASCII
)


class _Loader(yaml.SafeLoader):
    """The safe loader with numbers and merges (<<) of our own, and without dates.

    PyYAML's versions disagree on which of several merged mappings wins; YAML says, the first.
    """

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replaces merges by their pairs: a mapping's own win, then those of earlier mappings."""
        pairs = node.value
        node.value = own = [pair for pair in pairs if not _is_merge(pair[0])]
        merged: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in pairs:
            for other in _mappings_of(value) if _is_merge(key) else ():
                self.flatten_mapping(other)
                self._merged += len(other.value)
                if self._merged > _MAX_VALUES:
                    raise _merge_error(node, "bring in too many keys")
                for pair in other.value:
                    merged.setdefault(_name_of(pair[0]), pair)
        node.value = list({**merged, **{_name_of(pair[0]): pair for pair in own}}.values())


def _is_merge(key: yaml.Node) -> bool:
    return bool(key.tag == "tag:yaml.org,2002:merge")


def _mappings_of(value: yaml.Node) -> list[yaml.MappingNode]:
    """Returns the mappings that a merge names."""
    found = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(one, yaml.MappingNode) for one in found):
        raise _merge_error(value, "take a mapping, or a list of mappings")
    return list(found)


def _merge_error(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"merges (<<) {problem}", problem_mark=node.start_mark)


def _name_of(key: yaml.Node) -> Any:
    """Returns what is the same for equal keys; keys that are no plain words equal no other."""
    return key.value if isinstance(key, yaml.ScalarNode) else id(key)


_OWN_TYPES = {"timestamp", "float", "int"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, test) for tag, test in rows if tag.rpartition(":")[2] not in _OWN_TYPES]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(_WHOLE), list("-+0123456789"))
_Loader.add_implicit_resolver(*FLOAT)


class Text(str):
    """A text of a file that others extend: a path in it is relative to that file's folder."""

    folder: Path


class _Place(str):
    """Where a key stands.

    Attributes:
        origin: The same for all keys whose value an alias (*) or a merge (<<) takes from one place.
    """

    origin: tuple[str, int]


@dataclasses.dataclass
class Document:
    """A mapping read from YAML.

    Attributes:
        source: What to call it in an error text: the file's name as the user wrote it.
        data: The plain values.
        places: Where each key stands, e.g. `("train", "steps")` -> `digits.yaml:12`.
        faults: What was wrong with the YAML itself, as finished lines of text.
        unread: Where a fault stands in place of a value.
        folder: What paths in texts are relative to; None: not noted.
    """

    source: str
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    places: dict[KeyPath, str] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)
    unread: set[KeyPath] = dataclasses.field(default_factory=set)
    folder: Path | None = None

    def place(self, path: KeyPath) -> str:
        """Returns where a key stands, or else the nearest key around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, f"{self.source}:1")

    def origin(self, path: KeyPath) -> object:
        """Returns what is the same for all keys that have their value from one place."""
        return getattr(self.places.get(path), "origin", path)


def dotted(path: Iterable[str | int]) -> str:
    """Returns a key path as text: `train.input.file`, `devices[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def escaped(text: str) -> str:
    """Returns a text that a walk gives back as it was, without taking it for a variable."""
    return text.replace("${", "$${")


class _UnfilledError(Exception):
    """A text whose variables cannot be filled in; says why."""


def _filled(text: str) -> str:
    """Returns a text with the values of its variables, which are not looked through again."""
    return _VARIABLE.sub(_variable, text)


def _variable(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    if match[0] == "$${":
        return "${"
    if name is None:
        raise _UnfilledError(
            "must name a variable as ${NAME} or ${NAME:default}, "
            f"got {match.string!r}. Write $${{ for the text ${{."
        )
    value = os.environ.get(name, default)
    if value is None:
        raise _UnfilledError(
            f"needs the environment variable {name}, which is not set. "
            f"Set it, or write ${{{name}:default}}."
        )
    return value


class Walk:
    """One pass over a YAML node tree.

    Args:
        document: Gets the places and the faults.
        place: How to say where a node stands; `{line}` stands for its line.
    """

    def __init__(self, document: Document, place: str):
        self._document = document
        self._place = place
        self._open: list[yaml.Node] = []
        self._merged: set[int] = set()  # mappings in merges that were looked at, by their places
        self._count = 0
        self._filled = 0

    def run(self, text: str) -> Any:
        """Returns the plain value of a YAML text; None where it has faults."""
        loader = None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            return None if node is None else self._value(loader, node, ())
        except yaml.YAMLError as e:
            mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
            what = getattr(e, "problem", None) or str(e).splitlines()[0]
            then = "Check quotes, colons, indentation."
            if mark is not None and "${" in "".join(text.splitlines()[mark.line : mark.line + 1]):
                then = "Write ${...} in a line of its own: braces around it break it."
            self._end(mark, f"must be valid YAML: {what}. {then}")
        except RecursionError:
            self._end_depth(loader.get_mark() if loader is not None else None, ())
        finally:
            if loader is not None:
                loader.dispose()

    def _at(self, mark: yaml.Mark | None) -> str:
        return self._place.replace("{line}", str(mark.line + 1 if mark is not None else 1))

    def _place_of(self, key: yaml.Node, value: yaml.Node) -> _Place:
        place = _Place(self._at(key.start_mark))
        for _ in range(_MAX_DEPTH):  # it may go round in circles
            parts = value.value if isinstance(value, yaml.MappingNode) else ()
            merged = [one for name, one in parts if name.tag.endswith(":merge")]
            if not merged:
                break
            value = merged[0]
        place.origin = self._document.source, value.start_mark.index
        return place

    def _note(self, mark: yaml.Mark | None, text: str) -> None:
        """Notes a fault; the walk goes on."""
        self._document.faults.append(f"{self._at(mark)}: {text}")

    def _end(self, mark: yaml.Mark | None, text: str) -> NoReturn:
        """Notes a fault, and ends the walk with all faults."""
        self._note(mark, text)
        raise errors.ConfigError("\n".join(self._document.faults)) from None

    def _end_depth(self, mark: yaml.Mark | None, path: KeyPath) -> NoReturn:
        key = f"{dotted(path[:1])}: " if path else ""
        then = "Take brackets or indents away."
        self._end(mark, f"{key}must be at most {_MAX_DEPTH} levels deep. {then}")

    def _value(self, loader: _Loader, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES or any(node is outer for outer in self._open):
            self._end(node.start_mark, "must be finite: an alias (*) goes round in circles.")
        if len(self._open) > _MAX_DEPTH:
            self._end_depth(node.start_mark, path)
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
                return self._mapping(loader, node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
                return self._sequence(loader, node, path)
            if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
                return self._scalar(loader, node, path)
        finally:
            self._open.pop()
        fault = f"a config holds plain data, got the tag {node.tag}. Remove the tag."
        return self._unread(node, path, fault)

    def _scalar(self, loader: _Loader, node: yaml.ScalarNode, path: KeyPath) -> Any:
        try:
            node = self._with_variables(loader, node) if "${" in node.value else node
            value = loader.construct_object(node)
            str(value)  # Python refuses to write out a whole number of thousands of digits
            if isinstance(value, str) and self._document.folder is not None:
                value = Text(value)
                value.folder = self._document.folder
            return value
        except errors.ConfigError:  # which is a ValueError
            raise
        except _UnfilledError as e:
            fault = str(e)
        except (ValueError, KeyError):
            fault = (
                f"must be a value of the type {node.tag.rpartition(':')[2]}, got {node.value!r}. "
                "Correct it, or put it in quotes."
            )
        return self._unread(node, path, fault)

    def _unread(self, node: yaml.Node, path: KeyPath, fault: str) -> object:
        """Notes a fault; returns what stands for the value, which no key takes."""
        self._document.unread.add(path)
        self._note(node.start_mark, f"{dotted(path)}: {fault}" if path else fault)
        return _UNREAD

    def _with_variables(self, loader: _Loader, node: yaml.ScalarNode) -> yaml.ScalarNode:
        """Returns a node with variables filled in; what is not in quotes gets its type then."""
        text = _filled(node.value)
        self._filled += len(text)
        if self._filled > _MAX_FILLED:
            rule = f"values with variables have more than {_MAX_FILLED} characters."
            self._end(node.start_mark, f"must be finite: {rule}")
        tag = node.tag
        if tag == _STRING and node.style is None:
            tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        tag = tag if tag in _PLAIN else _STRING
        return yaml.ScalarNode(tag, text, node.start_mark, node.end_mark, node.style)

    def _sequence(self, loader: _Loader, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, child in enumerate(node.value):
            below = (*path, index)
            self._document.places[below] = self._place_of(child, child)
            values.append(self._value(loader, child, below))
        return values

    def _mapping(self, loader: _Loader, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._find_repeated(node, path)
        loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, child in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(key_node.start_mark, f"{dotted(path)}: keys are plain words.")
                continue
            below = (*path, key)
            self._document.places[below] = self._place_of(key_node, child)
            values[key] = self._value(loader, child, below)
        return values

    def _find_repeated(self, node: yaml.MappingNode, path: KeyPath) -> None:
        lines: dict[str, int] = {}
        for key_node, value in node.value:
            key = key_node.value
            if _is_merge(key_node):
                for other in _mappings_of(value):
                    # What an alias stands for is written elsewhere, and looked at there.
                    is_here = other.start_mark.index > key_node.start_mark.index
                    if is_here and other.start_mark.index not in self._merged:
                        self._merged.add(other.start_mark.index)
                        self._find_repeated(other, path)
            if not isinstance(key, str) or _is_merge(key_node):
                continue
            if key in lines:
                self._note(
                    key_node.start_mark,
                    f"{dotted((*path, key))}: a key is given once; it already stands in line "
                    f"{lines[key]}. Remove one of the two.",
                )
            lines.setdefault(key, key_node.start_mark.line + 1)
