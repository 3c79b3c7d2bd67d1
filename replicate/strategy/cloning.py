"""One tower runs; what the others would bring to a merge call is copied from what it has built.

To the function of a merge call it looks as if all towers had come: what differs between them is
a `PerDevice`, whose later values are made when somebody asks. What the function gives back to
each tower is noted, so that copies read their own tower's part.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import columns, copied_state, placement, reductions, tower_copies
from replicate.strategy import context, values

_log = logging.getLogger("replicate")


class Carried:
    """What takes tensors of a tower through a merge call, and is no nest."""

    def mapped(self, fn: Callable[[Any], Any]) -> Any:
        """Returns one of the same kind, with each tensor replaced by `fn` of it."""
        raise NotImplementedError


class Cloning:
    """The later towers of a model that is called once.

    Args:
        devices: The K towers' devices.
        given: K nests of what each tower was given.
        share: The towers' parts of the batch.
        is_required: Whether a model that cannot be copied is refused, not called K times.
    """

    def __init__(
        self, devices: Sequence[str], given: Sequence[Any], share: context.Share, is_required: bool
    ):
        self._devices = devices
        self.is_required = is_required
        self._reason: str | None = None
        self._copies: tower_copies.TowerCopies | None = None
        self._number = len(devices)
        self._is_begun = False
        self.is_given_up = False
        self._given = [tf.nest.flatten(nest, expand_composites=True) for nest in given]
        self.share = self._with_tensors(share)

    def _with_tensors(self, share: context.Share) -> context.Share:
        """Returns what the first tower sees: no truth that holds for it alone."""
        if all(has is True for has in share.has_rows):
            return share
        with tf.device("/device:CPU:0"), tf.name_scope("replicate_split"):
            has_rows = [tf.constant(True), *map(tf.convert_to_tensor, share.has_rows[1:])]
        self._given = [[*own, has] for own, has in zip(self._given, has_rows, strict=True)]
        return share._replace(has_rows=(has_rows[0], *share.has_rows[1:]))

    # The first tower.

    def start(self, prefixes: Sequence[str]) -> None:
        """Begins to watch the first tower, in the current graph.

        Args:
            prefixes: What the K towers' names begin with.
        """
        self._copies = tower_copies.TowerCopies(self._devices, prefixes, _resource_of)
        self._copies.state.count_seeds()
        for column in zip(*self._given, strict=True):
            self._give(column)
        weights = self.share.weights
        if tf.is_tensor(weights[0]):
            self._copies.give(weights)
        self._copies.begin()

    @property
    def device_function(self) -> Callable:
        """What is entered as the innermost device of the first tower."""
        return self._copies.device_function

    def ask(self, what: str) -> None:
        """Notes that the model asked for what differs between towers, and is no tensor."""
        self.refuse(f"the model asks for {what}")

    def refuse(self, reason: str) -> None:
        """Notes that the later towers cannot be copied from now on.

        Raises:
            TowerMismatchError: If they must be.
        """
        if self.is_required:
            raise copied_state.refusal(reason)
        self._reason = self._reason or reason

    @property
    def is_late(self) -> bool:
        """Whether the other towers run after all, though some of them has been copied."""
        return self.is_given_up and self._is_begun

    def gives_up(self) -> bool:
        """Whether the other towers have to run: what the first one did cannot be copied.

        Raises:
            TowerMismatchError: If they must be copied.
        """
        if self.is_given_up:
            return True
        reason = self._reason or self._copies.reason_against()
        if reason is not None:
            self.refuse(reason)
            self.is_given_up = True
            _log.info("The model is called for each of %d towers: %s.", self._number, reason)
        return self.is_given_up

    @contextlib.contextmanager
    def across(self) -> Iterator[None]:
        """Notes that what is made inside is made across towers."""
        self._is_begun = True
        self._copies.end()
        try:
            yield
        finally:
            self._copies.begin()

    def for_each(
        self, make: Callable, device: str, scope: str, brought: Sequence[Sequence]
    ) -> columns.Column:
        """Makes a tensor in the first tower, as if by itself; of the others it is copied.

        Args:
            make: Makes it.
            device: The first tower's device.
            scope: An absolute name scope.
            brought: Sequences of K tensors or numbers, of which `make` gets the first tower's.
        """
        parts = [self._given_as_tensors(column) for column in brought]
        with reductions.alone_on(device, scope), tf1.device(self.device_function):
            self._copies.begin()
            made = make(*parts)
            self._copies.end()
        return self.column(made)

    def _given_as_tensors(self, column: Sequence) -> Any:
        """Returns the first tower's part of what each tower has been given."""
        if all(not tf.is_tensor(part) and part == column[0] for part in column):
            return column[0]
        if not isinstance(column, columns.Column):
            with tf.device("/device:CPU:0"):
                column = [
                    part if tf.is_tensor(part) else tf.constant(part, tf.float64) for part in column
                ]
            if any(part is not column[0] for part in column):
                self._copies.give(column)
        return column[0]

    def finish(self) -> None:
        """Ends what `start` began."""
        self._copies.end()
        self._copies.state.count_no_more()

    # To the function of a merge call, and back.

    def lift(self, nest: Any) -> Any:
        """Returns for what the first tower brings what all towers bring."""
        group = _Group(self._copies)

        def leaf(value):
            container = values.container_of(value)
            if container is not None:
                return container
            if isinstance(value, tf.Variable) and _is_written(value):
                value = tf.convert_to_tensor(value)
            if not self._differs(value):
                return value
            _map_tensors(group.want, value)
            return values.PerDevice(self._of_group(value, group), self._devices)

        return values.map_nest(leaf, nest)

    def _differs(self, value: Any) -> bool:
        """Whether towers have not one and the same tensor or operation."""
        if isinstance(value, Carried):
            return True
        return _is_of_graph(value) and any(map(self._copies.differs, _leaves(value)))

    def column(self, value: Any) -> columns.Column:
        """Returns what K towers have in place of a tensor, operation or nest of the first one."""
        group = _Group(self._copies)
        _map_tensors(group.want, value)
        return self._of_group(value, group)

    def _of_group(self, value: Any, group: "_Group") -> columns.Column:
        return columns.Column(value, self._number, lambda: group.later(value))

    def note(self, result: Any) -> None:
        """Takes note of what each tower is given of what a merge function returned."""
        values.map_nest(self._note, result)

    def _note(self, value: Any) -> None:
        if not isinstance(value, values.DistributedValues):
            return
        held = value.values
        if isinstance(held, columns.Column):  # what the towers brought is what they get back
            return
        held = (*held, *held[:1] * (self._number - len(held)))
        leaves = [_leaves(each) for each in held]
        for column in zip(*leaves, strict=True):
            self._give(column)

    def _give(self, column: Sequence[Any]) -> None:
        if isinstance(column[0], tf.Operation):
            return
        if isinstance(column[0], tf.Tensor):
            self._copies.give(column)
        elif any(each is not column[0] and each != column[0] for each in column[1:]):
            self.refuse(f"a merge call gives towers different values, as {column[:2]!r}")

    def operations(self, tower_id: int) -> set[tf.Operation]:
        """Returns what has been copied for a later tower."""
        return self._copies.operations(tower_id)

    def copied(self, operations: Sequence[Any]) -> list[tuple]:
        """Returns the later towers' copies of those operations that have been copied."""
        there = [op for op in operations if self._copies.has(getattr(op, "op", op))]
        return [tuple(own) for own in self._copies.of(there)]


