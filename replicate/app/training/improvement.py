"""Which evaluation is better: early stopping, and the best checkpoint."""

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

FILE = "early_stopping.json"
_RECORD = ".metrics.json"  # behind a checkpoint's path: the metrics of its evaluation


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


class EarlyStopping:
    """All evaluations of a run, and whether they say that it is over: `train.early_stopping`.

    What is written down are the values, not the verdict: so a run that goes on, be it with
    more patience, judges all of them anew.

    Args:
        model_dir: Where the evaluations are written down.
        wanted: What the config says.
        start: The step that the run begins at; evaluations of later ones do not count.
    """

    def __init__(self, model_dir: str, wanted: sections.EarlyStopping, start: int):
        self._path = os.path.join(model_dir, FILE)
        self._wanted = wanted
        self._values: dict[int, float] = {}
        self.read(start)

    def read(self, step: int) -> None:
        """Takes in what is written down, of evaluations up to a step."""
        known = atomic_files.read_json(self._path)
        if known.get("metric") == self._wanted.metric:
            found = _pairs(known.get("evaluations"))
            self._values.update((at, value) for at, value in found if at <= step)

    @property
    def last_step(self) -> int:
        """The step of the newest evaluation; 0 where there was none."""
        return max(self._values, default=0)

    def take(self, metrics: Mapping[str, Any]) -> None:
        """Takes in the metrics of an evaluation, and writes them down.

        Raises:
            RunError: If the metric that is watched is not among them.
        """
        value = value_of(metrics, self._wanted.metric, "train.early_stopping.metric")
        self._values[int(metrics["global_step"])] = value if math.isfinite(value) else math.nan
        known = [[step, json_output.plain(one)] for step, one in sorted(self._values.items())]
        record = {"metric": self._wanted.metric, "evaluations": known}
        atomic_files.write_json(self._path, record)

    def reason(self) -> str | None:
        """Returns why training is over; None where it is not."""
        wanted, best, best_step, waited = self._wanted, math.nan, 0, 0
        for step, value in sorted(self._values.items()):
            if is_better(value, best, wanted, wanted.min_delta):
                best, best_step, waited = value, step, 0
            else:
                waited += 1
            if waited >= wanted.patience:
                break
        else:
            return None
        evaluations = "1 evaluation" if waited == 1 else f"{waited} evaluations"
        if math.isnan(best):
            return f"{wanted.metric} was not a number in {evaluations}"
        delta = f" by more than {wanted.min_delta:g}" if wanted.min_delta else ""
        return (
            f"{wanted.metric} has not improved on {best:.6g} (step {best_step}){delta} "
            f"for {evaluations}"
        )


def _pairs(known: Any) -> list[tuple[int, float]]:
    """Returns steps and values as they were written down; null stands for no number."""
    pairs = []
    for pair in known if isinstance(known, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int):
            is_number = isinstance(pair[1], int | float)
            pairs.append((pair[0], float(pair[1]) if is_number else math.nan))
    return pairs


def keep_best(
    model_dir: str, checkpoint: str, metrics: Mapping[str, Any], wanted: sections.KeepBest
) -> str | None:
    """Keeps a checkpoint in a folder of its own, if it is the best so far: `train.keep_best`.

    What the folder has changes at once, when its checkpoint state is written: a run that is
    killed in the midst of it leaves the old one or the new one, with its own metrics.

    Args:
        model_dir: Where the run is.
        checkpoint: The path of the checkpoint that was evaluated.
        metrics: What came out.
        wanted: What the config says.

    Returns:
        The path of the copy; None where an earlier one is at least as good.

    Raises:
        RunError: If the metric that is compared is not among them.
    """
    folder = os.path.join(model_dir, checkpoints.BEST)
    value = value_of(metrics, wanted.metric, "train.keep_best.metric")
    kept = checkpoints.path_in(folder)
    best = atomic_files.read_json(kept + _RECORD).get(wanted.metric) if kept else None
    best = float(best) if isinstance(best, int | float) else math.nan
    if not is_better(value, best, wanted):
        return None
    name = os.path.basename(checkpoint)
    with checkpoints.writing(folder, name) as target:
        atomic_files.write_json(target + _RECORD, json_output.plain(dict(sorted(metrics.items()))))
        for path in tf.io.gfile.glob(f"{checkpoint}.*"):
            tf.io.gfile.copy(path, target + path[len(checkpoint) :], overwrite=True)
    for other in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, other)
        if other.startswith("model.ckpt-") and not other.startswith(f"{name}."):
            tf.io.gfile.remove(path)
        elif other.rstrip("/").endswith(".tmp"):  # of a run that was killed
            tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)
    return os.path.join(folder, name)
