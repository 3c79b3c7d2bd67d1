"""YAML as a tree of nodes: composed, put over another, read as plain values with their places.

A node knows its file and line, so every key's place is known, a key written twice is found, and
nothing but plain data can come out. The types are those of PyYAML's safe loader with three
differences: `1e-3` is a number, `1:30` is text (not 90), and so is a date. Values may name
environment variables, as `${NAME}` or `${NAME:default}`; what comes from there is one value, typed
as if it stood in the file.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeAlias

import yaml

from replicate import errors

KeyPath: TypeAlias = tuple[str | int, ...]
_Pairs: TypeAlias = dict[str, tuple[yaml.Node, yaml.Node]]

_TAG = "tag:yaml.org,2002:"
_NUMBER = r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$"""
_WHOLE = r"""^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"""
FLOAT = (f"{_TAG}float", re.compile(_NUMBER, re.VERBOSE), list("-+0123456789."))
_OWN_TYPES = {f"{_TAG}{kind}" for kind in ("timestamp", "float", "int")}
_PLAIN = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null")}
_MAX_VALUES = 100_000  # aliases of aliases must not make a short file endless
_MAX_DEPTH = 64  # far from where Python's own limit would end a walk
_TOO_DEEP = f"must be at most {_MAX_DEPTH} levels deep. Take brackets or indents away."
_MAX_FILLED = 2**20  # characters, of all values with variables: they multiply as aliases do
_VARIABLE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^{}]*))?\}|\$\{", re.ASCII
)
UNREAD: Any = object()
"""Stands for a value with a fault that is told already."""


class _Loader(yaml.SafeLoader):
    """The safe loader with numbers of our own, and without dates."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, test) for tag, test in rows if tag not in _OWN_TYPES]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(_WHOLE), list("-+0123456789"))
_Loader.add_implicit_resolver(*FLOAT)
_constructor = _Loader("")


class Text(str):
    """A text of a file that others extend: a path in it is relative to that file's folder."""

    folder: Path


class Place(NamedTuple):
    """Where a key stands: for the user; and the same for all that aliases (*) take from there."""

    text: str
    origin: tuple[str, int]


class NoKeysError(Exception):
    """A value that is to have keys has none; so many keys lead to it."""

    def __init__(self, depth: int, node: yaml.Node):
        super().__init__(depth, node)
        self.depth, self.node = depth, node


