"""Sparse tensors: each device has the entries of its own rows.

The entries' first coordinates are numbers of rows, which on a device count from its own first one.
Its shapes have its own number of rows; all other lengths are those that one device has, unless an
operation does not look at them.
"""

import dataclasses
from collections.abc import Callable, Sequence

from replicate.splitting import states
from replicate.splitting.rules import shapes, spaces
from replicate.splitting.rules.registry import Case, Extent, rule, rule_of_ids
from replicate.splitting.states import (
    OWN,
    SIZE,
    SUM,
    WHOLE,
    Ids,
    Local,
    RowNumbers,
    Rows,
    Space,
    Split,
    State,
    View,
    WholeError,
)

# Which outputs of an operation have picked rows along their first dimension.
PICKING = {
    "SparseConcat": (0, 1),
    "SparseCross": (0, 1),
    "SparseCrossHashed": (0, 1),
    "SparseCrossV2": (0, 1),
    "SparseFillEmptyRows": (0, 1),
    "StringSplit": (0, 1),
    "StringSplitV2": (0, 1),
    "Where": (0,),
}


def _entries(case: Case, indices: int, values: int, shape: int) -> Rows:
    """Returns the rows of sparse entries; refuses inputs that are not sparse entries of rows.

    Of values there are as many as coordinates, or an operation fails.
    """
    state = spaces.coordinates(case, indices)
    if case.rank(indices) != 2 or case.rank(values) != 1:
        raise WholeError("it has no entries of one row each")
    spaces.check_shape(case, shape, state.ids)
    return Rows(0, state.ids.space)


def _operand(case: Case) -> tuple[Rows, list[View]]:
    """Returns the rows of a sparse operand, the first three inputs, and the views of these."""
    rows = _entries(case, 0, 1, 2)
    return rows, [case.inputs[0], spaces.coordinates(case, 0).plain, case.shape_view(2, rows)]


def _shape_of_rows(case: Case, n: int, rows: Rows) -> View:
    """Returns the view of a shape of which only the number of rows counts."""
    return OWN if case.facts.is_own(case.op.inputs[n], rows.space) else case.shape_view(n, rows)


@rule_of_ids("SparseFillEmptyRows")
def _fill(case: Case) -> Split:
    """Adds an entry to each row without one; of the shape only the number of rows counts."""
    rows = _entries(case, 0, 1, 2)
    spaces.check_no_loop(case)
    state, source = spaces.coordinates(case, 0), case.space_of(case.op.outputs[1])
    filled = Ids(rows.space, 0, state.ids.stride, True)
    places = RowNumbers(0, state.space, Ids(source))
    return Split(
        [state, spaces.coordinates(case, 0).plain, _shape_of_rows(case, 2, rows), WHOLE],
        [RowNumbers(0, source, filled), Rows(0, source), rows, places],
    )


@rule_of_ids("SparseReshape")
def _reshape(case: Case) -> Split:
    """Coordinates of the same entries in another shape, whose first dimension has rows too."""
    state = spaces.coordinates(case, 0)
    spaces.check_shape(case, 1, state.ids)
    rows, old, new = Rows(0, state.ids.space), case.entries(1), case.entries(2)
    stride = _new_stride(old, new, state.ids.stride)
    if any(entry.size == -1 for entry in new) and rows.space.is_picked:
        raise WholeError("a length is left over beside rows that may be none")
    views: list[View] = [OWN, OWN]
    is_matrix = len(old) == len(new) == 2  # of as many rows: its coordinates stay
    if not is_matrix or not all(case.facts.is_own(case.op.inputs[n], rows.space) for n in (1, 2)):
        views = [case.shape_view(n, rows) for n in (1, 2)]
    is_complete = state.ids.is_complete and stride == state.ids.stride
    ids = dataclasses.replace(state.ids, column=0, stride=stride, is_complete=is_complete)
    return Split([state, *views], [state.numbering(ids), SIZE])


def _new_stride(old: Sequence[Extent], new: Sequence[Extent], stride: int) -> int:
    """Returns how many entries of the new first dimension each row has."""
    if new and new[0].multiple and new[0] == old[0]:
        return stride
    behind, left = shapes.num_entries(old[1:]), shapes.num_entries(new[1:])
    if not new or not behind or not left or stride * behind % left:
        raise WholeError("rows may get lost")
    if new[0].size != -1 and new[0].multiple != stride * behind // left:
        raise WholeError("rows may get lost")
    return stride * behind // left


