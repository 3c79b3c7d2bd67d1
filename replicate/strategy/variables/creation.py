"""Makes the copies of a variable on their devices, and lists the variable once."""

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from replicate import devices as device_names
from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import isolation
from replicate.strategy import context
from replicate.strategy.variables import copies, variables

_ON_READ = tf.VariableSynchronization.ON_READ


def require_known(kwargs: types.Arguments) -> None:
    """Refuses a synchronization or aggregation that is none.

    Args:
        kwargs: What the variable creator was given.

    Raises:
        ValueError: Names the variable, and what it may have.
    """
    name, synchronization = kwargs.get("name"), kwargs.get("synchronization")
    kinds = [kind for kind in tf.VariableSynchronization if kind.name != "NONE"]
    if synchronization is not None and synchronization not in kinds:
        raise ValueError(
            "Copies of a variable are synchronized ON_WRITE, ON_READ or as is best (AUTO): "
            f"variable {name!r} has synchronization={synchronization!r}. Leave it out, or pass one "
            "of tf.VariableSynchronization."
        )
    aggregation = kwargs.get("aggregation")
    kinds = [*tf.VariableAggregation, *tf1.VariableAggregation]
    if aggregation is not None and aggregation not in kinds:
        raise ValueError(
            "What towers bring is aggregated by SUM, MEAN, ONLY_FIRST_REPLICA or not at all "
            f"(NONE): variable {name!r} has aggregation={aggregation!r}. Pass one of "
            "tf.VariableAggregation."
        )


def is_tower_local(kwargs: types.Arguments) -> bool:
    """Whether a variable is each tower's own by nature.

    Args:
        kwargs: What the variable creator was given.
    """
    return kwargs.get("synchronization") == _ON_READ or _is_listed_local(kwargs)


def _is_listed_local(kwargs: types.Arguments) -> bool:
    """Whether a variable is asked to be a local one, as those of metrics are."""
    return any(key in isolation.LOCAL for key in kwargs.get("collections") or ())


def make(
    strategy: context.Strategy,
    next_creator: types.Function,
    kwargs: types.Arguments,
    places: Sequence[str],
) -> tf.Variable:
    """Makes a variable with a copy on each of some devices.

    Args:
        strategy: The strategy that makes it.
        next_creator: Makes one copy.
        kwargs: What the variable creator was given.
        places: The copies' devices; `""` leaves the choice to the devices in force.

    Returns:
        A `TowerLocalVariable` of what is each tower's own by nature, else a `MirroredVariable`; a
        plain variable where there is one copy that towers do not write together.
    """
    aggregation, is_own, share = _aggregation(kwargs), is_tower_local(kwargs), context.share()
    if share is not None and share.is_exported and not _is_listed_local(kwargs):
        places, is_own = places[:1], False
    is_assumed_sum = is_own and aggregation == variables.NONE and _is_listed_local(kwargs)
    if is_assumed_sum:
        aggregation = variables.SUM  # a metric's variable that says nothing is a count
    if is_own:
        kwargs.update(synchronization=_ON_READ, aggregation=aggregation, trainable=False)
    is_joined = is_own or aggregation != variables.NONE or share is not None
    if len(places) == 1 and (strategy.is_single_tower or not is_joined):
        with tf.device(places[0]):
            return copies.keep_reads_beside(next_creator(**kwargs))
    members = _members(next_creator, kwargs, places, same_start=not is_own)
    devices = [
        place or device_names.canonical_or_same(member.device)
        for place, member in zip(places, members, strict=True)
    ]
    variable: tf.Variable
    if is_own:
        variable = variables.TowerLocalVariable(
            strategy, members, devices, aggregation, is_assumed_sum
        )
    else:
        variable = variables.MirroredVariable(strategy, members, devices, aggregation)
    add_to_collections(variable, kwargs)
    return variable


@contextlib.contextmanager
def without_partitioners(strategy: context.Strategy) -> Iterator[None]:
    """Makes every variable a whole one, and a resource.

    Where a batch is split, a partitioner that makes a single part stays: variable and slots
    then have the names of one device.

    Args:
        strategy: Who makes the variables; a scope inside of its own is another one's affair.
    """

    def getter(  # TensorFlow passes it by this name
        getter: types.Function, *args: Any, **kwargs: Any
    ) -> tf.Variable:
        partitioner = kwargs.get("partitioner")
        mode = context.current()
        is_mine = mode is not None and mode.strategy is strategy
        if partitioner is not None and is_mine and not _leaves_whole(partitioner, kwargs):
            del kwargs["partitioner"]
            messages.warn(
                "Partitioned variables are turned off under a distribution strategy: each is made "
                "whole.",
                "exactness.md#towers-tower_buildingcall",
            )
        return getter(*args, **kwargs)

    current = tf1.get_variable_scope()
    with tf1.variable_scope(
        current, custom_getter=getter, use_resource=True, auxiliary_name_scope=False
    ):
        yield


def _leaves_whole(partitioner: types.Function, kwargs: types.Arguments) -> bool:
    """Whether a partitioner makes one part of a variable, which is one of a model's."""
    mode = context.current()
    if mode is None or mode.tower is None or mode.share is None:
        return False
    start, shape = kwargs.get("initializer"), kwargs.get("shape")
    shape = tf.TensorShape(getattr(start, "shape", None) if shape is None else shape)
    if shape.rank == 0:
        return True  # TensorFlow asks no partitioner
    if not shape.is_fully_defined():
        return False
    parts = partitioner(shape=shape, dtype=tf.as_dtype(kwargs.get("dtype") or tf.float32))
    return all(count == 1 for count in parts)


def add_to_collections(variable: tf.Variable, kwargs: types.Arguments) -> None:
    """Lists a variable in the collections that were asked for, unless it stands there."""
    if not tf1.executing_eagerly_outside_functions():
        for key in collections_of(kwargs, variable):
            isolation.add_once(tf1.get_default_graph(), key, [variable])


def _aggregation(kwargs: types.Arguments) -> tf.VariableAggregation:
    aggregation = kwargs.get("aggregation")
    return variables.NONE if aggregation is None else tf.VariableAggregation(aggregation.value)


def _members(
    next_creator: types.Function, kwargs: types.Arguments, places: Sequence[str], same_start: bool
) -> list[tf.Variable]:
    """Makes the copies outside of all collections."""
    members: list[tf.Variable] = []
    for i, place in enumerate(places):
        copy = {**kwargs, "collections": []}
        if i > 0:
            # NOTE: the slash at the end keeps TensorFlow from adding the current scope.
            copy["name"] = f"tower_{i}/{members[0].name.split(':')[0]}/"
            if same_start:
                copy["initial_value"] = copies.start_of(members[0], place)
        with copies.lifted(copy, i > 0 and same_start), tf.device(place):
            members.append(copies.keep_reads_beside(next_creator(**copy)))
    copies.name_after_first(members)
    copies.take_from_collections(members)
    return members


def collections_of(kwargs: types.Arguments, variable: tf.Variable) -> list[Hashable]:
    """Returns the collections that a variable is listed in."""
    collections = kwargs.get("collections")
    listed = [tf1.GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    if copies.is_of_function(variable):
        return [key for key in listed if key != tf1.GraphKeys.TRAINABLE_VARIABLES]
    if variable.trainable and tf1.GraphKeys.TRAINABLE_VARIABLES not in listed:
        listed.append(tf1.GraphKeys.TRAINABLE_VARIABLES)
    return listed
