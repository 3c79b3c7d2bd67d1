"""Rows that are picked from others, and numbers of rows.

What a mask leaves, or what a sparse tensor holds, is on the devices that have the rows it comes
from: each device has a run of it, whose length only a run of the graph tells. On a device, numbers
of rows count from its own first row, so that it finds its own rows by them.
"""

import dataclasses

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import elementwise, gathers, registry, shapes
from replicate.splitting.rules.registry import Case, rule, rule_of_ids
from replicate.splitting.states import (
    OWN,
    SIZE,
    WHOLE,
    Counted,
    Ids,
    Local,
    RowNumbers,
    Rows,
    Space,
    Split,
    State,
    Steps,
    View,
    WholeError,
)

# Of a table's entries the shape may not be inferred.
_ENTRY_BY_ENTRY = (*elementwise.EACH, "LookupTableFind", "LookupTableFindV2")
_SEGMENTS = ("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")


@rule("Where")
def _where(case: Case) -> Split:
    """The coordinates of what is true, of shape [n, rank], row by row."""
    rows = case.inputs[0]
    if not states.is_rows(rows) or rows.axis != 0:
        raise WholeError("its rows are not along the first dimension")
    check_no_loop(case)
    ids = Ids(rows.space, 0, entries_of_a_row(case, 0))
    return Split([rows.at(0)], [RowNumbers(0, case.space_of(case.op.outputs[0]), ids)])


def entries_of_a_row(case: Case, n: int) -> int:
    """Returns how many entries along the first dimension of input n each row has."""
    state, waiting = without(case.inputs[n]), [case.op.inputs[n]]
    seen = set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen or without(case.state_of(tensor)) != state:
            continue
        seen.add(tensor.ref())
        extents = case.facts.shape(tensor)
        if extents and extents[0].multiple:
            return extents[0].multiple
        if tensor.op.type in (*_SEGMENTS, *gathers.SPARSE_SEGMENTS):
            ids = case.state_of(tensor.op.inputs[-1])
            if isinstance(ids, RowNumbers) and ids.ids.is_complete:
                return ids.ids.stride
        waiting.extend(_as_long(case, tensor))
    raise WholeError("how many entries a row has is not known")


