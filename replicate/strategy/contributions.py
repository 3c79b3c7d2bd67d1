"""What each tower brings to a sum over towers that is one device's loss or gradient.

Under mean a tower brings its value times its part of the batch, which the model's code or
an optimizer may have multiplied already. In both reductions, what depends on the weights
of the model alone counts once, and not once per tower.
"""

import functools
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import addends, ancestry, reductions
from replicate.strategy import context, tower_count, variables

_SHARED = "shared"  # addends that depend on the weights of the model alone
_LIGHT = "light"  # addends that lack the tower's weight


def is_mean(share: context.Share | None) -> bool:
    """Whether towers' losses are averaged: as was told, else unless the last one is a sum."""
    if share is not None and share.reduction is not None:
        return share.reduction == "mean"
    last = getattr(tf1.get_default_graph(), "_last_loss_reduction", None)
    return last not in (tf1.losses.Reduction.SUM, tf.losses.Reduction.SUM)


def lacks_weight(share: context.Share | None, tower_id: int, tensor: tf.Tensor) -> bool:
    """Whether a tower's gradient will be multiplied by the tower's weight later.

    Args:
        share: The towers' parts of the batch, if one was split.
        tower_id: The tower.
        tensor: Its gradient with respect to anything.
    """
    if share is None or not is_mean(share):
        return False
    marks = share.marks[tower_id]
    if not marks or not ancestry.is_made_from(tensor, set(marks)):
        return True
    marks.append(tensor.op)  # from which the way is short for gradients made of this one
    return False


class Contributions:
    """What K towers bring, made such that its sum is what one device has.

    Args:
        share: The towers' parts of the batch.
    """

    def __init__(self, share: context.Share):
        self._share = share
        self._is_mean = is_mean(share)
        self._is_static = isinstance(share.row_counts[0], int)
        for products, marks in zip(share.products, share.marks, strict=True):
            tower_count.settle(products, marks)
        self._seen: list[dict] = [{} for _ in share.weights]
        self._marked = [ancestry.reached_from(marks) for marks in share.marks if self._is_mean]

    def lack_weights(self, column: Sequence[Any]) -> bool:
        """Whether K towers' losses or gradients must yet be multiplied by their weights."""
        return self._is_mean and reductions.operation_of(column[0]) not in self._marked[0]

    def of(self, column: Sequence[Any]) -> list:
        """Weighs what does not carry its tower's weight; counts once what all towers share.

        NOTE: where the number of rows is a constant, so may be a gradient that is a sum over
        them, as a bias has of a linear loss. Then gradients that are added are left as they
        are.

        Args:
            column: K losses, or gradients of one variable: tensors or IndexedSlices.

        Returns:
            K values of the same kinds. A tower without rows may bring anything.
        """
        if self.lack_weights(column):
            make = self._weighted
        elif self._is_mean:
            make = self._weighted_rest
        else:
            make = self._as_it_is if self._is_static else self._of_batch
        return [make(i, value) for i, value in enumerate(column)]

    def of_losses(self, losses: Sequence[tf.Tensor]) -> list:
        """The same for K losses of shape []: their addends tell, however many rows there are."""
        if self._is_mean:
            return self.of(losses)
        return [self._of_batch(i, loss) for i, loss in enumerate(losses)]

    def to_derive(self, tower_id: int, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss with zero times what all towers share, which so stays connected."""
        if self._is_mean or tower_id == 0 or loss.shape.rank != 0:
            return loss
        parts = self._split(tower_id, loss)
        if len(parts) == 1:
            return loss
        return parts[None] + tf.zeros([], loss.dtype) * parts[_SHARED]

    def _weighted(self, i: int, value: Any) -> Any:
        return reductions.scaled(value, self._share.weights[i], reductions.device_of(value))

    def _weighted_rest(self, i: int, value: Any) -> Any:
        """Weighs those addends that do not carry the weight, as a penalty added to the rest.

        Weights sum to 1, and with them what is the same in all towers.
        """
        marked = self._marked[i]

        def label_of(op):
            return None if op in marked else _LIGHT

        parts = addends.split(value, label_of, set(self._share.marks[i]), self._seen[i])
        if _LIGHT not in parts:
            return value
        parts[_LIGHT] = self._weighted(i, parts[_LIGHT])
        return reductions.sum_onto(list(parts.values()), reductions.device_of(value))

    @staticmethod
    def _as_it_is(i: int, value: Any) -> Any:
        del i
        return value

    def _of_batch(self, i: int, value: Any) -> Any:
        """Leaves out of a later tower's value what depends on the weights of the model alone."""
        if i == 0:
            return value
        parts = self._split(i, value)
        return parts.get(None, _nothing_of(value)) if _SHARED in parts else value

    def _split(self, i: int, value: Any) -> dict:
        def label_of(op):
            if op in self._varying or (self._is_static and op.outputs[0].shape.rank != 0):
                return None
            return _SHARED

        return addends.split(value, label_of, seen=self._seen[i])

    @functools.cached_property
    def _varying(self) -> set[tf.Operation]:
        listed = [*tf1.global_variables(), *tf1.local_variables()]
        own = [v.members for v in listed if isinstance(v, variables.TowerLocalVariable)]
        own = [[member.handle.op for member in members] for members in own]
        return ancestry.varying(
            tf1.get_default_graph(), *self._share.given, *own, with_random=self._is_static
        )


def _nothing_of(value: Any) -> Any:
    """Returns zeros like a tensor, or IndexedSlices without slices."""
    return reductions.mask_rows([value], [False])[0]
