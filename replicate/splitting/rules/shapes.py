"""Operations that move entries and change none: shapes, slices, joins end to end.

A whole operand that is a shape is the same on each device, but for its entry of the rows. What is
linear (all of these but padding with a constant) keeps parts of a sum apart: these have the whole
value's shape, and so read whole shapes.
"""

import math
from collections.abc import Sequence

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import reductions, signatures
from replicate.splitting.rules.registry import Case, Extent, rule
from replicate.splitting.rules.signatures import (
    Axes,
    Said,
    by_axes,
    inserted,
    names,
    reduced,
    whole,
)
from replicate.splitting.states import (
    OWN,
    SIZE,
    SUM,
    WHOLE,
    Leading,
    Local,
    Rows,
    Space,
    Split,
    Steps,
    WholeError,
)


@rule("Reshape", linear=[0])
def reshape(case: Case) -> Split:
    """Rows stay if the entries before them are as many as before, or become `Steps`."""
    if (of_gradient := reductions.shaped(case)) is not None:
        return of_gradient
    rows = case.rows_of(0)
    if isinstance(rows.space, Steps):
        new = _reshaped_steps(case, rows)
    else:
        new = _steps(case, rows) or rows.at(_reshaped_axis(case, rows))
    return Split([rows, case.shape_view(1, new)], [new])


def _steps(case: Case, rows: Rows) -> Rows | None:
    """Returns the rows of [T, n, Q] that become [T * n, Q], or None if it is another reshape."""
    old = case.shape(0)
    is_one_each = rows.axis and old[rows.axis].multiple == 1 and not rows.space.is_picked
    if not is_one_each or num_entries(old[: rows.axis]) == 1:
        return None
    axis = _axis_alone(_reshaped(case), old[rows.axis + 1 :])
    return None if axis is None else Rows(axis, rows.space.steps)


def _reshaped_steps(case: Case, rows: Rows) -> Rows:
    """Returns the rows of [T * n, Q] that becomes [T * n, R], or [T, n, R]."""
    old, new = case.shape(0), _reshaped(case)
    behind = old[rows.axis + 1 :]
    if num_entries(old[: rows.axis]) != 1:
        raise WholeError("it mixes rows")
    if (alone := _axis_alone(new, behind)) is not None:
        return rows.at(alone)
    for axis, extent in enumerate(new):
        if axis and extent.multiple == 1 and _are_as_many(behind, new[axis + 1 :]):
            return Rows(axis, rows.space.base)
    raise WholeError("it mixes rows")


def _axis_alone(shape: Sequence[Extent], behind: Sequence[Extent]) -> int | None:
    """Returns the axis with nothing but ones before it, and as many entries behind it as given."""
    for axis in range(len(shape)):
        if num_entries(shape[:axis]) == 1 and _are_as_many(behind, shape[axis + 1 :]):
            return axis
    return None


def _are_as_many(one: Sequence[Extent], other: Sequence[Extent]) -> bool:
    """Whether two shapes have the same number of entries, and not none.

    NOTE: in a static batch a length may count as one of rows.
    """
    number = num_entries(one)
    if number is not None:
        return number > 0 and number == num_entries(other)
    are_known = all(each.is_known and each.size != 0 for each in one)
    longer, others = ([each for each in shape if not each.is_one] for shape in (one, other))
    return are_known and longer == others


def _reshaped_axis(case: Case, rows: Rows) -> int:
    """Returns which axis of a reshaped value has the rows.

    With p entries before the rows and q behind them, [p, m * n, q] becomes [p, l, r]: the rows
    are along the second axis if l = m * n * q / r is a multiple of their number n.
    """
    old, new = case.shape(0), _reshaped(case)
    before = num_entries(old[: rows.axis])
    if not before:
        raise WholeError("a length before the rows is not known")
    for axis, extent in enumerate(new):
        is_there = extent.size is None and num_entries(new[:axis]) == before
        if is_there and _is_multiple(old[rows.axis :], new[axis:], rows.space):
            others = [entry for n, entry in enumerate(case.entries(1)) if n != axis]
            # NOTE: beside the rows of a device that has none, -1 would be unknown.
            if rows.space.is_picked and any(entry.size == -1 for entry in others):
                raise WholeError("a length is left over beside rows that may be none")
            return axis
    raise WholeError("it mixes rows")