@rule_of_ids("SparseToDense")
def _to_dense(case: Case) -> Split:
    """A tensor of `output_shape` with values at coordinates; one value may be for all."""
    state = case.inputs[0]
    if not isinstance(state, RowNumbers) or state.axis != 0:
        raise WholeError("its rows are not along the first dimension")
    if case.rank(0) > 1 and spaces.column_of(case, 0) != 0:
        raise WholeError("its rows are not along the first dimension")
    spaces.check_shape(case, 1, state.ids)
    rows = Rows(0, state.ids.space)
    values = state.at(0) if case.rank(2) else WHOLE
    return Split([state, case.shape_view(1, rows), values, WHOLE], [rows])


@rule_of_ids("SparseTensorDenseMatMul")
def _product_of_matrices(case: Case) -> Split:
    """A sparse matrix A of rows times a matrix; or of A's transpose, which is a sum over rows."""
    rows, wants = _operand(case)
    if not case.attribute("adjoint_a"):
        return Split([*wants, WHOLE], [rows])
    return Split([*wants, case.along(3, rows.at(int(case.attribute("adjoint_b"))))], [SUM])


@rule_of_ids("SparseReorder")
def _reorder(case: Case) -> Split:
    """Entries in order, row by row."""
    _, wants = _operand(case)
    return Split(wants, [case.inputs[0], spaces.coordinates(case, 0).plain])


@rule_of_ids("SparseReduceSum", "SparseReduceMax")
def _reduce(case: Case) -> Split:
    """Over other dimensions for each row; over rows each device makes a part of a sum."""
    rows, wants = _operand(case)
    rank = len(case.entries(2))
    is_over_rows = 0 in (case.axes(3, rank) or range(rank))
    if is_over_rows and case.type == "SparseReduceMax":
        raise WholeError("it is over rows")
    return Split([*wants, case.same(3)], [SUM if is_over_rows else rows])


@rule_of_ids("SparseSoftmax")
def _softmax(case: Case) -> Split:
    """Over entries that differ in the last coordinate alone."""
    _, wants = _operand(case)
    if len(case.entries(2)) < 2:
        raise WholeError("it is over rows")
    return Split(wants, [spaces.coordinates(case, 0).plain])


@rule_of_ids("SparseConcat")
def _concat(case: Case) -> Split:
    """`indices`, `values` and `shapes` of N tensors, side by side: entries in order again."""
    number = case.attribute("N")
    if case.attribute("concat_dim") % len(case.entries(2 * number)) == 0:
        raise WholeError("it puts rows behind rows")
    return _side_by_side(case, range(0), case.shape_view)


@rule_of_ids("SparseCross", "SparseCrossHashed", "SparseCrossV2")
@rule("SparseCross", "SparseCrossHashed", "SparseCrossV2")
def cross(case: Case) -> Split:
    """Combines what N sparse tensors and dense matrices have, row by row.

    Of shapes it looks at the number of rows alone.
    """
    spare = {"SparseCrossV2": 1, "SparseCrossHashed": 3}.get(case.type, 0)
    dense = range(3 * case.attribute("N"), len(case.inputs) - spare)
    return _side_by_side(case, dense, lambda n, rows: _shape_of_rows(case, n, rows))


def _side_by_side(
    case: Case, dense: Sequence[int], shape_view: Callable[[int, Rows], View]
) -> Split:
    """Splits an operation on N sparse tensors of the same rows, and on dense ones.

    Args:
        case: The operation; its inputs are all indices, then all values, then all shapes.
        dense: The dense inputs.
        shape_view: Returns the view of an input that is a shape of rows.
    """
    spaces.check_no_loop(case)
    number = case.attribute("N")
    wants: list[View] = [WHOLE] * len(case.inputs)
    tensors = set()
    for n in range(number):
        rows = _entries(case, n, number + n, 2 * number + n)
        tensors.add((rows, spaces.coordinates(case, n).ids.stride))
        wants[n], wants[number + n] = case.inputs[n], spaces.coordinates(case, n).plain
        wants[2 * number + n] = shape_view(2 * number + n, rows)
    for n in dense:
        state = case.inputs[n]
        if not states.is_rows(state) or state.axis != 0:
            raise WholeError("its rows are not along the first dimension")
        tensors.add((state.at(0), spaces.entries_of_a_row(case, n)))
        wants[n] = state.at(0)
    if len(tensors) != 1:
        raise WholeError("its rows are several tensors'")
    return Split(wants, _made(case, *tensors.pop()))


