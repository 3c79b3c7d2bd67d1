"""One pass over YAML's node tree: plain values, and where each of them stands.

So the line of every key is known, a key written twice is found, and nothing but plain data can
come out. The types are those of PyYAML's safe loader with three differences: `1e-3` is a number,
`1:30` is text (not 90), and so is a date. Values may name environment variables, see `variables`;
what comes from there is one value, typed as if it stood in the file.
"""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from replicate import errors
from replicate.app.config import variables

__all__ = ["FLOAT", "Document", "KeyPath", "Text", "Walk", "dotted"]

KeyPath = tuple[str | int, ...]

_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null")}
_NUMBER = r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$"""
_WHOLE = r"""^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"""
FLOAT = ("tag:yaml.org,2002:float", re.compile(_NUMBER, re.VERBOSE), list("-+0123456789."))
_MAX_VALUES = 100_000  # aliases of aliases must not make a short file endless
_MAX_DEPTH = 64  # far from where Python's own limit would end a walk
_MAX_FILLED = 2**20  # characters, of all values with variables: they multiply as aliases do
_STRING = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """The safe loader with this room's numbers and without dates."""


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


def dotted(path: Iterable[str | int]) -> str:
    """Returns a key path as text: `train.input.file`, `devices[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


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
            lines = text.splitlines()[mark.line : mark.line + 1] if mark is not None else []
            if any(variables.MARK in line for line in lines):
                then = "Write ${...} in a line of its own: braces around it break it."
            self._fault(mark, f"must be valid YAML: {what}. {then}")
            raise errors.ConfigError("\n".join(self._document.faults)) from e
        except RecursionError:
            self._refuse_depth(loader.get_mark(), ())
        finally:
            if loader is not None:
                loader.dispose()

    def _fault(self, mark: Any, text: str) -> None:
        line = mark.line + 1 if mark is not None else 1
        self._document.faults.append(f"{self._place.replace('{line}', str(line))}: {text}")

    def _refuse_depth(self, mark: Any, path: KeyPath) -> None:
        key = f"{dotted(path[:1])}: " if path else ""
        self._fault(
            mark, f"{key}must be at most {_MAX_DEPTH} levels deep. Take brackets or indents away."
        )
        raise errors.ConfigError("\n".join(self._document.faults))

    def _value(self, loader: _Loader, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES or any(node is outer for outer in self._open):
            self._fault(node.start_mark, "must be finite: an alias (*) goes round in circles.")
            raise errors.ConfigError("\n".join(self._document.faults))
        if len(self._open) > _MAX_DEPTH:
            self._refuse_depth(node.start_mark, path)
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
        self._fault(
            node.start_mark,
            f"{dotted(path)}: a config holds plain data, got the tag {node.tag}. Remove the tag.",
        )
        return None

    def _scalar(self, loader: _Loader, node: yaml.ScalarNode, path: KeyPath) -> Any:
        try:
            if variables.MARK in node.value:
                node = self._with_variables(loader, node)
            value = loader.construct_object(node)
            str(value)  # Python refuses to write out a whole number of thousands of digits
        except variables.UnfilledError as e:
            self._refuse(node, path, str(e))
            return None
        except errors.ConfigError:  # which is a ValueError
            raise
        except (ValueError, KeyError):
            kind = node.tag.rpartition(":")[2]
            self._refuse(
                node,
                path,
                f"must be a value of the type {kind}, got {node.value!r}. "
                "Correct it, or put it in quotes.",
            )
            return None
        if isinstance(value, str) and self._document.folder is not None:
            value = Text(value)
            value.folder = self._document.folder
        return value

    def _refuse(self, node: yaml.Node, path: KeyPath, text: str) -> None:
        """Notes a fault in place of a value."""
        self._document.unread.add(path)
        self._fault(node.start_mark, f"{dotted(path)}: {text}" if path else text)

    def _with_variables(self, loader: _Loader, node: yaml.ScalarNode) -> yaml.ScalarNode:
        """Returns a node with variables filled in; what is not in quotes gets its type then."""
        text = variables.filled(node.value)
        self._filled += len(text)
        if self._filled > _MAX_FILLED:
            self._fault(
                node.start_mark,
                f"must be finite: values with variables have more than {_MAX_FILLED} characters.",
            )
            raise errors.ConfigError("\n".join(self._document.faults))
        tag = node.tag
        if tag == _STRING and node.style is None:
            tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        tag = tag if tag in _PLAIN else _STRING
        return yaml.ScalarNode(tag, text, node.start_mark, node.end_mark, node.style)

    def _sequence(self, loader: _Loader, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, child in enumerate(node.value):
            self._note(child, (*path, index))
            values.append(self._value(loader, child, (*path, index)))
        return values

    def _mapping(self, loader: _Loader, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._find_repeated(node, path)
        loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, child in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node.start_mark, f"{dotted(path)}: keys are plain words.")
                continue
            self._note(key_node, (*path, key))
            values[key] = self._value(loader, child, (*path, key))
        return values

    def _find_repeated(self, node: yaml.MappingNode, path: KeyPath) -> None:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str) or key_node.tag.endswith(":merge"):
                continue
            if key in lines:
                self._fault(
                    key_node.start_mark,
                    f"{dotted((*path, key))}: a key is given once; it already stands in line "
                    f"{lines[key]}. Remove one of the two.",
                )
            lines.setdefault(key, key_node.start_mark.line + 1)

    def _note(self, node: yaml.Node, path: KeyPath) -> None:
        line = str(node.start_mark.line + 1)
        self._document.places[path] = self._place.replace("{line}", line)
