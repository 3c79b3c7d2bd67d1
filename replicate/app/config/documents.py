"""YAML read as plain data with the place of each value, put on top of another one, and written.

Nothing in it is ever executed. The types are those of PyYAML's safe loader with three differences:
`1e-3` is a number, `1:30` is text (not 90), and so is a date. Values may name environment
variables, as `${NAME}` or `${NAME:default}`; what comes from there is one value, typed as if it
stood in the file.

A config may begin with another one: `extends: base.yaml`. Mappings are merged, key by key, and
all else is replaced. So is a mapping that is of another `kind` than the base's, and an optimizer
or a schedule of another `name`: their keys would not fit.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import yaml

from replicate import errors

KeyPath: TypeAlias = tuple[str | int, ...]

EXTENDS = "extends"
RECORD = "config.yaml"  # what a run's folder has of its config

_TAG = "tag:yaml.org,2002:"
_NUMBER = r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$"""
_WHOLE = r"""^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"""
_FLOAT = (f"{_TAG}float", re.compile(_NUMBER, re.VERBOSE), list("-+0123456789."))
_OWN_TYPES = {f"{_TAG}{kind}" for kind in ("timestamp", "float", "int")}
_PLAIN = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null")}
_MAX_DEPTH = 64  # far from where Python's own limit would end a walk
_MAX_SIZE = 2**20  # values and their characters: aliases of aliases must not make a file endless
_TOO_LARGE = f"must be at most {_MAX_DEPTH} levels deep and {_MAX_SIZE:,} characters in all"
_VARIABLE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^{}]*))?\}|\$\{", re.ASCII
)
_MARK = "# Written by `replicate train`"
_FUNCTIONS = "Its functions: "
_HEAD = f"""{_MARK}: the config of this run, with all defaults. {_FUNCTIONS}{{}}
# Commands take this folder in place of a config, and paths are relative to it. To copy the config,
# run `replicate check FOLDER --print-config > COPY`, which prints absolute paths; put COPY beside
# its functions' modules, or run commands where these are.
"""


class _Loader(yaml.SafeLoader):
    """The safe loader with numbers of our own, and without dates."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, test) for tag, test in rows if tag not in _OWN_TYPES]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(_WHOLE), list("-+0123456789"))
_Loader.add_implicit_resolver(*_FLOAT)
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


class Document:
    """The plain values of a YAML text, and where each key stands.

    Args:
        text: The text.
        source: What to call it: a file's name, or an option of the command line.
        folder: What paths in it are relative to, and where a config's functions are imported from.

    Attributes:
        data: The values.
        places: Where each key stands, by its path.
        faults: What is wrong with the keys, as finished lines of text.

    Raises:
        ConfigError: If it is no YAML, or there is no end to it.
    """

    def __init__(self, text: str, source: str, folder: Path = Path()):
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

    def known(self, path: KeyPath) -> KeyPath:
        """Returns a path, or else the nearest one around it, whose place is known."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def place(self, path: KeyPath) -> Place:
        """Returns where a key stands, or else the nearest key around it."""
        return self.places.get(self.known(path), Place(f"{self.source}:1", (self.source, 0)))

    def _forget(self, path: KeyPath) -> None:
        self.places = {one: at for one, at in self.places.items() if one[: len(path)] != path}

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
        self.places[path] = Place(self._place(key.start_mark), (self.source, node.start_mark.index))
        return self._value(node, path)

    def _count(self, size: int, node: yaml.Node, path: KeyPath) -> None:
        self._size += size
        if self._size > _MAX_SIZE or len(path) > _MAX_DEPTH:
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
            rule = f"{EXTENDS}: must stand in a config. Write it there."
            raise errors.ConfigError(f"{source}: {rule}")
        document = Document(written, source, Path(self.source).absolute().parent)
        self.faults += document.faults
        within = self.data
        for depth, name in enumerate(path[:-1], 1):
            if within.get(name) is None:
                self.places[path[:depth]] = Place(source, (source, -1))
                within[name] = {}
            within = within[name]
            if not isinstance(within, dict):
                key, left = ".".join(path[:depth]), path[depth:]
                whole = "{" + ": {".join(left) + f": {written}" + "}" * len(left)
                raise errors.ConfigError(
                    f"{source}: {key} is {within!r} in {self.source} and has no keys. "
                    f"Set all of it: --set {key}='{whole}'"
                )
        within[path[-1]] = document.data
        self._forget(path)
        self.places[path] = Place(source, (source, 0))
        self.places |= {(*path, *below): place for below, place in document.places.items()}

    def put_over(self, base: "Document") -> None:
        """Puts what this says on top of another one."""
        self.data = self._over(self.data, base, base.data, ())
        self.places = base.places | self.places
        self.faults += base.faults

    def _over(self, value: Any, base: "Document", other: Any, path: KeyPath) -> Any:
        """Returns a value put over the base's one at the same path."""
        decides = "name" if path[:1] == ("optimizer",) else "kind"
        is_merged = isinstance(value, dict) and isinstance(other, dict)
        if is_merged and decides in value and path and path[0] != "params":
            is_merged = value[decides] == other.get(decides)
        if not is_merged:
            if path in base.places:
                base._forget(path)
            return value
        items = value.items()
        return other | {k: self._over(one, base, other.get(k), (*path, k)) for k, one in items}


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
    text = _text_of(path)
    document = _mapping(text, Path(path), str(path))
    if is_record(text):
        named = text.partition("\n")[0].partition(_FUNCTIONS)[2]
        document.folder = Path(os.path.normpath(document.folder / named))
    else:
        _extend(document, [Path(path)])
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


