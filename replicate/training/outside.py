"""What a model_fn keeps outside of itself, put back as it was after a call that does not count."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

_HELD = (list, dict, set)


@contextlib.contextmanager
def untouched(model_fn: Callable) -> Iterator[None]:
    """Puts back what a function's closure, object and globals held before.

    Lists, dicts, sets and attributes are put back one level deep, as are plain values that
    the function assigns as `nonlocal`.

    Args:
        model_fn: Any function, method, partial or callable object.
    """
    restores: list[Callable] = []
    _remember(model_fn, restores, set())
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _remember(value: Any, restores: list, seen: set) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            _remember(part, restores, seen)
    elif isinstance(value, _HELD):
        restores.append(functools.partial(_refill, value, value.copy()))
    elif hasattr(value, "__func__"):  # a bound method, which has all that its function has
        _remember(value.__func__, restores, seen)
        _remember_object(value.__self__, restores, seen)
    elif hasattr(value, "__code__"):
        _remember_function(value, restores, seen)
    elif callable(value) and not isinstance(value, type):
        _remember_object(value, restores, seen)
        _remember(getattr(type(value), "__call__", None), restores, seen)  # noqa: B004


def _remember_object(value: Any, restores: list, seen: set) -> None:
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return
    restores.append(functools.partial(_refill, vars(value), vars(value).copy()))
    for part in list(vars(value).values()):
        if isinstance(part, _HELD):
            _remember(part, restores, seen)


def _remember_function(function: Any, restores: list, seen: set) -> None:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            restores.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
            _remember(cell.cell_contents, restores, seen)
    for name in function.__code__.co_names:
        if isinstance(function.__globals__.get(name), _HELD):
            _remember(function.__globals__[name], restores, seen)


def _refill(held: Any, before: Any) -> None:
    held.clear()
    if isinstance(held, list):
        held.extend(before)
    else:
        held.update(before)
