"""Which evaluation is better: early stopping, the best checkpoint, the best export.

All evaluations of a run are written down, and judged anew by each run that goes on.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.config import sections, types
from replicate.app.runs import atomic_files, checkpoints
from replicate.compat.tensorflow import tf
from replicate.console import json_output

FILE = "evaluations.json"


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
        near = types.nearest(name, metrics)
        then = f"Did you mean {near}?" if near else f"Name one of {', '.join(sorted(metrics))}."
        raise errors.RunError(f"{key}: the model must have this metric, got {name!r}. {then}")
    value = np.asarray(metrics[name])
    if value.ndim or value.dtype.kind not in "biuf":
        raise errors.RunError(
            f"{key}: must be a single number to be compared; {name} is of type {value.dtype} "
            f"and shape {list(value.shape)}. Name another metric."
        )
    return float(value)


def is_better(value: float, best: float, wanted: sections.Compared, min_delta: float = 0.0) -> bool:
    """Tells whether a value is better than the best one so far, by more than `min_delta`.

    A value that is no number never is; any number is better than none, which is NaN.
    """
    if math.isnan(value) or math.isnan(best):
        return not math.isnan(value)
    return value > best + min_delta if wanted.higher_is_better else value < best - min_delta


def note(model_dir: str, metrics: Mapping[str, Any]) -> None:
    """Writes the metrics of an evaluation down."""
    path = os.path.join(model_dir, FILE)
    known = atomic_files.read_json(path)
    numbers = {name: one for name, one in sorted(metrics.items()) if not np.ndim(one)}
    known[str(metrics["global_step"])] = json_output.plain(numbers)
    atomic_files.write_json(path, known)


def evaluations(model_dir: str, metric: str, until: int) -> list[tuple[int, float]]:
    """Returns the values of a metric that are written down, by rising steps up to one.

    Evaluations of later steps are of a run that went on from another checkpoint.
    """
    found = []
    for step, metrics in atomic_files.read_json(os.path.join(model_dir, FILE)).items():
        if step.isdecimal() and int(step) <= until and metric in metrics:
            value = metrics[metric]
            is_number = isinstance(value, int | float)  # null stands for what is none
            found.append((int(step), float(value) if is_number else math.nan))
    return sorted(found)


def why_over(model_dir: str, wanted: sections.EarlyStopping, step: int) -> str | None:
    """Returns why training ends early at a step; None where it does not."""
    best, best_step, waited = math.nan, 0, 0
    for at, value in evaluations(model_dir, wanted.metric, step):
        if is_better(value, best, wanted, wanted.min_delta):
            best, best_step, waited = value, at, 0
        else:
            waited += 1
        if waited >= wanted.patience:
            break
    else:
        return None
    times = "1 evaluation" if waited == 1 else f"{waited} evaluations"
    if math.isnan(best):
        return f"{wanted.metric} was not a number in {times}"
    delta = f" by more than {wanted.min_delta:g}" if wanted.min_delta else ""
    return f"{wanted.metric} has not improved on {best:.6g} (step {best_step}){delta} for {times}"


def is_best(
    model_dir: str, metrics: Mapping[str, Any], wanted: sections.Compared, key: str
) -> bool:
    """Tells whether an evaluation is better than all that are written down of earlier steps."""
    value, step = value_of(metrics, wanted.metric, key), int(metrics["global_step"])
    earlier = evaluations(model_dir, wanted.metric, step - 1)
    return not math.isnan(value) and all(is_better(value, one, wanted) for _, one in earlier)


def keep_best(model_dir: str, checkpoint: str) -> str:
    """Keeps a checkpoint in a folder of its own: `train.keep_best`; returns its path there.

    What the folder has changes at once, when its checkpoint state is written: a run that is
    killed in the midst of it leaves the old one or the new one.
    """
    folder, name = os.path.join(model_dir, checkpoints.BEST), os.path.basename(checkpoint)
    with checkpoints.writing(folder, name) as target:
        for path in tf.io.gfile.glob(f"{checkpoint}.*"):
            tf.io.gfile.copy(path, target + path[len(checkpoint) :], overwrite=True)
    return os.path.join(folder, name)
