"""Rows that meet other rows, and numbers of rows that enter them, before rows are reduced.

A row reduction joins over towers because each row brings its own part, whatever the other
rows are. So each operation that makes rows of rows must be known to keep them apart (see
`row_wise`), and what it reads beside the rows must be the same in each tower: no number that
is made from other rows, no number of them, no place of a row in its tower. Places may say
where values lie, as those of a mask or of a sparse tensor do: they pick a tower's own rows.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry, functions, row_dimensions, row_flow, row_places

_SHAPES = ("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike")


class Meetings:
    """Looks for meetings in the first tower.

    Args:
        joining: Knows what has rows: a `whole.Whole`.
    """

    def __init__(self, joining: Any):
        self._view = _OfTower(joining)
        self._looker = row_flow.Looker(self._view)

    def clear(self, tensors: Iterable[Any]) -> None:
        """Takes note of values that are the whole batch's, of which nobody has asked yet."""
        self._view.cleared.update(tensor.op for tensor in tensors if tf.is_tensor(tensor))

    def part(self, tensors: Iterable[tf.Tensor]) -> None:
        """Takes note of rows' parts of a whole value, behind which nobody need look."""
        self._view.parts.update(tensor.op for tensor in tensors)

    def before(self, tensor: tf.Tensor, is_number: bool) -> list[row_flow.Meeting]:
        """Returns the meetings that a tensor of the first tower is made from.

        Args:
            tensor: A row reduction, or a tensor with rows.
            is_number: Whether those with numbers of rows are asked for, or all others.
        """
        has_rows = bool(self._view.axes(tensor, is_certain=True))
        state, reduced = self._looker.state, self._looker.reduced
        found = state(tensor) if has_rows else reduced(tensor.op)
        return sorted(
            (m for m in found if m.is_number == is_number and m.kind not in row_flow.QUIET),
            key=lambda meeting: meeting.name,
        )


def _is_seen(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.variant, tf.resource)


def _kind_of_constant(tensor: tf.Tensor, whole: tf.Tensor | None) -> str | None:
    """Returns how a constant of rows meets them: by the rows' places, or by their number."""
    entries = row_places.entries(tensor)
    if len(entries) > 1:
        return row_flow.PLACE
    if whole is None or whole.op.type != "Const" or entries == row_places.entries(whole):
        return None
    return row_flow.NUMBER


class _Shapes:
    """Holds the operations that look at a shape, and at no value; and what is cleared."""

    def __init__(self, cleared: Container[tf.Operation] = ()):
        self._cleared = cleared

    def __contains__(self, op: tf.Operation) -> bool:
        return op.type in _SHAPES or op in self._cleared


class _LengthsOfNoRows:
    """Holds the operations that take from a shape no number of rows; and what is cleared."""

    def __init__(self, axes: Any, cleared: Container[tf.Operation] = ()):
        self._axes = axes
        self._cleared = cleared

    def __contains__(self, op: tf.Operation) -> bool:
        if op in self._cleared or op.type == "Rank":
            return True
        if op.type != "StridedSlice" or op.inputs[0].op.type not in ("Shape", "ShapeN"):
            return False
        shape = op.inputs[0]
        rows = self._axes(shape.op.inputs[shape.value_index], True)
        length = tf.compat.dimension_value(shape.shape[0]) if shape.shape.rank else None
        if length is None:
            return False
        taken = row_dimensions.sliced(op, list(range(length)))
        return taken is not None and not any(axis in rows for axis in taken)


class _Graph:
    """What the tower's graph has in common with the functions that it calls; see `View`.

    Args:
        dimensions: Tells which functions operations call, with the dimensions that are rows.
        varying: Tells what is made from the batch.
    """

    def __init__(self, dimensions: Any, varying: Container[tf.Operation]):
        self._dimensions = dimensions
        self._varying = varying

    def _made_from(self, tensor: tf.Tensor) -> str | None:
        """Returns whether a tensor is made from values of rows, or from their number."""
        if tensor.op in self._by_value:
            return row_flow.MEETS
        return row_flow.NUMBER if tensor.op in self._by_number else None

    def called(self, op: tf.Operation, states: Sequence[frozenset]) -> list[row_flow.Looker] | None:
        found = self._dimensions.called(op)
        if found is None:
            return None
        changing = [tensor.op in self._varying for tensor in op.inputs]
        return _lookers(self, op, found, changing, states)


