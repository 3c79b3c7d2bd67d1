"""What rules of many families share: operations on items, one or more in each row.

Such an operation treats each item (an image, a matrix, a text, a list of scores) by itself; the
dimensions in front of the items are those of inputs and outputs.
"""

from collections.abc import Sequence

from replicate.splitting import states
from replicate.splitting.rules.registry import Case
from replicate.splitting.states import OWN, SIZE, WHOLE, Rows, Split, State, View, WholeError


def rows_of(case: Case, inputs: Sequence[int]) -> tuple[int, Rows]:
    """Returns the first of some inputs that has rows, and its state."""
    for n in inputs:
        state = case.inputs[n]
        if states.is_rows(state):
            return n, state
    raise WholeError("its rows are not where items are")


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
    is_constant = case.facts.value(case.op.inputs[n]) is not None
    return OWN if case.inputs[n] is SIZE and is_constant else WHOLE


def split(
    case: Case,
    item_rank: int,
    *,
    items: Sequence[int] = (0,),
    shapes: Sequence[int] = (),
    gives: Sequence[State] = (),
) -> Split:
    """Splits an operation on items whose rows are in front of them.

    Args:
        case: The operation.
        item_rank: How many of the last dimensions of the first item with rows are the item's.
        items: The inputs that have items; their dimensions in front are the same.
        shapes: The inputs that are the shape of a result; all others go whole.
        gives: The outputs' states; by default all have the rows.
    """
    n, rows = rows_of(case, items)
    if rows.axis >= case.rank(n) - item_rank:
        raise WholeError("rows are inside of the items")
    return in_front(case, rows, items=items, shapes=shapes, gives=gives)


def split_first(
    case: Case,
    *,
    items: Sequence[int] = (0,),
    shapes: Sequence[int] = (),
    gives: Sequence[State] = (),
) -> Split:
    """Splits an operation whose items lie along the first dimension; see `split`."""
    _, rows = rows_of(case, items)
    if rows.axis != 0:
        raise WholeError("rows are inside of the items")
    return in_front(case, rows, items=items, shapes=shapes, gives=gives)


def in_front(
    case: Case,
    rows: Rows,
    *,
    items: Sequence[int],
    shapes: Sequence[int] = (),
    gives: Sequence[State] = (),
) -> Split:
    """Splits an operation with rows along an axis that is in front of all items; see `split`."""
    wants: list[View] = []
    for n in range(len(case.inputs)):
        if n in items:
            wants.append(along(case, n, rows))
        elif n in shapes:
            wants.append(case.shape_view(n, rows))
        else:
            wants.append(same(case, n))
    return Split(wants, gives or [rows] * len(case.op.outputs))


def never_none(found: Split) -> Split:
    """Refuses picked rows, of which a device may have none, for a kernel that fails on no rows."""
    if any(states.is_rows(want) and want.space.is_picked for want in found.wants):
        raise WholeError("a device may have picked no rows")
    return found
