"""Entries picked by numbers, and added up by numbers.

In a gather each entry of `indices` picks from a table: the entries are split, the table is whole.
In a scatter each device adds up what its rows have, and the parts are joined.
"""

import dataclasses

from replicate.splitting import states
from replicate.splitting.rules import signatures
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import (
    SHAPE,
    Said,
    by_axes,
    inserted,
    names,
    signature,
    whole,
)
from replicate.splitting.states import WHOLE, Kind, Partial, Split, WholeError
from replicate.splitting.structure import kinds


@by_axes("Gather GatherV2", linear=[0])
def _gather(case: Case) -> Said:
    """`params` of shape [batch, P, n, Q] and `indices` of [batch, I] to [batch, P, I, Q]."""
    axis = batch_dims = 0
    if case.type == "GatherV2":
        axis, batch_dims = case.axis(2, case.rank(0)), case.attribute("batch_dims")
        batch_dims += case.rank(1) if batch_dims < 0 else 0
    params, indices = whole(names(case), [axis]), names(case, 1, "i")
    indices[:batch_dims] = params[:batch_dims]
    return Said([params, indices], [[*params[:axis], *indices[batch_dims:], *params[axis + 1 :]]])


@rule("GatherNd", linear=[0])
def _gather_nd(case: Case) -> Split:
    """`params` of shape [n1, ..., nD, Q] and `indices` of [I, D] to [I, Q]."""
    front = case.rank(1) - 1
    depth = front + case.rank(0) - case.result_rank()
    p = whole(names(case), range(depth))
    i = whole(names(case, 1, "i"), [front])
    gathered = signatures.split(case, Said([p, i], [[*i[:front], *p[depth:]]]))
    return signatures.not_none(gathered) if states.is_rows(gathered.wants[0]) else gathered


@rule("ResourceGather", "ResourceGatherNd")
def _gather_variable(case: Case) -> Split:
    """Reads rows of a variable by `indices` of shape [I] or [I, D]; copies run beside the variable.

    With `batch_dims` the first dimensions of `indices` are the variable's too, of a fixed size.
    """
    is_nd = case.type == "ResourceGatherNd"
    i = names(case, 1)
    i = whole(i, [len(i) - 1] if is_nd else range(case.attribute("batch_dims")))
    gathered = signatures.split(case, Said([(), i], [i]))
    return dataclasses.replace(gathered, is_beside=True)


_TABLES = """
AnonymousHashTable AnonymousMutableHashTable AnonymousMutableHashTableOfTensors HashTable
HashTableV2 MutableHashTable MutableHashTableOfTensors MutableHashTableOfTensorsV2
MutableHashTableV2
""".split()


signature("nC, n -> n", "InTopK InTopKV2")
signature("...C -> ...K", "NthElement TopK TopKV2")
# `segment_ids` of [N], whose last one tells how many there are.
signature("N..., N -> S...", "SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum")
_INTO = ("Add", "Max", "Min", "Sub", "Update")


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


@by_axes("OneHot")
def _one_hot(case: Case) -> Said:
    """A new dimension, at `axis`, in which the entry that the index names is on."""
    x = names(case)
    return Said([x], [inserted(x, case.attribute("axis"))])


SEGMENTS = {
    "UnsortedSegmentMax": Kind.MAX,
    "UnsortedSegmentMin": Kind.MIN,
    "UnsortedSegmentProd": Kind.PROD,
    "UnsortedSegmentSum": Kind.SUM,
}


@rule("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
@rule("UnsortedSegmentSum", linear=[0])
def _segments(case: Case) -> Split:
    """`data` of shape [I, Q] and `segment_ids` of [I] to [num_segments, Q].

    A segment without entries has the neutral value: 0, 1, the lowest or the highest.
    NOTE: the maximum of entries with a NaN among them depends on their order in a CPU's kernel: it
    is that of the entries after the last NaN. Here it is NaN.
    """
    kind = Partial(SEGMENTS[case.type])
    x, ids_rank = names(case), case.rank(1)
    said = Said([x, x[:ids_rank]], [["S", *x[ids_rank:]]])
    sums = signatures.split(case, said, kind)
    segments = case.result_shape()[0]
    if sums.gives[0] == kind and segments.has_rows():
        raise WholeError("there are as many segments as rows")
    if sums.gives[0] == kind and segments.size is None:
        # As with ids from `unique`: the devices' sums may well be larger than their rows.
        raise WholeError("how many segments there are is known only when it runs")
    return sums


SPARSE_SEGMENTS = ("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum")


@rule(
    *(f"{kind}{more}" for kind in SPARSE_SEGMENTS for more in ("", "WithNumSegments", "Grad")),
    linear=[0],
)
def _sparse_segments(case: Case) -> Split:
    """`data` of shape [n, Q], `indices` and `segment_ids` of [I]: sums of what the indices pick.

    Gradients have `grad` of shape [m, Q], and the number of the data's rows.
    """
    is_sum = any(map(states.is_rows, case.inputs[1:3]))
    if is_sum and case.result_shape()[0].size is None:
        raise WholeError("how many segments there are is known only when it runs")
    # NOTE: for a mean a device would have to know how many entries the others have.
    if is_sum and case.type not in ("SparseSegmentSumWithNumSegments", "SparseSegmentSumGrad"):
        raise WholeError("devices have some entries of each segment, and their number counts")
    x = names(case)
    sums = signatures.split(case, Said([["N", *x[1:]], ["i"], ["i"]], [["S", *x[1:]]]))
    # NOTE: the gradient of no entries is uninitialized memory.
    return signatures.not_none(sums) if is_sum and case.type.endswith("Grad") else sums


@rule("ScatterNd", linear=[1])
def _scatter(case: Case) -> Split:
    """Adds `updates` of shape [I, Q] at `indices` of [I, D] to zeros of [n1, ..., nD, Q]."""
    front = case.rank(0) - 1
    i, q = whole(names(case, 0, "i"), [front]), names(case, 1)[front:]
    depth = case.result_rank() - len(q)
    sums = signatures.split(case, Said([i, [*i[:front], *q], SHAPE], [["N"] * depth + q]))
    if states.is_rows(sums.gives[0]):
        return signatures.not_none(sums)
    if not case.is_float(1):
        raise WholeError("only floating sums are joined")
    if any(extent.has_rows() for extent in case.result_shape()):
        raise WholeError("it makes rows")
    return sums


@by_axes(" ".join(f"TensorScatter{how}" for how in _INTO), needs_rows=True)
def _scatter_into(case: Case) -> Said:
    """`tensor` of shape [n1, ..., nD, Q], `indices` of [I, D], `updates` of [I, Q].

    Split along Q alone, so that every device writes the same entries.
    """
    front = case.rank(1) - 1
    depth = case.rank(0) - case.rank(2) + front
    x = whole(names(case), range(depth))
    return Said([x, (), [*"I" * front, *x[depth:]]], [x])


@by_axes("ReverseSequence")
def _reverse(case: Case) -> Said:
    """Reverses along `seq_dim`, as far as `seq_lengths` says for each entry of `batch_dim`."""
    rank = case.rank(0)
    x = whole(names(case), [case.attribute("seq_dim") % rank])
    return Said([x, [x[case.attribute("batch_dim") % rank]]], [x])