class _OfTower(_Graph):
    """The first tower's graph; see `View`."""

    def __init__(self, joining: Any):
        super().__init__(joining, joining.varying)
        self._whole = joining
        sources = [tensor.op for tensor in joining.rows.given[0]]
        self._sources = set(sources)
        self._layout = {tensor.ref() for tensor in joining.rows.layout}
        places = {tensor.op for tensor in (*joining.rows.layout, *joining.rows.shapes)}
        self.cleared: set[tf.Operation] = set()
        self.parts: set[tf.Operation] = set()
        laid_out = [op for op in sources if op not in places]
        self._by_value = ancestry.Descent(laid_out, _Shapes(self.cleared))
        self._by_number = ancestry.Descent(laid_out, _LengthsOfNoRows(self.axes, self.cleared))

    def axes(self, tensor: tf.Tensor, is_certain: bool) -> tuple:
        if tensor.shape.rank is None and _is_seen(tensor) and tensor.op in self._whole.varying:
            return (0,)  # nobody knows
        return self._whole.axes(tensor, is_certain)

    def start(self, tensor: tf.Tensor) -> frozenset | None:
        if tensor.ref() in self._layout:
            return frozenset([row_flow.Meeting(tensor.op, tensor.ref(), row_flow.LAYOUT)])
        op = tensor.op
        known = (self._sources, self._whole.ends, self.cleared, self.parts)
        if any(op in operations for operations in known):
            return frozenset()
        if op in self._whole.varying or self._whole.axes(tensor):
            return None
        return frozenset()

    def constant(self, tensor: tf.Tensor) -> str | None:
        return _kind_of_constant(tensor, self._whole.source_of(tensor))

    def entering(self, op: tf.Operation, tensor: tf.Tensor) -> str | None:
        if tensor.op.type == "LoopCond":
            return None
        if tensor.op not in self._whole.varying:
            return None if self._whole.is_whole(tensor) else row_flow.NUMBER
        return self._made_from(tensor)


def _lookers(
    view: row_flow.View, op: tf.Operation, found: Sequence, changing: list, states: Sequence
):
    """Returns what looks into functions, of which each dimension is known."""
    kinds = [view.entering(op, tensor) for tensor in op.inputs]
    made = []
    for body, dimensions in found:
        first = len(op.inputs) - len(body.inputs)
        arguments = zip(changing[first:], states[first:], kinds[first:], strict=True)
        made.append(row_flow.Looker(_OfBody(body, dimensions, list(arguments))))
    return made


class _OfBody(_Graph):
    """A function that a tower calls; see `View`.

    Args:
        body: The function.
        dimensions: Tells which dimensions of its tensors are rows.
        arguments: Of each argument, whether it is made from the batch, what is known of it,
            and how it would meet rows if it had none.
    """

    def __init__(self, body: functions.Body, dimensions: Any, arguments: list[tuple]):
        self.ends = body.outputs
        self._given = {
            tensor.ref(): (changes, state, kind)
            for tensor, (changes, state, kind) in zip(body.inputs, arguments, strict=True)
        }
        sources = [tensor.op for tensor in body.inputs if self._given[tensor.ref()][0]]
        super().__init__(dimensions, ancestry.Descent(sources))
        meeting = [t.op for t in body.inputs if self._is_value(t)]
        self._by_value = ancestry.Descent(meeting, _Shapes())
        meeting += [t.op for t in body.inputs if self._given[t.ref()][2] == row_flow.NUMBER]
        self._by_number = ancestry.Descent(meeting, _LengthsOfNoRows(self.axes))

    def _is_value(self, tensor: tf.Tensor) -> bool:
        changes, _, kind = self._given[tensor.ref()]
        return changes and (kind == row_flow.MEETS or bool(self.axes(tensor, True)))

    def axes(self, tensor: tf.Tensor, is_certain: bool) -> tuple:
        if tensor.ref() in self._given and not self._given[tensor.ref()][0]:
            return ()
        if tensor.shape.rank is None:
            return (0,) if _is_seen(tensor) and tensor.op in self._varying else ()
        return self._dimensions.axes(tensor)

    def start(self, tensor: tf.Tensor) -> frozenset | None:
        if tensor.ref() in self._given:
            return self._given[tensor.ref()][1]
        return None if tensor.op in self._varying else frozenset()

    def constant(self, tensor: tf.Tensor) -> str | None:
        return _kind_of_constant(tensor, self._dimensions.whole(tensor))

    def entering(self, op: tf.Operation, tensor: tf.Tensor) -> str | None:
        if not _is_seen(tensor):
            return None
        if tensor.op not in self._varying:
            return row_flow.NUMBER if self._dimensions.is_folded(tensor) else None
        return self._made_from(tensor)
