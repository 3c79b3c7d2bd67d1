"""The optimizer that a config describes, built inside the model's graph."""

from collections.abc import Callable, Sequence
from typing import Any

from replicate.app.config import config, functions
from replicate.app.training import train_summaries
from replicate.compat.tensorflow import tf1

__all__ = ["learning_rate", "optimizer_fn"]


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


def learning_rate(described: config.Optimizer | str | None, made: Sequence[Any]) -> Any:
    """Returns the learning rate as the global step has it: a number, a tensor, None: unknown.

    Args:
        described: The config's optimizer.
        made: The optimizers that were made of it.
    """
    if isinstance(described, config.Optimizer):
        rate = described.arguments["learning_rate"]
        if not isinstance(rate, config.Schedule):
            return rate
        with tf1.name_scope("shown_learning_rate"):
            return _scheduled(rate)
    found = (train_summaries.rate_of(optimizer) for optimizer in made)
    return next((rate for rate in found if rate is not None), None)


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
