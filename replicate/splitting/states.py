"""What each device holds of a tensor, and in what form an operation's copies read it.

Each tensor of one device's graph has a *state*: whole, rows, partial, size and so on. An operation
that is split has K copies, one on each device. An input of a copy is a *view* of a tensor: the
state that it is brought into, or one of the views below.
"""

import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeGuard


class Space:
    """A set of rows: those of the batch, or those that an operation picked.

    Device k holds the k-th run of the rows. How long each run is, is known when the graph runs.

    Args:
        name: For messages.
        source: Of picked rows, the tensor that has them along its first dimension.

    Attributes:
        base: The rows themselves, for `Steps`.
    """

    def __init__(self, name: str, source: Any = None):
        self.name = name
        self.source = source
        self.base = self

    @property
    def is_picked(self) -> bool:
        """Whether an operation picked the rows: only a run tells how many there are."""
        return self.source is not None

    @functools.cached_property
    def steps(self) -> "Steps":
        """The rows' steps; the same ones each time."""
        return Steps(self)

    def __repr__(self) -> str:
        return f"Space({self.name!r})"


class Steps(Space):
    """Entries of which each row has one in each step: [T, n] in one dimension, [T * n].

    Device k holds [T * m], of its m rows: a run of each step, one behind the other. What does the
    same with each entry need not know in which order they are.

    Args:
        base: The rows.
    """

    def __init__(self, base: Space):
        super().__init__(f"steps of {base.name}")
        self.base = base


class Kind(enum.Enum):
    """How the parts that devices hold become the value."""

    SUM = "sum"
    MEAN = "mean"  # each part is a sum; it is divided by the number of all elements
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    ALL = "all"
    ANY = "any"


class _Named(enum.Enum):
    def __repr__(self) -> str:
        return self.name


class Simple(_Named):
    """States with nothing more to tell."""

    WHOLE = "whole"  # one value, as one device has it
    COPIED = "copied"  # the same, and each device has it
    SIZE = "size"  # whole numbers made from numbers of rows: the whole ones, and each device's own
    FLOW = "flow"  # the order of a TensorArray's operations, each device's own


class Own(_Named):
    """Views of what is each device's own."""

    OWN = "own"  # of a size the device's own; of any other tensor the value


WHOLE: Final = Simple.WHOLE
COPIED: Final = Simple.COPIED
SIZE: Final = Simple.SIZE
FLOW: Final = Simple.FLOW

OWN: Final = Own.OWN


@dataclasses.dataclass(frozen=True)
class Ids:
    """What numbers of rows mean; on a device they count from its own first row.

    Attributes:
        space: Whose rows.
        column: Which entry of the last dimension is a row's number, or None if every value is.
        stride: How many numbers each row has: more than one where entries of rows are counted.
        is_complete: Whether each row occurs, in order.
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
    """

    axis: int
    space: Space

    def at(self, axis: int) -> "Rows":
        """Returns the same rows along an axis, with values that are no numbers of rows."""
        return Rows(axis, self.space)

    @property
    def plain(self) -> "Rows":
        """The same rows, with values that are no numbers of rows."""
        return self.at(self.axis)


@dataclasses.dataclass(frozen=True)
class RowNumbers(Rows):
    """Rows whose values are numbers of rows.

    Attributes:
        ids: Numbers of which rows, and how.
    """

    ids: Ids

    def numbering(self, ids: Ids) -> "RowNumbers":
        """Returns the state of the same rows with other numbers."""
        return RowNumbers(self.axis, self.space, ids)


@dataclasses.dataclass(frozen=True)
class Partial:
    """Each device holds a part, and all parts make the value.

    Attributes:
        kind: How they make it.
    """

    kind: Kind


@dataclasses.dataclass(frozen=True)
class ListOf:
    """Each device has a list of its own.

    Attributes:
        element: The state of the list's elements.
    """

    element: "State"


@dataclasses.dataclass(frozen=True)
class Local:
    """Each device has a value of its own, which is no part of the whole one.

    An example are the different values among a device's rows (`Unique`). The whole value is what
    the operation makes of whole inputs.

    Attributes:
        source: What the value has an entry for: the tensor of different values, or the `Bounds` of
            ragged rows. Values of one source fit each other.
    """

    source: Any

    def fits(self, rows: Rows) -> bool:
        """Whether what a device has is what it has of rows."""
        if isinstance(self.source, Leading):
            return rows == Rows(0, self.source.rows)
        return rows.space.source is self.source


@dataclasses.dataclass(frozen=True)
class Leading:
    """Rows up to the last one that something was found for; the source of a `Local`.

    What is shorter than the rows fits no other rows. So on all devices but that of the last row it
    is as long as their rows, and only there it may be too short, as it is on one device.

    Attributes:
        rows: Whose rows.
    """

    rows: Space


@dataclasses.dataclass(frozen=True)
class Sums(Local):
    """For each of its own different values, `source`, a device has a part of a sum."""


@dataclasses.dataclass(frozen=True)
class Counted(Local):
    """The numbers of its own different values, `source`, from 0: values alike may differ in it."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A view: the whole shape of a result, but for one entry: there the device's own rows.

    Attributes:
        axis: Which entry, or None if the operand is a single number, of shape [].
        space: Whose rows.
    """

    axis: int | None
    space: Space


State: TypeAlias = Simple | Rows | Partial | ListOf | Local
View: TypeAlias = State | Own | Shape

SUM = Partial(Kind.SUM)


def is_rows(state: View) -> TypeGuard[Rows]:
    """Whether a state is `Rows`."""
    return isinstance(state, Rows)


def is_held(state: State) -> bool:
    """Whether each device has something of its own that is passed on as it is: no part of a sum."""
    return isinstance(state, (Rows, ListOf)) or state is FLOW


@dataclasses.dataclass(frozen=True)
class Split:
    """How an operation is split: what a rule returns.

    Attributes:
        wants: For each input, the view that the copies read.
        gives: For each output, its state.
        type: The copies' type of operation, if it is not the original's.
        attributes: Attributes that the copies have in place of the original's.
        is_beside: Whether the copies run where the original does, as a read of a table.
    """

    wants: Sequence[View]
    gives: Sequence[State]
    type: str = ""
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_beside: bool = False


How: TypeAlias = Split | Literal[Simple.SIZE, Simple.COPIED]
"""How an operation is split.

SIZE: each device makes its own sizes. COPIED: each device that needs it makes the whole value; the
first one runs the operation itself.
"""


class WholeError(Exception):
    """A rule cannot split an operation; the text is the reason.

    The operation then runs once, on whole values. No error reaches a user.
    """
