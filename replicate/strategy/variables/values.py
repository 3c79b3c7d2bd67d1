"""Values that live on several devices, and how K nests become one and K again."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from replicate import devices as device_names
from replicate import errors, types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.graph import reductions
from replicate.strategy import context

_CompositeTensor: Any = tfc.composite_tensor.CompositeTensor


class DistributedValues(_CompositeTensor):
    """K values, one per tower or per device.

    Tensors held so go in and out of a `tf.function` like any tensor.

    Args:
        values: Sequence of K values, or a mapping from K devices to values.
        devices: The K values' devices, in the order of `values`; None where unknown.
    """

    def __init__(
        self,
        values: Sequence[types.Nest] | Mapping[str, types.Nest],
        devices: Sequence[str | None] | None = None,
    ):
        if isinstance(values, Mapping):
            devices, values = tuple(values.keys()), tuple(values.values())
            if len(set(map(device_names.canonical_or_same, devices))) < len(devices):
                raise ValueError(
                    f"A {type(self).__name__} has one value for each device; got {list(devices)}, "
                    "of which some are the same. Name each device once."
                )
        self._values = tuple(values)
        self._devices: tuple[str, ...] | None = None
        if devices is not None:
            self._devices = tuple(map(device_names.canonical_or_same, devices))
        if not len(self._values):
            raise ValueError(f"{type(self).__name__} needs at least one value, got none.")
        if self._devices is not None and len(self._devices) != len(self._values):
            raise ValueError(
                f"{type(self).__name__} needs a device for each value, got "
                f"{len(self._values)} values and {len(self._devices)} devices."
            )

    @property
    def values(self) -> tuple[types.Nest, ...]:
        """The K values, tower by tower."""
        return self._values

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The K devices, or None where they are not known."""
        return self._devices

    def get(self, device: str | None = None) -> types.Nest:
        """Returns the value of `device`; without one, of the current tower or device.

        Raises:
            ValueError: If no value belongs to the device, or if no device was named
                and the code runs neither in a tower nor in an update.
        """
        if device is not None:
            return self._values[self._position(device)]
        mode = context.current()
        if mode is not None and mode.update_device is not None:
            return self._values[self._position(mode.update_device)]
        if mode is not None and mode.tower is not None:
            return select_tower(mode.tower.position, self)
        raise ValueError(
            f"A {type(self).__name__} has one value per device: {self!r} was read outside of "
            "towers and updates. Use strategy.unwrap(value), or get(device)."
        )

    def _position(self, device: str) -> int:
        place = device_names.canonical_or_same(device)
        if self._devices is not None and place in self._devices:
            return self._devices.index(place)
        if len(self._values) == 1:
            return 0
        raise ValueError(
            f"No value for device {device!r}: this {type(self).__name__} holds values for "
            f"{self._devices}. Name one of these."
        )

    @property
    def _type_spec(self) -> tf.TypeSpec:
        return self.spec_of([tf.type_spec_from_value(value) for value in self._values])

    def spec_of(self, specs: Sequence[tf.TypeSpec]) -> "ValuesSpec":
        """Returns the type of values on the same devices, given the K types of these."""
        return ValuesSpec(isinstance(self, Mirrored), specs, self._devices)

    def __repr__(self) -> str:
        rows = ", ".join(f"{i}: {value!r}" for i, value in enumerate(self._values))
        return f"{type(self).__name__}({{{rows}}})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled: its values belong to the devices of "
            "this process. Pickle the arrays that strategy.unwrap(value) evaluates to."
        )


class PerDevice(DistributedValues):
    """One value per tower, which may differ (locality T)."""


class Mirrored(DistributedValues):
    """The same value on each device (localities M, V(v) and N).

    As a tensor it is the current tower's or device's value, and across towers the first.
    """

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        mode, value = context.current(), self._values[0]
        if mode is not None and mode.update_device is not None:
            value = select_device(mode.update_device, 0, self)
        elif mode is not None and mode.tower is not None:
            value = select_tower(mode.tower.position, self)
        return tf.convert_to_tensor(value, dtype, name=name)


