"""What each device holds of a tensor, and in what form an operation's copies want it.

A tensor of one device's graph has a *state*: whole, rows, partial or size. An operation that is
split has K copies, one on each device; each input of a copy is a *view* of a tensor: a state that
it is brought into, or one of the views for sizes below.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any


class Space:
    """Whose rows: those of the batch, or those that an operation picked from others.

    Device k holds a run of the rows; the runs are in order, and make all rows. How many each
    device holds is known when the graph runs.

    Args:
        name: For messages.
        source: The tensor whose first dimension has the rows, one each; None: the batch's.
    """

    def __init__(self, name: str, source: Any = None):
        self.name = name
        self.source = source

    @property
    def is_picked(self) -> bool:
        """Whether an operation picked the rows, so that only a run tells how many there are."""
        return self.source is not None

    def __repr__(self) -> str:
        return f"Space({self.name!r})"


class Kind(enum.Enum):
    """How the parts that devices hold become the value."""

    SUM = "sum"
    MEAN = "mean"  # each part is a sum; it is divided by the number of all elements
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    ALL = "all"
    ANY = "any"
    FIRST = "first"  # all devices hold the same


class _Single(enum.Enum):
    WHOLE = "whole"
    SIZE = "size"
    FLOW = "flow"
    OWN = "own"
    HANDLE = "handle"

    def __repr__(self) -> str:
        return self.name


WHOLE = _Single.WHOLE  # one value, one device's own
SIZE = _Single.SIZE  # whole numbers made from numbers of rows: whole, and each device's own
FLOW = _Single.FLOW  # the order of the operations of a TensorArray, each device's own

OWN = _Single.OWN  # a view: a size as the device has it; of any other tensor the whole value
HANDLE = _Single.HANDLE  # a view: the device's own TensorArray or stack


@dataclasses.dataclass(frozen=True)
class Ids:
    """Values are numbers of rows; on a device they count from its own first row.

    Attributes:
        space: Whose rows.
        column: Which entry of the last dimension is a row's number; None: every value is.
        stride: How many numbers each row has, as in a matrix of which entries are counted.
        is_complete: Whether each row occurs, and they are in order.
        is_upright: Whether `column` is an entry of the first dimension, not of the last.
    """

    space: Space
    column: int | None = None
    stride: int = 1
    is_complete: bool = False
    is_upright: bool = False


@dataclasses.dataclass(frozen=True)
class Rows:
    """Device k holds a run of the rows along an axis.

    Attributes:
        axis: Which dimension has the rows, from 0. Its length is a multiple of their number.
        space: Whose rows they are.
        ids: Which numbers the values are, if they are numbers of rows; None: they are not.
    """

    axis: int
    space: Space
    ids: Ids | None = None

    def at(self, axis: int) -> "Rows":
        """Returns the same rows along another axis, with values that are no row numbers."""
        return Rows(axis, self.space)


@dataclasses.dataclass(frozen=True)
class Partial:
    """The value is made of what all devices hold.

    Attributes:
        kind: How.
    """

    kind: Kind


@dataclasses.dataclass(frozen=True)
class ListOf:
    """Each device has a list of its own, whose elements have a state.

    Attributes:
        element: `Rows` or `Partial`.
    """

    element: Any


@dataclasses.dataclass(frozen=True)
class Local:
    """Each device has a value of its own, which is no part of the whole one.

    So are the different values among a device's rows, and where each of them stands. The whole
    value the operation itself makes, of whole inputs.

    Attributes:
        source: What tells one such value from another: a tensor of the operation that made it.
            Values that have an entry for each of the source's have the same one.
    """

    source: Any


@dataclasses.dataclass(frozen=True)
class Shape:
    """A view: a shape as the device's own result has it.

    The operand is the shape of a result with rows along an axis. This is the whole shape with the
    entry of that axis scaled down to the device's rows.

    Attributes:
        axis: Which entry; None: the operand is one number, of shape [].
        space: Whose rows.
    """

    axis: int | None
    space: Space


State = Any  # WHOLE | SIZE | FLOW | Rows | Partial | ListOf
View = Any  # State | OWN | HANDLE | Shape

SUM = Partial(Kind.SUM)
FIRST = Partial(Kind.FIRST)


def is_rows(state: State) -> bool:
    """Whether a state is `Rows`."""
    return isinstance(state, Rows)


def is_partial(state: State) -> bool:
    """Whether a state is `Partial`."""
    return isinstance(state, Partial)


@dataclasses.dataclass(frozen=True)
class Split:
    """How an operation is split: what a rule answers.

    Attributes:
        wants: For each input the view that the copies read.
        gives: For each output its state.
        type: The copies' type of operation, where it is another one than the original's.
        attributes: Attributes that the copies have in place of the original's.
        is_beside: Whether each copy runs where the original does, as a read of a table.
    """

    wants: Sequence[View]
    gives: Sequence[State]
    type: str | None = None
    attributes: dict = dataclasses.field(default_factory=dict)
    is_beside: bool = False


class WholeError(Exception):
    """An operation that is not split: a rule does not fit; the reason is the text.

    The operation then runs once, on whole values. No error reaches a user.
    """
