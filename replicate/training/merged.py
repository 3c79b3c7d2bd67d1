"""All towers as one: where an optimizer runs whose gradients have been reduced.

An optimizer's own code must run once, whatever it does around its update: a check that
all gradients are finite, a queue, a clip of its own. So it runs across towers, and sees
through `tf.distribute` a strategy of a single replica, whose updates reach every copy.
"""

from collections.abc import Sequence

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.strategy import base, context, conversion, extended
from replicate.strategy.variables import values


class MergedStrategy(tf.distribute.Strategy):
    """What `tf.distribute.get_strategy()` returns where all towers are one.

    Args:
        owner: The `DistributionStrategy` that does the work; the code runs across towers.
        gradients: N reduced gradients: tensors, IndexedSlices, or copies of these.
    """

    def __init__(self, owner: base.DistributionStrategy, gradients: Sequence[types.Nest]):
        super().__init__(_MergedExtended(self, owner, gradients))


@conversion.unconverted
class _MergedExtended(extended.Extended):
    """A single replica, whose reductions are done and whose updates reach every copy."""

    def __init__(
        self,
        container: MergedStrategy,
        owner: base.DistributionStrategy,
        gradients: Sequence[types.Nest],
    ):
        super().__init__(owner, container)
        self._container = container
        # NOTE: an optimizer is shown the first copy; where it gives that back as it is, the
        # other copies are at hand, and nothing is sent again.
        self._copies = {
            id(gradient.values[0]): gradient
            for gradient in gradients
            if isinstance(gradient, values.DistributedValues)
        }

    def batch_reduce_to(
        self,
        reduce_op: types.NamedReduction,
        value_destination_pairs: Sequence[tuple[types.Nest, types.Nest]],
        options: object = None,
    ) -> list[types.Nest]:
        """Returns the gradients, copied to each device of their variables."""
        del reduce_op, options
        return [self._everywhere(value, variable) for value, variable in value_destination_pairs]

    def _everywhere(self, value: types.Nest, destination: types.Nest) -> types.Nest:
        if isinstance(value, values.DistributedValues):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if len(self._strategy.destinations_of(destination)) == 1:
            return value
        return self._strategy.broadcast(value, destination)

    def call_for_each_replica(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: types.Arguments | None = None,
    ) -> types.Nest:
        """Runs `fn` once; of mirrored arguments it gets the first copy."""
        with tf.distribute.ReplicaContext(self._container, 0):
            return fn(
                *values.select_tower(0, tuple(args)), **values.select_tower(0, dict(kwargs or {}))
            )

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    def _local_results(self, val: types.Nest) -> tuple[types.Nest, ...]:
        return (val,)

    def _reduce(self, reduce_op: types.NamedReduction, value: types.Nest) -> types.Nest:
        del reduce_op
        return value


def run(
    owner: base.DistributionStrategy, apply: types.Function, pairs: context.Pairs, *args: types.Nest
) -> types.Nest:
    """Runs an optimizer's update across towers, with all towers as one.

    Args:
        owner: The `DistributionStrategy`.
        apply: Called as `apply(strategy, pairs, *args)`.
        pairs: N pairs of a reduced gradient and its variable.
        *args: Given on.
    """
    whole = MergedStrategy(owner, [gradient for gradient, _ in pairs])
    with context.in_tensorflow(tfc.distribute_lib._CrossReplicaThreadMode(whole)):
        return apply(whole, list(pairs), *args)
