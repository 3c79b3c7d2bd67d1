"""The strategy as TensorFlow's own distribution-aware code sees it.

`tf.distribute` keeps a mode per thread, as `context` does. Whoever enters a mode of
ours enters the matching one of TensorFlow's, so that optimizers, batch normalization,
moving averages and metrics which ask `tf.distribute` find this strategy and work
through `DistributionStrategy` alone. A tower is a replica context to it. No name of
TensorFlow is replaced.
"""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from replicate import types
from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, conversion
from replicate.strategy.variables import values


@conversion.unconverted
class BridgeStrategy(tf1.distribute.Strategy):
    """What `tf.distribute.get_strategy()` returns inside a scope of ours.

    Args:
        strategy: The `DistributionStrategy` that does the work.
    """

    def __init__(self, strategy: context.Strategy):
        self._owner = strategy
        super().__init__(BridgeExtended(self, strategy))

    @property
    def owner(self) -> context.Strategy:
        """The `DistributionStrategy` that does the work."""
        return self._owner

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """See base class."""
        return self._owner.scope()

    def run(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: types.Arguments | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> types.Nest:
        """See base class."""
        del options
        return self._owner.run(fn, args, kwargs)

    def experimental_distribute_dataset(self, dataset: object, options: object = None) -> NoReturn:
        """See base class; `fit`, `evaluate` and `predict` of Keras ask for it.

        Raises:
            NotImplementedError: Names what there is in its place.
        """
        del options
        raise NotImplementedError(
            f"{self._owner!r} does not split a {type(dataset).__name__}, as fit(), evaluate() and "
            "predict() of a Keras model ask it to. Make and train that model in the scope of "
            "tf.distribute.MirroredStrategy, TensorFlow's own; or call replicate.estimator."
            "install() and pass tf.keras.estimator.model_to_estimator(model).model_fn to "
            "replicate_model_fn. A loop of your own takes strategy.distribute_dataset(dataset_fn)."
        )

    distribute_datasets_from_function = experimental_distribute_dataset

    @property
    def _scale_loss_for_estimator(self) -> bool:
        """Whether optimizers scale a tower's loss: not where a batch is split."""
        return context.share() is None

    @_scale_loss_for_estimator.setter
    def _scale_loss_for_estimator(self, value: bool) -> None:
        del value  # the base class initializes it; the rule above does not change

    def __deepcopy__(self, memo: object) -> "BridgeStrategy":
        return self


@conversion.unconverted
class BridgeExtended(tf1.distribute.StrategyExtended):
    """`strategy.extended`: the later spelling of the same core.

    Args:
        container: The strategy of `tf.distribute` that this belongs to.
        strategy: The `DistributionStrategy` that does the work.
    """

    def __init__(self, container: tf1.distribute.Strategy, strategy: context.Strategy):
        super().__init__(container)
        self._strategy = strategy
        self._bridge = container

    @property
    def container(self) -> tf1.distribute.Strategy:
        """The strategy of `tf.distribute` that this belongs to."""
        return self._bridge

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
        if aggregation == tf.VariableAggregation.MEAN:
            return [self._strategy.mean_by_rows(*pair) for pair in pairs]
        return self._strategy.batch_reduce(aggregation, pairs)

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

            return mode.tower.merge_call(across, *args, **kwargs)
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

    def colocate_vars_with(
        self, colocate_with_variable: tf.Variable
    ) -> contextlib.AbstractContextManager[None]:
        """Variables made inside live where this one lives."""
        return self._strategy.colocate_vars_with(colocate_with_variable)

    def value_container(self, value: types.Nest) -> types.Nest:
        """Returns the distributed variable that `value` is a copy of, else `value`."""
        container = values.container_of(value)
        return value if container is None else container

    def variable_created_in_scope(self, v: tf.Variable) -> bool:
        """Whether `v` was made under this strategy."""
        return getattr(v, "_distribute_strategy", None) is self._bridge

    def call_for_each_replica(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: types.Arguments | None = None,
    ) -> types.Nest:
        """See `DistributionStrategy.call_for_each_tower`."""
        return self._strategy.call_for_each_tower(fn, *args, **(kwargs or {}))

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        """See `DistributionStrategy.read_var`."""
        return self._strategy.read_var(v)

    def broadcast_to(self, tensor: tf.Tensor, destinations: types.Nest) -> types.Nest:
        """See `DistributionStrategy.broadcast`."""
        return self._strategy.broadcast(tensor, destinations)

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> Sequence[str]:
        """See `DistributionStrategy.non_slot_devices`."""
        return self._strategy.non_slot_devices(var_list)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Where the towers compute."""
        return tuple(self._strategy.worker_devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Where variables live."""
        return tuple(self._strategy.parameter_devices)

    @property
    def experimental_require_static_shapes(self) -> bool:
        """False: any batch size serves."""
        return False

    @property
    def experimental_between_graph(self) -> bool:
        """See base class."""
        return self._strategy.is_between_graph

    @property
    def experimental_should_init(self) -> bool:
        """See base class."""
        return self._strategy.is_chief

    @property
    def should_checkpoint(self) -> bool:
        """See base class."""
        return self._strategy.is_chief

    @property
    def should_save_summary(self) -> bool:
        """See base class."""
        return self._strategy.is_chief

    @property
    def _global_batch_size(self) -> bool:
        return True

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._strategy.all_towers

    def _local_results(self, val: types.Nest) -> tuple[types.Nest, ...]:
        return tuple(self._strategy.unwrap(val))

    def _group(self, value: types.Nest, name: str | None = None) -> tf.Operation:
        return self._strategy.group(value, name=name)

    def _configure(
        self,
        session_config: tf1.ConfigProto | None = None,
        cluster_spec: object = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        del cluster_spec, task_type, task_id  # the strategy knows its own
        self._strategy.configure(session_config)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group

    def _in_multi_worker_mode(self) -> bool:
        return self._strategy.is_between_graph

    def _use_merge_call(self) -> bool:
        return True

    def _reduce(self, reduce_op: types.NamedReduction, value: types.Nest) -> types.Nest:
        reduced = self._strategy.reduce(reductions.aggregation_of(reduce_op), value)
        return self._strategy.unwrap(reduced)[0]

    def _gather_to_implementation(
        self, value: types.Nest, destinations: types.Nest, axis: int, options: object
    ) -> types.Nest:
        del options
        found = tf.concat(list(self._strategy.unwrap(value)), axis)
        found = self._strategy.workers.concat(found, axis)
        return self._strategy.broadcast(found, destinations)


def _has_value(value: object) -> bool:
    """Whether a graph's value is a tensor, of any kind, or a variable."""
    return tf.is_tensor(value) or isinstance(value, (tf.Variable, tf.IndexedSlices))


def _runs(value: object) -> bool:
    """Whether a value is of a graph, and does something when it is run."""
    return _has_value(value) or isinstance(value, tf.Operation)


@conversion.unconverted
class BridgeReplicaContext(tf.distribute.ReplicaContext):
    """What `tf.distribute.get_replica_context()` returns in a tower of ours.

    Args:
        bridge: The `BridgeStrategy`.
        tower: The `TowerContext` that does the work.
    """

    def __init__(self, bridge: tf1.distribute.Strategy, tower: context.Tower):
        super().__init__(bridge, tower.position)
        self._tower = tower

    def _merge_call(
        self, merge_fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        share = context.share()
        if share is not None:
            merge_fn, args = share.step.wrap(merge_fn, args)
        return self._tower.merge_for_tensorflow(merge_fn, args, kwargs)

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
                found = self._summed(gradients, is_by_rows)
                if is_by_rows and not is_mean:
                    found = self._divided(found)
                elif is_mean and not is_by_rows:
                    found = self._weighted(found)
                return [*found, *[None] * len(reduced)]

            return [tf.identity(tensor) for tensor in tensors[len(flat) :]], gradient

        return tf.nest.pack_sequence_as(value, linked(*flat, *reduced))

    def _weighted(self, tensors: Sequence[types.Gradient]) -> list[types.Gradient]:
        return [reductions.scaled(tensor, self._tower.weight, None) for tensor in tensors]

    def _divided(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        weight = self._tower.weight
        return [tf.math.divide_no_nan(t, reductions.as_dtype(weight, t.dtype)) for t in tensors]

    def _summed(self, tensors: Sequence[tf.Tensor], is_mean: bool) -> list[tf.Tensor]:
        """Sums each of this tower's tensors, or its part of a mean, with the other towers'."""

        def across(strategy: tf1.distribute.Strategy, *columns: types.Nest) -> list[types.Nest]:
            pairs = [(column, column) for column in columns]
            return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

        with tf1.name_scope(reductions.SCOPE):
            parts = self._weighted(tensors) if is_mean else tensors
            return self.merge_call(across, args=tuple(parts))

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of this tower.

        NOTE: TensorFlow asks to write summaries once; that is no model which asks.
        """
        frame = inspect.currentframe()
        asker = None if frame is None else frame.f_back
        name = "" if asker is None else asker.f_globals.get("__name__", "")
        return self._tower.position if name.startswith("tensorflow.") else self._tower.tower_id

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this tower."""
        return (self._tower.device,)


@conversion.unconverted
class StraightReplicaContext(tf.distribute.ReplicaContext):
    """Stands for a replica where the code runs across towers already."""

    def _merge_call(
        self, merge_fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        return conversion.as_here(merge_fn)(self.strategy, *args, **kwargs)


@contextlib.contextmanager
def across(mode: context.Mode) -> Iterator[None]:
    """Enters a mode across towers, ours and TensorFlow's."""
    with context.entered(mode), told_across(mode.strategy):
        yield


def told_across(strategy: context.Strategy) -> contextlib.AbstractContextManager[None]:
    """Tells TensorFlow, in the current graph, that the code runs across towers."""
    return pushed(tfc.distribute_lib._CrossReplicaThreadMode(strategy.extended.container))


def told_inside(strategy: context.Strategy) -> contextlib.AbstractContextManager[None]:
    """The same in a graph that is entered inside a scope; a merge call there runs at once.

    NOTE: Estimators build graphs of their own, and make a metric of the loss in them, for which
    `tf.compat.v1.metrics` asks for a replica.
    """
    bridge = strategy.extended.container
    mode = tfc.distribute_lib._CrossReplicaThreadMode(bridge)
    mode.replica_context = StraightReplicaContext(bridge, 0)
    return pushed(mode)


def is_told(graph: tf.Graph, strategy: context.Strategy) -> bool:
    """Whether TensorFlow knows of a strategy in a graph, as in functions inside of it."""
    bridge = strategy.extended.container
    return any(entry.strategy is bridge for entry in graph._distribution_strategy_stack)


@contextlib.contextmanager
def in_tower(tower: context.Tower, share: context.Share | None) -> Iterator[None]:
    """Enters a tower's mode, ours and TensorFlow's."""
    strategy = tower.distribution_strategy
    replica = BridgeReplicaContext(strategy.extended.container, tower)
    mode = context.Mode(strategy, tower, share=share)
    with context.entered(mode), replica, _functions_named(tower.position):
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


@contextlib.contextmanager
def pushed(thread_mode: Any) -> Iterator[None]:
    """Enters a mode of TensorFlow's alone."""
    stack = tf1.get_default_graph()._distribution_strategy_stack
    stack.append(thread_mode)
    try:
        yield
    finally:
        stack.pop()