def _reshaped(case: Case) -> list[Extent]:
    """Returns the extents of a reshaped value: as inferred, else as asked for."""
    entries = case.facts.shape_entries(case.op.inputs[1]) or ()
    extents = list(case.result_shape())
    for axis, entry in enumerate(entries):
        if extents[axis].size is None and not extents[axis].has_rows() and entry.size != -1:
            extents[axis] = entry
    return extents


def _is_multiple(old: Sequence[Extent], new: Sequence[Extent], space: Space) -> bool:
    """Whether, for shapes of as many entries, the new first one is a multiple of the rows."""
    behind, left = num_entries(old[1:]), num_entries(new[1:])
    if behind and left:
        many = old[0].multiple or 0
        if behind == left or (many and many * behind % left == 0):
            return True
    # NOTE: a length that grows with picked rows may grow with other ones.
    return not space.is_picked and new[0].has_rows(space)


def num_entries(extents: Sequence[Extent]) -> int | None:
    """Returns how many entries a shape has, or None if it is unknown."""
    sizes = [extent.size for extent in extents if extent.size not in (None, -1)]
    return math.prod(sizes) if len(sizes) == len(extents) else None


@by_axes("ExpandDims", linear=[0])
def expand(case: Case) -> Said:
    """A new axis of length 1."""
    x = names(case)
    return Said([x], [inserted(x, case.axis(1, len(x) + 1))])


@rule("Squeeze", linear=[0])
def squeeze(case: Case) -> Split:
    """Axes of length 1 go away; copies name them, since a device may have one row."""
    rows, extents = case.rows_of(0), case.shape(0)
    axes = sorted({axis % len(extents) for axis in case.attribute("squeeze_dims")})
    if not axes:
        if any(each.size is None for n, each in enumerate(extents) if n != rows.axis):
            raise WholeError("which axes go away is not known")
        shape = case.op.inputs[0].shape
        is_fixed = shape.rank is not None and shape.as_list()[rows.axis] is not None
        if not is_fixed and (extents[rows.axis].multiple or 1) == 1:
            raise WholeError("the axis of rows goes away where there is one row")
        axes = [n for n, extent in enumerate(extents) if extent.is_one and n != rows.axis]
    if rows.axis in axes or not axes:
        raise WholeError("it takes away the axis of rows, or none")
    new = rows.at(rows.axis - sum(axis < rows.axis for axis in axes))
    return Split([rows], [new], attributes={"squeeze_dims": axes})


@by_axes("Transpose ConjugateTranspose", linear=[0])
def transpose(case: Case) -> Said:
    """Output axis n is the input's axis `perm[n]`."""
    x = names(case)
    return Said([x], [[x[int(axis)] for axis in case.value(1).reshape(-1)]])


@by_axes("Pack", linear=signatures.ALL)
def pack(case: Case) -> Said:
    """Values of one shape along a new axis."""
    x = names(case)
    return Said([x] * len(case.inputs), [inserted(x, case.attribute("axis"))])


@by_axes("Unpack", linear=[0])
def unpack(case: Case) -> Said:
    """The parts along an axis, which goes away."""
    axis = case.attribute("axis") % case.rank(0)
    x = whole(names(case), [axis])
    return Said([x], [reduced(x, [axis])])


@rule("Concat", "ConcatV2")
def concat(case: Case) -> Split:
    """Values end to end along an axis, which is the last operand, in version 1 the first."""
    place = 0 if case.type == "Concat" else len(case.inputs) - 1
    values = [n for n in range(len(case.inputs)) if n != place]
    if all(case.inputs[n] == SUM for n in values):
        return case.in_parts(values)
    if len({case.rank(n) for n in values}) > 1:
        raise WholeError("ranks differ")
    x = whole(names(case, values[0]), [case.axis(place, case.rank(values[0]))])
    return signatures.split(
        case, Said([x if n in values else () for n in range(len(case.inputs))], [x])
    )


