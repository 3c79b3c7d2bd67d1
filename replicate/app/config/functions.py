"""Functions that a config names: found when they are used, called with what they name."""

import contextlib
import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replicate import errors
from replicate.app.config import types
from replicate.console import failures


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
    where = f"{key}: {name}"
    module = None
    try:
        module = importlib.import_module(module_name)
        value = operator.attrgetter(attributes)(module)
    except ModuleNotFoundError as e:
        is_itself = e.name is not None and (module_name + ".").startswith(e.name + ".")
        raise errors.RunError(
            f"{where}: the module {module_name if is_itself else e.name} cannot be found. Check "
            "the spelling; modules are looked up in the config's folder, the working directory and "
            "the environment."
        ) from e
    except errors.ReplicateError:
        raise
    except (Exception, SystemExit) as e:  # user code, which may raise anything
        if module is not None and isinstance(e, AttributeError):
            public = [known for known in dir(e.obj) if not known.startswith("_")]
            then = types.meant(str(e.name), public, f"Define it in {module_name}.")
            raise errors.RunError(f"{where}: {module_name} must have {e.name}. {then}") from e
        reason = failures.located(e).rstrip(".")
        raise errors.RunError(
            f"{where}: importing {module_name} failed: {reason}. Correct it there."
        ) from e
    if not callable(value):
        raise errors.RunError(f"{where}: must be a function, got {type(value).__name__}.")
    return value


def names(fn: Callable[..., Any], argument: str) -> bool:
    """Tells whether a function names an argument."""
    return argument in _signature(fn).parameters


def call_with_named(fn: Callable[..., Any], offered: Mapping[str, Any], key: str) -> Any:
    """Calls a function with those of the offered arguments that it names.

    Raises:
        RunError: If it needs an argument that is not offered.
    """
    signature = _signature(fn)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    chosen = {n: one for n, one in offered.items() if takes_all or n in signature.parameters}
    try:
        signature.bind(**chosen)
    except TypeError as e:
        raise errors.RunError(
            f"{key}: the function may name {', '.join(offered)}: {e}. Give that a default."
        ) from None
    return fn(**chosen)


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Returns what a function may be called with; nothing where that cannot be told."""
    if inspect.isclass(fn) and fn.__new__ is object.__new__:
        # NOTE: TensorFlow wraps its classes' constructors, those that take nothing as well.
        if inspect.unwrap(fn.__init__) is object.__init__:
            return inspect.Signature()
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(fn)
    return inspect.Signature()
