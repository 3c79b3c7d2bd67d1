"""What a strategy remembers of the functions that it runs in its towers."""

import inspect
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.strategy.variables import values


class Functions:
    """What is remembered: which functions have settled, and what a `tf.function` was traced as.

    Those have settled that made no variable when all towers last ran them. Models build themselves
    when they are first called: a layer looks whether it is built, builds itself, and notes that it
    is. Two towers in the middle of that spoil each other's work, so eager towers may run at the
    same time only once a function makes nothing any more. A function is known by itself, a method
    by its object; one that is made anew for each call never settles.

    For each `tf.function` that runs in towers there is one that is traced with all towers inside.
    """

    def __init__(self) -> None:
        self._settled: weakref.WeakKeyDictionary[object, set[types.Function | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._traced: weakref.WeakKeyDictionary[object, dict[Hashable, types.Function]] = (
            weakref.WeakKeyDictionary()
        )

    def has_settled(self, fn: types.Function) -> bool:
        """Whether `fn` made no variable when all towers last ran it."""
        owner, method = _owner_and_method(fn)
        try:
            return method in self._settled.get(owner, ())
        except TypeError:  # nothing can be remembered of it
            return False

    def note(self, fn: types.Function, has_made: bool) -> None:
        """Takes note of whether a run of `fn` in all towers made variables."""
        owner, method = _owner_and_method(fn)
        try:
            methods = self._settled.setdefault(owner, set())
        except TypeError:
            return
        (methods.discard if has_made else methods.add)(method)

    def run_traced(
        self,
        fn: Any,
        call_for_each_tower: types.Function,
        args: tuple[types.Nest, ...],
        kwargs: types.Arguments,
    ) -> types.Nest:
        """Runs a `tf.function` in all towers, traced as its own options say.

        Args:
            fn: A `tf.function`.
            call_for_each_tower: Runs a Python function once per tower.
            args: Positional arguments; distributed ones are for the towers.
            kwargs: Keyword arguments, likewise.
        """
        signature: types.Nest = None
        if fn.input_signature is not None:
            bound = inspect.signature(fn.python_function).bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
            specs = fn.input_signature[: len(args)]  # what is not given has a default
            signature = (_signed(specs, args), {})
        traced = self._traced.setdefault(fn, {})
        key = None if signature is None else tuple(tf.nest.flatten(signature))
        if key not in traced:
            traced[key] = _all_towers(fn, call_for_each_tower, signature)
        return traced[key](args, kwargs)


def _owner_and_method(fn: types.Function) -> tuple[object, types.Function | None]:
    """Returns a method's object and function; of any other callable, itself and None."""
    return getattr(fn, "__self__", fn), getattr(fn, "__func__", None)


def _all_towers(
    fn: Any, call_for_each_tower: types.Function, signature: types.Nest
) -> types.Function:
    """Returns a `tf.function` of the towers' arguments, with the options of `fn`."""
    inner = fn.python_function

    def all_towers(args: tuple[types.Nest, ...], kwargs: types.Arguments) -> types.Nest:
        return call_for_each_tower(inner, *args, **kwargs)

    return tf.function(
        all_towers,
        input_signature=signature,
        autograph=fn._autograph,
        jit_compile=fn._jit_compile,
        reduce_retracing=fn._reduce_retracing,
        experimental_autograph_options=fn._experimental_autograph_options,
    )


def _signed(spec: types.Nest, value: types.Nest) -> types.Nest:
    """Returns the specs of arguments of which some have a value for each tower."""
    if isinstance(value, values.DistributedValues):
        return value.spec_of([spec] * len(value.values))
    if isinstance(spec, Mapping):
        return {key: _signed(part, value[key]) for key, part in spec.items()}
    if isinstance(spec, (list, tuple)):
        return tuple(map(_signed, spec, value))
    return spec
