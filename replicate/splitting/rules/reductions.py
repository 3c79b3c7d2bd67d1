"""Sums, maxima and other reductions, and operations along an axis."""

import dataclasses

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import signatures
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import Said, along, by_axes, names, signature
from replicate.splitting.states import (
    OWN,
    SIZE,
    SUM,
    WHOLE,
    Kind,
    Partial,
    Rows,
    Split,
    WholeError,
)

KINDS = {
    "Sum": Kind.SUM,
    "Max": Kind.MAX,
    "Min": Kind.MIN,
    "Prod": Kind.PROD,
    "All": Kind.ALL,
    "Any": Kind.ANY,
}


signature("... -> ", "L2Loss")  # half the sum of all squares
signature("... -> N", "HistogramFixedWidth")  # counts


@rule(*KINDS)
def reduction(case: Case) -> Split:
    """Over rows each device makes a part; parts of the same kind are reduced apart."""
    part = Partial(KINDS[case.type])
    if case.inputs[0] == part:
        return Split([part, case.same(1)], [part])
    if case.type == "Sum" and case.facts.value(case.op.inputs[1]) is None:
        return summed(case)
    return signatures.split(case, _over_axes(case), part)


@rule("Mean")
def mean(case: Case) -> Split:
    """Over rows each device makes a sum; the number of all rows is known where sums are joined.

    Means of float16 and bfloat16 are whole: sums of the one may overflow, and sums and numbers of
    the other are rounded to eight bits.
    """
    if case.inputs[0] == SUM and case.is_float():
        return case.in_parts([0])
    part = Partial(Kind.MEAN)
    sums = signatures.split(case, _over_axes(case), part)
    if sums.gives[0] != part:
        return sums
    if case.op.inputs[0].dtype in (tf.float16, tf.bfloat16) or not case.is_float():
        raise WholeError("a mean of integers or of short floats over rows")
    return dataclasses.replace(sums, type="Sum")


def _over_axes(case: Case) -> Said:
    x, axes = names(case), case.axes(1, case.rank(0))
    return Said([x], [signatures.reduced(x, axes, case.attribute("keep_dims"))])


along("EuclideanNorm", 1, goes=True)  # roots of parts of a sum do not add up
along("ArgMax ArgMin", 1, goes=True)
along("Cumsum ReverseV2", 1, linear=[0])
along("Cumprod CumulativeLogsumexp", 1)
along("Roll", 2, linear=[0])


@by_axes("Reverse", linear=[0], needs_rows=True)
def reverse(case: Case) -> Said:
    """Whether to reverse, for each axis."""
    x = signatures.whole(names(case), np.flatnonzero(case.value(1)).tolist())
    return Said([x], [x])


@by_axes("BiasAddGrad", linear=[0])
def bias_gradient(case: Case) -> Said:
    """A sum over all axes but the channels'."""
    x = names(case)
    return Said([x], [[x[channels(case)]]])


def channels(case: Case) -> int:
    """Returns which axis of input 0 has the channels of a bias."""
    is_last = case.type == "BiasAddV1" or case.attribute("data_format") == "NHWC"
    return case.rank(0) - 1 if is_last else 1


@by_axes("Bincount DenseBincount")
def counts(case: Case) -> Said:
    """Counts of whole numbers, or sums of their weights; of a matrix, for each of its rows.

    Weights are of the numbers' shape, or of length 0 if there are none.
    """
    x, weights = names(case), case.shape(2)
    is_matrix = case.type == "DenseBincount" and len(x) == 2
    if case.type == "DenseBincount" and case.attribute("binary_output") and not is_matrix:
        raise WholeError("whether a number is there, over rows")
    result = [x[0] if is_matrix else "K"] + ["K"] * is_matrix
    x = signatures.whole(x, [1] if is_matrix else [])
    if len(weights) == 1 and weights[0].size == 0:
        return Said([x], [result])
    have_rows = states.is_rows(case.inputs[2]) or any(each.has_rows() for each in weights)
    if len(weights) != len(x) or not have_rows:
        raise WholeError("whether there are weights is not known")
    return Said([x, (), x], [result])


def summed(case: Case) -> Split:
    """Splits a `Sum` over the axes that `BroadcastGradientArgs` makes."""
    shape, rows = _shape_summed_to(case.op), case.inputs[0]
    if shape is None or not states.is_rows(rows) or not case.attribute("keep_dims"):
        raise WholeError("an operand is not constant")
    axes = OWN if case.inputs[1] is SIZE and _are_own(case, rows) else WHOLE
    if axes is WHOLE and rows.space.is_picked:
        raise WholeError("axes are those of all rows, of which a device may have none")
    is_stretched = _axis_in(case, shape, rows, case.rank(0)) is None
    return Split([rows, axes], [SUM if is_stretched else rows])


def _are_own(case: Case, rows: Rows) -> bool:
    """Whether each device has the shapes of its own operands.

    NOTE: another axis may have all rows, as in products of all pairs: a device's own sizes would be
    wrong there.
    """
    behind = rows.axis - case.rank(0)
    for shape in case.op.inputs[1].op.inputs:
        rank = len(case.facts.shape_entries(shape) or ())
        if not case.facts.is_own_shape(shape, rank + behind, rows.space):
            return False
    return True


def shaped(case: Case) -> Split | None:
    """Splits the `Reshape` of such a sum to the operand's shape; returns None if it is another."""
    summing, shape, rows = case.op.inputs[0].op, case.op.inputs[1], case.inputs[0]
    if summing.type != "Sum" or _shape_summed_to(summing) is not shape or not states.is_rows(rows):
        return None
    axis = _axis_in(case, shape, rows, case.rank(0)) if summing.get_attr("keep_dims") else None
    if axis is None:
        return None
    new = rows.at(axis)
    return Split([rows, case.shape_view(1, new)], [new])


def _shape_summed_to(op: tf.Operation) -> tf.Tensor | None:
    """Returns the shape of the operand whose gradient a `Sum` makes, if it makes one."""
    axes = op.inputs[1]
    return axes.op.inputs[axes.value_index] if axes.op.type == "BroadcastGradientArgs" else None


def _axis_in(case: Case, shape: tf.Tensor, rows: Rows, rank: int) -> int | None:
    """Returns which axis of an operand has the rows, or None if it was broadcast along them.

    Args:
        case: The operation.
        shape: The operand's shape.
        rows: The rows of what it was broadcast to.
        rank: The rank of what it was broadcast to.
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
