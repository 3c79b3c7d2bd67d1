"""What a model_fn keeps outside of itself, put back as it was after a call that does not count."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf

_HELD = (list, dict, set)


@contextlib.contextmanager
def untouched(model_fn: Callable) -> Iterator[None]:
    """Puts back what a function's closure, object and globals held before.

    Lists, dicts, sets and attributes are put back one level deep, as are plain values that
    the function assigns as `nonlocal`. Optimizers, layers and models, and whatever else
    TensorFlow tracks, are put back with those that they hold.

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
    elif isinstance(value, (*_HELD, tuple)):
        if not isinstance(value, tuple):
            restores.append(functools.partial(_refill, value, value.copy()))
        for part in list(value.values() if isinstance(value, dict) else value):
            if _is_tracked(part):
                _remember(part, restores, seen)
    elif _is_tracked(value):
        _remember_object(value, restores, seen)
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
        if isinstance(part, _HELD) or _is_tracked(part):
            _remember(part, restores, seen)


def _is_tracked(value: Any) -> bool:
    """Whether a value is an optimizer, a layer, a model, or the like."""
    return isinstance(value, tfc.trackable.Trackable) and not isinstance(value, tf.Variable)


def _remember_function(function: Any, restores: list, seen: set) -> None:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            restores.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
            _remember(cell.cell_contents, restores, seen)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, _HELD) or _is_tracked(value):
            _remember(value, restores, seen)


def _refill(held: Any, before: Any) -> None:
    if _is_as_before(held, before):
        return  # NOTE: a list that TensorFlow tracks is saved no more once it has been cleared
    held.clear()
    if isinstance(held, list):
        held.extend(before)
    else:
        held.update(before)


def _is_as_before(held: Any, before: Any) -> bool:
    if isinstance(held, set):
        return held == before
    pairs = [(held, before)]
    if isinstance(held, dict):
        pairs = [(held.keys(), before.keys()), (held.values(), before.values())]
    return len(held) == len(before) and all(
        now is then for nows, thens in pairs for now, then in zip(nows, thens, strict=True)
    )
