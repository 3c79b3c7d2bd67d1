"""What a config names that is not on this machine: data files, modules, functions in them.

Modules are found and read, never imported: they may need TensorFlow, and what they do is theirs.
Where a module may have more than its text shows, nothing is said.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replicate.app.config import checks, files, input_config

__all__ = ["warnings"]

_SECTIONS = ("train", "eval", "predict")
_WORKINGS = ("__getattr__", "__path__", "exec", "globals", "locals", "modules", "vars")
"""Names in whose company a module may have what its text does not show."""

_OWN_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
"""Nodes whose insides bind names of their own; all but the last bind their own name outside."""


def warnings(settings: Any) -> Iterator[str]:
    """Yields a line for each file, module and function of a config that is not there."""
    for section in _SECTIONS:
        source = getattr(getattr(settings, section, None), "input", None)
        for name in files.absent(input_config.files_of(source)):
            yield f"{section}.input.file: warning: there is no {name} yet"
    places = [settings.folder, os.getcwd(), *sys.path] if settings is not None else []
    for key, name in _functions(settings):
        text = _lacks(name, places)
        if text:
            yield f"{key}: warning: {text}"


def _functions(settings: Any) -> Iterator[tuple[str, str]]:
    """Yields the functions that a config names, each with its key."""
    if settings is None:
        return
    yield "model_fn", settings.model_fn
    if isinstance(settings.optimizer, str):
        yield "optimizer", settings.optimizer
    for section in _SECTIONS:
        source = getattr(getattr(settings, section), "input", None)
        if isinstance(source, input_config.Function):
            yield f"{section}.input.function", source.function
    for index, name in enumerate(settings.train.hooks if settings.train else ()):
        yield f"train.hooks[{index}]", name
    reductions = settings.eval.metric_reductions if settings.eval else {}
    for part, name in reductions.items():
        if checks.is_function(name):
            yield f"eval.metric_reductions.{part}", name


def _lacks(name: str, places: list[str]) -> str | None:
    """Returns what is not there of `package.module:function`; None: it is, or may be."""
    module_name, _, function = name.partition(":")
    spec: Any = None
    for part in module_name.split("."):
        parent, spec = spec, _spec(part, spec, places)
        if spec is None:
            found = "" if parent is None else f"{parent.name}."
            is_closed = parent is None or _bound(parent) is not None
            return f"there is no module {found}{part} here" if is_closed else None
    bound, wanted = _bound(spec), function.partition(".")[0]
    if bound is None or wanted in bound:
        return None
    near = checks.nearest(wanted, sorted(one for one in bound if not one.startswith("_")))
    then = f". Did you mean {near}?" if near else ""
    return f"{module_name} has no {wanted}{then}"


def _spec(part: str, parent: Any, places: list[str]) -> Any:
    """Returns where a module is that is called so in its parent; None: nowhere."""
    importlib.invalidate_caches()
    with contextlib.suppress(ImportError, KeyError, ValueError):
        if parent is None:
            found = importlib.machinery.PathFinder.find_spec(part, places)
            return found or importlib.util.find_spec(part)
        inside = parent.submodule_search_locations
        return inside and importlib.machinery.PathFinder.find_spec(f"{parent.name}.{part}", inside)
    return None


def _bound(spec: Any) -> set[str] | None:
    """Returns the names that a module's text binds; None where it may have others."""
    if spec.origin is None:  # a folder without __init__.py
        return set()
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    used = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree)}
    found = {name for node in _at_the_top(tree) for name in _binds(node)}
    return None if (used | found).intersection(("*", *_WORKINGS)) else found


def _at_the_top(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a module, without what is inside functions and classes."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, _OWN_NAMES):
            yield from (one for one in ast.walk(node) if isinstance(one, ast.Global))
        else:
            yield from _at_the_top(node)


def _binds(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node binds by itself."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, _OWN_NAMES[:3]):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.Global):
        yield from node.names
