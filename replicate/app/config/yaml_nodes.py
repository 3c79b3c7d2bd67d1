"""YAML read as plain data, with the place of each value; nothing in it is ever executed.

The types are those of PyYAML's safe loader with three differences: `1e-3` is a number, `1:30` is
text (not 90), and so is a date. Values may name environment variables, as `${NAME}` or
`${NAME:default}`; what comes from there is one value, typed as if it stood in the file.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import yaml

from replicate import errors

KeyPath: TypeAlias = tuple[str | int, ...]

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
_MAX_DEPTH = 64  # far from where Python's own limit would end a walk
MAX_SIZE = 2**20  # values and their characters: aliases of aliases must not make a file endless
_TOO_LARGE = f"must be at most {_MAX_DEPTH} levels deep and {MAX_SIZE:,} characters in all"
_VARIABLE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^{}]*))?\}|\$\{", re.ASCII
)


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
    """A text of a file: a path in it is relative to that file's folder."""

    folder: Path


class Unread(NamedTuple):
    """Stands for a value that cannot be read; says why."""

    fault: str


class Place(NamedTuple):
    """Where a key stands: for the user; and the same for all that aliases (*) take from there."""

    text: str
    origin: tuple[str, int]


class Values:
    """The plain values of a YAML text.

    Args:
        text: The text.
        source: What to call it: a file's name, or an option of the command line.
        folder: What paths in it are relative to.

    Attributes:
        source: See `Args`.
        folder: See `Args`.
        data: The values.
        places: Where each key stands, by its path.
        faults: What is wrong with the keys, as finished lines of text.

    Raises:
        ConfigError: If it is no YAML, or there is no end to it.
    """

    def __init__(self, text: str, source: str, folder: Path):
        self.places: dict[KeyPath, Place] = {}
        self.faults: list[str] = []
        self.source, self.folder, self._size = source, folder, 0
        try:
            node = yaml.compose(text, _Loader)
            self.data: Any = None if node is None else self._value(node, ())
        except yaml.YAMLError as e:
            mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
            what = getattr(e, "problem", None) or str(e).splitlines()[0]
            then = "Check quotes, colons, indentation."
            if mark is not None and "${" in "".join(text.splitlines()[mark.line : mark.line + 1]):
                then = "Write ${...} in a line of its own: braces around it break it."
            raise self._error(mark, f"must be valid YAML: {what}. {then}") from None
        except RecursionError:
            raise self._error(None, f"{_TOO_LARGE}. Take brackets or indents away.") from None

    def _place(self, mark: yaml.Mark | None) -> str:
        line = 1 if mark is None else mark.line + 1
        return self.source if self.source.startswith("--") else f"{self.source}:{line}"

    def _error(self, mark: yaml.Mark | None, text: str) -> errors.ConfigError:
        return errors.ConfigError("\n".join([*self.faults, f"{self._place(mark)}: {text}"]))

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        """Returns a value; notes the places of all keys in it."""
        self._count(1, node, path)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            pairs = self._pairs(node, path).items()
            return {name: self._at(key, one, (*path, name)) for name, (key, one) in pairs}
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self._at(one, one, (*path, index)) for index, one in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN:
            return Unread(f"a config holds plain data, got the tag {node.tag}. Remove the tag.")
        value = _scalar(node)
        if isinstance(value, str):
            self._count(len(value), node, path)
            value = Text(value)
            value.folder = self.folder
        return value

    def _at(self, key: yaml.Node, node: yaml.Node, path: KeyPath) -> Any:
        origin = (self.source, node.start_mark.index)
        self.places[path] = Place(self._place(key.start_mark), origin)
        return self._value(node, path)

    def _count(self, size: int, node: yaml.Node, path: KeyPath) -> None:
        self._size += size
        if self._size > MAX_SIZE or len(path) > _MAX_DEPTH:
            then = "Look for an alias (*) that goes round in circles."
            raise self._error(node.start_mark, f"{dotted(path[:1])}: {_TOO_LARGE}. {then}")

    def _pairs(
        self, node: yaml.MappingNode, path: KeyPath
    ) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Returns the keys of a mapping and their values, with what merges (<<) bring in.

        A mapping's own keys win, then those of earlier mappings; keys written twice are noted.
        """
        given, node.value = node.value, []  # a merge may go round in circles
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in given:
            if key.tag == f"{_TAG}merge":
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(other, yaml.MappingNode):
                        rule = "merges (<<) take a mapping, or a list of mappings"
                        raise self._error(other.start_mark, f"must be valid YAML: {rule}.")
                    merged = self._pairs(other, path) | merged
                    self._count(len(merged), value, path)
            elif not isinstance(key, yaml.ScalarNode) or "\0" in key.value:
                self._note(key, path, "keys are plain words.")
            elif key.value in own:
                line = own[key.value][0].start_mark.line + 1
                rule = f"a key is given once; it already stands in line {line}"
                self._note(key, (*path, key.value), f"{rule}. Remove one of the two.")
            else:
                own[key.value] = key, value
        node.value = list((merged | own).values())
        return merged | own

    def _note(self, node: yaml.Node, path: KeyPath, text: str) -> None:
        key = f"{dotted(path)}: " if path else ""
        self.faults.append(f"{self._place(node.start_mark)}: {key}{text}")


def dotted(path: Iterable[str | int]) -> str:
    """Returns a key path as text: `train.input.file`, `devices[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _scalar(node: yaml.ScalarNode) -> Any:
    """Returns a plain value, its variables filled in; what is not in quotes gets its type then."""
    tag, text = node.tag, node.value
    unfilled: list[str] = []
    if "${" in text:
        text = _VARIABLE.sub(lambda match: _filled(match, unfilled), text)
        if tag == f"{_TAG}str" and node.style is None:
            tag = _constructor.resolve(yaml.ScalarNode, text, (True, False))
        tag = tag if tag in _PLAIN else f"{_TAG}str"
    if unfilled:
        return Unread(unfilled[0])
    try:
        value = _Loader.yaml_constructors[tag](_constructor, yaml.ScalarNode(tag, text))
        str(value)  # Python refuses to write out a whole number of thousands of digits
    except (ValueError, KeyError):
        kind = tag.removeprefix(_TAG)
        return Unread(f"must be a value of the type {kind}, got {text!r}. Put it in quotes.")
    if isinstance(value, str) and "\0" in value:
        return Unread(f"must be a text without the character 0, got {value!r}. Remove it.")
    return value


def _filled(match: re.Match[str], unfilled: list[str]) -> str:
    """Returns what stands for a variable; notes why there is nothing."""
    name, value = match["name"], match["default"]
    if match[0] == "$${":
        return "${"
    if name is None:
        rule = f"must name a variable as ${{NAME}} or ${{NAME:default}}, got {match.string!r}"
        unfilled.append(f"{rule}. Write $${{ for the text ${{.")
    elif os.environ.get(name, value) is None:
        rule = f"needs the environment variable {name}, which is not set"
        unfilled.append(f"{rule}. Set it, or write ${{{name}:default}}.")
    return os.environ.get(name or "", value or "")
