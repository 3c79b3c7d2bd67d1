"""What a config names that is not on this machine: data files, columns, modules, functions.

Of tables the first rows are read, as a training reads them. Modules are found and read, never
imported: they may need TensorFlow, and what they do is theirs. Where a module may have more than
its text shows, nothing is said.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import re
import symtable
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app.config import config, files, input_config, sections, types

_FUNCTIONS = ("model_fn", "optimizer", *(f"{name}.input.function" for name in sections.WITH_INPUT))
_MAY_HAVE_MORE = re.compile(
    r"import \*|__getattr__|__path__|\b(exec|globals|locals|vars)\(|sys\.modules|import modules"
)
_OURS = ("replicate.", "replicate:")
# What reading a module's text may raise; the last two where it nests too deeply.
_UNREADABLE = (OSError, SyntaxError, ValueError, MemoryError, RecursionError)


def warnings(settings: config.Config) -> list[str]:
    """Returns a line for each thing of a config that is not there, behind the first such key."""
    found: dict[str, str] = {}
    for key, text in _absent(settings):
        found.setdefault(text, f"{key}: warning: {text}")
    return list(found.values())


def require_data(settings: config.Config, names: Iterable[str]) -> None:
    """Raises the first fault of the files that sections read.

    A module of the user's may make a file when it is imported; then one that is absent is no fault.

    Args:
        settings: The config.
        names: The sections. Of tables to predict for only the model knows the columns.

    Raises:
        RunError: If a file is not there, or the first rows of a table do not fit.
    """
    may_be_made = any(not one.startswith(_OURS) for _, one in _functions(settings))
    for name in names:
        source = settings.input_of(name)
        key = source.called(name)
        local = [one for one in input_config.files_of(source) if "://" not in one]
        if may_be_made and key != files.GIVEN and files.absent(local):
            continue
        files.expanded(local, key)
        if isinstance(source, input_config.AnyTable) and name != "predict":
            for fault in _unlike(source, source.file, key):
                raise fault


def _absent(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Yields keys, and what is not there of what they name."""
    for section in sections.WITH_INPUT:
        yield from _absent_in(settings, section)
    places = [settings.folder, os.getcwd(), *sys.path]
    for key, name in _functions(settings):
        text = _lacks(name, places)
        if text:
            yield key, text


def _absent_in(settings: config.Config, section: str) -> Iterator[tuple[str, str]]:
    key = f"{section}.input"
    source = _value(settings, key)
    names = input_config.files_of(source) if source else ()
    for name in files.absent(names):
        yield f"{key}.file", f"there is no {name} yet"
    # To predict no label is needed.
    source = source.for_predictions() if section == "predict" and source else source
    if isinstance(source, input_config.AnyTable):
        for fault in _unlike(source, names, key):
            yield key, str(fault).removeprefix(f"{key}: ")


def _value(settings: config.Config, key: str) -> Any:
    """Returns what a config says of a key with dots; None where that is nothing."""
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _unlike(
    source: input_config.AnyTable, names: Iterable[str], key: str
) -> Iterator[errors.RunError]:
    """Yields what is wrong with the first rows of a table, for each name or pattern."""
    for name in names:
        if "://" in name or files.absent([name]):
            continue
        from replicate.app.data import tables  # which takes NumPy and pyarrow along

        try:
            next(tables.pieces(source.model_copy(update={"file": (name,), "holdout": None}), key))
        except errors.RunError as e:
            yield e


def _functions(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Yields the functions that a config names, each with its key."""
    named = {key: _value(settings, key) for key in _FUNCTIONS}
    for index, name in enumerate(_value(settings, "train.hooks") or ()):
        named[f"train.hooks[{index}]"] = name
    for part, name in (_value(settings, "eval.metric_reductions") or {}).items():
        named[f"eval.metric_reductions.{part}"] = name
    yield from ((key, name) for key, name in named.items() if types.is_function(name))


def _lacks(name: str, places: list[str]) -> str:
    """Returns what is not there of `package.module:function`; nothing where it may be."""
    module_name, _, function = name.partition(":")
    wanted = function.partition(".")[0]
    found, lacking = _module(module_name, places)
    known = _names(found)
    if known is None or (wanted in known and not lacking):
        return ""
    if lacking:
        return f"there is no module {lacking} here"
    near = types.nearest(wanted, sorted(one for one in known if not one.startswith("_")))
    return f"{module_name} has no {wanted}" + (f". Did you mean {near}?" if near else "")


def arguments(name: str, places: list[str]) -> set[str] | None:
    """Returns what the function `package.module:function` names; None where no text says it."""
    module_name, _, function = name.partition(":")
    found, lacking = _module(module_name, places)
    if lacking:
        return None
    with contextlib.suppress(*_UNREADABLE):
        for one in ast.parse(Path(getattr(found, "origin", None) or "").read_bytes()).body:
            if isinstance(one, ast.FunctionDef) and one.name == function:
                own = one.args
                return {each.arg for each in (*own.posonlyargs, *own.args, *own.kwonlyargs)}
    return None


def _module(name: str, places: list[str]) -> tuple[importlib.machinery.ModuleSpec | None, str]:
    """Returns where a module is; or the innermost package that is there, and what it lacks."""
    found, whole = None, ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        inside = _spec(whole, found, places)
        if inside is None:
            return found, whole
        found = inside
    return found, ""


def _spec(
    name: str, parent: importlib.machinery.ModuleSpec | None, places: list[str]
) -> importlib.machinery.ModuleSpec | None:
    """Returns where a module is; None: nowhere."""
    importlib.invalidate_caches()
    inside = places if parent is None else parent.submodule_search_locations or []
    with contextlib.suppress(ImportError, KeyError, ValueError):
        found = importlib.machinery.PathFinder.find_spec(name, inside)
        return importlib.util.find_spec(name) if found is None and parent is None else found
    return None


def _names(spec: importlib.machinery.ModuleSpec | None) -> set[str] | None:
    """Returns the names that a module's text gives values; None where it may have others."""
    if spec is None or spec.origin is None:  # nothing, or a folder without __init__.py
        return set()
    try:
        text = importlib.util.decode_source(Path(spec.origin).read_bytes())
        tables = [symtable.symtable(text, spec.origin, "exec")]
    except _UNREADABLE:
        return None
    if _MAY_HAVE_MORE.search(text):
        return None
    found = {one.get_name() for one in tables[0].get_symbols() if one.is_local()}
    while tables:  # of functions, what they say is global
        tables += (table := tables.pop()).get_children()
        globals_of = (one for one in table.get_symbols() if one.is_declared_global())
        found |= {one.get_name() for one in globals_of if one.is_assigned()}
    return found
