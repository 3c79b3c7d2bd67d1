"""Gradients of operands that were broadcast: sums over the axes along which they were.

Where lengths are not known, neither are these axes. It is known whether the rows' is among them,
and that is enough, for a sum keeps its axes before it is put into the operand's shape.
"""

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules.registry import Case
from replicate.splitting.states import OWN, SIZE, SUM, WHOLE, Rows, Split, WholeError


def summed(case: Case) -> Split:
    """Splits a `Sum` over axes that `BroadcastGradientArgs` tells."""
    shape, rows = _shape_summed_to(case.op), case.inputs[0]
    if shape is None or not states.is_rows(rows) or not case.attribute("keep_dims"):
        raise WholeError("an operand is not constant")
    axes = OWN if case.inputs[1] is SIZE and _are_own(case, rows) else WHOLE
    if axes is WHOLE and rows.space.is_picked:
        raise WholeError("axes are those of all rows, of which a device may have none")
    is_stretched = _axis_in(case, shape, rows, case.rank(0)) is None
    return Split([rows.at(rows.axis), axes], [SUM if is_stretched else rows.at(rows.axis)])


def _are_own(case: Case, rows: Rows) -> bool:
    """Whether the shapes are, on a device, those of its own operands.

    NOTE: what is worked out from sizes may tell of all rows along another axis, as of products of
    all pairs: a device's own sizes would be wrong there.
    """
    behind = rows.axis - case.rank(0)
    for shape in case.op.inputs[1].op.inputs:
        rank = len(case.facts.shape_entries(shape) or ())
        if not case.facts.is_own_shape(shape, rank + behind, rows.space):
            return False
    return True


def shaped(case: Case) -> Split | None:
    """Splits the `Reshape` of such a sum to the operand's shape; None: it is another one's."""
    made, shape, rows = case.op.inputs[0].op, case.op.inputs[1], case.inputs[0]
    if made.type != "Sum" or _shape_summed_to(made) is not shape or not states.is_rows(rows):
        return None
    axis = _axis_in(case, shape, rows, case.rank(0)) if made.get_attr("keep_dims") else None
    if axis is None:
        return None
    new = rows.at(axis)
    return Split([rows.at(rows.axis), case.shape_view(1, new)], [new])


def _shape_summed_to(op: tf.Operation) -> tf.Tensor | None:
    """Returns the shape of the operand whose gradient a `Sum` makes; None: it makes none."""
    axes = op.inputs[1]
    return axes.op.inputs[axes.value_index] if axes.op.type == "BroadcastGradientArgs" else None


def _axis_in(case: Case, shape: tf.Tensor, rows: Rows, rank: int) -> int | None:
    """Returns which axis of an operand has the rows; None: along it the operand was broadcast.

    Args:
        case: What facts are known by.
        shape: The operand's shape.
        rows: The rows of what it was broadcast to.
        rank: The rank of that.
    """
    entries = case.facts.shape_entries(shape)
    if entries is None:
        raise WholeError("a shape is not known")
    axis = rows.axis - rank + len(entries)
    if axis < 0 or entries[axis].is_one:
        return None
    is_measured = case.facts.is_measured(shape, axis, rows.space)
    if not is_measured and not entries[axis].has_rows(rows.space):
        raise WholeError("whether an operand is as long as the rows is not known")
    return axis
