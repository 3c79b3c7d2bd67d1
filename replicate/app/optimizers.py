"""The optimizer that a config describes, built inside the model's graph."""

from collections.abc import Callable
from typing import Any

from replicate.app import config, functions
from replicate.compat.tensorflow import tf1

__all__ = ["optimizer_fn"]


def optimizer_fn(described: config.Optimizer | str | None) -> Callable[..., Any] | None:
    """Returns what `replicate_model_fn` takes as optimizer_fn; None where there is none.

    Raises:
        RunError: If a function that the config names cannot be found.
    """
    if described is None:
        return None
    if isinstance(described, str):
        return functions.load(described, "optimizer")

    def make() -> tf1.train.Optimizer:
        arguments = dict(described.arguments)
        rate = arguments["learning_rate"]
        if isinstance(rate, config.Schedule):
            arguments["learning_rate"] = _scheduled(rate)
        if described.name == "AdagradDA":
            arguments["global_step"] = tf1.train.get_or_create_global_step()
        return getattr(tf1.train, f"{described.name}Optimizer")(**arguments)

    return make


def _scheduled(rate: config.Schedule) -> Any:
    """Returns the learning rate as a tensor that follows the global step."""
    step = tf1.train.get_or_create_global_step()
    arguments = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in rate.arguments.items()
    }
    if rate.name == "piecewise_constant":
        return tf1.train.piecewise_constant(step, **arguments)
    return getattr(tf1.train, rate.name)(global_step=step, **arguments)
