"""The rules by kinds of operations, and what a rule sees of an operation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.states import Rows, Space, WholeError
from replicate.splitting.structure import loops

Answer: TypeAlias = states.How | None
"""How an operation is split, or None if the rule does not fit."""

Rule: TypeAlias = Callable[["Case"], Answer]
"""Says how an operation is split; raises `WholeError`, or returns None, if it is not."""

_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
OF_IDS: dict[str, list[Rule]] = {}
ALWAYS: set[str] = set()


def rule(*types: str, always: bool = False) -> Callable[[_Rule], _Rule]:
    """Registers a function as the rule of kinds of operations.

    Args:
        *types: The kinds.
        always: Whether the rule is asked even if all inputs are whole, as for a list that will
            hold rows.
    """
    if always:
        ALWAYS.update(types)

    def register(function: _Rule) -> _Rule:
        for name in types:
            if name in RULES:
                raise ValueError(f"An operation has one rule; {name} has two. Remove one.")
            RULES[name] = function
        return function

    return register


def rule_of_ids(*types: str) -> Callable[[_Rule], _Rule]:
    """Registers a function as a rule for operations with an input that is `Local`, or has `Ids`.

    Rules of ids are asked first, and a kind may have several. If none fits, the operation's other
    rule is asked, to which ids are numbers as one device has them.

    Args:
        *types: The kinds.
    """

    def register(function: _Rule) -> _Rule:
        for name in types:
            OF_IDS.setdefault(name, []).append(function)
        return function

    return register


class Extent(NamedTuple):
    """The length of one dimension, or an entry of a shape.

    Attributes:
        size: The length, or None if it is unknown or depends on the batch. In a shape, -1 stands
            for what is left over.
        multiple: How many entries each row has along the dimension: 0 if it has no rows, None if
            only a run tells.
        is_picked: Whether an operation picked the rows; else they are the batch's.
    """

    size: int | None
    multiple: int | None = 0
    is_picked: bool = False

    @property
    def is_one(self) -> bool:
        """Whether the dimension is of length 1, always."""
        return self.size == 1

    def has_rows(self, space: Space | None = None) -> bool:
        """Whether the length grows with rows; those of a space like this one, if given."""
        return self.multiple != 0 and (space is None or space.is_picked == self.is_picked)


class Facts(Protocol):
    """What is known of a graph for every size of the batch; see `facts.Facts`."""

    def shape(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the extents of a tensor, or None if its rank is unknown."""

    def rank(self, tensor: tf.Tensor) -> int | None:
        """Returns the rank of a tensor, or None if it is unknown."""

    def value(self, tensor: tf.Tensor) -> npt.NDArray[Any] | None:
        """Returns a small value that is the same for every batch, or None if it is not."""

    def number(self, tensor: tf.Tensor) -> Extent | None:
        """Returns a whole number of shape [], or None if it is unknown."""

    def number_view(self, tensor: tf.Tensor, space: Space) -> states.View:
        """Returns the view that gives a device's own part of a number that grows with rows."""

    def shape_entries(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the entries of a tensor that is a shape, or None if they are unknown.

        An entry -1, for what is left over, has the size -1.
        """

    def shape_view(self, tensor: tf.Tensor, axis: int, space: Space) -> states.View:
        """Returns the view that gives a device's own shape; raises `WholeError`."""

    def is_measured(self, shape: tf.Tensor, axis: int, space: Space) -> bool:
        """Whether a shape is that of a tensor with rows along an axis."""

    def is_own(self, tensor: tf.Tensor, space: Space) -> bool:
        """Whether on each device the first entry of a shape is that of its own rows."""

    def is_own_shape(self, shape: tf.Tensor, axis: int, space: Space) -> bool:
        """Whether on each device a shape is the whole one, but for its own rows along an axis."""

    def literal(self, tensor: tf.Tensor) -> npt.NDArray[Any] | None:
        """Returns the numbers that the graph of a static batch has for the whole batch."""


class Known(Protocol):
    """What an analysis knows so far; see `analysis.Analysis`."""

    @property
    def facts(self) -> Facts:
        """What is known for every size of the batch."""

    structure: loops.Structure
    assumptions: loops.Assumptions
    batch: Space

    def state(self, tensor: tf.Tensor) -> states.State:
        """Returns the state of a tensor."""

    def is_at_hand(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor has rows, and its whole value is there as well."""

    def space_of(self, tensor: tf.Tensor) -> Space:
        """Returns the space of the rows that an operation picks, the same for equal picks."""


class Case:
    """One operation with the states of its inputs, as a rule sees it.

    Args:
        op: The operation.
        inputs: The states of its inputs.
        known: What is known of the graph.
        random_numbers: `"one_device"` or `"per_device"`.
    """

    def __init__(
        self, op: tf.Operation, inputs: Sequence[states.State], known: Known, random_numbers: str
    ):
        self.op = op
        self.type: str = op.type
        self.inputs = tuple(inputs)
        self.facts = known.facts
        self.structure = known.structure
        self.assumptions = known.assumptions
        self.state_of = known.state
        self.is_at_hand = known.is_at_hand
        self.space_of = known.space_of
        self.batch = known.batch
        self.random_numbers = random_numbers

    def attribute(self, name: str) -> Any:
        """Returns an attribute; text as str."""
        value = self.op.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, n: int) -> tuple[Extent, ...]:
        """Returns the extents of input n."""
        return self._known(self.facts.shape(self.op.inputs[n]))

    def rank(self, n: int) -> int:
        """Returns the rank of input n."""
        return len(self.shape(n))

    def result_shape(self, n: int = 0) -> tuple[Extent, ...]:
        """Returns the extents of output n."""
        return self._known(self.facts.shape(self.op.outputs[n]))

    def result_rank(self, n: int = 0) -> int:
        """Returns the rank of output n."""
        return len(self.result_shape(n))

    def value(self, n: int) -> npt.NDArray[Any]:
        """Returns input n where it is a small constant, the same for every batch."""
        found = self.facts.value(self.op.inputs[n])
        if found is None:
            raise WholeError("an operand is not constant")
        return np.asarray(found)

    def axes(self, n: int, rank: int) -> list[int]:
        """Returns input n, which names axes, as sorted numbers from 0 to rank - 1."""
        return sorted({int(axis) % rank for axis in self.value(n).reshape(-1)}) if rank else []

    def axis(self, n: int, rank: int) -> int:
        """Returns input n, which names one axis, as a number from 0 to rank - 1."""
        return int(self.value(n).reshape(-1)[0]) % rank

    def entries(self, n: int) -> tuple[Extent, ...]:
        """Returns the entries of input n, which is a shape."""
        found = self.facts.shape_entries(self.op.inputs[n])
        if found is None:
            raise WholeError("a shape is not known")
        return found

    def shape_view(self, n: int, rows: Rows) -> states.View:
        """Returns the view of input n, the shape of a result with these rows."""
        made_by = self.op.inputs[n].op
        measured = self.state_of(made_by.inputs[0]) if made_by.type == "Shape" else states.WHOLE
        if isinstance(measured, states.Local) and measured.source is rows.space.source:
            return states.OWN
        return self.facts.shape_view(self.op.inputs[n], rows.axis, rows.space)

    @property
    def rows(self) -> Rows | None:
        """The state of the first input that has rows."""
        return next((state for state in self.inputs if states.is_rows(state)), None)

    def is_float(self, n: int = 0) -> bool:
        """Whether input n is of a floating or complex dtype, of which sums may be made."""
        dtype = self.op.inputs[n].dtype.base_dtype
        return dtype.is_floating or dtype.is_complex

    @staticmethod
    def _known(found: tuple[Extent, ...] | None) -> tuple[Extent, ...]:
        if found is None:
            raise WholeError("a rank is not known")
        return found
