"""The best checkpoint of a run, in a folder of its own: `train.keep_best`."""

import os
from collections.abc import Mapping
from typing import Any

from replicate.app.console import json_output
from replicate.app.runs import checkpoint_choice, checkpoints, whole_files
from replicate.app.training import compared_metrics
from replicate.compat.tensorflow import tf

__all__ = ["keep"]

_RECORD = ".metrics.json"  # behind a checkpoint's path: the metrics of its evaluation
_KEY = "train.keep_best.metric"


def keep(
    model_dir: str, checkpoint: str, metrics: Mapping[str, Any], metric: str, higher_is_better: bool
) -> str | None:
    """Keeps a checkpoint, if it is better than the best one so far.

    What a folder has changes at once, when its checkpoint state is written: a run that is
    killed in the midst of it leaves the old one or the new one, with its own metrics.

    Args:
        model_dir: Where the run is.
        checkpoint: The path of the checkpoint that was evaluated.
        metrics: What came out.
        metric: The metric that is compared.
        higher_is_better: Whether more of it is better.

    Returns:
        The path of the copy; None where an earlier one is at least as good.

    Raises:
        RunError: If the metric that is compared is not among them.
    """
    folder = os.path.join(model_dir, checkpoint_choice.BEST)
    value = compared_metrics.value_of(metrics, metric, _KEY)
    if not compared_metrics.is_better(value, _best_so_far(folder, metric), higher_is_better):
        return None
    tf.io.gfile.makedirs(folder)
    target = os.path.join(folder, os.path.basename(checkpoint))
    record = json_output.plain(dict(sorted(metrics.items())))
    whole_files.write_json(target + _RECORD, record)
    # NOTE: the index comes last; a checkpoint is taken for whole as soon as it has one.
    for path in sorted(tf.io.gfile.glob(f"{checkpoint}.*"), key=lambda one: one.endswith("index")):
        ending = path[len(checkpoint) :]
        tf.io.gfile.copy(path, f"{target}{ending}.tmp", overwrite=True)
        tf.io.gfile.rename(f"{target}{ending}.tmp", target + ending, overwrite=True)
    name = os.path.basename(target)
    checkpoints.note_newest(folder, name)
    _remove_others(folder, name)
    return target


def _best_so_far(folder: str, metric: str) -> float | None:
    path = checkpoint_choice.path_in(folder)
    value = (whole_files.read_json(path + _RECORD) or {}).get(metric) if path else None
    return float(value) if isinstance(value, int | float) else None


def _remove_others(folder: str, name: str) -> None:
    for other in tf.io.gfile.listdir(folder):
        is_ours = other.startswith("model.ckpt-") or other.endswith(".tmp")
        if is_ours and not other.startswith(f"{name}."):
            tf.io.gfile.remove(os.path.join(folder, other))
