"""Completion of command lines in bash, zsh and fish; imports neither TensorFlow nor pydantic.

The shell asks `replicate` itself, with the line in its environment; argcomplete knows how. Only
`--label` takes pydantic along, for it looks at the data as `replicate init` does.
"""

import argparse
import ast
import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app.config import catalog

SHELLS = ("bash", "zsh", "fish")
_SCHEMA = Path(__file__).parents[1] / "config" / "config.schema.json"
_MAX_DEPTH = 6  # of keys
_MAX_MEANT = 3  # keys that an unknown option may mean


def is_asked() -> bool:
    """Whether a shell wants to know how a command line may go on."""
    return "_ARGCOMPLETE" in os.environ


def answer(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]
) -> None:
    """Tells the shell how the line may go on, and ends the process.

    Args:
        parser: Of the whole line. Its arguments may have a `completer`.
        commands: The parsers of the commands. Those whose defaults have `takes_keys` take a
            config's keys as options.
    """
    import argcomplete

    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", 0))
    _, begun, _, words, _ = argcomplete.split_line(line, point)
    is_begun = begun not in ("", "-", "--")
    known = keys(_said(words) if is_begun else None)
    sections = {key.rpartition(".")[0] for key in known}
    for command in commands.values():
        for key, values in known.items() if command.get_default("takes_keys") else ():
            # A line may have them anywhere, but the many are shown when one is begun.
            is_shown = is_begun and (values or key not in sections)
            with contextlib.suppress(argparse.ArgumentError):  # an option of the command's own
                shown = None if is_shown else argparse.SUPPRESS
                option = command.add_argument(f"--{key}", help=shown)
                complete(option, lambda prefix, values=values, **_: _values(prefix, values))
    argcomplete.autocomplete(parser, always_complete_options=False)


def complete(option: argparse.Action, completer: Callable[..., Iterable[str]]) -> None:
    """Has argcomplete ask a function what an option's value may be."""
    vars(option)["completer"] = completer


def script(shell: str) -> str:
    """Returns what a shell is to run, so that it asks."""
    import argcomplete

    return argcomplete.shellcode(["replicate"], shell=shell)


def config_keys(prefix: str, **_: object) -> list[str]:
    """Completes `a.b=value`."""
    known = keys()
    key, equals, begun = prefix.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(begun, known.get(key, ()))]
    return [f"{name}=" for name in known if name.startswith(prefix)]


def _values(begun: str, words: Sequence[str]) -> Sequence[str]:
    """Completes the value of a key that is one of some words, or a function."""
    return words or (functions(begun) if ":" in begun else ())


