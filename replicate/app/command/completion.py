"""Completion of command lines in bash, zsh and fish; imports neither TensorFlow nor pydantic.

The shell asks `replicate` itself, with the line in its environment; click knows how.
"""

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
from click import shell_completion

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


def key_options() -> list[click.Parameter]:
    """Returns an option for each key of a config; a section is none, if it is just a mapping."""
    sections = {key.rpartition(".")[0] for key in keys()}
    return [
        click.Option([f"key_{number}", f"--{key}"], type=click.Choice(words) if words else None)
        for number, (key, words) in enumerate(keys().items())
        if words or key not in sections
    ]


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

    options = {name: ["--" + name.replace("_", "-")] for name in own}
    for key in keys() if has_keys else ():
        for name in {key, key.rpartition(".")[2]} - {*own}:
            options.setdefault(name, []).append(f"--{key}")
    word = option.lstrip("-").replace("-", "_")
    near = word if word in options else types.nearest(word, options)
    return [one for name in near.split(" or ") for one in options.get(name, ())][:_MAX_MEANT]


@functools.cache
def keys() -> Mapping[str, tuple[str, ...]]:
    """Returns the keys of a config, with dots, and for each the words that it may be."""
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    words: dict[str, dict[str, None]] = {}
    for path, some in _walk(schema["$defs"]["Config"], (), schema["$defs"]):
        words.setdefault(".".join(path), {}).update(dict.fromkeys(some))
    return {key: tuple(some) for key, some in words.items()}


def _walk(
    node: Mapping[str, Any], path: tuple[str, ...], sections: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Iterable[str]]]:
    """Yields the keys below a node of the schema, and words that they may be."""
    if len(path) > _MAX_DEPTH:
        return
    if "$ref" in node:
        yield from _walk(sections[node["$ref"].rpartition("/")[2]], path, sections)
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _walk(alternative, path, sections)
    for name, child in node.get("properties", {}).items():
        yield (*path, name), ()
        yield from _walk(child, (*path, name), sections)
    words = node.get("enum", [node["const"]] if "const" in node else [])
    if node.get("type") == "boolean":
        words = ["true", "false"]
    if path:
        yield path, [word for word in words if isinstance(word, str)]
