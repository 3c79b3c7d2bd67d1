"""Entries picked by numbers, and added up by numbers.

In a gather each entry of `indices` picks from a table: the entries are split, the table is whole.
In a scatter each device adds up what its rows have, and the parts are joined.
"""

from collections.abc import Sequence

from replicate.splitting import states
from replicate.splitting.rules import items
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import SUM, WHOLE, Kind, Partial, Rows, Split, View, WholeError
from replicate.splitting.structure import kinds


@rule("GatherV2")
def _gather(case: Case) -> Split:
    """`params` of shape [batch, P, n, Q] and `indices` of [batch, I] to [batch, P, I, Q]."""
    axis = case.axis(2, case.rank(0))
    batch_dims = case.attribute("batch_dims")
    batch_dims += case.rank(1) if batch_dims < 0 else 0
    return _gather_along(case, axis, batch_dims, [case.number(2)])


@rule("Gather")
def _gather_first(case: Case) -> Split:
    """`params` of shape [n, Q] and `indices` of [I] to [I, Q]."""
    return _gather_along(case, 0, 0, [])


def _gather_along(case: Case, axis: int, batch_dims: int, more: Sequence[View]) -> Split:
    params, indices = case.inputs[:2]
    if params == SUM and not states.is_rows(indices):
        return Split([SUM, items.same(case, 1), *more], [SUM])
    for rows in (params, indices):
        if states.is_rows(rows) and rows.axis < batch_dims:
            return Split([items.along(case, 0, rows), items.along(case, 1, rows), *more], [rows])
    if states.is_rows(params) and params.axis != axis:
        # What lies behind the gathered dimension moves by the dimensions that it becomes.
        moved = case.rank(1) - batch_dims - 1 if params.axis > axis else 0
        return Split([params, items.same(case, 1), *more], [params.at(params.axis + moved)])
    if states.is_rows(indices):
        return Split([WHOLE, indices, *more], [indices.at(axis + indices.axis - batch_dims)])
    raise WholeError("it picks rows")


@rule("GatherNd")
def _gather_nd(case: Case) -> Split:
    """`params` of shape [n1, ..., nD, Q] and `indices` of [I, D] to [I, Q]."""
    params, indices = case.inputs
    if params == SUM and not states.is_rows(indices):
        return Split([SUM, items.same(case, 1)], [SUM])
    front = case.rank(1) - 1
    if states.is_rows(params):
        depth = _depth(case, 1)
        if params.axis >= depth:
            wants = [params, items.same(case, 1)]
            found = Split(wants, [params.at(params.axis - depth + front)])
            return items.never_none(found)
    if states.is_rows(indices) and indices.axis < front:
        return Split([WHOLE, indices], [indices])
    raise WholeError("it picks rows")


def _depth(case: Case, n: int) -> int:
    """Returns how many numbers make one index, of input n of shape [..., D]."""
    depth = case.shape(n)[-1].size
    if depth is None:
        raise WholeError("how many numbers make an index is not known")
    return depth


@rule("ResourceGather", "ResourceGatherNd")
def _gather_variable(case: Case) -> Split:
    """Reads rows of a variable by `indices` of shape [I] or [I, D]; copies run beside the variable.

    With `batch_dims` the first dimensions of `indices` are the variable's too, of a fixed size.
    """
    indices = case.inputs[1]
    if not states.is_rows(indices):
        raise WholeError("its indices have no rows")
    is_nd = case.type == "ResourceGatherNd"
    first = 0 if is_nd else case.attribute("batch_dims")
    behind = case.rank(1) - (1 if is_nd else 0)
    if not 0 <= first <= indices.axis < behind:
        raise WholeError("rows are inside of the indices")
    return Split([WHOLE, indices], [indices], is_beside=True)


