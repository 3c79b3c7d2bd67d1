"""Rows that are picked from others, and numbers of rows.

What a mask leaves, or what a sparse tensor holds, is spread over the devices as the rows are that
it comes from: each device has a run of it, of a length that is known in a run. Numbers of rows
count on a device from its own first row, so that a device finds its own rows by them.
"""

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules.registry import Case, rule, rule_of_ids
from replicate.splitting.states import SIZE, WHOLE, Ids, Local, Rows, Split, WholeError

# Which outputs of an operation have picked rows along their first dimension.
PICKING = {"Where": (0,), "SparseFillEmptyRows": (0, 1)}

_SAME = ("Identity", "StopGradient", "PreventGradient", "Snapshot")


@rule("Where")
def _where(case: Case) -> Split:
    """The coordinates of what is true, row by row: [n, rank] of `condition`."""
    rows = case.inputs[0]
    if not states.is_rows(rows) or rows.axis != 0:
        raise WholeError("its rows are not along the first dimension")
    extent = case.shape(0)[0]
    if not extent.multiple and not rows.space.is_picked:
        raise WholeError("how many entries a row has is not known")
    stride = 1 if rows.space.is_picked else extent.multiple
    ids = Ids(rows.space, 0, stride)
    return Split([rows.at(0)], [Rows(0, case.space_of(case.op.outputs[0]), ids)])


# What keeps numbers of rows as they are.


@rule_of_ids(*_SAME)
def _same(case: Case) -> Split:
    """The value itself."""
    (state,) = case.inputs
    return Split([state], [state])


@rule_of_ids("Cast")
def _cast(case: Case) -> Split:
    """The same numbers in another dtype that has them."""
    if case.op.outputs[0].dtype not in (tf.int32, tf.int64):
        raise WholeError("numbers of rows become no numbers")
    return _same(case)


@rule_of_ids("StridedSlice")
def _column(case: Case) -> Split:
    """The column of coordinates that names the rows, or another one: `[:, c]`."""
    state = case.inputs[0]
    if not _has_ids(state) or state.axis != 0 or case.rank(0) != 2 or state.ids.column is None:
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
    ids = None
    if int(begin[1]) % width == state.ids.column:
        ids = Ids(state.ids.space, None, state.ids.stride, state.ids.is_complete)
    return Split([state, *[case.number(n) for n in (1, 2, 3)]], [Rows(0, state.space, ids)])


@rule_of_ids("Squeeze")
def _squeeze(case: Case) -> Split:
    """Coordinates in one dimension, [n, 1], as numbers [n]."""
    return Split([case.inputs[0]], [_flat(case)], attributes={"squeeze_dims": [1]})


@rule_of_ids("Reshape")
def _reshape(case: Case) -> Split:
    """Coordinates in one dimension, [n, 1], as numbers: reshaped to [-1]."""
    entries = case.entries(1)
    if len(entries) != 1 or entries[0].size != -1:
        raise WholeError("it is reshaped otherwise")
    return Split([case.inputs[0], case.number(1)], [_flat(case)])


def _flat(case: Case) -> Rows:
    state = case.inputs[0]
    if not _has_ids(state) or state.axis != 0:
        raise WholeError("they are no numbers of rows")
    if case.rank(0) == 1:
        return state
    if case.rank(0) != 2 or not case.shape(0)[1].is_one or case.result_rank() != 1:
        raise WholeError("they are coordinates in several dimensions")
    return Rows(0, state.space, Ids(state.ids.space, None, state.ids.stride))


# What finds rows by their numbers.


@rule_of_ids("GatherV2", "Gather")
def _gather(case: Case) -> Split:
    """A device's own rows of `params`, by their numbers on it."""
    params, indices = case.inputs[:2]
    more = [case.number(2)] if case.type == "GatherV2" else []
    if case.type == "GatherV2" and (case.attribute("batch_dims") or case.axis(2, case.rank(0))):
        raise WholeError("it gathers along another dimension")
    if isinstance(params, Local) and params == indices:
        return Split([params, indices, *more], [params])
    if not _are_of(indices, case, 0):
        raise WholeError("the numbers are not those of the rows")
    ids = params.ids if _has_ids(params) else None
    if ids is not None:
        ids = Ids(ids.space, ids.column, ids.stride)
    return Split([params, indices, *more], [Rows(indices.axis, indices.space, ids)])


