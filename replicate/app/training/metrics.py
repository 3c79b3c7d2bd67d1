"""Metrics that neither add up nor average over towers: `eval.metric_reductions`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from replicate import errors, estimator
from replicate.app.config import functions
from replicate.compat.tensorflow import tf, tf1
from replicate.towers import metrics as tower_metrics

__all__ = ["with_reductions"]

_REDUCTIONS = {
    "sum": tf.add_n,
    "mean": lambda copies: tf.add_n(copies) / len(copies),
    "max": lambda copies: tf.reduce_max(tf.stack(copies), 0),
    "min": lambda copies: tf.reduce_min(tf.stack(copies), 0),
    "first": lambda copies: copies[0],
}


def with_reductions(model_fn: Callable[..., Any], named: Mapping[str, str]) -> Callable[..., Any]:
    """Returns a model_fn whose metrics' variables reduce over towers as a config says.

    Args:
        model_fn: The user's, for one tower.
        named: A part of the variables' names, between slashes -> sum, mean, max, min,
            first, or `package.module:function` of the towers' tensors.

    Raises:
        RunError: If a function cannot be found.
    """
    if not named:
        return model_fn
    chosen = {
        name: _REDUCTIONS.get(how) or functions.load(how, f"eval.metric_reductions.{name}")
        for name, how in named.items()
    }

    @functools.wraps(model_fn)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        spec = model_fn(*args, **kwargs)
        if spec.mode == estimator.ModeKeys.EVAL:
            for name, reduction in chosen.items():
                _reduce(name, reduction)
        return spec

    return reduced


def _reduce(name: str, reduction: Callable[..., Any]) -> None:
    """Gives the metric variables of one name their reduction."""
    known = tf1.get_collection(tf1.GraphKeys.METRIC_VARIABLES)
    matching = [one for one in known if f"/{name}/" in f"/{one.name.partition(':')[0]}/"]
    if not matching:
        names = ", ".join(one.name.partition(":")[0] for one in known)
        raise errors.RunError(
            f"eval.metric_reductions.{name}: must name a metric's variable, but there is none. "
            f"Name one of {names or 'none: the model has no metric variables'}."
        )
    for variable in matching:
        tower_metrics.metric_reduction(variable, reduction)