def _as_long(case: Case, tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns what tells a tensor's length: if it has rows too, it has as many entries of them."""
    rank, made_by = case.facts.rank(tensor), tensor.op
    if made_by.type == "Reshape":
        return _reshaped_as_long(case, tensor)
    if made_by.type in ("ExpandDims", "Squeeze"):
        return [made_by.inputs[0]]
    if made_by.type not in _ENTRY_BY_ENTRY:
        return []
    return [each for each in made_by.inputs if rank is not None and case.facts.rank(each) == rank]


def _reshaped_as_long(case: Case, tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns what tells the first length of a reshaped tensor."""
    given, shape = tensor.op.inputs
    if shape.op.type == "Shape":
        return [shape.op.inputs[0]]
    old, new = case.facts.shape(given), case.facts.shape(tensor)
    behind = shapes.num_entries(old[1:]) if old else None
    is_there = behind and new and shapes.num_entries(new[1:]) == behind
    return [given] if is_there else []


def check_order(case: Case) -> None:
    """Refuses rows of which a device has no run."""
    if any(states.is_rows(each) and isinstance(each.space, Steps) for each in case.inputs):
        raise WholeError("its rows are not one behind the other")


def check_no_loop(case: Case) -> None:
    """Refuses what picks or counts rows in a loop: outside, their number is not known.

    Of `Steps` it would count other entries than one device does.
    """
    check_order(case)
    if case.structure.loop(case.op) is not None:
        raise WholeError("it is in a loop")


@rule("Range", always=True)
def _range(case: Case) -> registry.Answer:
    """The numbers of all rows: from 0, by 1, up to a number of rows."""
    check_no_loop(case)
    number = case.facts.number(case.op.inputs[1])
    if SIZE in case.inputs and case.result_shape()[0].size is not None:
        return SIZE
    local = counted(case, case.op.inputs[1])
    if local is not None:
        return Split([case.same(0), OWN, case.same(2)], [Counted(local.source)])
    if number is None or not number.multiple:
        raise WholeError("it is no range of rows")
    if int(case.value(0)) != 0 or int(case.value(2)) != 1:
        raise WholeError("it does not count from 0 by 1")
    if not case.op.outputs[0].dtype.is_integer:
        raise WholeError("numbers of rows are whole")
    space = _space_of_number(case, 1)
    view = case.facts.number_view(case.op.inputs[1], space)
    numbers_of_all = RowNumbers(0, space, Ids(space, None, number.multiple, True))
    return Split([case.same(0), view, case.same(2)], [numbers_of_all])


def counted(case: Case, number: tf.Tensor) -> Local | None:
    """Returns the state of the value of a device's own whose entries a number counts, if any."""
    made_by = number.op
    if made_by.type == "ExpandDims":
        made_by = made_by.inputs[0].op
    if made_by.type == "StridedSlice":
        bounds = [case.facts.value(tensor) for tensor in made_by.inputs[1:]]
        is_first = made_by.get_attr("shrink_axis_mask") == 1 and bounds[0] == [0]
        made_by = made_by.inputs[0].op if is_first else made_by
    if made_by.type == "Cast":
        made_by = made_by.inputs[0].op
    if made_by.type not in ("Shape", "Size") or case.state_of(number) is not SIZE:
        return None
    if made_by.type == "Size" and case.facts.rank(made_by.inputs[0]) != 1:
        return None
    state = case.state_of(made_by.inputs[0])
    return state if isinstance(state, Local) else None


def _space_of_number(case: Case, n: int) -> Space:
    """Returns whose rows a number counts, which is known to count rows."""
    number = case.facts.number(case.op.inputs[n])
    is_picked = number is not None and number.is_picked
    return shapes.space_of_size(case, n, True) if is_picked else case.batch


# What keeps numbers of rows.


@rule_of_ids("Identity", "StopGradient", "PreventGradient", "Snapshot")
def same(case: Case) -> Split:
    """The value itself."""
    (state,) = case.inputs
    return Split([state], [state])


@rule_of_ids("Cast")
def _cast(case: Case) -> Split:
    """The same numbers in another dtype that has them."""
    dtype = case.op.outputs[0].dtype
    if isinstance(case.inputs[0], RowNumbers) and dtype not in (tf.int32, tf.int64):
        raise WholeError("numbers of rows become no numbers")
    return same(case)


@rule_of_ids("StridedSlice")
def _slice(case: Case) -> Split:
    """A column of coordinates, `[:, c]`, that names the rows or not; or numbers with more axes."""
    state = numbers(case, 0)
    if state.ids.column is None:
        return _moved(case)
    if state.axis != 0 or case.rank(0) != 2:
        raise WholeError("they are no coordinates")
    begin, _, strides = (case.value(n) for n in (1, 2, 3))
    is_column = (
        len(begin) == 2
        and strides[0] == 1
        and case.attribute("begin_mask") & 1
        and case.attribute("end_mask") & 1
        and case.attribute("shrink_axis_mask") == 2
        and not case.attribute("ellipsis_mask")
        and not case.attribute("new_axis_mask")
    )
    width = case.shape(0)[1].size
    if not is_column or width is None:
        raise WholeError("it takes no column of coordinates")
    column = state.at(0)
    if int(begin[1]) % width == state.ids.column:
        column = state.numbering(dataclasses.replace(state.ids, column=None))
    return Split([state, *[case.same(n) for n in (1, 2, 3)]], [column])


@rule_of_ids("Transpose")
def _transposed(case: Case) -> Split:
    """Upright coordinates, a column each, become a row each; numbers move."""
    state = case.inputs[0]
    if not isinstance(state, RowNumbers) or not state.ids.is_upright:
        return _moved(case)
    if case.rank(0) != 2 or list(case.value(1).reshape(-1)) != [1, 0]:
        raise WholeError("it makes no coordinates")
    ids = dataclasses.replace(state.ids, is_upright=False)
    return Split([state, case.same(1)], [RowNumbers(1 - state.axis, state.space, ids)])


@rule_of_ids("BroadcastTo", "ExpandDims", "Reshape", "Squeeze", "Tile")
def _moved(case: Case) -> Split:
    """The same numbers in other places; coordinates in one dimension, [n, 1], are numbers."""
    state, others = numbers(case, 0), case.inputs[1:]
    if column_of(case, 0) not in (None, 0) or any(isinstance(o, RowNumbers) for o in others):
        raise WholeError("they are no numbers of rows")
    if state.ids.column is not None and not case.shape(0)[-1].is_one:
        raise WholeError("they are coordinates in several dimensions")
    moved = case.plain([state.plain, *others])
    (rows,) = moved.gives
    if moved.wants[0] != state.plain or not states.is_rows(rows):
        raise WholeError("its rows are others then")
    is_complete = state.ids.is_complete and case.type in ("ExpandDims", "Reshape", "Squeeze")
    ids = dataclasses.replace(state.ids, column=None, is_complete=is_complete)
    wants = [state, *moved.wants[1:]]
    return dataclasses.replace(moved, wants=wants, gives=[RowNumbers(rows.axis, rows.space, ids)])


@rule_of_ids("ConcatV2", "Pack")
def _columns(case: Case) -> Split:
    """Numbers of rows beside other numbers, in the last axis or a new first one: coordinates."""
    is_new = case.type == "Pack"
    rank, values = case.rank(0) + is_new, range(len(case.inputs) - (not is_new))
    axis = case.attribute("axis") % rank if is_new else case.axis(len(values), rank)
    is_upright = is_new and axis == 0
    if rank < 2 or not (is_upright or axis == rank - 1):
        raise WholeError("it makes no coordinates")
    with_ids = [n for n in values if isinstance(case.inputs[n], RowNumbers)]
    if len(with_ids) != 1:
        raise WholeError("several operands are numbers of rows")
    state, rows = numbers(case, with_ids[0]), numbers(case, with_ids[0]).plain
    widths = [1 if is_new else case.shape(n)[-1].size for n in values[: with_ids[0] + 1]]
    is_column = state.ids.column is None if is_new else column_of(case, with_ids[0]) == 0
    known = [width for width in widths if width is not None]
    if not is_column or len(known) < len(widths) or widths[-1] != 1:
        raise WholeError("they are no column of coordinates")
    for n in values:
        extent = case.shape(n)[rows.axis]
        is_counted = extent.has_rows(rows.space) and not rows.space.is_picked
        if not is_counted and not case.has(n, rows):
            raise WholeError("whether an operand is as long as the rows is not known")
    ids = dataclasses.replace(state.ids, column=sum(known) - 1, is_upright=is_upright)
    wants: list[View] = [state if n == with_ids[0] else rows for n in values]
    others = [case.same(n) for n in range(len(values), len(case.inputs))]
    return Split([*wants, *others], [RowNumbers(rows.axis + is_upright, rows.space, ids)])


# What finds rows by their numbers.


@rule_of_ids("GatherV2", "Gather")
def _gather(case: Case) -> Split:
    """A device's own rows of `params`, by their numbers there."""
    params, indices = case.inputs[:2]
    more = [case.same(2)] if case.type == "GatherV2" else []
    if case.type == "GatherV2" and (case.attribute("batch_dims") or case.axis(2, case.rank(0))):
        raise WholeError("it gathers along another dimension")
    if not isinstance(indices, RowNumbers) or not _are_of(indices, case, 0):
        raise WholeError("the numbers are not those of the rows")
    if isinstance(params, RowNumbers) and indices.axis == 0:
        if params.ids.column is not None or case.rank(0) == 1:
            ids = dataclasses.replace(params.ids, is_complete=False)
            return Split([params, indices, *more], [indices.numbering(ids)])
    return Split([without(params), indices, *more], [indices.plain])


@rule_of_ids("GatherNd")
def _gather_nd(case: Case) -> Split:
    """A device's own entries of `params`, by coordinates of which the first is a row's number."""
    indices = case.inputs[1]
    if not isinstance(indices, RowNumbers) or indices.axis == case.rank(1) - 1:
        raise WholeError("the coordinates are not those of the rows")
    if not _are_of(indices, case, 0, column=0):
        raise WholeError("the coordinates are not those of the rows")
    return Split([without(case.inputs[0]), indices], [indices.plain])


@rule_of_ids(*_SEGMENTS, *gathers.SEGMENTS)
def _segments(case: Case) -> Split:
    """Sums and the like by rows: as many as there are rows, or else each row must occur."""
    is_told = len(case.inputs) > 2
    ids = named(case, 1, is_complete=not is_told)
    number = [number_of(case, 2, ids)] if is_told else []
    return Split([case.having(0, Rows(0, ids.space)), ids, *number], [Rows(0, ids.ids.space)])


def number_of(case: Case, n: int, ids: RowNumbers) -> View:
    """Returns the view of input n, the number of the rows that ids name."""
    number, space = case.facts.number(case.op.inputs[n]), ids.ids.space
    if number is None or number.multiple != ids.ids.stride or not number.has_rows(space):
        raise WholeError("it makes another number of rows")
    if _space_of_number(case, n) is not space:
        raise WholeError("it makes another number of rows")
    return case.facts.number_view(case.op.inputs[n], space)


@rule_of_ids("ScatterNd")
def _scatter(case: Case) -> Split:
    """Entries at coordinates of which the first is a row's number."""
    indices = coordinates(case, 0)
    if case.rank(0) < 2:
        raise WholeError("the coordinates are not those of rows")
    updates = case.having(1, Rows(0, indices.space))
    check_shape(case, 2, indices.ids)
    rows = Rows(0, indices.ids.space)
    return Split([indices, updates, case.shape_view(2, rows)], [rows])


def check_shape(case: Case, n: int, ids: Ids) -> None:
    """Refuses input n, a shape, if its first entry is not the number of the rows that ids count."""
    first = case.entries(n)[0]
    if not first.has_rows(ids.space) or first.multiple != ids.stride:
        raise WholeError("it makes another number of rows")
    if ids.space.is_picked and shapes.space_of_size(case, n, True) is not ids.space:
        raise WholeError("it makes rows of another number")


def numbers(case: Case, n: int) -> RowNumbers:
    """Returns the state of input n, which must be numbers of rows."""
    state = case.inputs[n]
    if not isinstance(state, RowNumbers):
        raise WholeError("they are no numbers of rows")
    return state


def coordinates(case: Case, n: int) -> RowNumbers:
    """Returns the state of input n, which must be coordinates that begin with a row's number."""
    state = case.inputs[n]
    if not isinstance(state, RowNumbers) or state.axis != 0 or column_of(case, n) != 0:
        raise WholeError("its rows are not along the first dimension")
    return state


def column_of(case: Case, n: int) -> int | None:
    """Returns which column of input n has the numbers of rows, or None if every value is one."""
    ids = numbers(case, n).ids
    if ids.is_upright:
        return -1
    if ids.column is None and case.rank(n) > 1 and case.shape(n)[-1].is_one:
        return 0
    return ids.column


def without(state: State) -> State:
    """Returns the view of values that are to mean the same on each device."""
    return state.plain if isinstance(state, Rows) else WHOLE


def _are_of(indices: RowNumbers, case: Case, n: int, column: int | None = None) -> bool:
    """Whether indices, input 1, are numbers of the rows of input n's first dimension."""
    state = case.inputs[n]
    if not states.is_rows(state):
        return False
    if (column_of(case, 1) if column is not None else indices.ids.column) != column:
        return False
    if state.axis != 0 or state.space is not indices.ids.space:
        return False
    return case.shape(n)[0].multiple == indices.ids.stride


def named(case: Case, n: int, is_complete: bool = False) -> RowNumbers:
    """Returns the state of input n, which must be numbers of rows, of shape [n].

    Args:
        case: The operation.
        n: Which input.
        is_complete: Whether each row must occur.
    """
    state = numbers(case, n)
    if state.ids.column is not None or case.rank(n) != 1:
        raise WholeError("they are no numbers of rows")
    if is_complete and not state.ids.is_complete:
        raise WholeError("a row may not occur")
    return state
