"""Completion of command lines in bash, zsh and fish; imports neither TensorFlow nor pydantic.

The shell asks `replicate` itself, with the line in its environment; click knows how. Only `--label`
takes pydantic along, for it looks at the data as `replicate init` does.
"""

import ast
import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
from click import shell_completion

from replicate import errors
from replicate.app.config import catalog

SHELLS = ("bash", "zsh", "fish")
_SCHEMA = Path(__file__).parents[1] / "config" / "config.schema.json"
_MAX_DEPTH = 6  # of keys
_MAX_MEANT = 3  # keys that an unknown option may mean
_Item: TypeAlias = "shell_completion.CompletionItem[str]"


class _Bash(shell_completion.BashComplete):
    """Bash breaks words at = and :, and wants what is behind them alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """See base class."""
        args, incomplete = super().get_completion_args()
        words = re.sub(r" ?([=:]) ?", r"\1", "\n".join([*args, incomplete]).replace("\n", " "))
        *args, whole = words.split(" ")
        self._begun = whole[: len(whole) - len(re.split("[=:]", whole)[-1])]
        return args, whole

    def format_completion(self, item: _Item) -> str:
        """See base class."""
        return f"{item.type},{item.value.removeprefix(self._begun)}"


shell_completion.add_completion_class(_Bash)


def script(command: click.Command, shell: str) -> str:
    """Returns what a shell is to run, so that it asks."""
    made = shell_completion.get_completion_class(shell)
    if made is None:
        raise KeyError(shell)
    return made(command, {}, "replicate", "_REPLICATE_COMPLETE").source()


def file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[_Item]:
    """Completes a file, as the shell does."""
    return [shell_completion.CompletionItem(incomplete, type="file")]


def folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[_Item]:
    """Completes a folder, as the shell does."""
    return [shell_completion.CompletionItem(incomplete, type="dir")]


def key_options(line: Sequence[str]) -> list[click.Parameter]:
    """Returns an option for each key of a config; of one on the line, those of its own kinds.

    A section is none, if it is a mapping and nothing else.
    """
    known = keys(_said(line))
    sections = {key.rpartition(".")[0] for key in known}
    named = [(key, words) for key, words in known.items() if words or key not in sections]
    return [
        click.Option(
            [f"key_{number}", f"--{key}"],
            shell_complete=lambda ctx, param, begun, words=words: _values(begun, words),
        )
        for number, (key, words) in enumerate(named)
    ]


def config_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes `a.b=value`."""
    known = keys()
    key, equals, begun = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(begun, known.get(key, ()))]
    return [f"{name}=" for name in known if name.startswith(incomplete)]


def _values(begun: str, words: Sequence[str]) -> list[str]:
    """Completes the value of a key that is one of some words, or a function."""
    found = words or (_functions(begun) if ":" in begun else ())
    return [one for one in found if one.startswith(begun)]


def function(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes `module:function`, of a module in the working directory."""
    return _functions(incomplete)


def file_or_function(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completes a file, or a function in its place."""
    return _functions(incomplete) if ":" in incomplete else file(ctx, param, incomplete)


def _functions(prefix: str) -> list[str]:
    module, colon, begun = prefix.partition(":")
    if not colon:
        return [f"{file.stem}:" for file in Path().glob("*.py") if file.stem.startswith(prefix)]
    try:
        found = ast.parse(Path(f"{module.replace('.', '/')}.py").read_bytes()).body
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    names = [one.name for one in found if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    return [f"{module}:{name}" for name in names if name.startswith(begun) and name[0] != "_"]


def label(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes what may be the label: a column, array or feature of the data on the line."""
    from replicate.app.inspect import starter

    with contextlib.suppress(errors.ReplicateError):
        names = starter.look(ctx.params.get("data") or "").names
        return [name for name in names if name.startswith(incomplete)]
    return []


def checkpoint(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completes which checkpoint: best, averaged, a step of the run, or a folder.

    Of several with commas between them it completes the last one.
    """
    config = ctx.params.get("configs") or ""
    said = _said([config]) or {}
    by_name = Path("runs", str(said.get("name", Path(config).stem)))
    run = config if os.path.isdir(config) else said.get("model_dir")
    place = Path(str(ctx.params.get("model_dir") or run or by_name))
    steps = {file.stem.rpartition("-")[2] for file in place.glob("*ckpt-*.index")}
    words = [word for word in ("best", "averaged") if any(place.glob(f"{word}/*.index"))]
    words += sorted(filter(str.isdecimal, steps), key=int)
    others, comma, begun = incomplete.rpartition(",")
    found = [others + comma + word for word in words if word.startswith(begun)]
    return found or list(folder(ctx, param, incomplete))


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
    near = near or [key for key, last in known.items() if {key, last} & {*wanted}][:_MAX_MEANT]
    return [f"--{one}" for one in near]


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