@rule("Split", linear=[1])
@rule("SplitV", linear=[0])
def split(case: Case) -> Split:
    """Runs along an axis: `Split(axis, value)`, `SplitV(value, sizes, axis)`."""
    value, place = (1, 0) if case.type == "Split" else (0, 2)
    x = whole(names(case, value), [case.axis(place, case.rank(value))])
    return signatures.split(case, Said([(), x] if value else [x], [x]))


def pad(case: Case) -> Said:
    """Entries before and behind each axis, none along rows."""
    x = whole(names(case), np.flatnonzero(case.value(1).any(1)).tolist())
    return Said([x], [x])


by_axes("Pad", linear=[0])(pad)
by_axes("PadV2")(pad)
by_axes("MirrorPad MirrorPadGrad", linear=[0], needs_rows=True)(pad)


@by_axes("Bitcast")
def bitcast(case: Case) -> Said:
    """The last axis may go away, or come."""
    x = whole(names(case), range(case.result_rank(), case.rank(0)))
    return Said([x], [x])


@rule("Fill")
def fill(case: Case) -> Split:
    """`dims` and a value: rows along the first axis whose length is a number of rows.

    A fill of the shape of a device's own values is its own too.
    """
    measured = case.measured(0)
    if isinstance(measured, Local):
        return Split([OWN, WHOLE], [Local(measured.source)])
    rows = rows_of_shape(case, 0)
    return Split([case.shape_view(0, rows), WHOLE], [rows])


@rule("Tile", linear=[0])
def tile(case: Case) -> Split:
    """Copies along each axis: one of rows, or one for each row of an axis of length 1."""
    if states.is_rows(case.inputs[0]):
        rows = case.rows_of(0)
        if not case.entries(1)[rows.axis].is_one:
            raise WholeError("along rows")
        return Split([rows, case.same(1)], [rows])
    rows = rows_of_shape(case, 1)
    if not case.shape(0)[rows.axis].is_one:
        raise WholeError("it repeats several entries")
    return Split([WHOLE, case.shape_view(1, rows)], [rows])


@rule("BroadcastTo", linear=[0])
def broadcast_to(case: Case) -> Split:
    """To a shape: rows stay rows, a length 1 may become the number of rows."""
    entries = case.entries(1)
    more = len(entries) - case.rank(0)
    if not states.is_rows(case.inputs[0]):
        rows = rows_of_shape(case, 1)
        if rows.axis >= more and not case.shape(0)[rows.axis - more].is_one:
            raise WholeError("its operand is whole")
        return Split([WHOLE, case.shape_view(1, rows)], [rows])
    own = case.rows_of(0)
    rows = own.at(own.axis + more)
    if not entries[rows.axis].has_rows(rows.space):
        raise WholeError("the shape has no rows there")
    return Split([own, case.shape_view(1, rows)], [rows])


def rows_of_shape(case: Case, n: int) -> Rows:
    """Returns the rows of a result whose shape is input n."""
    measured = case.measured(n)
    if states.is_rows(measured):
        return measured.plain
    for axis, entry in enumerate(case.entries(n)):
        if entry.has_rows():
            return Rows(axis, space_of_size(case, n, entry.is_picked))
    raise WholeError("the shape has no rows")


def space_of_size(case: Case, n: int, is_picked: bool) -> Space:
    """Returns whose rows input n, a size, counts: those of the tensors that it is made from.

    A number that the graph of a static batch has counts the batch's.
    """
    if case.inputs[n] is WHOLE and case.facts.literal(case.op.inputs[n]) is not None:
        return case.batch
    spaces: set[Space] = set()
    seen, waiting = set(), [case.op.inputs[n]]
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        state = case.state_of(tensor)
        if state is SIZE:
            waiting.extend(tensor.op.inputs)
        elif states.is_rows(state) and state.space.is_picked == is_picked:
            spaces.add(state.space.base)
        if is_picked and state is not SIZE and _may_count_others(case, tensor):
            raise WholeError("whose picked rows a size counts is not known")
    if len(spaces) != 1:
        raise WholeError("whose rows a size counts is not known")
    return spaces.pop()


