"""One metric of an evaluation against another: what it is, and which one is better."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.config import checks

__all__ = ["is_better", "value_of"]


def value_of(metrics: Mapping[str, Any], name: str, key: str) -> float:
    """Returns the metric that is compared.

    Args:
        metrics: Those of an evaluation, by name.
        name: The metric.
        key: The config's key that names it, for the error text.

    Raises:
        RunError: If there is no such metric, or it is no single number.
    """
    if name not in metrics:
        near = checks.nearest(name, metrics)
        then = f"Did you mean {near}?" if near else f"Name one of {', '.join(sorted(metrics))}."
        raise errors.RunError(f"{key}: the model must have this metric, got {name!r}. {then}")
    value = np.asarray(metrics[name])
    if value.ndim or value.dtype.kind not in "biuf":
        raise errors.RunError(
            f"{key}: must be a single number to be compared; {name} is of type {value.dtype} "
            f"and shape {list(value.shape)}. Name another metric."
        )
    return float(value)


def is_better(
    value: float, best: float | None, higher_is_better: bool, min_delta: float = 0.0
) -> bool:
    """Tells whether a value is better than the best one so far, by more than `min_delta`.

    A value that is no number never is; any number is better than none.
    """
    if math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return value > best + min_delta if higher_is_better else value < best - min_delta
