"""Entries that numbers part and put together again, as lookups in a table that is in slices do."""

import dataclasses

from replicate.splitting.rules import spaces
from replicate.splitting.rules.registry import Case, rule, rule_of_ids
from replicate.splitting.states import RowNumbers, Rows, Split, State, WholeError


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


@rule_of_ids("DynamicStitch", "ParallelDynamicStitch")
def _stitch(case: Case) -> Split:
    """Entries, [n1, Q], [n2, Q], ..., where the numbers of the rows that were parted say."""
    number = len(case.inputs) // 2
    made_by, put = case.op.inputs[0].op, [each.ref() for each in case.op.inputs[:number]]
    if made_by.type != "DynamicPartition" or put != [each.ref() for each in made_by.outputs]:
        raise WholeError("not each row is put in once")
    wants: list[State] = []
    for n in range(number):
        part = spaces.named(case, n)
        wants.append(case.having(number + n, part.plain))
    parted = case.state_of(made_by.inputs[0])
    if not isinstance(parted, RowNumbers) or not parted.ids.is_complete:
        raise WholeError("not each row is put in once")
    return Split([*case.inputs[:number], *wants], [Rows(0, parted.ids.space)])
