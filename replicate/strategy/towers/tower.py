"""Towers: one among several in lockstep, and what `tf.distribute` sees of one as a replica."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from replicate import types
from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, conversion
from replicate.strategy.towers import lockstep, sharing
from replicate.strategy.variables import values


def in_lockstep(
    strategy: context.Strategy,
    thread: lockstep.TowerThread,
    creations: sharing.Creations,
    share: context.Share | None,
) -> context.TowerContext:
    """Returns the context of a tower among several, in a thread of its own."""

    def meet(*request: Any) -> types.Nest:
        answer = thread.sleep(lockstep.MergeRequest(*request))
        if share is not None or strategy.is_single_tower:
            return answer
        return _without_gradient(answer, request[1:3])

    return context.TowerContext(strategy, thread.tower_id, share, creations, meet)


def _without_gradient(answer: types.Nest, arguments: types.Nest) -> types.Nest:
    """Lets a tape refuse to derive what a merge call returned by what a tower gave to it.

    NOTE: a tape belongs to one thread. The merge function runs in the first tower's, and to the
    other towers' tapes, in silence, what it returns would depend on nothing.
    """
    leaves = tf.nest.flatten(arguments, expand_composites=True)
    tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating]
    if not tfc.record.should_record_backprop(tensors):
        return answer

    def refused(*gradients: tf.Tensor) -> NoReturn:
        raise RuntimeError(
            "A tape cannot take the gradient of what a merge call returned: it sees the "
            f"operations of its own tower, and was asked by {len(tensors)} tensor(s) that the "
            "tower passed to the call. Use tf.distribute.get_replica_context().all_reduce, "
            "which has a gradient, or tf.gradients in a graph."
        )

    def cut(leaf: types.Nest) -> types.Nest:
        if isinstance(leaf, tf.IndexedSlices):
            return tf.IndexedSlices(cut(leaf.values), leaf.indices, leaf.dense_shape)
        if not isinstance(leaf, tf.Tensor) or any(leaf is tensor for tensor in tensors):
            return leaf
        return tf.custom_gradient(lambda *unused: (tf.identity(leaf), refused))(*tensors)

    return values.map_nest(cut, answer)


@conversion.unconverted
class ReplicaContext(tf.distribute.ReplicaContext):
    """What `tf.distribute.get_replica_context()` returns in a tower of ours.

    Args:
        tower: The `TowerContext` that does the work.
    """

    def __init__(self, tower: context.TowerContext):
        super().__init__(tower.distribution_strategy, tower.position)
        self._tower = tower

    def _merge_call(
        self, merge_fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        share = context.share()
        if share is not None:
            merge_fn, args = share.step.wrap(merge_fn, args)
        return self._tower.meet(merge_fn, args, kwargs, is_tensorflows=True)

    def all_reduce(
        self, reduce_op: types.NamedReduction, value: types.Nest, options: object = None
    ) -> types.Nest:
        """Reduces over all towers; a mean is that of the rows of the batch.

        NOTE: in a graph TensorFlow's own looks for the variables behind the result, finds
        those of the other towers, and refuses them.
        """
        flat = tf.nest.flatten(value)
        if tf.executing_eagerly() or any(isinstance(v, tf.IndexedSlices) for v in flat):
            return super().all_reduce(reduce_op, value, options)
        flat = [tf.convert_to_tensor(v) for v in flat]
        is_mean = reductions.aggregation_of(reduce_op) == tf.VariableAggregation.MEAN
        reduced = [tf.stop_gradient(v) for v in self._summed(flat, is_mean)]

        share = context.share()
        is_by_rows = share is not None and share.reduction == "mean"

        @tf.custom_gradient
        def linked(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], types.Function]:
            def gradient(*gradients: tf.Tensor) -> list[tf.Tensor | None]:
                # NOTE: every tower's loss depends on what this one gave to the sum. Gradients
                # that are joined by rows weigh as much as the rows of the towers they are of.
                joined = self._summed(gradients, is_by_rows)
                if is_by_rows and not is_mean:
                    joined = self._divided(joined)
                elif is_mean and not is_by_rows:
                    joined = self._weighted(joined)
                return [*joined, *[None] * len(reduced)]

            return [tf.identity(tensor) for tensor in tensors[len(flat) :]], gradient

        return tf.nest.pack_sequence_as(value, linked(*flat, *reduced))

    def _weighted(self, tensors: Sequence[types.Gradient]) -> list[types.Gradient]:
        return [reductions.scaled(tensor, self._tower.weight, None) for tensor in tensors]

    def _divided(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        weight = self._tower.weight
        return [tf.math.divide_no_nan(t, reductions.as_dtype(weight, t.dtype)) for t in tensors]

    def _summed(self, tensors: Sequence[tf.Tensor], is_mean: bool) -> list[tf.Tensor]:
        """Sums each of this tower's tensors, or its part of a mean, with the other towers'."""

        def across(strategy: context.Strategy, *columns: types.Nest) -> list[types.Nest]:
            pairs = [(column, column) for column in columns]
            return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

        with tf1.name_scope(reductions.SCOPE):
            parts = self._weighted(tensors) if is_mean else tensors
            return self.merge_call(across, args=tuple(parts))

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of this tower."""
        return self._tower.tower_id

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this tower."""
        return (self._tower.device,)


@contextlib.contextmanager
def entered(tower: context.TowerContext, share: context.Share | None) -> Iterator[None]:
    """Enters a tower's mode, ours and TensorFlow's."""
    mode = context.Mode(tower.distribution_strategy, tower, share=share)
    with context.entered(mode), ReplicaContext(tower), _functions_named(tower.position):
        yield


@contextlib.contextmanager
def _functions_named(tower_id: int) -> Iterator[None]:
    """Names what tower i > 0 makes in functions of its graph as it names all else.

    NOTE: a loop's gradient is colocated with operations of the loop's body, by their bare names
    once both are inlined, so that towers which name them alike would have to share a device.
    """

    @contextlib.contextmanager
    def around(graph: tf.Graph) -> Iterator[None]:
        is_new = getattr(graph, "building_function", False) and not graph.get_name_scope()
        with graph.name_scope(f"tower_{tower_id}/") if is_new else contextlib.nullcontext():
            yield

    is_in_graph = tower_id > 0 and not tf1.executing_eagerly_outside_functions()
    with graphs.entered_with(around) if is_in_graph else contextlib.nullcontext():
        yield