def _may_count_others(case: Case, tensor: tf.Tensor) -> bool:
    """Whether a length of a tensor may be the number of other picked rows than its own."""
    state, extents = case.state_of(tensor), case.facts.shape(tensor)
    if not states.is_rows(state):
        return case.facts.value(tensor) is None
    return extents is None or any(
        extent.has_rows() and extent.is_picked
        for axis, extent in enumerate(extents)
        if axis != state.axis
    )


def _sliced(case: Case, axes: Axes) -> tuple[list[str], dict[str, int]]:
    """Returns the axes of a strided slice of a value with some axes, and the entry for each."""
    number = case.shape(1)[0].size
    if number is None:
        raise WholeError("how many entries a slice has is not known")
    ellipsis, new, shrink = (
        case.attribute(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis")
    )
    more = len(axes) - sum(not (ellipsis | new) >> n & 1 for n in range(number))
    left, result, entries = list(axes), [], {}
    for n in range(number):
        if ellipsis >> n & 1:
            result += left[:more]
            del left[:more]
        elif new >> n & 1:
            result.append("NEW")
        else:
            axis = left.pop(0)
            entries[axis] = n
            result += [] if shrink >> n & 1 else [axis]
    return result + left, entries


@rule("StridedSlice", linear=[0])
def strided_slice(case: Case) -> Split:
    """`input`, `begin`, `end`, `strides`: all rows are taken."""
    rows, x = case.rows_of(0), names(case)
    result, entries = _sliced(case, x)
    axis = x[rows.axis]
    if axis not in result:
        raise WholeError("it picks a row")
    views = _views_of_all(case, entries.get(axis), rows, case.shape(0)[rows.axis])
    return Split([rows, *views], [rows.at(result.index(axis))])


@rule("StridedSliceGrad", linear=[4])
def strided_slice_gradient(case: Case) -> Split:
    """`shape`, `begin`, `end`, `strides`, `dy`: zeros of a shape, with a slice set to `dy`."""
    rows, lengths = case.rows_of(4), case.entries(0)
    x = [f"a{n}" for n in range(len(lengths))]
    result, entries = _sliced(case, x)
    if result[rows.axis] not in x:
        raise WholeError("a new axis has the rows")
    new = rows.at(x.index(result[rows.axis]))
    views = _views_of_all(case, entries.get(result[rows.axis]), rows, lengths[new.axis])
    return Split([case.shape_view(0, new), *views, rows], [new])


def _views_of_all(case: Case, entry: int | None, rows: Rows, length: Extent) -> list[states.View]:
    """Returns the views of begin, end and strides, one entry of which must take all rows."""
    views = [case.same(n) for n in (1, 2, 3)]
    if entry is None:
        return views
    if case.value(3)[entry] != 1:
        raise WholeError("it slices rows")
    if not case.attribute("begin_mask") >> entry & 1 and case.entries(1)[entry].size != 0:
        raise WholeError("it slices rows")
    if not case.attribute("end_mask") >> entry & 1:
        _check_length(case.entries(2)[entry], length)
        views[1] = case.shape_view(2, rows.at(entry))
    return views


def _check_length(entry: Extent, length: Extent) -> None:
    """Refuses a slice that may end before the last row; picked rows may be other ones."""
    if entry != length or not length.multiple or length.is_picked:
        raise WholeError("it slices rows")


@rule("Slice", linear=[0])
def slice_of_size(case: Case) -> Split:
    """`input`, `begin`, `size`: all rows are taken."""
    rows = case.rows_of(0)
    if case.entries(1)[rows.axis].size != 0:
        raise WholeError("it slices rows")
    size, measured = case.entries(2)[rows.axis], case.measured(2)
    if measured == Local(Leading(rows.space)) and case.inputs[2] is SIZE and not rows.axis:
        return Split([rows, case.same(1), OWN], [measured])
    if size.size != -1:
        _check_length(size, case.shape(0)[rows.axis])
    return Split([rows, case.same(1), case.shape_view(2, rows)], [rows])
