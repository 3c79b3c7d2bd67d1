"""Completion of command lines in bash, zsh and fish; imports neither TensorFlow nor pydantic.

The shell asks `replicate` itself, with the line in its environment; click knows how.
"""

import contextlib
import functools
import json
import os
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


def script(command: click.Command, shell: str) -> str:
    """Returns what a shell is to run, so that it asks."""
    made: Any = shell_completion.get_completion_class(shell)
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
    return [
        click.Option([f"key_{number}", f"--{key}"], type=click.Choice(words) if words else None)
        for number, (key, words) in enumerate(known.items())
        if words or key not in sections
    ]


def config_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes `a.b=value`."""
    key, equals, begun = incomplete.partition("=")
    if equals:
        return [f"{key}={one}" for one in keys().get(key, ()) if one.startswith(begun)]
    return [f"{name}=" for name in keys() if name.startswith(incomplete)]


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
    config = next((word for word in words if word.endswith((".yaml", ".yml"))), "")
    with contextlib.suppress(errors.ConfigError):
        from replicate.app.config import documents

        return documents.read(config).data
    return None


def is_key(name: str) -> bool:
    """Tells whether an option is a key of a config, or of a mapping in one."""
    return "." in name or ("-" not in name and name not in ("help", "set") and name in keys())


def meant(option: str, own: Collection[str], has_keys: bool) -> list[str]:
    """Returns the options, or else the keys, that an unknown option may mean.

    Args:
        option: The option.
        own: Those of the command, with underscores.
        has_keys: Whether keys are options of it.
    """
    from replicate.app.config import types

    word = option.lstrip("-").replace("-", "_")
    known = {key: key.rpartition(".")[2] for key in keys()} if has_keys else {}
    wanted = [word, *catalog.OTHER_NAMES.get(word, ())]
    if not {*wanted} & {*own, *known.values()}:
        wanted = [types.nearest(word, [*own, *known, *known.values()])]
    near = [one.replace("_", "-") for one in own if one in wanted]
    near = near or [key for key, last in known.items() if {key, last} & {*wanted}][:_MAX_MEANT]
    return [f"--{one}" for one in near]


def keys(said: Mapping[str, Any] | None = None) -> dict[str, tuple[str, ...]]:
    """Returns the keys of a config, with dots, and for each the words that it may be.

    Args:
        said: What a config says: of an input, say, only keys of its kind are wanted.
    """
    schema = json.loads(_text())
    found: dict[str, dict[str, None]] = {}
    for path, words in _walk(schema["$defs"]["Config"], (), schema["$defs"], said):
        found.setdefault(".".join(path), {}).update(dict.fromkeys(words))
    return {key: tuple(words) for key, words in found.items()}


@functools.cache
def _text() -> str:
    return _SCHEMA.read_text(encoding="utf-8")


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
    # A bare name stands for a function, or an optimizer.
    bare = {"kind": "function", "name": said} if isinstance(said, str) else {}
    within = said if isinstance(said, dict) else bare
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
