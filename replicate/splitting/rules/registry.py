"""The rules by kinds of operations, and what a rule sees of an operation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from replicate.splitting import states
from replicate.splitting.states import Rows, Space, WholeError

Rules = dict[str, Callable[["Case"], states.Split | None]]
RULES: Rules = {}
OF_IDS: dict[str, list[Callable[["Case"], states.Split | None]]] = {}
ALWAYS: set[str] = set()


def rule(*types: str, always: bool = False) -> Callable:
    """Registers a function as the rule of kinds of operations.

    A rule gets a `Case` and returns a `Split`; or SIZE, where the outputs are sizes. It raises
    `WholeError`, or returns None, where the operation is not split.

    Args:
        *types: The kinds.
        always: Whether the rule is asked though all inputs are whole, as for a list that will
            hold rows.
    """
    if always:
        ALWAYS.update(types)
    return _register(RULES, types)


def rule_of_ids(*types: str) -> Callable:
    """Registers a function as the rule where an input is `Local`, or has `Ids`.

    It is asked first; a kind may have several. Where none fits, the operation's other rule is
    asked: to that one ids are numbers as one device has them.

    Args:
        *types: The kinds.
    """

    def register(function):
        for name in types:
            OF_IDS.setdefault(name, []).append(function)
        return function

    return register


def _register(rules: dict, types: Sequence[str]) -> Callable:
    def register(function):
        for name in types:
            if name in rules:
                raise ValueError(f"An operation has one rule; {name} has two. Remove one.")
            rules[name] = function
        return function

    return register


class Extent(NamedTuple):
    """The length of one dimension, or an entry of a shape.

    Attributes:
        size: The length where it is known and does not depend on the batch (-1 in a shape stands
            for what is left over); None: it does, or is not known.
        multiple: How many entries each row has, where the dimension has rows: 0 where it has
            none, None where it has but their number is known only when the graph runs.
        is_picked: Whether the rows are picked ones; else they are the batch's.
    """

    size: int | None
    multiple: int | None = 0
    is_picked: bool = False

    @property
    def is_one(self) -> bool:
        """Whether the dimension is of length 1, always."""
        return self.size == 1

    def has_rows(self, space: Space | None = None) -> bool:
        """Whether the length grows with the rows, of a space like this one if it is given."""
        return self.multiple != 0 and (space is None or space.is_picked == self.is_picked)


class Facts(Protocol):
    """What is known of a graph for every size of the batch; see `analysis`."""

    def shape(self, tensor: Any) -> tuple[Extent, ...] | None:
        """Returns the extents of a tensor; None: its rank is not known."""

    def value(self, tensor: Any) -> np.ndarray | None:
        """Returns a small constant that is the same for every batch; None: it is not."""

    def shape_entries(self, tensor: Any) -> tuple[Extent, ...] | None:
        """Returns the entries of a tensor that is a shape; None: they are not known.

        An entry -1 ("as is left over") has the size -1.
        """

    def shape_view(self, tensor: Any, axis: int, space: Space) -> states.View:
        """Returns the view that gives a device's own shape; raises `WholeError`."""

    def is_measured(self, shape: Any, axis: int, space: Space) -> bool:
        """Whether a shape is that of a tensor of which devices have rows along an axis."""

    def is_own_shape(self, shape: Any, axis: int, space: Space) -> bool:
        """Whether a shape is, on a device, the whole one but for its rows along an axis, if any."""

    def literal(self, tensor: Any) -> np.ndarray | None:
        """Returns the numbers that the graph of a static batch has for the whole batch."""


class Case:
    """One operation with the states of its inputs, as a rule sees it.

    Args:
        op: The operation.
        inputs: The states of its inputs.
        analysis: What is known of the graph: `facts`, `structure`, `assumptions`, and of each
            tensor so far the `state`, and whether its whole value `is_at_hand`.
        random_numbers: `"one_device"` or `"per_device"`.
    """

    def __init__(self, op: Any, inputs: Sequence[states.State], analysis: Any, random_numbers: str):
        self.op = op
        self.type: str = op.type
        self.inputs = tuple(inputs)
        self.facts: Facts = analysis.facts
        self.structure = analysis.structure
        self.assumptions = analysis.assumptions
        self.state_of: Callable[[Any], states.State] = analysis.state
        self.is_at_hand: Callable[[Any], bool] = analysis.is_at_hand
        self.space_of: Callable[[Any], Space] = analysis.space_of
        self.batch: Space = analysis.batch
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

    def value(self, n: int) -> np.ndarray:
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

    def number(self, n: int) -> states.View:
        """Returns the view of input n, which must be the same on every device."""
        if self.inputs[n] is states.SIZE:
            self.value(n)
            return states.OWN
        return states.WHOLE

    def shape_view(self, n: int, rows: Rows) -> states.View:
        """Returns the view of input n, the shape of a result with these rows."""
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
