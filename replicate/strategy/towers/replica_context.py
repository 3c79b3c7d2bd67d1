"""A tower as TensorFlow's own code sees it: a replica context, and the words of its reductions."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context
from replicate.strategy.variables import conversion

_AGGREGATIONS = {
    tf.distribute.ReduceOp.SUM: tf.VariableAggregation.SUM,
    tf.distribute.ReduceOp.MEAN: tf.VariableAggregation.MEAN,
}

SCOPE = "replicate_reduce/"  # of what reduces over towers: no name of the model's is taken


def aggregation_of(reduce_op: Any) -> tf.VariableAggregation:
    """Returns the aggregation for a `tf.distribute.ReduceOp`, its name, or an aggregation.

    Raises:
        ValueError: If it is neither a sum nor a mean.
    """
    if isinstance(reduce_op, str):
        reduce_op = getattr(tf.distribute.ReduceOp, reduce_op.upper(), reduce_op)
    found = _AGGREGATIONS.get(reduce_op, reduce_op)
    if found not in _AGGREGATIONS.values():
        raise ValueError(
            f"A reduction is SUM or MEAN; got {reduce_op!r}. Pass tf.VariableAggregation.SUM or "
            ".MEAN (in strategy.extended: tf.distribute.ReduceOp, or its name)."
        )
    return found


@conversion.unconverted
class BridgeReplicaContext(tf.distribute.ReplicaContext):
    """What `tf.distribute.get_replica_context()` returns in a tower of ours.

    Args:
        bridge: The `BridgeStrategy`.
        tower: The `TowerContext` that does the work.
    """

    def __init__(self, bridge: tf1.distribute.Strategy, tower: Any):
        super().__init__(bridge, tower.position)
        self._tower = tower

    def _merge_call(self, merge_fn: Callable, args: Sequence, kwargs: dict):
        share = context.current().share
        if share is not None:
            merge_fn, args = share.step.wrap(merge_fn, args)
        return self._tower.merge_for_tensorflow(merge_fn, args, kwargs)

    def all_reduce(self, reduce_op, value, options=None):
        """Reduces over all towers; a mean is that of the rows of the batch.

        NOTE: in a graph TensorFlow's own looks for the variables behind the result, finds
        those of the other towers, and refuses them.
        """
        flat = tf.nest.flatten(value)
        if tf.executing_eagerly() or any(isinstance(v, tf.IndexedSlices) for v in flat):
            return super().all_reduce(reduce_op, value, options)
        flat = [tf.convert_to_tensor(v) for v in flat]
        is_mean = aggregation_of(reduce_op) == tf.VariableAggregation.MEAN
        reduced = [tf.stop_gradient(v) for v in self._summed(flat, is_mean)]

        share = context.current().share
        is_by_rows = share is not None and share.reduction == "mean"

        @tf.custom_gradient
        def linked(*tensors):
            def gradient(*gradients):
                # NOTE: every tower's loss depends on what this one gave to the sum. Gradients
                # that are joined by rows weigh as much as the rows of the towers they are of.
                found = self._summed(gradients, is_by_rows)
                if is_by_rows and not is_mean:
                    found = self._divided(found)
                elif is_mean and not is_by_rows:
                    found = self._weighted(found)
                return [*found, *[None] * len(reduced)]

            return [tf.identity(tensor) for tensor in tensors[len(flat) :]], gradient

        return tf.nest.pack_sequence_as(value, linked(*flat, *reduced))

    def _weighted(self, tensors: Sequence[tf.Tensor]) -> list:
        return [reductions.scaled(tensor, self._tower.weight, None) for tensor in tensors]

    def _divided(self, tensors: Sequence[tf.Tensor]) -> list:
        weight = self._tower.weight
        return [tf.math.divide_no_nan(t, reductions.as_dtype(weight, t.dtype)) for t in tensors]

    def _summed(self, tensors: Sequence, is_mean: bool) -> list:
        """Sums each of this tower's tensors, or its part of a mean, with the other towers'."""

        def across(strategy, *columns):
            pairs = [(column, column) for column in columns]
            return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

        with tf1.name_scope(SCOPE):
            parts = self._weighted(tensors) if is_mean else tensors
            return self.merge_call(across, args=tuple(parts))

    @property
    def replica_id_in_sync_group(self):
        """The number of this tower.

        NOTE: TensorFlow asks to write summaries once; that is no model which asks.
        """
        asker = inspect.currentframe().f_back.f_globals.get("__name__", "")
        return self._tower.position if asker.startswith("tensorflow.") else self._tower.tower_id

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this tower."""
        return (self._tower.device,)


@conversion.unconverted
class StraightReplicaContext(tf.distribute.ReplicaContext):
    """Stands for a replica where the code runs across towers already."""

    def _merge_call(self, merge_fn: Callable, args: Sequence, kwargs: dict):
        return conversion.as_here(merge_fn)(self.strategy, *args, **kwargs)