def _made(case: Case, rows: Rows, stride: int) -> list[State]:
    """Returns the states of coordinates, values and the shape of new entries."""
    source = case.space_of(case.op.outputs[1])
    return [RowNumbers(0, source, Ids(rows.space, 0, stride)), Rows(0, source), SIZE]


@rule("StringSplit", "StringSplitV2")
def _split_texts(case: Case) -> Split:
    """The words of each text as sparse entries: coordinates [n, 2], values [n], and the shape."""
    rows = case.inputs[0]
    if not states.is_rows(rows) or case.rank(0) != 1:
        raise WholeError("its texts have no rows")
    spaces.check_no_loop(case)
    stride = spaces.entries_of_a_row(case, 0)
    return Split([rows.at(0), WHOLE], _made(case, rows.at(0), stride))


@rule_of_ids("CTCLoss", "CTCLossV2")
def _ctc_loss(case: Case) -> Split:
    """`inputs` of [T, n, C], labels as sparse entries, and n lengths; each row's loss, gradient."""
    state = spaces.coordinates(case, 1)
    rows = Rows(0, state.ids.space)
    steps = rows.at(1)
    if rows.space.is_picked or case.shape(0)[1].multiple != state.ids.stride:
        raise WholeError("there are not as many inputs as rows")
    lengths = case.along(3, rows)
    wants = [case.along(0, steps), state, spaces.coordinates(case, 1).plain, lengths]
    return Split(wants, [rows, steps])


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
    bounds = _bounds(case, 0)
    begin, end, strides = (list(case.value(n)) for n in (1, 2, 3))
    masks = {name: case.attribute(f"{name}_mask") for name in ("begin", "end")}
    others = (case.attribute(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis"))
    if bounds.part != "all" or strides != [1] or any(others):
        raise WholeError("it takes some of the places")
    if (masks["begin"] or begin == [0]) and not masks["end"] and end == [-1]:
        part = "begins"
    elif not masks["begin"] and begin == [1] and masks["end"]:
        part = "ends"
    else:
        raise WholeError("it takes some of the places")
    views = [case.same(n) for n in (1, 2, 3)]
    half = Local(dataclasses.replace(bounds, part=part))
    return Split([case.inputs[0], *views], [half])


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
    bounds = _bounds(case, 0)
    if bounds.part != "all":
        raise WholeError("it takes some of the places")
    values = case.having(1, Rows(0, bounds.values))
    indices = RowNumbers(0, bounds.values, Ids(bounds.rows, 0))
    return Split([case.inputs[0], values], [indices, values, SIZE])


@rule_of_ids("RaggedTensorToTensor")
def _ragged_to_dense(case: Case) -> Split:
    """`shape`, values, a default, how many rows there are, and each value's row."""
    types = [each.decode() for each in case.op.get_attr("row_partition_types")]
    if types != ["FIRST_DIM_SIZE", "VALUE_ROWIDS"]:
        raise WholeError("it has several ragged dimensions, or no numbers of rows")
    state = spaces.named(case, 4)
    rows, values = Rows(0, state.ids.space), case.having(1, Rows(0, state.space))
    entries = case.entries(0)
    if len(entries) < 2 or entries[0].size != -1 or -1 in [each.size for each in entries[1:]]:
        raise WholeError("only a run tells how long the longest row is")
    number = case.facts.number(case.op.inputs[3])
    if number is None or number.multiple != state.ids.stride or rows.space.is_picked:
        raise WholeError("it makes another number of rows")
    view = case.facts.number_view(case.op.inputs[3], rows.space)
    return Split([case.same(0), values, WHOLE, view, state], [rows])
