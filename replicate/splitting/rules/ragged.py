"""Ragged tensors: values in rows of different lengths.

A device has the values of its own rows, and where its own rows begin and end among them. These
places are no part of all rows' places, for they count from the device's first value.
"""

import dataclasses

from replicate.splitting.rules import items, spaces
from replicate.splitting.rules.registry import Case, rule_of_ids
from replicate.splitting.states import SIZE, WHOLE, Ids, Local, Rows, Space, Split, WholeError


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Where rows begin and end among their values; the source of a `Local`.

    Attributes:
        rows: The rows.
        values: The space of their values.
        part: `"all"`, of [n + 1] places; `"begins"` or `"ends"`, of [n].
    """

    rows: Space
    values: Space
    part: str = "all"


def _bounds(case: Case, n: int) -> Bounds:
    state = case.inputs[n]
    if not isinstance(state, Local) or not isinstance(state.source, Bounds):
        raise WholeError("it is not where rows begin and end")
    return state.source


@rule_of_ids("StridedSlice")
def _begins_or_ends(case: Case) -> Split:
    """`[:-1]` and `[1:]`."""
    found = _bounds(case, 0)
    begin, end, strides = (list(case.value(n)) for n in (1, 2, 3))
    masks = {name: case.attribute(f"{name}_mask") for name in ("begin", "end")}
    others = (case.attribute(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis"))
    if found.part != "all" or strides != [1] or any(others):
        raise WholeError("it takes some of the places")
    if (masks["begin"] or begin == [0]) and not masks["end"] and end == [-1]:
        part = "begins"
    elif not masks["begin"] and begin == [1] and masks["end"]:
        part = "ends"
    else:
        raise WholeError("it takes some of the places")
    views = [case.number(n) for n in (1, 2, 3)]
    made = Local(dataclasses.replace(found, part=part))
    return Split([case.inputs[0], *views], [made])


@rule_of_ids("Sub")
def _lengths(case: Case) -> Split:
    """How many values each row has: its end less its begin."""
    ends, begins = _bounds(case, 0), _bounds(case, 1)
    if ends.part != "ends" or begins != dataclasses.replace(ends, part="begins"):
        raise WholeError("it does not subtract begins from ends")
    return Split(case.inputs, [Rows(0, ends.rows)])


@rule_of_ids("RaggedTensorToSparse")
def _to_sparse(case: Case) -> Split:
    """Coordinates of the values, in two dimensions, the values, and the shape."""
    if len(case.inputs) != 2 or case.rank(1) != 1:
        raise WholeError("it has several ragged dimensions, or inner ones")
    found = _bounds(case, 0)
    if found.part != "all" or spaces.without(case.inputs[1]) != Rows(0, found.values):
        raise WholeError("the values are others'")
    values = Rows(0, found.values)
    indices = Rows(0, found.values, Ids(found.rows, 0))
    return Split([case.inputs[0], values], [indices, values, SIZE])


@rule_of_ids("RaggedTensorToTensor")
def _to_dense(case: Case) -> Split:
    """`shape`, values, a default, how many rows there are, and of which row each value is."""
    types = [each.decode() for each in case.op.get_attr("row_partition_types")]
    if types != ["FIRST_DIM_SIZE", "VALUE_ROWIDS"] or case.rank(2):
        raise WholeError("it has several ragged dimensions, or no numbers of rows")
    state, values = case.inputs[4], case.inputs[1]
    rows = spaces.rows_named(case, 4)
    if spaces.without(values) != Rows(0, state.space):
        raise WholeError("the values are others'")
    entries = case.entries(0)
    if len(entries) < 2 or entries[0].size != -1 or -1 in [each.size for each in entries[1:]]:
        raise WholeError("how long the longest row is, is known in a run")
    number = case.facts.number(case.op.inputs[3])
    if number is None or number.multiple != state.ids.stride or rows.space.is_picked:
        raise WholeError("it makes another number of rows")
    view = case.facts.number_view(case.op.inputs[3], rows.space)
    return Split([items.same(case, 0), spaces.without(values), WHOLE, view, state], [rows])
