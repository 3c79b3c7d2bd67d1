"""Different values: what `Unique` finds, what is looked up for each, and sums for each.

A device finds the different values of its own rows alone. What it makes for each of them has a
state of their source; sums over rows are parts of the sums for the different values of all rows.
"""

import dataclasses
from typing import TypeGuard

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import elementwise, spaces
from replicate.splitting.rules.gathers import SPARSE_SEGMENTS
from replicate.splitting.rules.registry import Case, rule, rule_of_ids
from replicate.splitting.rules.spaces import (
    check_no_loop,
    check_order,
    entries_of_a_row,
    named,
    number_of,
    without,
)
from replicate.splitting.states import (
    OWN,
    WHOLE,
    Counted,
    Leading,
    Local,
    RowNumbers,
    Rows,
    Space,
    Split,
    State,
    Sums,
    View,
    WholeError,
)

# What treats each of the different values by itself, and each of leading rows.
ALONE = (*elementwise.EACH, "Max", "Mean", "Min", "Prod", "Sum")
_OF_LEADING = (
    *("ExpandDims", "MatMul", "Reshape", "Squeeze", "StridedSlice", "StridedSliceGrad"),
    *elementwise.ALIKE.split(),
)

KINDS = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")

SORTED_GRADIENTS = tuple(f"{kind}GradV2" for kind in SPARSE_SEGMENTS)


def is_list(source: object) -> bool:
    """Whether the source of a `Local` is different values, or a part of these."""
    if not isinstance(source, tf.Tensor):
        return False
    return source.op.type == "DynamicPartition" or (
        source.op.type in KINDS and not source.value_index
    )


def _is_local(state: State) -> TypeGuard[Local]:
    """Whether a device's own value is no part of a sum, and no number of its own values."""
    return isinstance(state, Local) and not isinstance(state, (Sums, Counted))


@rule(*KINDS)
def _unique(case: Case) -> Split:
    """The different values, [m], each value's place among them, [n], and counts of them, [m]."""
    rows = case.inputs[0]
    check_order(case)
    if not states.is_rows(rows) or rows.axis != 0 or case.rank(0) != 1:
        raise WholeError("its values have no rows")
    if len(case.inputs) > 1 and case.value(1).size and int(case.value(1).reshape(-1)[0]):
        raise WholeError("it is along another dimension")
    # NOTE: a device counts its own rows alone: the counts are not the batch's.
    others = [WHOLE] * (len(case.inputs) - 1)
    return Split([rows.at(0), *others], [Local(tensor) for tensor in case.op.outputs])


def different_of(case: Case, values: int, places: int) -> State:
    """Returns the state of what an operation makes that puts different values back in place.

    Args:
        case: The operation.
        values: The input with an entry for each different value.
        places: The input with the places of these.
    """
    made_by = _made_by(case, places)
    if case.inputs[values] != Local(made_by.outputs[0]):
        raise WholeError("they are others' places")
    return without(case.state_of(made_by.inputs[0]))


def _made_by(case: Case, places: int) -> tf.Operation:
    """Returns what found different values, given the input with the places of these."""
    tensor = case.op.inputs[places]
    while tensor.op.type in ("Cast", "Identity", "Reshape") and tensor.dtype.is_integer:
        tensor = tensor.op.inputs[0]
    is_there = case.inputs[places] == Local(tensor) and tensor.value_index == 1
    if not is_there or tensor.op.type not in KINDS:
        raise WholeError("where its values stand is not known")
    return tensor.op


@rule_of_ids("GatherV2", "Gather")
def _gather_different(case: Case) -> Split:
    """Puts different values back in place, or looks each of them up."""
    params, indices = case.inputs[:2]
    if not _is_local(params) and not _is_local(indices):
        raise WholeError("none of its operands is a device's own")
    more = [case.same(2)] if case.type == "GatherV2" else []
    if more and (case.attribute("batch_dims") or case.axis(2, case.rank(0))):
        raise WholeError("it gathers along another dimension")
    if _is_local(params):
        return Split([params, indices, *more], [different_of(case, 0, 1)])
    if params is not WHOLE:
        raise WholeError("its values are not whole")
    return Split([WHOLE, indices, *more], [indices])


@rule_of_ids(*SPARSE_SEGMENTS, *(f"{kind}WithNumSegments" for kind in SPARSE_SEGMENTS))
def _segments_of_different(case: Case) -> Split:
    """Sums by rows of data that `indices` names."""
    data, indices, _, *number = case.inputs
    ids = named(case, 2)
    if _is_local(data):
        given = different_of(case, 0, 1)
    elif data is WHOLE and states.is_rows(indices) and not isinstance(indices, RowNumbers):
        given = indices
    else:
        raise WholeError("the indices are of other data")
    if given != Rows(0, ids.space):
        raise WholeError("the indices are not as the numbers")
    wants: list[View] = [data, indices, ids]
    wants += [number_of(case, 3, ids)] if number else []
    if number or ids.ids.is_complete:
        return Split(wants, [Rows(0, ids.ids.space)])
    check_no_loop(case)
    if ids.ids.stride != 1 or ids.ids.space.is_picked:
        raise WholeError("a row may not occur")
    return Split(wants, [Local(Leading(ids.ids.space))])  # the last rows may not occur


