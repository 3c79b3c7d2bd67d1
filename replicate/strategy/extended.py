"""`strategy.extended`: how `tf.distribute`, and code of its later releases, spell the core.

Each name says in the words of `tf.distribute` what a verb of `DistributionStrategy` does.

An optimizer's own code must run once, whatever it does around its update: a check that all
gradients are finite, a queue, a clip of its own. So it runs across towers once gradients are
reduced (`as_one_replica`), and sees a single replica, whose updates reach every copy.
"""

import operator
from collections.abc import Sequence

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, conversion
from replicate.strategy.variables import values


def _asked(name: str) -> property:
    """Returns what asks the strategy, which has it by this name."""
    return property(operator.attrgetter(f"_strategy.{name}"))


@conversion.unconverted
class Extended(tf1.distribute.StrategyExtended):
    """`strategy.extended`: the later spelling of the same core.

    Args:
        strategy: The `DistributionStrategy` that does the work.
    """

    def __init__(self, strategy: context.Strategy):
        super().__init__(strategy)
        self._strategy = strategy

    worker_devices = _asked("worker_devices")
    parameter_devices = _asked("parameter_devices")
    non_slot_devices = _asked("non_slot_devices")
    colocate_vars_with = _asked("colocate_vars_with")
    read_var = _asked("read_var")
    broadcast_to = _asked("broadcast")
    experimental_between_graph = False
    experimental_should_init = _asked("is_chief")
    should_checkpoint = _asked("is_chief")
    should_save_summary = _asked("is_chief")

    def reduce_to(
        self,
        reduce_op: types.NamedReduction,
        value: types.Nest,
        destinations: types.Nest,
        options: object = None,
    ) -> types.Nest:
        """Reduces `value` over towers: see `batch_reduce_to`."""
        return self.batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def batch_reduce_to(
        self,
        reduce_op: types.NamedReduction,
        value_destination_pairs: Sequence[tuple[types.Nest, types.Nest]],
        options: object = None,
    ) -> list[types.Nest]:
        """Reduces many values: see `DistributionStrategy.batch_reduce`.

        Of towers that hold a batch, what TensorFlow's own code averages is weighed by rows.
        """
        del options
        aggregation = reductions.aggregation_of(reduce_op)
        pairs = list(value_destination_pairs)
        if _is_one_replica():
            return [self._everywhere(value, variable) for value, variable in pairs]
        if aggregation == tf.VariableAggregation.MEAN:
            return [self._strategy.mean_by_rows(*pair) for pair in pairs]
        return self._strategy.batch_reduce(aggregation, pairs)

    def _everywhere(self, value: types.Nest, destination: types.Nest) -> types.Nest:
        """Returns a reduced value on each device of a destination."""
        # NOTE: an optimizer is shown the first copy; where it gives that back as it is, the
        # other copies are at hand, and nothing is sent again.
        value = (context.required().copies or {}).get(id(value), value)
        is_there = len(self._strategy.destinations_of(destination)) == 1
        if is_there or isinstance(value, values.DistributedValues):
            return value
        return self._strategy.broadcast(value, destination)

    def update(
        self,
        var: tf.Variable,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: types.Arguments | None = None,
        group: bool = True,
    ) -> types.Nest:
        """Runs `fn` on each copy of `var`; in a tower, in a merge call.

        Args:
            var: A variable made under this strategy.
            fn: Takes a copy of the variable, and the arguments' copies.
            args: Mirrored or plain positional arguments.
            kwargs: Mirrored or plain keyword arguments.
            group: Whether to give the merged results, of which each runs the updates of all
                copies, rather than the list of the copies' results. In a graph operations
                become one operation, and what assignments gave one tensor.
        """
        kwargs = kwargs or {}
        mode = context.current()
        if mode is not None and mode.tower is not None and mode.strategy is self._strategy:

            def across(
                strategy: context.Strategy, *args: types.Nest, **kwargs: types.Nest
            ) -> types.Nest:
                return strategy.extended.update(var, fn, args, kwargs, group)

            return mode.tower.meet(across, args, kwargs)
        return self._finish(self._strategy.update(var, fn, *args, **kwargs), group)

    def update_non_slot(
        self,
        colocate_with: Sequence[str],
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: types.Arguments | None = None,
        group: bool = True,
    ) -> types.Nest:
        """Runs `fn` on each non-slot device; see `update`."""
        updated = self._strategy.update_non_slot(colocate_with, fn, *args, **(kwargs or {}))
        return self._finish(updated, group)

    def _finish(self, updated: types.Nest, group: bool) -> types.Nest:
        if not group:
            return list(self._strategy.unwrap(updated))
        if tf.executing_eagerly():
            return updated
        parts = [part for part in tf.nest.flatten(self._strategy.unwrap(updated)) if _runs(part)]
        if not any(map(_has_value, parts)):
            return self._strategy.group(updated)
        done = [getattr(part, "op", part) for part in parts]
        return values.map_nest(lambda leaf: self._after(leaf, done), updated)

    def _after(self, leaf: types.Nest, done: Sequence[types.Fetch]) -> types.Nest:
        """Returns what all copies' updates gave, so that it runs all of them."""
        copies = self._strategy.unwrap(leaf)
        if not _runs(copies[0]):
            return leaf
        if not _has_value(copies[0]):
            return self._strategy.group(leaf)
        if isinstance(copies[0], tf.Variable):
            copies = copies[:1]  # what an assignment gave is the new value, the same everywhere
        read = []
        for copy in copies:
            with tf.device(copy.device), tf1.control_dependencies(done):
                read.append(tf.nest.map_structure(tf.identity, copy, expand_composites=True))
        return values.Mirrored(read, leaf.devices) if len(read) > 1 else read[0]

    def value_container(self, value: types.Nest) -> types.Nest:
        """Returns the distributed variable that `value` is a copy of, else `value`."""
        container = values.container_of(value)
        return value if container is None else container

    def variable_created_in_scope(self, v: tf.Variable) -> bool:
        """Whether `v` was made under this strategy."""
        return getattr(v, "_distribute_strategy", None) is self._strategy

    def call_for_each_replica(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: types.Arguments | None = None,
    ) -> types.Nest:
        """See `DistributionStrategy.call_for_each_tower`; as one replica, runs `fn` once."""
        if _is_one_replica():
            with tf.distribute.ReplicaContext(self._strategy, 0):
                given = tuple(args), dict(kwargs or {})
                args, kwargs = (values.select_tower(0, nest) for nest in given)
                return fn(*args, **kwargs)
        return self._strategy.call_for_each_tower(fn, *args, **(kwargs or {}))

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1 if _is_one_replica() else self._strategy.all_towers

    @property
    def _global_batch_size(self) -> bool:
        return True

    def _local_results(self, val: types.Nest) -> tuple[types.Nest, ...]:
        return (val,) if _is_one_replica() else tuple(self._strategy.unwrap(val))

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group

    def _in_multi_worker_mode(self) -> bool:
        return False

    def _reduce(self, reduce_op: types.NamedReduction, value: types.Nest) -> types.Nest:
        if _is_one_replica():
            return value
        return self._strategy.unwrap(self._strategy.reduce(reduce_op, value))[0]

    def _gather_to_implementation(
        self, value: types.Nest, destinations: types.Nest, axis: int, options: object
    ) -> types.Nest:
        del options
        return self._strategy.gather(value, axis, destinations)


def as_one_replica(
    strategy: context.Strategy, apply: types.Function, pairs: context.Pairs, *args: types.Nest
) -> types.Nest:
    """Runs an optimizer's update across towers, with all towers as one replica.

    Args:
        strategy: The `DistributionStrategy`.
        apply: Called as `apply(strategy, pairs, *args)`.
        pairs: N pairs of a reduced gradient and its variable.
        *args: Given on.
    """
    copies = {
        id(gradient.values[0]): gradient
        for gradient, _ in pairs
        if isinstance(gradient, values.DistributedValues)
    }
    with context.across(context.required()._replace(copies=copies)):
        return apply(strategy, list(pairs), *args)


def _is_one_replica() -> bool:
    mode = context.current()
    return mode is not None and mode.copies is not None


def _has_value(value: object) -> bool:
    """Whether a graph's value is a tensor, of any kind, or a variable."""
    return tf.is_tensor(value) or isinstance(value, (tf.Variable, tf.IndexedSlices))


def _runs(value: object) -> bool:
    """Whether a value is of a graph, and does something when it is run."""
    return _has_value(value) or isinstance(value, tf.Operation)