class ValuesSpec(tf.TypeSpec):
    """The type of K values on K devices, by which a `tf.function` knows its arguments.

    Args:
        is_mirrored: Whether they are a `Mirrored`, or else a `PerDevice`.
        specs: The K values' own specs.
        devices: The K devices, or None.
    """

    def __init__(
        self, is_mirrored: bool, specs: Sequence[tf.TypeSpec], devices: Sequence[str] | None
    ):
        self._is_mirrored = is_mirrored
        self._specs = tuple(specs)
        self._devices = None if devices is None else tuple(devices)

    @property
    def value_type(self) -> type[DistributedValues]:
        """See base class."""
        return Mirrored if self._is_mirrored else PerDevice

    @property
    def _component_specs(self) -> tuple[tf.TypeSpec, ...]:
        return self._specs

    def _serialize(self) -> tuple[types.Nest, ...]:
        return (self._is_mirrored, self._specs, self._devices)

    def _to_components(self, value: DistributedValues) -> tuple[types.Nest, ...]:
        return value.values

    def _from_components(self, components: Sequence[types.Nest]) -> DistributedValues:
        return self.value_type(components, self._devices)


class VariableTraceType(tf.types.experimental.TraceType):
    """Stands for one variable: a function is traced once for each that it is given.

    Args:
        variable: The distributed variable.
    """

    def __init__(self, variable: tf.Variable):
        self._variable = weakref.ref(variable)
        self._key = id(variable)

    def is_subtype_of(self, other: object) -> bool:
        """See base class."""
        return self == other

    def most_specific_common_supertype(
        self, others: Sequence[object]
    ) -> "VariableTraceType | None":
        """See base class."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: object = None) -> tf.Variable:
        """Returns the variable itself, which the function captures."""
        del placeholder_context
        return self._variable()

    def cast(self, value: tf.Variable, casting_context: object) -> tf.Variable:
        """See base class."""
        del casting_context
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableTraceType):
            return NotImplemented
        mine, theirs = self._variable(), other._variable()
        return mine is not None and mine is theirs

    def __hash__(self) -> int:
        return self._key


def differs(value: object) -> bool:
    """Whether a value may differ between towers: a PerDevice of more than one object."""
    if not isinstance(value, PerDevice):
        return False
    first = value.values[0]
    is_number = isinstance(first, (bool, int, float, complex, str))
    return any(v is not first and not (is_number and v == first) for v in value.values)


def container_of(value: object) -> tf.Variable | None:
    """Returns the distributed variable that `value` is a member of, or None."""
    reference = getattr(value, "_distributed_container", None)
    return reference() if callable(reference) else None


def first_of(value: types.Nest) -> types.Nest:
    """Returns the first of the values per device: a plain value itself."""
    return value.values[0] if isinstance(value, DistributedValues) else value


def map_copies(fn: Callable[[types.Nest], types.Nest], value: types.Nest) -> types.Nest:
    """Applies `fn` to each of the values per device, or to a plain value."""
    if isinstance(value, DistributedValues):
        return type(value)([fn(copy) for copy in value.values], value.devices)
    return fn(value)


def weighted(
    value: PerDevice | types.Gradient, weights: Sequence[float | tf.Tensor]
) -> PerDevice | types.Gradient:
    """Returns towers' tensors or IndexedSlices, each times its tower's weight, where it was."""
    parts = value.values if isinstance(value, PerDevice) else [value]
    scaled = [
        reductions.scaled(part, weight, reductions.device_of(part))
        for part, weight in zip(parts, weights, strict=True)
    ]
    return PerDevice(scaled, value.devices) if isinstance(value, PerDevice) else scaled[0]


def regroup(
    nests: Sequence[types.Nest],
    wrap: type[DistributedValues] = PerDevice,
    devices: Sequence[str | None] | None = None,
) -> types.Nest:
    """Joins K nests of one structure into one nest.

    Args:
        nests: K nests of lists, tuples, named tuples and mappings.
        wrap: The class that holds K different leaves.
        devices: The K devices, where known.

    Returns:
        A nest of the same structure. A leaf that is the same object in all K is that
        object; the members of one distributed variable are that variable; anything
        else is one `wrap`.

    Raises:
        TowerMismatchError: If the structures differ; names the first tower that does.
    """
    first = nests[0]
    if isinstance(first, Mapping):
        _require_alike(nests, Mapping, lambda nest: sorted(nest.keys(), key=repr))
        return _mapping_like(
            first, {k: regroup([nest[k] for nest in nests], wrap, devices) for k in first}
        )
    if isinstance(first, (list, tuple)):
        _require_alike(nests, type(first), len)
        joined = [regroup(leaves, wrap, devices) for leaves in zip(*nests, strict=True)]
        return _sequence_like(first, joined)
    container = container_of(first)
    if container is not None and all(container_of(leaf) is container for leaf in nests):
        return container
    return first if all(leaf is first for leaf in nests) else wrap(nests, devices)


def _require_alike(
    nests: Sequence[types.Nest],
    kind: type,
    measure: Callable[[types.Nest], object],
) -> None:
    """Refuses nests that differ from the first in type or size."""
    found = [measure(nest) if isinstance(nest, kind) else type(nest).__name__ for nest in nests]
    for i, shown in enumerate(found):
        if shown != found[0]:
            raise errors.TowerMismatchError(
                f"Every tower must give the same structure: tower {i} gave {shown} where "
                f"tower 0 gave {found[0]}. Look for a branch on the tower."
            )


def _sequence_like(example: types.Nest, items: list[types.Nest]) -> types.Nest:
    if isinstance(example, tuple) and hasattr(example, "_make"):
        return example._make(items)
    if type(example) in (list, tuple):
        return type(example)(items)
    return tuple(items) if isinstance(example, tuple) else list(items)


def _mapping_like(example: types.Nest, items: dict[Any, types.Nest]) -> types.Nest:
    try:
        return type(example)(items)
    except TypeError:  # a mapping whose constructor wants something else
        return items


def map_nest(fn: Callable[[types.Nest], types.Nest], nest: types.Nest) -> types.Nest:
    """Applies `fn` to each leaf of lists, tuples, named tuples and mappings."""
    if isinstance(nest, Mapping):
        return _mapping_like(nest, {key: map_nest(fn, item) for key, item in nest.items()})
    if isinstance(nest, (list, tuple)):
        return _sequence_like(nest, [map_nest(fn, item) for item in nest])
    return fn(nest)


def select_tower(tower_id: int, nest: types.Nest, devices: Sequence[str] = ()) -> types.Nest:
    """Gives tower `tower_id` its part: the inverse of `regroup`.

    A value with a single member serves every tower, and a mirrored one with fewer members
    than there are towers the rest by its first. Distributed variables stay whole: in a
    tower they behave as that tower's own.

    Args:
        tower_id: Which tower.
        nest: Values for all towers.
        devices: The K towers' devices. A value that names all of them is read by its devices,
            any other by the order of its members.

    Raises:
        ValueError: If a PerDevice holds nothing for the tower.
    """

    def leaf(value: types.Nest) -> types.Nest:
        if not isinstance(value, DistributedValues):
            return value
        held = value.values
        if devices and set(devices) <= set(value.devices or ()):
            return value.get(devices[tower_id])
        if tower_id < len(held):
            return held[tower_id]
        if len(held) == 1 or isinstance(value, Mirrored):
            return held[0]
        raise ValueError(
            f"A PerDevice has one value per tower: got {len(held)} values and tower {tower_id}. "
            "Make one of as many values as the strategy has towers."
        )

    return map_nest(leaf, nest)


def select_device(device: str, index: int, nest: types.Nest) -> types.Nest:
    """Gives the copy on `device`, the `index`-th of an update, its part of mirrored arguments."""

    def leaf(value: types.Nest) -> types.Nest:
        if not isinstance(value, DistributedValues):
            return value
        if value.devices is not None and device in value.devices:
            return value.get(device)
        return value.values[index if len(value.values) > 1 else 0]

    return map_nest(leaf, nest)
