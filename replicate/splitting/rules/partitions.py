"""Entries that numbers part and put together again, as lookups in a table that is in slices do."""

import dataclasses

from replicate.compat.tensorflow import tf
from replicate.splitting.rules import different, elementwise, spaces
from replicate.splitting.rules.registry import Case, rule, rule_of_ids
from replicate.splitting.states import (
    WHOLE,
    Counted,
    Local,
    RowNumbers,
    Rows,
    Split,
    State,
    WholeError,
)
from replicate.splitting.structure import order


@rule_of_ids("DynamicPartition")
@rule("DynamicPartition")
def _partition(case: Case) -> Split:
    """Entries of `data`, [n, Q], into as many parts as `partitions`, [n], says: picked rows."""
    data, rows = case.inputs[0], case.rows_of(1).plain
    spaces.check_no_loop(case)
    if case.rank(1) != 1:
        raise WholeError("its entries are not along the first dimension")
    case.having(0, rows)
    parts = [Rows(0, case.space_of(part)) for part in case.op.outputs]
    if not isinstance(data, RowNumbers) or data.ids.column is not None:
        return Split([rows, rows], parts)
    ids = dataclasses.replace(data.ids, is_complete=False)
    return Split([data, rows], [RowNumbers(0, part.space, ids) for part in parts])


@rule_of_ids("DynamicPartition")
def _partition_different(case: Case) -> Split:
    """Different values into parts that each one says by itself, or what there is for each value.

    A part of the different values is different values, of which all devices' are joined alike.
    """
    data, numbers = case.inputs
    spaces.check_no_loop(case)
    if not isinstance(data, Local) or numbers != Local(data.source):
        raise WholeError("its operands are not the same different values")
    values, of_values = data.source, case.op.inputs[1]
    if not different.is_list(values) or not _is_made_of(case, of_values, values):
        raise WholeError("the numbers are not made of different values alone")
    users = [op for op in order.as_made(set(values.consumers())) if op.type == case.type]
    same = [op for op in users if op.inputs[0] is values and op.inputs[1] is of_values]
    if not same:
        raise WholeError("the different values themselves are not parted so")
    return Split([data, numbers], [type(data)(part) for part in same[0].outputs])


def _is_made_of(case: Case, tensor: tf.Tensor, values: tf.Tensor) -> bool:
    """Whether each entry of a tensor is made of the entry of different values, and of nothing else.

    So it is alike for what is alike on several devices.
    """
    if tensor is values:
        return True
    return tensor.op.type in elementwise.EACH and all(
        case.state_of(each) is WHOLE or _is_made_of(case, each, values) for each in tensor.op.inputs
    )


def _parted(case: Case) -> tf.Tensor:
    """Returns the numbers whose parts say where entries are put: all of them, in order."""
    made_by, put = case.op.inputs[0].op, case.op.inputs[: len(case.inputs) // 2]
    refs = [each.ref() for each in made_by.outputs]
    if made_by.type != "DynamicPartition" or [each.ref() for each in put] != refs:
        raise WholeError("not each row is put in once")
    return made_by.inputs[0]


@rule_of_ids("DynamicStitch", "ParallelDynamicStitch")
def _stitch_different(case: Case) -> Split:
    """What there is for parts of different values, put together for all of them."""
    number, parted = len(case.inputs) // 2, _parted(case)
    numbers = case.state_of(parted)
    if not isinstance(numbers, Counted):
        raise WholeError("the different values are not counted")
    parts = [state.source for state in case.inputs[:number] if isinstance(state, Counted)]
    if case.inputs[number:] != [Local(part) for part in parts]:
        raise WholeError("its operands are not the same different values")
    return Split(case.inputs, [Local(numbers.source)])


@rule_of_ids("DynamicStitch", "ParallelDynamicStitch")
def _stitch(case: Case) -> Split:
    """Entries, [n1, Q], [n2, Q], ..., where the numbers of the rows that were parted say."""
    number, parted = len(case.inputs) // 2, _parted(case)
    wants: list[State] = []
    for n in range(number):
        part = spaces.named(case, n)
        wants.append(case.having(number + n, part.plain))
    numbers = case.state_of(parted)
    if not isinstance(numbers, RowNumbers) or not numbers.ids.is_complete:
        raise WholeError("not each row is put in once")
    return Split([*case.inputs[:number], *wants], [Rows(0, numbers.ids.space)])
