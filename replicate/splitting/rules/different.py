"""The different values among rows: each device has those of its own rows.

They are no part of what is different among all rows, so what is made of them stays each device's
own until it is put back in the rows' places. What is wanted whole of them is made of whole values.
"""

import copy
import dataclasses
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import elementwise, registry, spaces
from replicate.splitting.rules.registry import Case, rule, rule_of_ids
from replicate.splitting.states import WHOLE, Local, Rows, Space, Split, WholeError

# What works on each of the different values alone, whatever else it does.
ALONE = (
    *"Add AddV2 BiasAdd Div DivNoNan Max Mean Min Mul Prod RealDiv Select Sub Sum".split(),
    *elementwise.UNARY.split(),
    *elementwise.BROADCAST.split(),
    *elementwise.LINEAR.split(),
)


_KINDS = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")


@rule(*_KINDS)
def _unique(case: Case) -> Split:
    """Different values, [m], where each value stands among them, [n], and how many of each, [m]."""
    rows = case.inputs[0]
    if not states.is_rows(rows) or rows.axis != 0 or case.rank(0) != 1:
        raise WholeError("its values have no rows")
    if len(case.inputs) > 1 and case.value(1).size and int(case.value(1).reshape(-1)[0]):
        raise WholeError("it is along another dimension")
    # NOTE: a device counts its own rows alone, so that counts, put in place, are not the batch's.
    wants = [rows.at(0), *[WHOLE] * (len(case.inputs) - 1)]
    return Split(wants, [Local(tensor) for tensor in case.op.outputs])


def different_of(case: Case, values: int, places: int) -> Rows:
    """Returns the rows that values have that an operation puts back in place.

    Args:
        case: The operation.
        values: The input that has an entry for each different value.
        places: The input that says where these stand.
    """
    state, tensor = case.inputs[values], case.op.inputs[places]
    while tensor.op.type in ("Identity", "Cast") and tensor.dtype.is_integer:
        tensor = tensor.op.inputs[0]
    made_by = tensor.op
    is_there = isinstance(state, Local) and case.inputs[places] == Local(tensor)
    if not is_there or made_by.type not in _KINDS or tensor.value_index != 1:
        raise WholeError("where its values stand is not known")
    if state != Local(made_by.outputs[0]):
        raise WholeError("they are others' places")
    return spaces.without(case.state_of(made_by.inputs[0]))


@rule_of_ids("GatherV2", "Gather")
def _gather(case: Case) -> Split:
    """Puts back what there is for each different value, or looks up each."""
    params, indices = case.inputs[:2]
    if not isinstance(params, Local) and not isinstance(indices, Local):
        raise WholeError("none of its operands is a device's own")
    more = [case.number(2)] if case.type == "GatherV2" else []
    if more and (case.attribute("batch_dims") or case.axis(2, case.rank(0))):
        raise WholeError("it gathers along another dimension")
    if isinstance(params, Local):
        return Split([params, indices, *more], [different_of(case, 0, 1)])
    if params is not WHOLE:
        raise WholeError("its values are not whole")
    return Split([WHOLE, indices, *more], [indices])


_SUMS = ("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum")


@rule_of_ids(*_SUMS, *(f"{kind}WithNumSegments" for kind in _SUMS))
def _segments(case: Case) -> Split:
    """Sums by rows of data that `indices` names, if each row occurs, or their number is given."""
    data, indices, ids, *number = case.inputs
    rows = spaces.rows_named(case, 2, is_complete=not number)
    more = [spaces.number_of(case, 3, ids)] if number else []
    if isinstance(data, Local):
        given = different_of(case, 0, 1)
    elif data is WHOLE and states.is_rows(indices) and not spaces.has_ids(indices):
        given = indices
    else:
        raise WholeError("the indices are of other data")
    if given != Rows(0, ids.space):
        raise WholeError("the indices are not as the numbers")
    return Split([data, indices, ids, *more], [rows])


@rule_of_ids("ResourceGather")
def _lookup(case: Case) -> Split:
    """Rows of a variable for each device's own values."""
    indices = case.inputs[1]
    if not isinstance(indices, Local) or case.attribute("batch_dims"):
        raise WholeError("its indices are not a device's own")
    return Split([WHOLE, indices], [indices], is_beside=True)


@rule_of_ids(*ALONE)
def alone(case: Case) -> Split:
    """What the operation does to rows it does to different values."""
    sources = {state for state in case.inputs if isinstance(state, Local)}
    if len(sources) != 1 or any(map(states.is_rows, case.inputs)):
        raise WholeError("its operands are not the same different values")
    (local,) = sources
    if not isinstance(local.source, tf.Tensor) or local.source.op.type not in _KINDS:
        raise WholeError("it is no list of values")
    rows = Rows(0, Space("different values", local.source))
    case = copy.copy(case)
    case.inputs = tuple(rows if state == local else state for state in case.inputs)
    found = registry.RULES[case.type](case)
    if not isinstance(found, Split) or any(give != rows for give in found.gives):
        raise WholeError("it mixes different values")
    gives = [local] * len(found.gives)
    return dataclasses.replace(found, wants=_views(case, found, rows, local), gives=gives)


def _views(case: Case, found: Split, rows: Rows, local: Local) -> list[Any]:
    views = []
    for state, want in zip(case.inputs, found.wants, strict=True):
        if (state == rows) != (want == rows) or isinstance(want, states.Shape):
            raise WholeError("another operand has other values")
        views.append(local if want == rows else want)
    return views
