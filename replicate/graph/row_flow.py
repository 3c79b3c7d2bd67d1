"""What the rows of a batch meet on their way through operations.

Each operation that makes rows of rows is known to keep them apart (see `row_wise`), or is
noted; so is whatever it reads beside the rows that is not the same in each tower. A place of a
row may say where values lie, as those of a mask do: it picks a tower's own rows, and is no
longer looked at. What is noted of an operation holds for all that is made from it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from replicate.compat.tensorflow import tf
from replicate.graph import functions, row_places, row_wise

MEETS = "meets"  # rows meet rows
HIDDEN = "hidden"  # nobody knows whether they do
NUMBER = "number"  # a number of rows enters each row
COUNT = "count"  # it enters each row's whole numbers or truths
PLACE = "place"  # where a row lies in its tower
GROUPS = "groups"  # rows that have been put together by what is in them
WIDTH = "width"  # a length that a tower's own rows make
ITEM = "item"  # a row that a loop takes out of a tensor
LAYOUT = "layout"  # where a sparse or ragged tensor of the batch has its values

_SHAPES = ("Rank", "Shape", "ShapeN", "Size")
_PLACES = ("LinSpace", "Range", "Where")
_GROUPING = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
QUIET = (ITEM, LAYOUT)
_HARD = (MEETS, HIDDEN, NUMBER, COUNT, WIDTH)


class Meeting(NamedTuple):
    """Where rows meet rows.

    Attributes:
        op: The operation.
        source: The `ref()` of what brings other rows to it.
        kind: How it does.
        within: The operations that call the function in which it is, of which its name begins.
    """

    op: tf.Operation
    source: Any
    kind: str
    within: str = ""

    @property
    def name(self) -> str:
        """The operation's name, and what calls it."""
        return self.within + self.op.name

    @property
    def tensor(self) -> tf.Tensor:
        """What brings other rows to the operation."""
        return self.source.deref()

    @property
    def is_number(self) -> bool:
        """Whether it is a number of rows alone."""
        return self.kind == NUMBER


class View(Protocol):
    """A graph in which rows are looked at: the first tower's, or a function that it calls."""

    def axes(self, tensor: tf.Tensor, is_certain: bool) -> tuple[int, ...]:
        """Returns the dimensions of a tensor that are rows."""

    def start(self, tensor: tf.Tensor) -> frozenset | None:
        """Returns what is known of a tensor from the start; None: look behind it."""

    def constant(self, tensor: tf.Tensor) -> str | None:
        """Returns how a constant that has rows, as a static batch makes it, meets them."""

    def entering(self, op: tf.Operation, tensor: tf.Tensor) -> str | None:
        """Returns how a tensor without rows would meet them in an operation; None: it may."""

    def called(self, op: tf.Operation, states: Sequence[frozenset]) -> "list[Looker] | None":
        """Returns what looks into the functions that an operation calls."""


