"""What a strategy remembers of the functions that it runs in its towers."""

import weakref
from collections.abc import Callable
from typing import Any

from replicate.compat.tensorflow import tf


class Settled:
    """The functions that made no variable when all towers last ran them.

    Models build themselves when they are first called: a layer looks whether it is built,
    builds itself, and notes that it is. Two towers in the middle of that spoil each other's
    work, so eager towers may run at the same time only once a function makes nothing any more.
    A function is known by itself, a method by its object; one that is made anew for each call
    is never settled.
    """

    def __init__(self):
        self._functions: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def __contains__(self, fn: Callable) -> bool:
        owner, method = _owner_and_method(fn)
        try:
            return method in self._functions.get(owner, ())
        except TypeError:  # nothing can be remembered of it
            return False

    def note(self, fn: Callable, has_made: bool) -> None:
        """Takes note of whether a run of `fn` in all towers made variables."""
        owner, method = _owner_and_method(fn)
        try:
            methods = self._functions.setdefault(owner, set())
        except TypeError:
            return
        if has_made:
            methods.discard(method)
        else:
            methods.add(method)


def _owner_and_method(fn: Callable) -> tuple:
    """Returns a method's object and function; of any other callable, itself and None."""
    return getattr(fn, "__self__", fn), getattr(fn, "__func__", None)


def is_traced(fn: Callable) -> bool:
    """Whether `fn` is a `tf.function`."""
    return hasattr(fn, "python_function") and hasattr(fn, "get_concrete_function")


class Traced:
    """For each `tf.function` that runs in towers, one that is traced with all towers inside."""

    def __init__(self):
        self._made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def in_towers(self, fn: Any, call_for_each_tower: Callable) -> Callable:
        """Returns a `tf.function` of the towers' arguments and keyword arguments.

        Args:
            fn: A `tf.function`.
            call_for_each_tower: Runs a Python function once per tower.
        """
        if fn not in self._made:
            inner = fn.python_function

            def all_towers(args, kwargs):
                return call_for_each_tower(inner, *args, **kwargs)

            self._made[fn] = tf.function(all_towers)
        return self._made[fn]