def dotted(path: Iterable[str | int]) -> str:
    """Returns a key path as text: `train.input.file`, `devices[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def escaped(text: str) -> str:
    """Returns a text that is read as it is, without taking it for a variable."""
    return text.replace("${", "$${")


def compose(text: str, source: str) -> yaml.Node | None:
    """Returns the node of a YAML text; None where it is empty.

    Args:
        text: The YAML.
        source: What to call it: a file's name, or an option of the command line.

    Raises:
        ConfigError: If it is no YAML.
    """
    loader = None
    try:
        loader = _Loader(text)
        loader.name = source
        return loader.get_single_node()
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
        what = getattr(e, "problem", None) or str(e).splitlines()[0]
        then = "Check quotes, colons, indentation."
        if mark is not None and "${" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            then = "Write ${...} in a line of its own: braces around it break it."
        _end(f"{_place(mark, source)}: must be valid YAML: {what}. {then}")
    except RecursionError:
        mark = loader.get_mark() if loader is not None else None
        _end(f"{_place(mark, source)}: {_TOO_DEEP}")
    finally:
        if loader is not None:
            loader.dispose()


def _place(mark: yaml.Mark | None, source: str = "") -> str:
    name, line = (mark.name, mark.line + 1) if mark is not None else (source, 1)
    return name if name.startswith("--") else f"{name}:{line}"


def _end(*faults: str) -> NoReturn:
    raise errors.ConfigError("\n".join(faults)) from None


def _variable(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    if match[0] == "$${":
        return "${"
    if name is None:
        raise _UnreadableError(
            "must name a variable as ${NAME} or ${NAME:default}, "
            f"got {match.string!r}. Write $${{ for the text ${{."
        )
    value = os.environ.get(name, default)
    if value is None:
        raise _UnreadableError(
            f"needs the environment variable {name}, which is not set. "
            f"Set it, or write ${{{name}:default}}."
        )
    return value


class Tree:
    """A mapping of nodes, from one text or several.

    Args:
        root: The mapping.
        folder: What paths in its texts are relative to; None: left to who reads them.
    """

    def __init__(self, root: yaml.MappingNode, folder: Path | None = None):
        self.root = root
        self.faults: list[str] = []
        self.places: dict[KeyPath, Place] = {}
        self._folders = {root.start_mark.name: folder}
        self._open: list[yaml.Node] = []
        self._count = self._filled = self._merged = 0

    def extend(self, base: "Tree", decides: Callable[[KeyPath], str]) -> None:
        """Puts this mapping over another one: mappings key by key, all else is replaced.

        Args:
            base: The other one.
            decides: Tells for the path of a mapping which key must be the same in both, or else
                it is replaced as well; an empty text: none.
        """

        def over(node: yaml.Node, other: yaml.Node | None, path: KeyPath) -> yaml.Node:
            if not (isinstance(node, yaml.MappingNode) and isinstance(other, yaml.MappingNode)):
                return node
            own, made = self._by_name(node, path), base._by_name(other, path)
            key = decides(path)
            if key in own and _word(own[key][1]) != _word(made.get(key, (None, None))[1]):
                return node
            for name, (named, value) in own.items():
                below = made[name][1] if name in made else None
                made[name] = named, over(value, below, (*path, name))
            return _mapping(made, node)

        self.root = over(self.root, base.root, ())
        self.faults += base.faults
        self._folders = base._folders | self._folders

    def pop(self, name: str) -> tuple[Any, str | None]:
        """Takes a key of the mapping itself out; returns its value and place, if it is there."""
        pairs = self._by_name(self.root, ())
        if name not in pairs:
            return None, None
        key, node = pairs.pop(name)
        self.root = _mapping(pairs, self.root)
        return self._value(node, (name,)), _place(key.start_mark)

    def assign(self, path: Sequence[str], value: yaml.Node) -> None:
        """Puts a value at a path, making the mappings on the way where there are none.

        Raises:
            NoKeysError: If another value is on the way.
        """

        def put(node: yaml.Node | None, above: KeyPath, left: Sequence[str]) -> yaml.Node:
            if not left:
                return value
            is_there = node is not None and not node.tag.endswith(":null")
            if is_there and not isinstance(node, yaml.MappingNode):
                raise NoKeysError(len(above), node)
            made = self._by_name(node, above) if is_there else {}
            key, below = made.get(left[0], (None, None))
            if key is None or len(left) == 1:
                key = yaml.ScalarNode(f"{_TAG}str", left[0], value.start_mark, value.end_mark)
            made[left[0]] = key, put(below, (*above, left[0]), left[1:])
            return _mapping(made, node if is_there else value)

        self.root = put(self.root, (), path)

    def read(self) -> dict[str, Any]:
        """Returns the plain values; notes all places and faults.

        Raises:
            ConfigError: If there is no end to it.
        """
        return self._mapping(self.root, ())

    def _by_name(self, node: yaml.MappingNode, path: KeyPath) -> _Pairs:
        """Returns the keys of a mapping and their values, with what merges (<<) bring in.

        A mapping's own keys win, then those of earlier mappings; keys written twice are noted.
        """
        given, node.value = node.value, []  # a merge may go round in circles
        own: _Pairs = {}
        merged: _Pairs = {}
        for key, value in given:
            name = key.value
            if key.tag.endswith(":merge"):
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(other, yaml.MappingNode):
                        rule = "merges (<<) take a mapping, or a list of mappings"
                        self._end(other, f"must be valid YAML: {rule}.")
                    pairs = self._by_name(other, path)
                    self._merged += len(pairs)
                    if self._merged > _MAX_VALUES:
                        self._end(value, "must be finite: merges (<<) bring in too many keys.")
                    merged = pairs | merged
            elif not isinstance(key, yaml.ScalarNode):
                self._note(key, f"{dotted(path)}: keys are plain words.")
            elif name in own:
                rule = "a key is given once; it already stands in line"
                line = own[name][0].start_mark.line + 1
                fault = f"{dotted((*path, name))}: {rule} {line}. Remove one of the two."
                self._note(key, fault)
            else:
                own[name] = key, value
        found = merged | own
        node.value = list(found.values())
        return found

    def _note(self, node: yaml.Node, text: str) -> None:
        """Notes a fault; the rest is read all the same."""
        self.faults.append(f"{_place(node.start_mark)}: {text}")

    def _end(self, node: yaml.Node, text: str) -> NoReturn:
        """Ends with all faults."""
        _end(*self.faults, f"{_place(node.start_mark)}: {text}")

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES or any(node is outer for outer in self._open):
            self._end(node, "must be finite: an alias (*) goes round in circles.")
        if len(self._open) > _MAX_DEPTH:
            self._end(node, f"{dotted(path[:1])}: {_TOO_DEEP}")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
                return [
                    self._value(one, self._noted(one, one, (*path, n)))
                    for n, one in enumerate(node.value)
                ]
            if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
                return self._scalar(node)
            fault = f"a config holds plain data, got the tag {node.tag}. Remove the tag."
        except _UnreadableError as e:
            fault = str(e)
        finally:
            self._open.pop()
        self._note(node, f"{dotted(path)}: {fault}" if path else fault)
        return UNREAD

    def _noted(self, key: yaml.Node, value: yaml.Node, path: KeyPath) -> KeyPath:
        """Notes where a key stands; returns its path."""
        mark = value.start_mark
        self.places[path] = Place(_place(key.start_mark), (mark.name, mark.index))
        return path

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        return {
            name: self._value(value, self._noted(key, value, (*path, name)))
            for name, (key, value) in self._by_name(node, path).items()
        }

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if "${" in node.value:
            self._filled += len(_filled(node).value)
            if self._filled > _MAX_FILLED:
                rule = f"values with variables have more than {_MAX_FILLED} characters."
                self._end(node, f"must be finite: {rule}")
        value, folder = _scalar(node), self._folders.get(node.start_mark.name)
        if isinstance(value, str) and folder is not None:
            value = Text(value)
            value.folder = folder
        return value


class _UnreadableError(Exception):
    """A value that cannot be read; says why."""


def _scalar(node: yaml.ScalarNode) -> Any:
    """Returns a plain value, its variables filled in."""
    filled = _filled(node)
    try:
        value = _Loader.yaml_constructors[filled.tag](_constructor, filled)
        str(value)  # Python refuses to write out a whole number of thousands of digits
        return value
    except (ValueError, KeyError):
        kind = filled.tag.rpartition(":")[2]
        raise _UnreadableError(
            f"must be a value of the type {kind}, got {filled.value!r}. Correct it, or put it in "
            "quotes."
        ) from None


def _filled(node: yaml.ScalarNode) -> yaml.ScalarNode:
    """Returns a node with variables filled in; what is not in quotes gets its type then."""
    tag, text = node.tag, node.value
    if "${" in text:
        text = _VARIABLE.sub(_variable, text)
        if tag == f"{_TAG}str" and node.style is None:
            tag = _constructor.resolve(yaml.ScalarNode, text, (True, False))
        tag = tag if tag in _PLAIN else f"{_TAG}str"
    return yaml.ScalarNode(tag, text)


def _word(node: yaml.Node | None) -> Any:
    """Returns a plain value; None where there is none, or it cannot be read."""
    try:
        return _scalar(node) if isinstance(node, yaml.ScalarNode) else None
    except _UnreadableError:
        return None


def kind_of(node: yaml.Node) -> str:
    """Returns in words what a value is."""
    if not isinstance(node, yaml.ScalarNode):
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
    kinds = {"str": "a text", "bool": "true/false", "null": "nothing"}
    return kinds.get(node.tag.rpartition(":")[2], node.value)


def _mapping(pairs: _Pairs, like: yaml.Node) -> yaml.MappingNode:
    return yaml.MappingNode(f"{_TAG}map", list(pairs.values()), like.start_mark, like.end_mark)