class Looker:
    """Looks for meetings in one graph; each operation is looked at once."""

    def __init__(self, view: View):
        self.view = view
        self._states: dict[tf.Operation, list[frozenset]] = {}

    def state(self, tensor: tf.Tensor) -> frozenset[Meeting]:
        """Returns the meetings that the rows of a tensor are made from."""
        self._settle(tensor)
        return self._state(tensor)

    def reduced(self, op: tf.Operation) -> frozenset[Meeting]:
        """Returns the meetings that a reduction of rows is made from, in its own products too."""
        found = frozenset().union(*map(self.state, op.inputs))
        rule, axes = row_wise.rule_of(op), self._axes(op, is_certain=True)[0]
        if rule is None or not any(axes):
            return found
        return found | self._entering(op, rule, axes)

    def _state(self, tensor: tf.Tensor) -> frozenset:
        known = self.view.start(tensor)
        if known is not None:
            return known
        return self._states.get(tensor.op, [frozenset()] * (tensor.value_index + 1))[
            tensor.value_index
        ]

    def _settle(self, tensor: tf.Tensor) -> None:
        """Looks at the operations that make a tensor, those before it first."""
        if self.view.start(tensor) is not None:
            return
        waiting, entered = [tensor.op], set()
        while waiting:
            op = waiting[-1]
            known = self._states.get(op)
            # NOTE: TensorFlow lets a loop that it derives give out more than before, in place.
            if known is not None and len(known) == len(op.outputs):
                waiting.pop()
            elif op in entered:
                self._states[op] = self._look(op)
                waiting.pop()
            else:
                entered.add(op)
                waiting.extend(
                    part.op
                    for part in op.inputs
                    if part.op not in entered and self.view.start(part) is None
                )

    def _look(self, op: tf.Operation) -> list[frozenset]:
        """Returns what is known of an operation's outputs."""
        before = [self._state(tensor) for tensor in op.inputs]
        axes, after = self._axes(op, is_certain=False)
        if not any(axes) and not any(after) and not any(before):
            return [frozenset()] * len(op.outputs)
        found = self._meetings(op, axes, after, before)
        if found and any(_is_of(meeting, op) for meeting in frozenset().union(*found)):
            # Most often the first answer is enough, and the certain one costs more.
            sure, sure_after = self._axes(op, is_certain=True)
            if any(sure_after) or not any(sure):  # else it reduces rows, and does not show it
                axes, after = sure, sure_after
                found = self._meetings(op, axes, after, before)
        return [
            state if rows or not any(axes) or tensor.dtype == tf.variant else frozenset()
            for tensor, rows, state in zip(op.outputs, after, found, strict=True)
        ]

    def _axes(self, op: tf.Operation, is_certain: bool) -> tuple[list, list]:
        of = self.view.axes
        inputs = [of(tensor, is_certain) for tensor in op.inputs]
        return inputs, [of(tensor, is_certain) for tensor in op.outputs]

    def _meetings(self, op: tf.Operation, axes: list, after: list, before: list) -> list[frozenset]:
        number = len(op.outputs)
        every = frozenset().union(*before)
        if op.type in _SHAPES:
            return [frozenset()] * number
        if op.type == "Range" and op.inputs[1].op.type == "Rank":
            return [every]  # of dimensions
        if op.type in _PLACES:
            return [every | {self._places(op)}] * number
        if not row_places.keeps_places(op):
            before = [_displaced(op, state) for state in before]
            every = frozenset().union(*before)
        if op.type == "Const":
            kind = self.view.constant(op.outputs[0])
            return [frozenset([Meeting(op, op.outputs[0].ref(), kind)] if kind else ())]
        if op.type in _GROUPING:
            return self._grouped(op, before)
        if functions.is_call(op):
            return self._called(op, axes, after, before)
        if row_wise.is_container(op):
            return [_contained(op, axes, every)] * number
        rule = row_wise.rule_of(op)
        if rule is None:
            if not any(axes) or not any(after):
                return [every] * number
            return [every | {Meeting(op, op.outputs[0].ref(), HIDDEN)}] * number
        if op.type == "RaggedTensorToTensor" and not row_places.names_widths(op):
            return [every | {Meeting(op, op.outputs[0].ref(), WIDTH)}]
        if _is_of_layout(op, axes, before):
            layout = frozenset(meeting for meeting in every if meeting.kind == LAYOUT)
            return [self._passed(op, rule, axes, before) | layout] * number
        items = [any(meeting.kind == ITEM for meeting in state) for state in before]
        is_of_rows = any(after) or any(items)
        found = self._entering(op, rule, axes, items) if is_of_rows else set()
        is_long = any(meeting.kind == WIDTH for meeting in every)  # which is said already
        if any(after) and any(axes) and not is_long:
            found |= _met(op, rule, axes, after)
        return [self._passed(op, rule, axes, before) | found] * number

    def _places(self, op: tf.Operation) -> Meeting:
        """Returns that places go into each row; or a length that other rows make."""
        for tensor in op.inputs if op.type == "Range" else ():
            if self.view.entering(op, tensor) == MEETS:
                return Meeting(op, tensor.ref(), WIDTH)
        if op.type == "Range" and not row_places.counts_up(op):
            return Meeting(op, op.outputs[0].ref(), MEETS)
        return Meeting(op, op.outputs[0].ref(), PLACE)

    def _grouped(self, op: tf.Operation, before: list) -> list[frozenset]:
        every = frozenset().union(*before)
        if all(meeting.kind == LAYOUT for meeting in before[0]) and before[0]:
            return [every] * len(op.outputs)
        groups = every | {Meeting(op, op.outputs[0].ref(), GROUPS)}
        places = every | {Meeting(op, op.outputs[0].ref(), PLACE)}
        counts = every | {Meeting(op, op.outputs[0].ref(), MEETS)}
        return [groups, places, *[counts] * (len(op.outputs) - 2)]

    def _called(self, op: tf.Operation, axes: list, after: list, before: list) -> list[frozenset]:
        """Looks into the functions that an operation calls, with what is known of its inputs."""
        states = list(before)
        lookers = self.view.called(op, states)
        if lookers is None:
            hidden = (
                {Meeting(op, op.outputs[0].ref(), HIDDEN)} if any(axes) and any(after) else set()
            )
            return [frozenset().union(*before) | hidden] * len(op.outputs)
        columns = [[looker.state(end) for end in looker.view.ends] for looker in lookers]
        found = [frozenset().union(*column) for column in zip(*columns, strict=True)]
        if functions.is_loop(op):
            found = [_kept(op, state, n) for n, state in enumerate(found)]
            states = [a | b for a, b in zip(found, states, strict=True)]
            (again,) = self.view.called(op, states)
            found = [again.state(end) for end in again.view.ends]
            found = [_kept(op, state, n) for n, state in enumerate(found)]
        known = frozenset().union(*before)
        choice = self._choosing(op) if any(after) else frozenset()
        return [_within(op, state, known) | choice for state in found]

    def _choosing(self, op: tf.Operation) -> frozenset:
        """Returns that what chooses a branch is not the same in each tower."""
        if not functions.is_branch(op):
            return frozenset()
        kind = self.view.entering(op, op.inputs[0])
        return frozenset() if kind is None else frozenset([Meeting(op, op.inputs[0].ref(), kind)])

    def _entering(
        self, op: tf.Operation, rule: row_wise.Rule, axes: list, items: Sequence[bool] = ()
    ) -> set:
        """Returns what an operation reads beside rows that is not the same in each tower."""
        found = set()
        operands = range(len(op.inputs)) if rule.operands is None else rule.operands
        if op.type == "Tile" and axes[0]:
            operands = (1,)  # as many times as there are rows, each row meets each
        for n in operands:
            is_item = n < len(items) and items[n]
            if n < len(op.inputs) and not axes[n] and not is_item:
                kind = self.view.entering(op, op.inputs[n])
                if kind == NUMBER and not op.inputs[n].dtype.is_floating:
                    kind = COUNT
                if kind is not None:
                    found.add(Meeting(op, op.inputs[n].ref(), kind))
        return found

    def _passed(self, op: tf.Operation, rule: row_wise.Rule, axes: list, before: list) -> frozenset:
        """Returns what is known of the inputs that holds for the outputs as well."""
        if not rule.indices:
            return frozenset().union(*before)
        is_picked = row_places.is_picked_by_values(op, rule, axes)
        said = frozenset().union(*(before[n] for n in rule.indices if n < len(before)))
        places = {meeting for meeting in said if meeting.kind in (PLACE, LAYOUT)}
        others = [state for n, state in enumerate(before) if n not in rule.indices]
        every = frozenset().union(*others)
        if rule.rows_of is None:
            return every | (said - places) | {place._replace(kind=LAYOUT) for place in places}
        if not is_picked:
            return every | said
        grouped = {m for m in every if m.kind == GROUPS and any(m.op is p.op for p in places)}
        of_rows = [place for place in places if place.op.type not in _GROUPING]
        if not grouped and not of_rows:
            said = said | {Meeting(op, op.inputs[rule.indices[0]].ref(), MEETS)}
        return (every - grouped) | (said - places)


