"""What a config names that is not on this machine: data files, columns, modules, functions.

Of tables the first rows are read, as a training reads them. Modules are found, never imported:
they may need TensorFlow, and what they do is theirs.
"""

import contextlib
import importlib.machinery
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app.config import config, files, input_config, sections, types

_MAY_HAVE_MORE = re.compile(
    r"import \*|__getattr__|__path__|\b(exec|globals|locals|vars)\(|sys\.modules|import modules"
)


def warnings(settings: config.Config) -> list[str]:
    """Returns a line for each thing of a config that is not there, behind the first such key."""
    found: dict[str, str] = {}
    for key, text in _absent(settings):
        found.setdefault(text, f"{key}: warning: {text}")
    return list(found.values())


def _absent(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Yields keys, and what is not there of what they name."""
    for section in filter(lambda name: getattr(settings, name), sections.WITH_INPUT):
        key, source = f"{section}.input", getattr(settings, section).input
        if source is not None:
            for name in files.absent(input_config.files_of(source)):
                yield f"{key}.file", f"there is no {name} yet"
            # To predict no label is needed.
            source = source.for_predictions() if section == "predict" else source
            for fault in _unlike(source, key):
                yield key, str(fault).removeprefix(f"{key}: ")
    for key, name in _functions(settings):
        text = _lacks(name, [settings.folder, os.getcwd(), *sys.path])
        if text:
            yield key, text


def _unlike(source: input_config.Input, key: str) -> Iterator[errors.RunError]:
    """Yields what is wrong with the first rows of a table, for each name or pattern."""
    if not isinstance(source, input_config.AnyTable):
        return
    for name in source.file:
        if "://" not in name and not files.absent([name]):
            from replicate.app.data import tables  # which takes NumPy and pyarrow along

            one = source.model_copy(update={"file": (name,), "holdout": None})
            try:
                next(tables.pieces(one, key))
            except errors.RunError as e:
                yield e


def _functions(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Yields the functions that a config names, each with its key."""
    named: dict[str, Any] = {"model_fn": settings.model_fn, "optimizer": settings.optimizer}
    for section in sections.WITH_INPUT:
        source = getattr(getattr(settings, section), "input", None)
        named[f"{section}.input.function"] = getattr(source, "function", None)
    hooks = () if settings.train is None else settings.train.hooks
    named |= {f"train.hooks[{index}]": name for index, name in enumerate(hooks)}
    yield from ((key, name) for key, name in named.items() if types.is_function(name))


def _lacks(name: str, places: list[str]) -> str:
    """Returns what is not there of `package.module:function`; nothing where it may be."""
    module, _, function = name.partition(":")
    spec: importlib.machinery.ModuleSpec | None = None
    importlib.invalidate_caches()
    for part in itertools.accumulate(module.split("."), "{}.{}".format):
        inside, found = places if spec is None else spec.submodule_search_locations or [], None
        with contextlib.suppress(ImportError, KeyError, ValueError):
            found = importlib.machinery.PathFinder.find_spec(part, inside)
            found = found if found or spec else importlib.util.find_spec(part)
        if found is None:
            text = None if spec is None else _text(spec)
            may_be = text is not None and _MAY_HAVE_MORE.search(text)
            return "" if may_be else f"there is no module {part} here"
        spec = found
    text, wanted = None if spec is None else _text(spec), function.partition(".")[0]
    if text is None or re.search(rf"\b{re.escape(wanted)}\b", text) or _MAY_HAVE_MORE.search(text):
        return ""
    near = types.nearest(wanted, re.findall(r"(?m)^ *(?:def|class) (\w+)", text))
    return f"{module} has no {wanted}" + (f". Did you mean {near}?" if near else "")


def _text(spec: importlib.machinery.ModuleSpec) -> str | None:
    """Returns a module's text, empty of a folder without `__init__.py`; None: it has none."""
    try:
        return "" if spec.origin is None else Path(spec.origin).read_text("utf-8", "replace")
    except OSError:  # of what is built in
        return None