def functions(prefix: str, **_: object) -> list[str]:
    """Completes `module:function`, of a module in the working directory."""
    module, colon, begun = prefix.partition(":")
    if not colon:
        return [f"{file.stem}:" for file in Path().glob("*.py") if file.stem.startswith(prefix)]
    try:
        found = ast.parse(Path(f"{module.replace('.', '/')}.py").read_bytes()).body
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    names = [one.name for one in found if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    return [f"{module}:{name}" for name in names if name.startswith(begun) and name[0] != "_"]


def data(prefix: str, **_: object) -> list[str]:
    """Completes a file, or a function in its place."""
    return [*_paths(prefix, ("",)), *functions(prefix)]


def labels(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Completes what may be the label: a column, array or feature of the data on the line."""
    from replicate.app.inspect import starter

    with contextlib.suppress(errors.ReplicateError):
        found = starter.look(getattr(parsed_args, "data", None) or "").names
        return [name for name in found if name.startswith(prefix)]
    return []


def checkpoints(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Completes which checkpoint: best, averaged, a step of the run, or a folder.

    Of several with commas between them it completes the last one.
    """
    configs = getattr(parsed_args, "configs", None) or [""]
    said = _said(configs) or {}
    by_name = Path("runs", str(said.get("name", Path(configs[0]).stem)))
    run = configs[0] if os.path.isdir(configs[0]) else said.get("model_dir")
    place = getattr(parsed_args, "model_dir", None) or run or by_name
    place = Path(str(place))
    steps = {file.stem.rpartition("-")[2] for file in place.glob("*ckpt-*.index")}
    words = [word for word in ("best", "averaged") if any(place.glob(f"{word}/*.index"))]
    words += sorted(filter(str.isdecimal, steps), key=int)
    others, comma, begun = prefix.rpartition(",")
    found = [word for word in words if word.startswith(begun)] + folders(begun)
    return [others + comma + one for one in found]


def folders(prefix: str, **_: object) -> list[str]:
    """Completes a folder."""
    return list(_paths(prefix, ()))


def paths(*endings: str) -> Callable[..., list[str]]:
    """Returns what completes a file with one of some endings."""
    return lambda prefix, **_: list(_paths(prefix, endings))


def _paths(prefix: str, endings: tuple[str, ...]) -> Iterator[str]:
    folder, slash, start = prefix.rpartition("/")
    place = os.path.expanduser(folder + slash) or "."
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not start.startswith(".")
        if entry.name.startswith(start) and not is_hidden:
            if entry.is_dir():
                yield f"{folder}{slash}{entry.name}/"
            elif entry.name.endswith(endings) and endings:
                yield f"{folder}{slash}{entry.name}"


def _said(words: Iterable[str]) -> Mapping[str, Any] | None:
    """Returns what the first config on a line says, as far as it can be read."""
    from replicate.app.config import documents

    config = next((word for word in words if word.endswith((".yaml", ".yml"))), "")
    with contextlib.suppress(errors.ConfigError):
        return documents.read(config).data
    return None


def meant(word: str, options: Collection[str]) -> list[str]:
    """Returns the options, or else the keys, that an unknown option may mean.

    Args:
        word: The option, with underscores.
        options: Those of the command, likewise.
    """
    from replicate.app.config import types

    known = {key: key.rpartition(".")[2] for key in keys()}
    wanted = [word, *catalog.OTHER_NAMES.get(word, ())]
    if not {*wanted} & {*options, *known.values()}:
        wanted = [types.nearest(word, [*options, *known, *known.values()])]
    near = [one.replace("_", "-") for one in options if one in wanted]
    return near or [key for key, last in known.items() if {key, last} & {*wanted}][:_MAX_MEANT]


def keys(said: Mapping[str, Any] | None = None) -> dict[str, tuple[str, ...]]:
    """Returns the keys of a config, with dots, and for each the words that it may be.

    Args:
        said: What a config says: of an input, say, only keys of its kind are wanted.
    """
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    found: dict[str, dict[str, None]] = {}
    for path, words in _walk(schema["$defs"]["Config"], (), schema["$defs"], said):
        found.setdefault(".".join(path), {}).update(dict.fromkeys(words))
    return {key: tuple(words) for key, words in found.items()}


def _spelt_out(said: object) -> dict[str, object]:
    """Returns what a bare name stands for: a function, or an optimizer."""
    return {"kind": "function", "name": said} if isinstance(said, str) else {}


def _walk(
    node: Mapping[str, Any], path: tuple[str, ...], sections: Mapping[str, Any], said: object
) -> Iterator[tuple[tuple[str, ...], Iterable[str]]]:
    """Yields the keys below a node of the schema, and words that they may be."""
    if len(path) > _MAX_DEPTH:
        return
    if "$ref" in node:
        yield from _walk(sections[node["$ref"].rpartition("/")[2]], path, sections, said)
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _walk(alternative, path, sections, said)
    properties = node.get("properties", {})
    known = {name: one["const"] for name, one in properties.items() if "const" in one}
    within = said if isinstance(said, dict) else _spelt_out(said)
    is_other = any(within.get(name, one) != one for name, one in known.items())
    for name, child in properties.items():
        if name in known or not is_other:
            yield (*path, name), ()
            yield from _walk(child, (*path, name), sections, within.get(name))
    words = node.get("enum", [node["const"]] if "const" in node else [])
    if node.get("type") == "boolean":
        words = ["true", "false"]
    if path:
        yield path, [word for word in words if isinstance(word, str)]
