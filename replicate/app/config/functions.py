"""Functions that a config names: found when they are used, called with what they name."""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from replicate import errors
from replicate.app.config import types


@contextlib.contextmanager
def importable(folder: str) -> Iterator[None]:
    """While entered, modules in the config's folder and the working directory are found."""
    added = [place for place in (folder, os.getcwd()) if place not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for place in added:
            with contextlib.suppress(ValueError):
                sys.path.remove(place)


def load(name: str, key: str) -> Callable[..., Any]:
    """Imports a function.

    Args:
        name: `package.module:function`.
        key: The config's key that names it, for the error text.

    Raises:
        RunError: If the module cannot be imported, or has no such function.
    """
    module_name, _, attributes = name.partition(":")
    value = _import(module_name, f"{key}: {name}")
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            public = [known for known in dir(value) if not known.startswith("_")]
            then = types.meant(attribute, public, f"Define it in {module_name}.")
            raise errors.RunError(f"{key}: {name}: {module_name} must have {attribute}. {then}")
        value = getattr(value, attribute)
    if not callable(value):
        raise errors.RunError(f"{key}: {name}: must be a function, got {type(value).__name__}.")
    return value


def _import(module_name: str, where: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        is_itself = e.name is not None and (module_name + ".").startswith(e.name + ".")
        missing = module_name if is_itself else e.name
        raise errors.RunError(
            f"{where}: the module {missing} cannot be found. Check the spelling; modules are "
            "looked up in the config's folder, the working directory and the environment."
        ) from e
    except errors.ReplicateError:
        raise
    except (Exception, SystemExit) as e:  # user code, which may raise anything
        raise errors.RunError(
            f"{where}: importing {module_name} failed: {type(e).__name__}: {e}. Correct it there."
        ) from e


def names(fn: Callable[..., Any], argument: str) -> bool:
    """Tells whether a function names an argument."""
    return argument in {parameter.name for parameter in _parameters(fn)}


def call_with_named(fn: Callable[..., Any], offered: Mapping[str, Any], key: str) -> Any:
    """Calls a function with those of the offered arguments that it names.

    Raises:
        RunError: If it needs an argument that is not offered.
    """
    parameters = _parameters(fn)
    named = {p.name for p in parameters}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and p.name not in offered
    ]
    if needed:
        raise errors.RunError(
            f"{key}: the function may name {', '.join(offered)}, but it needs "
            f"{', '.join(needed)}. Give that a default."
        )
    return fn(**{name: one for name, one in offered.items() if takes_all or name in named})


def _parameters(fn: Callable[..., Any]) -> Collection[inspect.Parameter]:
    """Returns what a function may be called with; nothing where that cannot be told."""
    if inspect.isclass(fn) and fn.__new__ is object.__new__:
        # NOTE: TensorFlow wraps its classes' constructors, those that take nothing as well.
        if inspect.unwrap(fn.__init__) is object.__init__:
            return ()
    try:
        return inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ()
