"""K EstimatorSpecs of mode TRAIN become one."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context


def merge_loss(losses: Sequence[tf.Tensor], share: context.Share, device: str) -> tf.Tensor:
    """Reduces the towers' losses.

    Args:
        losses: K losses of shape [].
        share: The towers' parts of the batch, and whether losses are averaged or summed.
        device: Where the loss goes.

    Returns:
        The sum of losses weighted by n_i / B, or their plain sum; shape [].
    """
    if share.reduction == "sum":
        return reductions.sum_onto(reductions.mask_rows(losses, share.has_rows), device)
    return reductions.weighted_sum_onto(losses, share.weights, device)


def merge_train(towers: Sequence[Any], share: context.Share, device: str, update_ops: str) -> Any:
    """Joins the towers' specs: one loss, one train_op, the first tower's for the rest.

    Args:
        towers: K towers.
        share: The towers' parts of the batch.
        device: Where the loss goes.
        update_ops: `"first"` or `"all"`: whose update operations run.
    """
    first = towers[0]
    running = towers if update_ops == "all" else towers[:1]
    if first.train_op is not None:
        updates = [update for tower in running for update in tower.update_ops]
        train_op = tf1.group(first.train_op, *updates, name="train")
    elif len(running) > 1:
        train_op = tf1.group(*[tower.spec.train_op for tower in running], name="train")
    else:
        train_op = first.spec.train_op
    loss = merge_loss([tower.spec.loss for tower in towers], share, device)
    return first.spec._replace(loss=loss, train_op=train_op)
