"""K EstimatorSpecs of mode TRAIN become one."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, contributions

UPDATE_OPS = ("first", "mean", "all")


def merge_loss(losses: Sequence[tf.Tensor], share: context.Share, device: str) -> tf.Tensor:
    """Reduces the towers' losses.

    Args:
        losses: K losses of shape [].
        share: The towers' parts of the batch, and whether losses are averaged or summed.
        device: Where the loss goes.

    Returns:
        The sum of losses weighted by n_i / B, or their plain sum; shape []. Losses that
        the model divided by the number of replicas carry their weights already. What
        depends on the model's weights alone counts once.
    """
    brought = contributions.Contributions(share)
    if brought.lack_weights(losses):
        return reductions.weighted_sum_onto(losses, share.weights, device)
    losses = brought.of_losses(reductions.require_alike(losses))
    return reductions.sum_onto(reductions.mask_rows(losses, share.has_rows), device)


def merge_train(towers: Sequence[Any], share: context.Share, device: str, update_ops: str) -> Any:
    """Joins the towers' specs: one loss, one train_op, the first tower's for the rest.

    Args:
        towers: K towers.
        share: The towers' parts of the batch.
        device: Where the loss goes.
        update_ops: `"first"`, `"mean"` or `"all"`: whose update operations run.
    """
    first = towers[0]
    running = towers[:1] if update_ops == "first" else towers
    updates = [update for tower in running for update in tower.update_ops]
    if first.train_op is None and update_ops == "first":
        updates = []  # a model_fn with an optimizer of its own has said what runs
    runs = list(dict.fromkeys([first.train_op or first.spec.train_op, *updates]))
    train_op = runs[0] if len(runs) == 1 else tf1.group(*runs, name="train")
    loss = first.spec.loss
    if len(towers) > 1:
        loss = merge_loss([tower.spec.loss for tower in towers], share, device)
    return first.spec._replace(loss=loss, train_op=train_op)