_TABLES = """
AnonymousHashTable AnonymousMutableHashTable AnonymousMutableHashTableOfTensors HashTable
HashTableV2 MutableHashTable MutableHashTableOfTensors MutableHashTableOfTensorsV2
MutableHashTableV2
""".split()


@rule("LookupTableFind", "LookupTableFindV2")
def _find(case: Case) -> Split:
    """A value for each key; the value of a table of tensors adds dimensions at the end."""
    made_by = case.op.inputs[0].op
    while made_by.type in ("Identity", *kinds.ENTERS, *kinds.SWITCHES):
        made_by = made_by.inputs[0].op
    if made_by.type not in _TABLES:
        # A table whose keys are vectors looks up one key for several entries.
        raise WholeError("what a key of the table is, is not known")
    keys = case.inputs[1]
    if not states.is_rows(keys):
        raise WholeError("its keys have no rows")
    return Split([WHOLE, keys, WHOLE], [keys], is_beside=True)


@rule("OneHot")
def _one_hot(case: Case) -> Split:
    """A new dimension, at `axis`, in which the entry that the index names is on."""
    _, rows = items.rows_of(case, (0,))
    axis = case.attribute("axis") % (case.rank(0) + 1)
    others = [items.same(case, n) for n in (1, 2, 3)]
    return Split([rows, *others], [rows.at(rows.axis + (axis <= rows.axis))])


_SEGMENTS = {
    "UnsortedSegmentMax": Kind.MAX,
    "UnsortedSegmentMin": Kind.MIN,
    "UnsortedSegmentProd": Kind.PROD,
    "UnsortedSegmentSum": Kind.SUM,
}


@rule(*_SEGMENTS)
def _segments(case: Case) -> Split:
    """`data` of shape [I, Q] and `segment_ids` of [I] to [num_segments, Q].

    A segment without entries has the neutral value: 0, 1, the lowest or the highest.
    NOTE: the maximum of entries with a NaN among them depends on their order in a CPU's kernel: it
    is that of the entries after the last NaN. Here it is NaN.
    """
    kind = Partial(_SEGMENTS[case.type])
    data, ids = case.inputs[:2]
    number = items.same(case, 2)
    if data == SUM and kind == SUM and not states.is_rows(ids):
        return Split([SUM, items.same(case, 1), number], [SUM])
    n, rows = items.rows_of(case, (0, 1))
    ids_rank = case.rank(1)
    if n == 0 and rows.axis >= ids_rank:
        return Split([rows, WHOLE, number], [rows.at(rows.axis - ids_rank + 1)])
    segments = case.result_shape()[0]
    if segments.has_rows():
        raise WholeError("there are as many segments as rows")
    if segments.size is None:
        # As with ids from `unique`: the devices' sums may well be larger than their rows.
        raise WholeError("how many segments there are is known only when it runs")
    return Split([items.along(case, 0, rows), items.along(case, 1, rows), number], [kind])


@rule("SegmentMax", "SegmentMean", "SegmentMin", "SegmentProd", "SegmentSum")
def _sorted_segments(case: Case) -> Split:
    """`data` of shape [n, Q] and `segment_ids` of [n], whose last one tells how many there are."""
    _, rows = items.rows_of(case, (0,))
    if rows.axis == 0:
        raise WholeError("the last row says how many segments there are")
    return Split([rows, items.same(case, 1)], [rows])


_SPARSE_SEGMENTS = ("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum")


