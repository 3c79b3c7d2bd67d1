"""The rules by kinds of operations, and what a rule sees of an operation."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.inference.extents import Extent
from replicate.splitting.inference.facts import Facts
from replicate.splitting.states import OWN, SIZE, SUM, WHOLE, Rows, Space, Split, View, WholeError
from replicate.splitting.structure import loops

Answer: TypeAlias = states.How | None
"""How an operation is split, or None if the rule does not fit."""

Rule: TypeAlias = Callable[["Case"], Answer]
"""Says how an operation is split; raises `WholeError`, or returns None, if it is not."""

_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
OF_IDS: dict[str, list[Rule]] = {}
ALWAYS: set[str] = set()


def rule(*types: str, always: bool = False, linear: Sequence[int] = ()) -> Callable[[_Rule], _Rule]:
    """Registers a function as the rule of kinds of operations.

    Args:
        *types: The kinds.
        always: Whether the rule is asked even if all inputs are whole, as for a list that will
            hold rows.
        linear: The operands in which together the operation is linear. If all of these are parts of
            sums, and no other has rows, so is the result; the rule is not asked.
    """
    if always:
        ALWAYS.update(types)

    def register(function: _Rule) -> _Rule:
        def answer(case: Case) -> Answer:
            parts = [n for n in range(len(case.inputs)) if n in linear]
            if parts and case.rows is None and all(case.inputs[n] == SUM for n in parts):
                return case.in_parts(parts)
            return function(case)

        for name in types:
            if name in RULES:
                raise ValueError(f"An operation has one rule; {name} has two. Remove one.")
            RULES[name] = answer if linear else function
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


def opened(shape: Any, axes: Collection[int]) -> tf.TensorShape:
    """Returns a shape that is open along some axes, such as one that an attribute has."""
    shape = tf.TensorShape(shape)
    if shape.rank is None:
        return shape
    return tf.TensorShape([None if n in axes else size for n, size in enumerate(shape)])


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation with the states of its inputs, as a rule sees it.

    Attributes:
        op: The operation.
        inputs: The states of its inputs.
        facts: What is known of the graph for every size of the batch.
        structure: The graph's loops, stacks and lists.
        assumptions: What is assumed of these.
        batch: The space of the batch's rows.
        state_of: Returns the state of a tensor, as far as the analysis has come.
        is_at_hand: Whether a tensor has rows, and its whole value is there as well.
        space_of: Returns the space of the rows that an operation picks, the same for equal picks.
        random_numbers: `"one_device"` or `"per_device"`.
    """

    op: tf.Operation
    inputs: Sequence[states.State]
    facts: Facts
    structure: loops.Structure
    assumptions: loops.Assumptions
    batch: Space
    state_of: Callable[[tf.Tensor], states.State]
    is_at_hand: Callable[[tf.Tensor], bool]
    space_of: Callable[[tf.Tensor], Space]
    random_numbers: str

    @property
    def type(self) -> str:
        """The operation's kind."""
        return self.op.type

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
        constant = self.facts.value(self.op.inputs[n])
        if constant is None:
            raise WholeError("an operand is not constant")
        return np.asarray(constant)

    def axes(self, n: int, rank: int) -> list[int]:
        """Returns input n, which names axes, as sorted numbers from 0 to rank - 1."""
        return sorted({int(axis) % rank for axis in self.value(n).reshape(-1)}) if rank else []

    def axis(self, n: int, rank: int) -> int:
        """Returns input n, which names one axis, as a number from 0 to rank - 1."""
        return int(self.value(n).reshape(-1)[0]) % rank

    def entries(self, n: int) -> tuple[Extent, ...]:
        """Returns the entries of input n, which is a shape."""
        entries = self.facts.shape_entries(self.op.inputs[n])
        if entries is None:
            raise WholeError("a shape is not known")
        return entries

    def measured(self, n: int) -> states.State:
        """Returns the state of the tensor of which input n is the shape; else `WHOLE`."""
        shape = self.op.inputs[n]
        is_shape = shape.op.type in ("Shape", "ShapeN")
        return self.state_of(shape.op.inputs[shape.value_index]) if is_shape else WHOLE

    def shape_view(self, n: int, rows: Rows) -> states.View:
        """Returns the view of input n, the shape of a result with these rows."""
        measured = self.measured(n)
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

    def plain(self, inputs: Sequence[states.State]) -> Split:
        """Returns how the rule for states without ids splits the operation, for other states."""
        answer = RULES[self.type](dataclasses.replace(self, inputs=tuple(inputs)))
        if not isinstance(answer, Split):
            raise WholeError("its inputs do not fit its rule")
        return answer

    # In which view the copies read an input.

    def same(self, n: int) -> View:
        """Returns the view of input n, which is the same on every device, constant or not."""
        is_size = self.inputs[n] is SIZE
        return OWN if is_size and self.facts.value(self.op.inputs[n]) is not None else WHOLE

    def in_parts(self, inputs: Sequence[int]) -> Split:
        """Splits an operation that is linear in some inputs together, all partial sums."""
        numbers = range(len(self.inputs))
        wants = [SUM if n in inputs else self.same(n) for n in numbers]
        return Split(wants, [SUM] * len(self.op.outputs))

    def rows_of(self, n: int) -> Rows:
        """Returns the state of input n, which must have rows."""
        state = self.inputs[n]
        if not states.is_rows(state):
            raise WholeError("its operand has no rows")
        return state

    def has(self, n: int, rows: Rows) -> bool:
        """Whether input n has these rows, along the same axis."""
        state = self.inputs[n]
        return states.is_rows(state) and state.plain == rows.plain

    def having(self, n: int, rows: Rows) -> Rows:
        """Returns the view of input n, which must have these rows, of numbers that are plain."""
        if not self.has(n, rows):
            raise WholeError("an operand has other rows")
        return rows

    def along(self, n: int, rows: Rows) -> Rows:
        """Returns the view of input n, which has an entry for each row.

        Only for an operation that fails if lengths differ: an unknown length counts as fitting.
        """
        extents = self.shape(n)
        if not 0 <= rows.axis < len(extents):
            raise WholeError("an input has no dimension for the rows")
        extent = extents[rows.axis]
        is_unknown = extent.size is None and extent.multiple == 0
        if is_unknown or extent.has_rows(rows.space) or self.has(n, rows):
            return rows
        raise WholeError("an input has another length than there are rows")

    def along_or_one(self, n: int, rows: Rows) -> View:
        """Returns the view of input n, which has an entry for each row, or one for all rows.

        The latter if its dimension is of length 1, or missing. Refuses a length that is unknown, or
        the number of other picked rows: it may happen to be 1.

        Args:
            n: Which input.
            rows: The rows, along the input's own axis; below 0 if the input does not have it.
        """
        if rows.axis < 0 or self.shape(n)[rows.axis].is_one:
            return WHOLE
        is_counted = not rows.space.is_picked and self.shape(n)[rows.axis].has_rows(rows.space)
        if self.has(n, rows) or is_counted:
            return rows
        raise WholeError("whether an operand is as long as the rows is not known")

    @staticmethod
    def _known(extents: tuple[Extent, ...] | None) -> tuple[Extent, ...]:
        if extents is None:
            raise WholeError("a rank is not known")
        return extents
