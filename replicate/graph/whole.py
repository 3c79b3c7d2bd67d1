"""What K towers compute of their rows becomes what one device computes of the whole batch.

A tensor without rows that is made from the batch is a function of *row reductions*: sums,
means, numbers of rows. Walking back from it, the operations that reduce rows end the walk;
what lies behind them, the *tail*, reads numbers and weights alone. A sum joins over towers as
the sum, a mean as the mean weighted by the elements that each tower averaged; the tail,
copied with the joined values in place of the towers' own, gives the whole batch's value.

With a static batch, numbers of rows are constants that TensorFlow and Python have folded. So
there the tail is taken from the model's graph on the whole batch, operation by operation
beside the towers': constants that differ are numbers of rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import (
    ancestry,
    carriers,
    columns,
    copying,
    reductions,
    row_dimensions,
    row_meetings,
    row_reductions,
    tails,
)

SCOPE = "replicate_whole/"  # of whatever is joined: no name of the model's is taken


class Rows(NamedTuple):
    """The rows of K towers.

    Attributes:
        given: K lists of the dense tensors that make a tower's part of the batch.
        counts: K numbers n_i; ints, or int32 tensors of shape [].
        weights: K parts n_i / B: floats, or float64 tensors of shape [].
        has_rows: K truths n_i > 0: bools, or bool tensors of shape [].
        devices: The K towers' devices.
        home: The device on which what is joined is computed.
        layout: Those of the first tower's tensors that say where a sparse or ragged tensor has
            its values.
        shapes: Those that are the shape of a sparse tensor.
        across: Joins what workers bring, a `collectives.Across`; None: there is one worker.
    """

    given: Sequence[Sequence[tf.Tensor]]
    counts: Sequence[Any]
    weights: Sequence[Any]
    has_rows: Sequence[Any]
    devices: Sequence[str]
    home: str
    layout: Sequence[tf.Tensor] = ()
    shapes: Sequence[tf.Tensor] = ()
    across: Any = None

    @property
    def is_lone(self) -> bool:
        """Whether the first tower is one of several, and has all rows there are."""
        is_one_of_many = len(self.devices) > 1 and self.across is None
        return is_one_of_many and all(has is False for has in self.has_rows[1:])

    @property
    def is_single(self) -> bool:
        """Whether there is one tower, and nothing to join."""
        return len(self.devices) == 1 and self.across is None

    def join(self, weights: Sequence[Any] | None = None) -> row_reductions.Join:
        """Returns what joins row reductions.

        Args:
            weights: K parts for what is unknown; None: the parts of the rows.
        """
        weights = weights or self.weights
        return row_reductions.Join(self.has_rows, self.devices, self.home, weights, self.across)


class Joined(NamedTuple):
    """A row reduction, joined over towers.

    Attributes:
        value: The whole batch's, on the home device.
        factors: K scalars: the derivative of the joined value by each tower's own. None: 1.
    """

    value: tf.Tensor
    factors: Sequence[Any] | None


class Whole:
    """Joins what K towers made of their rows.

    Args:
        rows: The towers' rows.
        partner: Returns what the graph of the whole batch has in place of a tensor of the
            first tower, or None; where the batch is dynamic, None itself.
        warn: Called once for each tensor that hides how its rows were reduced, with the
            first tower's tensor and a reason.
    """

    def __init__(
        self, rows: Rows, partner: Callable | None, warn: Callable[[tf.Tensor, str], None]
    ):
        self.rows = rows
        self._partner = partner
        self._warn = warn
        self.ends: set[tf.Operation] = set()
        self._known: dict[Any, tails.Reduction] = {}
        self._joined: dict[Any, Joined] = {}
        self._copied: dict[Any, tuple] = {}
        self._differing: dict[Any, bool] = {}
        self.is_lone = rows.is_lone
        self.unknown_weights: Sequence[Any] | None = None
        self.cloning: Any = None  # where the model is called once
        sources = [tensor.op for tensor in rows.given[0]]
        self.varying = ancestry.Descent(sources, self.ends)
        self.dependent = ancestry.Descent(sources)
        self._dimensions = row_dimensions.RowDimensions(
            rows.given[0], self.varying, rows.shapes, bool(rows.layout)
        )
        self._layout = {tensor.ref() for tensor in rows.layout}
        self.meetings = row_meetings.Meetings(self)

    # What is whole already.

    def note(
        self, column: Sequence[tf.Tensor], kind: str = tails.WHOLE, parts: Sequence = ()
    ) -> None:
        """Takes note of a value that is the whole batch's in each of K towers.

        Args:
            column: K tensors, which may be one and the same.
            kind: `"whole"` where derivatives by it find their way through its own gradient
                function; `"sum"` where it is the sum of `parts`.
            parts: K tensors of which the towers' rows are in.
        """
        made = columns.made(column)
        self.ends.update(tensor.op for tensor in made)
        self.dependent.add(column[0].op)
        for tensor in made:
            self._known[tensor.ref()] = tails.Reduction(
                kind, columns.of(parts or column), column[0]
            )
        if parts:
            self._joined[parts[0].ref(), kind] = Joined(column[0], None)

    def noted(self, tensor: tf.Tensor) -> tails.Reduction | None:
        """Returns the reduction behind a tensor that is whole already."""
        return self._known.get(tensor.ref())

    def is_whole(self, tensor: Any) -> bool:
        """Whether a tensor of the first tower depends on its rows through whole values alone."""
        parts = tf.nest.flatten(tensor, expand_composites=True)
        return not any(part.op in self.varying or self._is_folded(part) for part in parts)

    def _is_folded(self, tensor: tf.Tensor) -> bool:
        """Whether a number of rows has been folded into a constant of a static batch."""
        source = None if self._partner is None else self._partner(tensor)
        return source is not None and self.differs(tensor, source)

    def has_rows(self, tensor: tf.Tensor) -> bool | None:
        """Whether a tensor of the first tower has rows; None where its rank is unknown."""
        if tensor.shape.rank is None and tensor.op in self.varying:
            return None
        return bool(self.axes(tensor))

    def axes(self, tensor: tf.Tensor, is_certain: bool = False) -> tuple[int, ...]:
        """Returns the dimensions of a tensor of the first tower that are rows, if any are."""
        source = self.source_of(tensor)
        if source is None:  # nobody knows; what is as long as the tower's rows has rows
            length = tensor.shape[0] if tensor.shape.rank else 0
            return (
                (0,) if tensor.op in self.varying and length in (None, self.rows.counts[0]) else ()
            )
        return self.row_dimensions(tensor, source, is_certain) or ()

    def row_dimensions(
        self, tensor: tf.Tensor, source: tf.Tensor | None = None, is_certain: bool = False
    ) -> tuple | None:
        """Returns the dimensions that are rows; see `row_dimensions.RowDimensions`."""
        return self._dimensions.of(tensor, source if self._partner else None, is_certain)

    def called(self, op: tf.Operation) -> list | None:
        """Returns the functions that an operation of the first tower calls; see `called` there."""
        if self._partner is None:
            return self._dimensions.called(op)
        source = self._partner(op.outputs[0]) if op.outputs else None
        return None if source is None else self._dimensions.called(op, source.op)

    def source_of(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the tensor from which tails are copied: with a dynamic batch, itself."""
        return tensor if self._partner is None else self._partner(tensor)

    # From each tower.

    def copies(self) -> Any:
        """Returns what copies later towers, a `cloning.Cloning`; None: all towers run."""
        return None if self.cloning is None or self.cloning.is_given_up else self.cloning

    def for_each(self, make: Callable, *columns_of: Sequence[Any]) -> Sequence[tf.Tensor]:
        """Makes a tensor in each tower, on its device.

        Args:
            make: Makes it of each column's value of the tower.
            *columns_of: Sequences of K tensors or numbers.
        """
        copies, devices = self.copies(), self.rows.devices
        if copies is not None:
            return copies.for_each(make, devices[0], SCOPE, columns_of)
        made = []
        for device, *parts in zip(devices, *columns_of, strict=True):
            with reductions.alone_on(device, SCOPE):
                made.append(make(*parts))
        return made

    # From towers to the whole.

    def value(self, column: Sequence[tf.Tensor], declared: str | None = None) -> tf.Tensor:
        """Returns the whole batch's value of a tensor without rows; on the home device.

        Args:
            column: K tensors, one of each tower, without rows.
            declared: See `copied`.

        Raises:
            TowerMismatchError: If their dtypes or shapes differ.
        """
        return self.copied(column, declared)[1][column[0].ref()]

    def copied(self, column: Sequence[tf.Tensor], declared: str | None = None) -> tuple:
        """Copies what makes a tensor without rows, on the home device.

        Args:
            column: K tensors, one of each tower, without rows.
            declared: `"sum"` or `"mean"`: how rows are reduced, whatever the model says.

        Returns:
            The tail, and the copies by the `ref()` of the first tower's tensors.

        Raises:
            TowerMismatchError: If dtypes or shapes of the column differ.
        """
        key = (column[0].ref(), declared)
        if key not in self._copied:
            column = reductions.require_alike(column)
            tail = self.tail(column, declared)
            for tensor, reason in tail.unknown:
                self._warn(tensor, reason)
            self.join(tail.reductions)
            joined = {part.source.ref(): self.joined(part).value for part in tail.reductions}
            replaced = {**self._alike(tail.inputs), **joined}
            with self.at_home(), tf1.control_dependencies(tail.waits):
                made = {**replaced, **copying.copied(tail.operations, replaced, "tail")}
            copies = {own: made[source] for own, source in tail.twins.items() if source in made}
            self._copied[key] = (tail, copies)
        return self._copied[key]

    def _alike(self, inputs: dict) -> dict:
        """Returns what a tail reads, of which what is random is the first worker's."""
        across = self.rows.across
        if across is None:
            return inputs
        drawn = {
            key: own
            for key, own in inputs.items()
            if carriers.is_sent(own) and not ancestry.is_repeatable([own], self.ends)
        }
        with self.at_home():
            found = across.from_first(list(drawn.values())) if drawn else ()
            pairs = zip(drawn.items(), found, strict=True)
            return {**inputs, **{key: _in_place_of(own, first) for (key, own), first in pairs}}

    def tail(self, column: Sequence[tf.Tensor], declared: str | None = None) -> tails.Tail:
        """Returns how a tensor without rows is made of row reductions; see `copied`."""
        if self.is_lone:
            return tails.lone_tail(column)
        tail = tails.Walk(self, column, self.source_of(column[0])).tail
        kinds = {part.kind for part in tail.reductions} - {tails.WHOLE}
        if declared is None or kinds <= {declared}:
            return tail
        return tails.Walk(self, column, column[0], declared).tail

    def at_home(self):
        """Enters the scopes in which what is joined is computed."""
        return reductions.alone_on(self.rows.home, SCOPE)

    def joined(self, reduction: tails.Reduction) -> Joined:
        """Joins a row reduction over towers."""
        self.join([reduction])
        return self._joined[_key(reduction)]

    def join(self, found: Sequence[tails.Reduction]) -> None:
        """Joins row reductions over towers, and over workers in one transfer."""
        missing = {_key(part): part for part in found if _key(part) not in self._joined}
        if not missing:
            return
        with self.at_home():
            asked = {}
            for key, part in missing.items():
                if part.kind == tails.WHOLE:
                    self._joined[key] = Joined(part.column[0], self.rows.weights)
                elif part.kind == "shape" and self._partner is not None:
                    self._joined[key] = Joined(_static_shape(part.source), None)
                else:
                    asked[key] = (part.kind, part.column, *self._axes_of_shape(part))
            made = self.rows.join(self.unknown_weights).join(list(asked.values()))
            for key, (value, factors) in zip(asked, made, strict=True):
                self._joined[key] = Joined(value, factors)

    def _axes_of_shape(self, part: tails.Reduction) -> tuple:
        if part.kind != "shape":
            return ()
        shape = part.column[0]
        return (self._dimensions.of(shape.op.inputs[shape.value_index]) or (),)

    # What a walk asks.

    def kind_of(self, column: Sequence[tf.Tensor], source: tf.Tensor) -> tuple:
        """Returns the kind of the row reduction that K tensors are, and a reason if unknown.

        The kind is None where something is before them.
        """
        op = column[0].op
        if op.type in row_reductions.LENGTHS and any(t.ref() in self._layout for t in op.inputs):
            return tails.UNKNOWN, f"{op.name} counts where values lie, not rows"
        for is_certain in (False, True):  # most often the first answer is enough, and costs less
            axes = [
                self.row_dimensions(tensor, other, is_certain)
                for tensor, other in zip(op.inputs, source.op.inputs, strict=True)
            ]
            with_rows = [found is None or bool(found) for found in axes]
            if not any(with_rows):
                break
            kind = row_reductions.kind_of(op, with_rows, [found or () for found in axes])
            if kind != tails.UNKNOWN or is_certain:
                return kind, f"{op.name} hides how rows were reduced"
        if row_reductions.is_opaque(op):
            return tails.UNKNOWN, f"nobody can see into {op.name}"
        return None, ""

    def differs(self, tensor: tf.Tensor, source: tf.Tensor) -> bool:
        """Whether a tensor of constants is another one in the whole batch's graph."""
        if self._partner is None:
            return False
        key = source.ref()
        if key not in self._differing:
            self._differing[key] = False
            self._differing[key] = self._constants_differ(tensor, source)
        return self._differing[key]

    def _constants_differ(self, tensor: tf.Tensor, source: tf.Tensor) -> bool:
        op, other = tensor.op, source.op
        if op in self.ends:
            return False
        if op.type != other.type or len(op.inputs) != len(other.inputs):
            return "Const" in (op.type, other.type)
        if op.type == "Const":
            return not np.array_equal(_constant(tensor), _constant(source))
        if op.type == "StridedSlice" and op.inputs[0].op.type == other.inputs[0].op.type == "Const":
            own, all_ = [row_dimensions.sliced(o, _constant(o.inputs[0])) for o in (op, other)]
            return own is None or not np.array_equal(own, all_)
        pairs = zip(op.inputs, other.inputs, strict=True)
        return any(self.differs(*pair) for pair in pairs)


def _in_place_of(own: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """Returns the first worker's value, which is derived as this worker's own is."""
    linked = tf.custom_gradient(lambda own, first: (tf.identity(first), lambda dy: (dy, None)))
    return linked(own, first)


def _key(reduction: tails.Reduction) -> tuple:
    return reduction.column[0].ref(), reduction.kind


def _constant(tensor: tf.Tensor) -> Any:
    return tf.make_ndarray(tensor.op.get_attr("value"))


def _static_shape(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the shape that an operation of the whole batch's graph gives."""
    shape = tensor.op.inputs[tensor.value_index].shape
    return tf.constant(shape.as_list(), tensor.dtype)
