"""Rows that meet other rows, and numbers of rows that enter them, before rows are reduced.

A row reduction joins over towers because each row brings its own part, whatever the other
rows are. That is looked for where rows are made: a number without rows that is made from
values of the batch may not flow back into them, no operation may pair rows with rows or work
along them. A number of a tower's rows that each row is multiplied with, or divided by, makes
a mean out of a sum, which nobody can see from the sum.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry, row_dimensions

_SHAPES = ("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike")
_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_LAST_AXIS = ("LogSoftmax", "Softmax", "TopK", "TopKV2")
_ALONG = {
    "Cumprod": 1,
    "Cumsum": 1,
    "CumulativeLogsumexp": 1,
    "ReverseV2": 1,
    "Roll": 2,
    "SplitV": 2,
}
_SEGMENTS = tuple(
    f"{prefix}Segment{kind}"
    for prefix in ("", "Unsorted")
    for kind in ("Max", "Mean", "Min", "Prod", "Sum")
)


class Meeting(NamedTuple):
    """Where rows meet rows.

    Attributes:
        op: The operation.
        tensor: What brings other rows to it.
        is_number: Whether it is a number of rows alone.
    """

    op: tf.Operation
    tensor: tf.Tensor
    is_number: bool


class _Shapes:
    """Holds the operations that look at a shape, and at no value."""

    def __contains__(self, op: tf.Operation) -> bool:
        return op.type in _SHAPES


class _LengthsOfNoRows:
    """Holds the operations that take from a shape what is no number of rows."""

    def __init__(self, joining: Any):
        self._whole = joining

    def __contains__(self, op: tf.Operation) -> bool:
        if op.type != "StridedSlice" or op.inputs[0].op.type not in ("Shape", "ShapeN"):
            return False
        shape = op.inputs[0]
        rows = self._whole.axes(shape.op.inputs[shape.value_index])
        length = tf.compat.dimension_value(shape.shape[0]) if shape.shape.rank else None
        if length is None:
            return False
        taken = row_dimensions.sliced(op, list(range(length)))
        return taken is not None and not any(axis in rows for axis in taken)


class Meetings:
    """Looks for meetings behind row reductions; each operation is looked at once.

    Args:
        joining: Knows what has rows: a `whole.Whole`.
    """

    def __init__(self, joining: Any):
        self._whole = joining
        sources = [tensor.op for tensor in joining.rows.given[0]]
        self._by_value = ancestry.Descent(sources, _Shapes())
        self._by_number = ancestry.Descent(sources, _LengthsOfNoRows(joining))
        self._seen = set(sources)
        self._found: list[Meeting] = []
        self._behind: dict[bool, Any] = {}

    def clear(self, tensors: Iterable[tf.Tensor]) -> None:
        """Takes note of rows' parts of a whole value, before which nobody need look."""
        self._seen.update(tensor.op for tensor in tensors)

    def before(self, tensor: tf.Tensor, is_number: bool) -> list[Meeting]:
        """Returns the meetings that a tensor of the first tower is made from.

        Args:
            tensor: A row reduction.
            is_number: Whether those with numbers of rows are asked for, or all others.
        """
        if self._look(tensor.op):
            self._behind = {}
        asked = [meeting for meeting in self._found if meeting.is_number == is_number]
        if not asked:
            return []
        if is_number not in self._behind:
            self._behind[is_number] = ancestry.Descent(meeting.op for meeting in asked)
        return asked if tensor.op in self._behind[is_number] else []

    def _look(self, op: tf.Operation) -> bool:
        """Looks at the operations that make rows, back to the batch; whether one was found."""
        waiting = [tensor.op for tensor in op.inputs]
        known = len(self._found)
        while waiting:
            current = waiting.pop()
            if current in self._seen or current in self._whole.ends:
                continue
            self._seen.add(current)
            if any(self._meetings(current)):  # most often the first answer is enough
                self._found.extend(self._meetings(current, is_certain=True))
            waiting.extend(tensor.op for tensor in current.inputs)
        return len(self._found) > known

    def _meetings(self, op: tf.Operation, is_certain: bool = False) -> list[Meeting]:
        """Returns where rows meet in an operation; see `RowDimensions.of` for `is_certain`."""
        made = [tensor for tensor in op.outputs if _is_value(tensor)]
        axes = [self._whole.axes(tensor, is_certain) for tensor in op.inputs if made]
        after = [self._whole.axes(tensor, is_certain) for tensor in made if any(axes)]
        if not any(after):
            return []
        found = []
        for tensor, rows in zip(op.inputs, axes, strict=True):
            if not rows and _is_value(tensor):
                if tensor.op in self._whole.varying:
                    is_number = tensor.op not in self._by_value
                    if not is_number or tensor.op in self._by_number:
                        found.append(Meeting(op, tensor, is_number))
                elif not self._whole.is_whole(tensor):
                    found.append(Meeting(op, tensor, True))
        is_more = op.type != "Reshape" and max(map(len, after)) > max(map(len, axes))
        if is_more or _works_along(op, axes):
            found.append(Meeting(op, made[0], False))
        return found


def _is_value(tensor: tf.Tensor) -> bool:
    """Whether a tensor is no whole number, as lengths and indices are."""
    return tensor.dtype.is_floating or tensor.dtype == tf.bool


def _works_along(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """Whether an operation lets rows meet along an axis that is rows."""
    if op.type == "Split":
        along = tf.get_static_value(op.inputs[0])
        return along is not None and int(along) in axes[1]
    if not axes or not axes[0]:
        return False
    if op.type in _NORMS:
        return bool(op.get_attr("is_training"))
    rank = op.inputs[0].shape.rank
    if op.type == "StridedSlice":
        return _takes_some(op, axes[0])
    if op.type in _SEGMENTS:
        return True
    if op.type in _LAST_AXIS:
        return rank is not None and rank - 1 in axes[0]
    if op.type in _ALONG:
        along = tf.get_static_value(op.inputs[_ALONG[op.type]])
        if along is None or rank is None:
            return False
        return any(int(axis) % rank in axes[0] for axis in along.reshape(-1))
    return False


def _takes_some(op: tf.Operation, axes: tuple) -> bool:
    """Whether a slice takes some of the rows, in place of all of them or of one."""
    masks = {name: op.get_attr(name) for name in ("begin_mask", "end_mask")}
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return False
    bounds = tf.get_static_value(op.inputs[1])
    length = None if bounds is None else len(bounds)
    taken = [axis for axis in axes if length is None or axis < length]
    one = op.get_attr("shrink_axis_mask")
    taken = [axis for axis in taken if not one & (1 << axis)]
    steps = tf.get_static_value(op.inputs[3])
    if steps is not None and any(steps[axis] != 1 for axis in taken):
        return True
    return any(not masks[name] & (1 << axis) for axis in taken for name in masks)