class _Group:
    """Tensors that are copied together, when one of them is asked for.

    Args:
        copies: Makes the copies.
    """

    def __init__(self, copies: tower_copies.TowerCopies):
        self._copies = copies
        self._wanted: list = []
        self._made: list[dict] | None = None

    def want(self, tensor: Any) -> Any:
        """Adds a tensor or operation of the first tower."""
        self._wanted.append(tensor)
        return tensor

    def later(self, value: Any) -> list:
        """Returns the later towers' values in place of one of the first tower's."""
        if self._made is None:
            found = self._copies.of(self._wanted)
            keys = [_key(each) for each in self._wanted]
            self._made = [dict(zip(keys, own, strict=True)) for own in found]
        return [_map_tensors(lambda t, own=own: own[_key(t)], value) for own in self._made]


def _key(each: Any) -> Any:
    return each.ref() if isinstance(each, tf.Tensor) else each


def _is_of_graph(value: Any) -> bool:
    if isinstance(value, tf.Variable):
        return False
    return tf.is_tensor(value) or isinstance(value, (tf.Operation, tf.IndexedSlices))


def _is_written(variable: tf.Variable) -> bool:
    """Whether a variable is what an assignment has returned, to be read after it."""
    return variable.op.type not in placement.VARIABLE_TYPES


def _map_tensors(fn: Callable, value: Any) -> Any:
    """Returns a value with its tensors and operations replaced; in nests, and what is carried."""

    def leaf(each):
        if isinstance(each, Carried):
            return each.mapped(lambda inner: _map_tensors(fn, inner))
        if isinstance(each, (tf.Tensor, tf.Operation)):
            return fn(each)
        if _is_of_graph(each):
            return tf.nest.map_structure(fn, each, expand_composites=True)
        if isinstance(each, tf.Variable) and _is_written(each):
            return fn(each.op)
        return each

    return values.map_nest(leaf, value)


def _leaves(value: Any) -> list:
    found: list = []

    def leaf(each):
        if isinstance(each, Carried):
            each.mapped(lambda inner: values.map_nest(leaf, inner))
        elif _is_of_graph(each) and not isinstance(each, tf.Operation):
            found.extend(tf.nest.flatten(each, expand_composites=True))
        else:
            found.append(each)
        return each

    values.map_nest(leaf, value)
    return found


def _resource_of(i: int, handle: tf.Tensor) -> tf.Tensor:
    """Returns tower i's copy of a variable, given the first one's handle."""
    container = values.container_of(handle.op.outputs[0])
    if container is None or len(container.members) == 1:
        return handle
    return container.members[i].handle