def source_of(assignment: str) -> str:
    """Returns an assignment as it stood on the command line: `--set a.b=c` or `--a.b=c`."""
    return assignment if assignment.startswith("--") else f"--set {assignment}"


def _text_of(path: Path | str) -> str:
    try:
        with open(path, "rb") as file:  # a device may have no end
            written = file.read(_MAX_SIZE + 1)
        if len(written) <= _MAX_SIZE:
            return written.decode("utf-8-sig")
        fault = f"a config file has at most {_MAX_SIZE:,} bytes. Check the path."
    except UnicodeDecodeError as e:
        fault = f"a config file is UTF-8 text; byte {e.start} is not. Save it as UTF-8."
    except (OSError, ValueError) as e:  # of a path that cannot be one
        fault = f"a config file must exist and be readable: {e}. Check the path."
    raise errors.ConfigError(f"{path}: {fault}")


def _mapping(text: str, file: Path, source: str) -> Document:
    """Returns what a config file says."""
    document = Document(text, source, file.absolute().parent)
    document.data = {} if document.data is None else document.data
    if not isinstance(document.data, dict):
        raise errors.ConfigError(
            f"{source}:1: a config is a mapping of keys to values, got "
            f"{document.data!r:.99}. Start with e.g. `model_fn: package.module:function`."
        )
    return document


def _extend(document: Document, files: list[Path]) -> None:
    """Puts a document on top of what it extends.

    Args:
        document: What stands in a file.
        files: The file, behind those that extend it, the first of them first.
    """
    place, name = document.place((EXTENDS,)).text, document.data.pop(EXTENDS, None)
    if isinstance(name, Unread) or (EXTENDS,) not in document.places:
        document.faults += [f"{place}: {EXTENDS}: {name.fault}"] if name else []
        return
    rule = f"must be the path of a config, got {name!r}."
    if isinstance(name, str) and name.strip():
        base = files[-1].parent / os.path.expanduser(name)
        names = " -> ".join(os.path.normpath(one) for one in [*files, base])
        if not os.path.isfile(base):
            rule = f"must be a config file, but there is none by the name {name}. Check the path; "
            rule += "it is relative to the file it stands in."
        elif any(base.resolve() == one.resolve() for one in files):
            rule = f"must not lead back to a file: {names}. Remove one."
        else:
            below = _mapping(_text_of(base), base, os.path.normpath(base))
            _extend(below, [*files, base])
            document.put_over(below)
            return
    raise errors.ConfigError(f"{place}: {EXTENDS}: {rule}")


class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes what our loader, or PyYAML's, takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """See base class."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Keeps a text in one line, whatever it has."""
    style = None if "".join(text.splitlines()) == text else '"'
    return dumper.represent_scalar(f"{_TAG}str", text, style)


_Dumper.add_implicit_resolver(*_FLOAT)
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