# Sums for each of the different values: gradients of what is looked up.


@rule_of_ids("Reshape")
def _flat(case: Case) -> Split:
    """What stays as it is: in one dimension, or beside the same dimensions of a known length."""
    state, shape = case.inputs[0], case.op.inputs[1]
    if not _is_local(state) or case.rank(0) != case.result_rank():
        raise WholeError("its operand gets other dimensions")
    if case.rank(0) > 1:
        behind = case.facts.value(shape.op.inputs[1]) if shape.op.type == "ConcatV2" else None
        if behind is None or [*behind] != [extent.size for extent in case.shape(0)[1:]]:
            raise WholeError("its operand gets other dimensions")
        shape = shape.op.inputs[0]
    _check_counts(case, shape, state.source)
    return Split([state, OWN], [state])


@rule_of_ids("UnsortedSegmentSum")
def _sums(case: Case) -> Split:
    """Sums of what rows have for the different values, of which there are as many."""
    made_by = _made_by(case, 1)
    rows = without(case.state_of(made_by.inputs[0]))
    if not states.is_rows(rows):
        raise WholeError("the places are no rows'")
    _check_counts(case, case.op.inputs[2], made_by.outputs[0])
    return Split([case.along(0, rows), case.inputs[1], OWN], [Sums(made_by.outputs[0])])


@rule_of_ids(*(f"{kind}Grad" for kind in SPARSE_SEGMENTS))
def _gradient(case: Case) -> Split:
    """Sums for the different values of the gradients of those rows that they occur in."""
    ids, made_by = named(case, 2), _made_by(case, 1)
    if without(case.state_of(made_by.inputs[0])) != Rows(0, ids.space):
        raise WholeError("the places are not as the numbers")
    _check_counts(case, case.op.inputs[3], made_by.outputs[0])
    return Split(
        [_gradient_of_rows(case, ids), case.inputs[1], ids, OWN], [Sums(made_by.outputs[0])]
    )


@rule_of_ids(*SORTED_GRADIENTS)
def _sorted_gradient(case: Case) -> Split:
    """The same for values themselves, which come sorted as the second output."""
    ids, source = named(case, 2), case.op.outputs[1]
    values = case.having(1, Rows(0, ids.space))
    return Split(
        [_gradient_of_rows(case, ids), values, ids, case.same(3)],
        [Sums(source), Local(source)],
    )


def _gradient_of_rows(case: Case, ids: RowNumbers) -> Rows | Local:
    """Returns the view of input 0, which has a value for each of the rows that ids name."""
    rows, leading = Rows(0, ids.ids.space), Local(Leading(ids.ids.space))
    if case.inputs[0] == leading:
        return leading
    if not case.has(0, rows) or entries_of_a_row(case, 0) != ids.ids.stride:
        raise WholeError("there are not as many gradients as rows")
    return rows


def _check_counts(case: Case, number: tf.Tensor, source: tf.Tensor) -> None:
    """Refuses a number if it is not that of a device's different values."""
    counted = spaces.counted(case, number)
    if counted is None or counted.source is not source:
        raise WholeError("it makes another number of sums")


@rule_of_ids("ResourceGather")
def _lookup(case: Case) -> Split:
    """Rows of a variable for each device's own values."""
    indices = case.inputs[1]
    if not _is_local(indices) or case.attribute("batch_dims"):
        raise WholeError("its indices are not a device's own")
    return Split([WHOLE, indices], [indices], is_beside=True)


@rule_of_ids(*ALONE, *_OF_LEADING)
def alone(case: Case) -> Split:
    """Does to different values, or to leading rows, what it does to rows."""
    sources = {state for state in case.inputs if isinstance(state, Local)}
    if (
        len(sources) != 1
        or not all(map(_is_local, sources))
        or any(map(states.is_rows, case.inputs))
    ):
        raise WholeError("its operands are not the same different values")
    (local,) = sources
    is_leading = isinstance(local.source, Leading)
    if not is_leading and (not is_list(local.source) or case.type in _OF_LEADING):
        raise WholeError("it is no list of values")
    rows = Rows(0, Space("a device's own", local.source))
    answer = case.plain([rows if state == local else state for state in case.inputs])
    if any(give != rows for give in answer.gives):
        raise WholeError("it mixes different values")
    for state, want in zip(case.inputs, answer.wants, strict=True):
        if (state == local) != (want == rows) or isinstance(want, states.Shape):
            raise WholeError("another operand has other values")
    wants = [local if want == rows else want for want in answer.wants]
    return dataclasses.replace(answer, wants=wants, gives=[local] * len(answer.gives))
