"""What rules ask of one operand: whether it has rows, and in which view the copies read it."""

from replicate.splitting import states
from replicate.splitting.rules.registry import Case
from replicate.splitting.states import OWN, SIZE, WHOLE, Rows, View, WholeError


def rows_of(case: Case, n: int = 0) -> Rows:
    """Returns the state of input n, which must have rows."""
    state = case.inputs[n]
    if not states.is_rows(state):
        raise WholeError("its operand has no rows")
    return state


def along(case: Case, n: int, rows: Rows) -> Rows:
    """Returns the view of input n, which has an entry for each row.

    Only for an operation that fails if lengths differ: an unknown length counts as fitting.
    """
    extents = case.shape(n)
    if not 0 <= rows.axis < len(extents):
        raise WholeError("an input has no dimension for the rows")
    extent = extents[rows.axis]
    is_unknown = extent.size is None and extent.multiple == 0
    if is_unknown or extent.has_rows(rows.space) or has(case, n, rows):
        return rows
    raise WholeError("an input has another length than there are rows")


def along_or_one(case: Case, n: int, rows: Rows) -> View:
    """Returns the view of input n, which has an entry for each row, or one for all rows.

    The latter if its dimension is of length 1, or missing. Refuses a length that is unknown, or the
    number of other picked rows: it may happen to be 1.

    Args:
        case: The operation.
        n: Which input.
        rows: The rows, along the input's own axis; below 0 if the input does not have it.
    """
    if rows.axis < 0 or case.shape(n)[rows.axis].is_one:
        return WHOLE
    is_counted = not rows.space.is_picked and case.shape(n)[rows.axis].has_rows(rows.space)
    if has(case, n, rows) or is_counted:
        return rows
    raise WholeError("whether an operand is as long as the rows is not known")


def has(case: Case, n: int, rows: Rows) -> bool:
    """Whether input n has these rows, along the same axis."""
    state = case.inputs[n]
    return states.is_rows(state) and state.plain == rows.plain


def same(case: Case, n: int) -> View:
    """Returns the view of input n, which is the same on every device, constant or not."""
    is_size = case.inputs[n] is SIZE
    return OWN if is_size and case.facts.value(case.op.inputs[n]) is not None else WHOLE