@rule(
    *_SPARSE_SEGMENTS,
    *(f"{kind}WithNumSegments" for kind in _SPARSE_SEGMENTS),
    *(f"{kind}Grad" for kind in _SPARSE_SEGMENTS),
)
def _sparse_segments(case: Case) -> Split:
    """`data` of shape [n, Q], `indices` and `segment_ids` of [I]: sums of what the indices pick.

    Gradients have `grad` of shape [m, Q], and the number of the data's rows.
    """
    data, *places = case.inputs[:3]
    others = [items.same(case, n) for n in range(1, len(case.inputs))]
    if not any(map(states.is_rows, places)):
        if data == SUM:
            return Split([SUM, *others], [SUM])
        if states.is_rows(data) and data.axis > 0:
            return Split([data, *others], [data])
        raise WholeError("it picks rows")
    if case.result_shape()[0].size is None:
        raise WholeError("how many segments there are is known only when it runs")
    # NOTE: for a mean a device would have to know how many entries the others have.
    if case.type not in ("SparseSegmentSumWithNumSegments", "SparseSegmentSumGrad"):
        raise WholeError("devices have some entries of each segment, and their number counts")
    _, rows = items.rows_of(case, (1, 2))
    wants = [items.along(case, n, rows.at(0)) for n in (1, 2)]
    # NOTE: the gradient of no entries is uninitialized memory.
    found = Split([WHOLE, *wants, others[2]], [SUM])
    return items.never_none(found) if case.type.endswith("Grad") else found


@rule("ScatterNd")
def _scatter(case: Case) -> Split:
    """Adds `updates` of shape [I, Q] at `indices` of [I, D] to zeros of [n1, ..., nD, Q]."""
    indices, updates = case.inputs[:2]
    if updates == SUM and not states.is_rows(indices):
        return Split([items.same(case, 0), SUM, case.number(2)], [SUM])
    n, rows = items.rows_of(case, (1, 0))
    front = case.rank(0) - 1
    if n == 1 and rows.axis >= front:
        found = rows.at(rows.axis - front + _depth(case, 0))
        return items.never_none(Split([WHOLE, rows, case.shape_view(2, found)], [found]))
    if rows.axis >= front:
        raise WholeError("rows are inside of the indices")
    if not case.is_float(1):
        raise WholeError("only floating sums are joined")
    if any(extent.has_rows() for extent in case.result_shape()):
        raise WholeError("it makes rows")
    wants = [items.along(case, 0, rows), items.along(case, 1, rows), case.number(2)]
    return Split(wants, [SUM])


@rule(*(f"TensorScatter{how}" for how in ("Add", "Max", "Min", "Sub", "Update")))
def _scatter_into(case: Case) -> Split:
    """`tensor` of shape [n1, ..., nD, Q], `indices` of [I, D], `updates` of [I, Q].

    Split along Q alone, so that every device writes the same entries.
    """
    n, rows = items.rows_of(case, (0, 2))
    depth, front = _depth(case, 1), case.rank(1) - 1
    axis = rows.axis if n == 0 else rows.axis - front + depth
    if axis < depth:
        raise WholeError("it writes rows")
    rows = Rows(axis, rows.space)
    wants = [
        items.along(case, 0, rows),
        items.same(case, 1),
        items.along(case, 2, rows.at(axis - depth + front)),
    ]
    return items.never_none(Split(wants, [rows]))


@rule("ReverseSequence")
def _reverse(case: Case) -> Split:
    """Reverses along `seq_dim`, as far as `seq_lengths` says for each entry of `batch_dim`."""
    rank = case.rank(0)
    batch, along = case.attribute("batch_dim") % rank, case.attribute("seq_dim") % rank
    n, rows = items.rows_of(case, (0, 1))
    if n == 0 and rows.axis == along:
        raise WholeError("it is along the rows")
    if n == 0 and rows.axis != batch:
        return Split([rows, items.same(case, 1)], [rows])
    rows = rows.at(batch)
    return Split([items.along(case, 0, rows), items.along(case, 1, rows.at(0))], [rows])


@rule("InTopK", "InTopKV2")
def _in_top(case: Case) -> Split:
    """`predictions` of shape [n, C] and `targets` of [n] to a truth for each."""
    return items.split_first(case, items=(0, 1))


@rule("NthElement", "TopK", "TopKV2")
def _top(case: Case) -> Split:
    """[..., C] and how many of the last dimension, or which."""
    return items.split(case, 1)
