"""The verbs of a strategy: how values travel between towers and devices, and update variables."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicate import devices as device_names
from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import all_reduce, collectives, reductions
from replicate.strategy import context, conversion, extended
from replicate.strategy.variables import values, variables


@conversion.unconverted
class Verbs(tf.distribute.Strategy):
    """What a strategy does across towers; a policy overrides the private hooks.

    Args:
        worker_devices: K devices on which the towers compute.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        conversion.unconverted(cls)

    def __init__(self, worker_devices: Sequence[str]):
        self._worker_devices = tuple(worker_devices)
        super().__init__(extended.Extended(self))

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The K devices on which towers compute."""
        return self._worker_devices

    @property
    def num_towers(self) -> int:
        """K."""
        return len(self._worker_devices)

    @property
    def is_single_tower(self) -> bool:
        """Whether there is one tower, over all workers."""
        return self.all_towers == 1

    @property
    def all_towers(self) -> int:
        """K, or W x K where W workers take part."""
        return self.num_towers * self.workers.size

    @property
    def first_tower(self) -> int:
        """The number, over all workers, of the first tower."""
        return self.num_towers * self.workers.position

    @property
    def workers(self) -> collectives.Workers:
        """The workers that join what they bring in the current graph."""
        share = context.share()
        return self._workers() if share is None else share.workers

    def _workers(self) -> collectives.Workers:
        return collectives.ALONE

    def reduce(
        self,
        aggregation: types.NamedReduction,
        value: types.Nest,
        destinations: types.Nest = None,
        **axis: types.Nest,
    ) -> types.Nest:
        """Reduces a value over towers.

        Args:
            aggregation: `tf.VariableAggregation.SUM` or `.MEAN`.
            value: A PerDevice of K tensors or K IndexedSlices (which stay IndexedSlices),
                a Mirrored, a plain value, or a nest of these, which is reduced leaf by leaf.
                A mean of integers is a float, of 64 bits where they have 32 or more. Under
                a split batch a tower without rows counts as zero in a sum.
            destinations: A device, a list of devices, or a variable; None: where value is.
            **axis: `axis=...`, as `tf.distribute` asks: for one tensor, reduced over that axis too.

        Returns:
            The reduced value on the destination, or a Mirrored over several.

        Raises:
            ValueError: If a plain value other than 0 is summed, or the aggregation is
                neither SUM nor MEAN.
        """
        if axis:
            return super().reduce(aggregation, value, **axis)
        return self.batch_reduce(aggregation, [(value, destinations)])[0]

    def batch_reduce(
        self,
        aggregation: types.NamedReduction,
        value_destination_pairs: Sequence[tuple[types.Nest, types.Nest]],
    ) -> list[types.Nest]:
        """Reduces many values over towers, in fewer transfers.

        Args:
            aggregation: `tf.VariableAggregation.SUM` or `.MEAN`.
            value_destination_pairs: N pairs as `reduce` takes them.

        Returns:
            N reduced values.
        """
        self._require_cross_tower("batch_reduce")
        aggregation = reductions.aggregation_of(aggregation)
        nests = [(_as_nest(value), place) for value, place in value_destination_pairs]
        leaves: list[tuple[types.Nest, types.Nest]] = []
        for nest, place in nests:
            parts: list[types.Nest] = []
            values.map_nest(parts.append, nest)
            leaves += [(leaf, place) for leaf in parts]
        with tf1.name_scope(reductions.SCOPE):
            reduced = iter(self._reduce_leaves(aggregation, leaves))
        return [values.map_nest(lambda leaf: next(reduced), nest) for nest, _ in nests]

    def mean_by_rows(self, value: types.Nest, destinations: types.Nest = None) -> types.Nest:
        """Averages a value over towers, each weighted by its rows where a batch was split.

        Args:
            value: See `reduce`.
            destinations: See `reduce`.
        """
        share = context.share()
        parts = value.values if isinstance(value, values.PerDevice) else ()
        is_floating = all(hasattr(p, "dtype") and p.dtype.is_floating for p in parts)
        if share is None or not parts or not is_floating:
            return self.reduce(variables.MEAN, value, destinations)
        weighted = values.weighted(value, share.parts.weights)
        return self.reduce(variables.SUM, weighted, destinations)

    def _reduce_leaves(
        self,
        aggregation: tf.VariableAggregation,
        pairs: Sequence[tuple[types.Nest, types.Nest]],
    ) -> list[types.Nest]:
        """Reduces N pairs, of which none is a nest."""
        results: list[types.Nest] = [None] * len(pairs)
        columns, places, positions = [], [], []
        is_mean, share = aggregation == variables.MEAN, context.share()
        for i, (value, destination) in enumerate(pairs):
            parts = self._parts(value)
            if parts is None:
                results[i] = self._reduce_plain(aggregation, value, destination)
                continue
            columns.append([_as_floating(part) for part in parts] if is_mean else parts)
            places.append(self._places_of(destination, value))
            positions.append(i)
        if columns:
            has_rows = None if is_mean or share is None else share.parts.has_rows
            summed = self._batch_sum(columns, places, has_rows)
            for i, column, copies, place in zip(positions, columns, summed, places, strict=True):
                number = self.workers.size * len(column) if is_mean else 1
                onto = zip(copies, place, strict=True)
                means = [reductions.divide_onto(copy, number, device) for copy, device in onto]
                results[i] = self._mirrored(means, place)
        return results

    def _parts(self, value: types.Nest) -> list[types.Gradient] | None:
        """Returns the K tensors of a value that differs between towers."""
        if isinstance(value, values.PerDevice):
            return [_as_tensor(part) for part in value.values]
        if isinstance(value, variables.TowerLocalVariable):
            return [_as_tensor(member) for member in value.members]
        if self.num_towers == 1 and not self.is_single_tower and is_of_one(value):
            return [value]  # of the only tower of this worker
        return None

    def _places_of(self, destination: types.Nest, value: types.Nest) -> tuple[str, ...]:
        if destination is not None:
            places = tuple(dict.fromkeys(self.destinations_of(destination)))
            if not places:
                raise ValueError(
                    f"A value needs a device to go to; got destinations={destination!r}. Name a "
                    "device or a variable, or leave destinations out."
                )
            return places
        return tuple(self._reduce_destinations(value))

    def sum_places(self, destination: types.Nest) -> tuple[str, ...]:
        """Returns the devices that get what towers bring for a destination, added up."""
        return tuple(dict.fromkeys(self.destinations_of(destination)))

    def _reduce_destinations(self, value: types.Nest) -> Sequence[str]:
        """Returns where a reduced value goes when nobody says."""
        return self.destinations_of(value)

    def _batch_sum(
        self,
        columns: Sequence[Sequence[types.Gradient]],
        places: Sequence[Sequence[str]],
        has_rows: all_reduce.HasRows | None = None,
    ) -> list[list[types.Gradient]]:
        """Sums N columns of K tensors; returns N lists of copies, one per place.

        Args:
            columns: N lists of K tensors or IndexedSlices.
            places: N tuples of devices.
            has_rows: K bools, or bool tensors of shape []: what counts in a sum; None: all.
        """
        workers = self.workers
        totals = None if workers.is_alone else _staying(workers.totals)
        return all_reduce.batch_sum_onto(columns, self._worker_devices, places, has_rows, totals)

    @staticmethod
    def _mirrored(copies: Sequence[types.Gradient], places: Sequence[str]) -> types.Nest:
        return copies[0] if len(copies) == 1 else values.Mirrored(copies, places)

    def _reduce_plain(
        self, aggregation: tf.VariableAggregation, value: types.Nest, destination: types.Nest
    ) -> types.Nest:
        """Reduces what is the same in all towers."""
        is_zero = isinstance(value, (int, float)) and value == 0
        if aggregation == variables.SUM and not is_zero and not self.is_single_tower:
            raise ValueError(
                "A sum over towers needs one value per tower: got the single value "
                f"{value!r}. Pass a PerDevice, or reduce with MEAN."
            )
        if destination is None or is_zero:
            return value
        if isinstance(value, variables.DistributedVariable):
            value = value.read_across()
        if isinstance(value, values.DistributedValues):
            value = value.values[0]
        return self.broadcast(value, destination)

    def broadcast(self, tensor: types.Nest, destinations: types.Nest = None) -> types.Nest:
        """Mirrors a tensor to the worker devices, or to the destinations."""
        self._require_cross_tower("broadcast")
        places = self._worker_devices if destinations is None else self._places_of(destinations, 0)
        tensor = _as_tensor(tensor)
        return self._mirrored([reductions.copy_onto(tensor, place) for place in places], places)

    def gather(self, value: types.Nest, axis: int, destinations: types.Nest = None) -> types.Nest:
        """Puts per-device values, of any lengths, end to end along an axis.

        Args:
            value: A PerDevice of K tensors.
            axis: The axis.
            destinations: As `reduce` takes them; None: the worker devices.

        Returns:
            The long tensor on the destination, or a Mirrored over several.
        """
        return self.batch_gather([(value, axis, destinations)])[0]

    def batch_gather(
        self,
        gathered: Sequence[tuple[types.Nest, int, types.Nest]],
        lengths: Sequence[tf.Tensor] | None = None,
    ) -> list[types.Nest]:
        """Gathers many values, in fewer transfers.

        Args:
            gathered: N values, axes and destinations as `gather` takes them.
            lengths: For each how long it is in each of W workers, int32, of shape [W]; None:
                workers tell each other.

        Returns:
            N long tensors.
        """
        self._require_cross_tower("gather")
        with tf1.name_scope(reductions.SCOPE):
            own = [tf.concat(self.unwrap(value), axis) for value, axis, _ in gathered]
            whole = self.workers.rows_of_all(own, [axis for _, axis, _ in gathered], lengths)
            places = [destinations for *_, destinations in gathered]
            return list(map(self.broadcast, whole, places))

    def update(
        self, var: tf.Variable, fn: types.Function, *args: types.Nest, **kwargs: types.Nest
    ) -> types.Nest:
        """Runs `fn(copy, ...)` on each device of a variable.

        Args:
            var: A variable of this strategy.
            fn: Takes a copy, and the arguments' copies on its device.
            *args: Mirrored arguments are unwrapped.
            **kwargs: Likewise.

        Returns:
            The results, merged.

        Raises:
            ValueError: If an argument differs between towers, and would part the copies; those
                of a tower-local variable are each tower's own.
        """
        self._require_cross_tower("update")
        if not isinstance(var, variables.TowerLocalVariable):
            _require_reduced("update", (args, kwargs))
        if isinstance(var, variables.DistributedVariable):
            return self._update_on(var.devices, var.members, fn, args, kwargs)
        return self._update_on(self.destinations_of(var), (var,), fn, args, kwargs)

    def update_non_slot(
        self,
        colocate_with: Sequence[str],
        fn: types.Function,
        *args: types.Nest,
        **kwargs: types.Nest,
    ) -> types.Nest:
        """Runs `fn(...)` on each non-slot device.

        Args:
            colocate_with: What `non_slot_devices()` returned.
            fn: Takes the arguments' copies.
            *args: Mirrored arguments are unwrapped.
            **kwargs: Likewise.

        Returns:
            The results, merged.

        Raises:
            ValueError: If an argument differs between towers.
        """
        self._require_cross_tower("update_non_slot")
        _require_reduced("update_non_slot", (args, kwargs))
        places = self.destinations_of(colocate_with)
        return self._update_on(places, None, fn, args, kwargs)

    def _update_on(
        self,
        places: Sequence[str],
        members: Sequence[tf.Variable] | None,
        fn: types.Function,
        args: Sequence[types.Nest],
        kwargs: Mapping[str, types.Nest],
    ) -> types.Nest:
        mode = context.required()
        results = []
        for i, place in enumerate(places):
            updating = mode._replace(update_device=place)
            with context.entered(updating), tf.device(place), self._copy_scope(i):
                chosen = values.select_device(place, i, tuple(args))
                named = values.select_device(place, i, dict(kwargs))
                first = () if members is None else (members[i],)
                results.append(fn(*first, *chosen, **named))
        return values.regroup(results, values.Mirrored, places)

    @staticmethod
    def _copy_scope(index: int) -> contextlib.AbstractContextManager[object]:
        """Copies after the first are updated under a name scope of their own."""
        return tf1.name_scope(f"tower_{index}") if index > 0 else contextlib.nullcontext()

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> Sequence[str]:
        """Returns where an optimizer's variables live that belong to no single variable."""
        return self.destinations_of(min(var_list, key=lambda v: v.name))

    def destinations_of(self, destination: types.Nest) -> tuple[str, ...]:
        """Returns the devices meant by a device, a list of devices, a variable or a value."""
        if isinstance(destination, variables.DistributedVariable):
            return destination.devices
        if isinstance(destination, str):
            return (device_names.canonicalize(destination),)
        if isinstance(destination, values.DistributedValues):
            return destination.devices or self._worker_devices[: len(destination.values)]
        if isinstance(destination, (list, tuple)):
            return tuple(place for item in destination for place in self.destinations_of(item))
        container = values.container_of(destination)
        if container is not None:
            return container.devices
        return (device_names.canonical_or_same(getattr(destination, "device", None)),)

    def unwrap(self, value: types.Nest) -> list[types.Nest]:
        """Returns the list of the values per device: one item for a plain value."""
        if isinstance(value, values.DistributedValues):
            return list(value.values)
        if isinstance(value, variables.DistributedVariable):
            return list(value.members)
        if isinstance(value, (list, tuple, dict)):
            count = max((len(self.unwrap(leaf)) for leaf in tf.nest.flatten(value)), default=1)
            if count > 1:
                return [_pick(value, i, self.unwrap) for i in range(count)]
        return [value]

    def group(self, value: types.Nest, name: str | None = None) -> tf.Operation:
        """Returns one operation that runs all per-device operations of `value`."""
        parts = [part for part in tf.nest.flatten(self.unwrap(value)) if part is not None]
        if len(parts) == 1 and name is None:
            return getattr(parts[0], "op", parts[0])
        return tf1.group(*parts, name=name)

    def _require_mine(self, method: str) -> None:
        mode = context.current()
        if mode is None:
            raise RuntimeError(
                f"{method}() needs this strategy's scope, and no scope was entered. Write "
                f"`with strategy.scope():` around it."
            )
        if mode.strategy is not self:
            raise RuntimeError(
                f"{method}() of {self!r} was called in the scope of {mode.strategy!r}: two "
                "strategies are mixed. Use get_distribution_strategy()."
            )

    def _require_cross_tower(self, method: str) -> None:
        self._require_mine(method)
        mode = context.required()
        if mode.tower is not None:
            raise RuntimeError(
                f"{method}() sees all towers at once, but was called in tower "
                f"{mode.tower.position}. Call it through "
                "get_tower_context().merge_call(lambda strategy, ...: ...)."
            )


