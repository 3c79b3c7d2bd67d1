"""K EstimatorSpecs of mode TRAIN become one."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf1
from replicate.strategy import context

UPDATE_OPS = ("first", "mean", "all")


def merge_train(towers: Sequence[Any], joining: context.Joiner, update_ops: str) -> Any:
    """Joins the towers' specs: one loss, one train_op, the first tower's for the rest.

    Args:
        towers: K towers.
        joining: Joins what the towers bring.
        update_ops: `"first"`, `"mean"` or `"all"`: whose update operations run.
    """
    first = towers[0]
    running = towers[:1] if update_ops == "first" else towers
    updates = [update for tower in running for update in tower.update_ops]
    if first.train_op is None and update_ops == "first":
        updates = []  # a model_fn with an optimizer of its own has said what runs
    step = first.spec.train_op if first.train_op is None else first.train_op
    runs = list(dict.fromkeys([step, *updates]))
    train_op = runs[0] if len(runs) == 1 else tf1.group(*runs, name="train")
    loss = first.spec.loss
    if not joining.whole.rows.is_single:
        loss = joining.loss([tower.spec.loss for tower in towers])
    return first.spec._replace(loss=loss, train_op=train_op)
