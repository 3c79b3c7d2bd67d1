"""Hooks of a person's own in a training: `train.hooks`."""

from collections.abc import Mapping, Sequence
from typing import Any

from replicate import errors
from replicate.app.config import functions
from replicate.compat.tensorflow import tf1

__all__ = ["made"]


def made(names: Sequence[str], offered: Mapping[str, Any]) -> list[Any]:
    """Returns the hooks that functions of the config make.

    Args:
        names: `package.module:function`, each of which returns a SessionRunHook or a list of
            them.
        offered: What the functions may name.

    Raises:
        RunError: If a function cannot be found, or returns something else.
    """
    hooks = []
    for index, name in enumerate(names):
        key = f"train.hooks[{index}]"
        fn = functions.load(name, key)
        returned = functions.call_with_named(fn, offered, f"{key}: {name}")
        several = list(returned) if isinstance(returned, list | tuple) else [returned]
        for one in several:
            if not isinstance(one, tf1.train.SessionRunHook):
                raise errors.RunError(
                    f"{key}: {name} must return a SessionRunHook or a list of them, got "
                    f"{type(one).__name__}. Return what is to run, e.g. an object of a class "
                    "derived from replicate.estimator.SessionRunHook."
                )
        hooks += several
    return hooks