def is_of_one(value: object) -> bool:
    """Whether a value is a tensor of one tower, and no variable."""
    return isinstance(value, tf.IndexedSlices) or (
        tf.is_tensor(value) and not isinstance(value, tf.Variable)
    )


def _staying(
    totals: Callable[[list[types.Gradient]], list[types.Gradient]],
) -> Callable[[list[types.Gradient]], list[types.Gradient]]:
    """Lets totals over workers be where a worker's own sums are."""

    def found(sums: list[types.Gradient]) -> list[types.Gradient]:
        pairs = zip(totals(sums), sums, strict=True)
        return [reductions.copy_onto(total, reductions.device_of(own)) for total, own in pairs]

    return found


def _as_floating(value: types.Gradient) -> types.Gradient:
    """Returns an integer tensor, or the values of IndexedSlices, as floats."""
    if not value.dtype.is_integer:
        return value
    dtype = tf.float64 if value.dtype.size >= 4 else tf.float32
    with reductions.on(reductions.device_of(value)):
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(tf.cast(value.values, dtype), value.indices, value.dense_shape)
        return tf.cast(value, dtype)


def _as_nest(value: types.Nest) -> types.Nest:
    """Returns a PerDevice of nests as a nest of PerDevices; anything else as it is."""
    if isinstance(value, values.PerDevice):
        first = value.values[0]
        is_sequence = isinstance(first, (list, tuple)) and any(map(tf.is_tensor, first))
        if is_sequence or isinstance(first, Mapping):
            return values.regroup(value.values, devices=value.devices)
    return value