def _displaced(op: tf.Operation, state: frozenset) -> frozenset:
    """Returns what is known of an input where places become others, as by a shift or a limit."""
    places = {m for m in state if m.kind == PLACE and m.op.type not in _GROUPING}
    if not places or any(meeting.kind == LAYOUT for meeting in state):
        return state
    return (state - places) | {Meeting(op, op.outputs[0].ref(), MEETS)}


def _contained(op: tf.Operation, axes: list, every: frozenset) -> frozenset:
    """Returns what is known of a list: a loop may take rows out of a tensor one by one."""
    if op.type == "TensorListStack":
        return frozenset(meeting for meeting in every if meeting.kind != ITEM)
    if op.type == "TensorListFromTensor" and 0 in axes[0]:
        return every | {Meeting(op, op.inputs[0].ref(), ITEM)}
    if op.type == "TensorArrayScatterV3" and 0 in axes[2]:
        return every | {Meeting(op, op.inputs[2].ref(), HIDDEN)}
    return every


def _kept(op: tf.Operation, state: frozenset, n: int) -> frozenset:
    """Returns what is known of what a loop hands on: a row that the next one sees meets it."""
    if op.outputs[n].dtype == tf.variant:
        return state
    items = {meeting for meeting in state if meeting.kind == ITEM}
    return (state - items) | {item._replace(kind=MEETS) for item in items}


def _within(op: tf.Operation, state: frozenset, known: frozenset) -> frozenset:
    """Returns meetings inside of what an operation calls by their whole names."""
    inside = {m._replace(within=f"{op.name}/{m.within}") for m in state - known}
    return (state & known) | inside


def _is_of(meeting: Meeting, op: tf.Operation) -> bool:
    return meeting.op is op and meeting.kind in (*_HARD, PLACE)


def _is_of_layout(op: tf.Operation, axes: list, before: list) -> bool:
    """Whether an operation computes where values lie from where values lie."""
    rows = [before[n] for n, own in enumerate(axes) if own]
    kinds = {meeting.kind for state in rows for meeting in state}
    tensors = (*op.inputs, *op.outputs)
    is_whole = all(tensor.dtype.is_integer or tensor.dtype.is_bool for tensor in tensors)
    return is_whole and LAYOUT in kinds and kinds <= {LAYOUT, PLACE} and all(rows)


def _met(op: tf.Operation, rule: row_wise.Rule, axes: list, after: list) -> set:
    """Returns whether an operation lets rows meet along the dimensions that are rows."""
    is_free = op.type in ("Reshape", "Tile") or row_places.lays_out(op)
    is_more = not is_free and max(map(len, after)) > max(map(len, axes))
    if is_more or not rule.is_apart(op, axes):
        return {Meeting(op, op.outputs[0].ref(), MEETS)}
    return set()