@rule_of_ids("GatherNd")
def _gather_nd(case: Case) -> Split:
    """A device's own entries of `params`, by coordinates of which the first is a row's number."""
    indices = case.inputs[1]
    if not _are_of(indices, case, 0, column=0):
        raise WholeError("the coordinates are not those of the rows")
    return Split([_without(case.inputs[0]), indices], [Rows(indices.axis, indices.space)])


@rule_of_ids(
    "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"
)
def _segments(case: Case) -> Split:
    """Sums and the like by rows, as many as there are rows."""
    data, ids = case.inputs[:2]
    rows = _rows_named(case, 1)
    if not states.is_rows(data) or (data.axis, data.space) != (0, ids.space) or ids.axis != 0:
        raise WholeError("the data are not as the numbers")
    return Split([_without(data), ids, _number_of_rows(case, 2, rows)], [rows])


@rule_of_ids("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")
def _sorted_segments(case: Case) -> Split:
    """Sums and the like by rows, if each row occurs."""
    data, ids = case.inputs[:2]
    rows = _rows_named(case, 1, is_complete=True)
    if not states.is_rows(data) or (data.axis, data.space) != (0, ids.space):
        raise WholeError("the data are not as the numbers")
    return Split([_without(data), ids], [rows])


@rule_of_ids("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
def _sparse_segments(case: Case) -> Split:
    """Sums by rows of data that `indices` names, if each row occurs."""
    data, indices, _ = case.inputs
    rows = _rows_named(case, 2, is_complete=True)
    is_own = isinstance(data, Local) and data == indices
    if not is_own and not (data is WHOLE and states.is_rows(indices) and not _has_ids(indices)):
        raise WholeError("the indices are of other data")
    return Split([data, indices, case.inputs[2]], [rows])


@rule_of_ids("ScatterNd")
def _scatter(case: Case) -> Split:
    """Entries at coordinates of which the first is a row's number."""
    indices, updates = case.inputs[:2]
    if not _has_ids(indices) or indices.axis != 0 or indices.ids.column != 0:
        raise WholeError("the coordinates are not those of rows")
    if not states.is_rows(updates) or (updates.axis, updates.space) != (0, indices.space):
        raise WholeError("the updates are not as the coordinates")
    found = Rows(0, indices.ids.space)
    return Split([indices, _without(updates), case.shape_view(2, found)], [found])


# What different values there are.


@rule("Unique", "UniqueV2")
def _unique(case: Case) -> Split:
    """Each device's own different values, and where each of its values stands among them."""
    rows = case.inputs[0]
    if not states.is_rows(rows) or rows.axis != 0 or case.rank(0) != 1:
        raise WholeError("its values have no rows")
    if case.type == "UniqueV2" and case.value(1).size and int(case.value(1).reshape(-1)[0]):
        raise WholeError("it is along another dimension")
    wants = [rows.at(0), *[WHOLE] * (len(case.inputs) - 1)]
    return Split(wants, [Local(case.op), Local(case.op)])


@rule_of_ids("ResourceGather")
def _lookup(case: Case) -> Split:
    """Rows of a table for each device's own values."""
    indices = case.inputs[1]
    if not isinstance(indices, Local) or case.attribute("batch_dims"):
        raise WholeError("its indices are not a device's own")
    return Split([WHOLE, indices], [indices], is_beside=True)


# Sparse tensors.


@rule_of_ids("SparseFillEmptyRows")
def _fill(case: Case) -> Split:
    """Adds an entry to each row that has none."""
    indices, values, _, _ = case.inputs
    if not _has_ids(indices) or indices.ids.column != 0 or indices.ids.stride != 1:
        raise WholeError("its rows are not along the first dimension")
    if not states.is_rows(values) or values.space is not indices.space:
        raise WholeError("its values are not as its indices")
    source = case.space_of(case.op.outputs[1])
    rows = Rows(0, indices.ids.space)
    filled = Ids(indices.ids.space, 0, is_complete=True)
    return Split(
        [indices, _without(values), case.shape_view(2, rows), WHOLE],
        [Rows(0, source, filled), Rows(0, source), rows, Rows(0, values.space, Ids(source))],
    )


@rule_of_ids("SparseReshape")
def _sparse_reshape(case: Case) -> Split:
    """Coordinates of a matrix that stays one, with rows as they are."""
    indices = case.inputs[0]
    if not _has_ids(indices) or indices.ids.column != 0:
        raise WholeError("its rows are not along the first dimension")
    rows = Rows(0, indices.ids.space)
    views = [case.shape_view(n, rows) for n in (1, 2)]
    old, new = (case.entries(n) for n in (1, 2))
    if len(old) != len(new) or old[0] != new[0] or len(old) != 2:
        raise WholeError("rows may get lost")
    return Split([indices, *views], [indices, SIZE])


@rule_of_ids("SparseToDense")
def _to_dense(case: Case) -> Split:
    """A matrix with values at coordinates of which the first is a row's number."""
    indices, _, values, _ = case.inputs
    if not _has_ids(indices) or indices.ids.column not in (0, None):
        raise WholeError("its coordinates are not those of rows")
    rows = Rows(0, indices.ids.space)
    if indices.ids.column is None and case.rank(0) != 1:
        raise WholeError("its coordinates are not those of rows")
    if states.is_rows(values) and values.space is not indices.space:
        raise WholeError("its values are not as its coordinates")
    wants = [indices, case.shape_view(1, rows), _without(values), WHOLE]
    return Split(wants, [rows])


@rule_of_ids("SparseTensorDenseMatMul")
def _product(case: Case) -> Split:
    """A sparse matrix of rows times a matrix that all devices have."""
    indices, values, _, _ = case.inputs
    is_transposed = case.attribute("adjoint_a")
    if not _has_ids(indices) or indices.ids.column != 0 or is_transposed:
        raise WholeError("its rows are not along the first dimension")
    if not states.is_rows(values) or values.space is not indices.space:
        raise WholeError("its values are not as its indices")
    rows = Rows(0, indices.ids.space)
    return Split([indices, _without(values), case.shape_view(2, rows), WHOLE], [rows])


@rule_of_ids("SparseReorder")
def _reorder(case: Case) -> Split:
    """Entries in order, row by row."""
    indices, values, _ = case.inputs
    if not _has_ids(indices) or indices.ids.column != 0:
        raise WholeError("its rows are not along the first dimension")
    if not states.is_rows(values) or values.space is not indices.space:
        raise WholeError("its values are not as its indices")
    rows = Rows(0, indices.ids.space)
    wants = [indices, _without(values), case.shape_view(2, rows)]
    return Split(wants, [indices, _without(values)])


def _has_ids(state: states.State) -> bool:
    return isinstance(state, Rows) and state.ids is not None


def _without(state: states.State) -> states.View:
    """Returns the view of values that are to mean the same on each device."""
    return Rows(state.axis, state.space) if isinstance(state, Rows) else WHOLE


def _are_of(indices: states.State, case: Case, n: int, column: int | None = None) -> bool:
    """Whether indices are numbers of the rows that input n has along its first dimension."""
    state = case.inputs[n]
    if not _has_ids(indices) or indices.ids.column != column or not states.is_rows(state):
        return False
    if state.axis != 0 or state.space is not indices.ids.space:
        return False
    multiple = 1 if state.space.is_picked else case.shape(n)[0].multiple
    return multiple == indices.ids.stride


def _rows_named(case: Case, n: int, is_complete: bool = False) -> Rows:
    """Returns the rows that the numbers of input n name."""
    state = case.inputs[n]
    if not _has_ids(state) or state.ids.column is not None or state.axis != 0:
        raise WholeError("they are no numbers of rows")
    if is_complete and not state.ids.is_complete:
        raise WholeError("a row may not occur")
    return Rows(0, state.ids.space)


def _number_of_rows(case: Case, n: int, rows: Rows) -> states.View:
    """Returns the view of input n, a number that is to be that of the rows."""
    ids = case.inputs[1].ids
    found = case.facts.number_view(case.op.inputs[n], rows.space, ids.stride)
    if found is None:
        raise WholeError("it makes another number of rows")
    return found
