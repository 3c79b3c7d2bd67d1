"""AutoGraph: the user's functions are converted, ours are not.

Inside `tf.function` TensorFlow rewrites each Python function that it meets, follows
calls into whatever is not TensorFlow's own, and gives exceptions another type on their
way out. Towers run in threads, where it would not go; so that they do, a function given
to us is converted as the code is that gave it.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import TypeVar

from replicate import types
from replicate.compat import tensorflow as tfc

Entity = TypeVar("Entity")


def unconverted(entity: Entity) -> Entity:
    """Marks a function, or the methods of a class, as not to be rewritten."""
    functions = [entity] if inspect.isfunction(entity) else vars(entity).values()
    for function in functions:
        if inspect.isfunction(function):
            tfc.autograph.autograph_artifact(function)
    return entity


def as_here(fn: types.Function) -> types.Function:
    """Returns `fn` so that it is converted, in any thread, if the running code is.

    Args:
        fn: A function of the user's.
    """
    status = tfc.autograph_status.control_status_ctx()
    if status.status != tfc.autograph_status.Status.ENABLED:
        return fn
    converted = tfc.autograph.tf_convert(fn, status)

    @functools.wraps(fn, updated=())
    def call(*args: types.Nest, **kwargs: types.Nest) -> types.Nest:
        try:
            return converted(*args, **kwargs)
        except tfc.autograph.StagingError as failure:
            # AutoGraph replaces an exception because it cannot make it anew.
            original: BaseException = failure
            while isinstance(original, tfc.autograph.StagingError) and original.__context__:
                original = original.__context__
            raise original from None

    return unconverted(call)


def innermost(fn: types.Function) -> types.Function:
    """Returns the function, or bound method, inside partials and wrappers."""
    while True:
        is_partial = hasattr(fn, "func") and hasattr(fn, "args")
        inner = getattr(fn, "func" if is_partial else "__wrapped__", None)
        # NOTE: TensorFlow wraps what a merge call is given; of partials it says so nowhere else.
        if inner is None and getattr(fn, "__module__", None) == tfc.autograph.path:
            inner = inspect.getclosurevars(fn).nonlocals.get("func")
        if inner is None or inner is fn:
            return fn
        fn = inner


@contextlib.contextmanager
def own_types() -> Iterator[None]:
    """Lets exceptions that pass keep their type through code that was converted."""
    try:
        yield
    except Exception as failure:
        with contextlib.suppress(AttributeError, TypeError):  # a class with slots
            vars(failure)["ag_pass_through"] = True
            vars(failure).pop("ag_error_metadata", None)
        raise