def _as_tensor(value: types.Nest) -> types.Gradient:
    if isinstance(value, tf.IndexedSlices):
        if all(map(tf.is_tensor, (value.values, value.indices))):
            return value
        shape = value.dense_shape
        return tf.IndexedSlices(
            tf.convert_to_tensor(value.values),
            tf.convert_to_tensor(value.indices),
            None if shape is None else tf.convert_to_tensor(shape),
        )
    return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)


def _pick(
    nest: types.Nest, index: int, unwrap: Callable[[types.Nest], list[types.Nest]]
) -> types.Nest:
    """Returns the `index`-th part of each leaf of a nest."""

    def leaf(value: types.Nest) -> types.Nest:
        parts = unwrap(value)
        return parts[index if len(parts) > 1 else 0]

    return values.map_nest(leaf, nest)


def _require_reduced(method: str, nest: types.Nest) -> None:
    """Refuses what differs between towers as an argument of an update.

    NOTE: in merge calls of TensorFlow's own kind it is taken as it is: Keras reduces gradients
    in the towers, and clips them there, so that each brings an equal tensor of its own.
    """
    if context.required().is_tensorflows:
        return

    def leaf(value: types.Nest) -> None:
        if values.differs(value):
            raise ValueError(
                f"{method}() takes what is the same for all copies, a plain or a Mirrored value: "
                f"got {value!r}, which may differ between towers. Reduce it first: "
                "strategy.reduce(aggregation, value, destinations=variable)."
            )

    values.map_nest(leaf, nest)
