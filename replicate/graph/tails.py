"""How a tensor without rows is made of row reductions: the walk back from it.

The towers' graphs are walked all at once, and beside them the one that the tail is copied
from: with a dynamic batch the first tower's own, with a static one the model's graph on the
whole batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import row_reductions

UNKNOWN = "unknown"
WHOLE = "whole"  # a value that is the whole batch's already, in each tower


class Reduction(NamedTuple):
    """A tensor that each tower has reduced from its rows.

    Attributes:
        kind: `"sum"`, `"mean"`, `"size"`, `"shape"`, `"all"`, `"any"`, `"first"`, `"unknown"`
            or `"whole"`; see `row_reductions`.
        column: K tensors of one shape and dtype.
        source: The same tensor in the graph that the tail is copied from.
    """

    kind: str
    column: tuple
    source: tf.Tensor


class Tail(NamedTuple):
    """How a tensor without rows is made of row reductions.

    Attributes:
        reductions: What it is made of.
        operations: What makes it of them, in the graph that they are copied from.
        inputs: What these operations read of weights and constants: tensors of the first
            tower, by the source's `ref()`.
        waits: Operations that the towers' own ones wait for.
        unknown: What hides how its rows were reduced: tensors of the first tower, each with a
            reason.
        twins: The source's `ref()` by that of the first tower, of all tensors that were met.
    """

    reductions: list[Reduction]
    operations: list[tf.Operation]
    inputs: dict
    waits: list[tf.Operation]
    unknown: list[tuple]
    twins: dict


def lone_tail(column: Sequence[tf.Tensor]) -> Tail:
    """Returns the tail where the first tower alone has rows, and is the whole batch's."""
    first = column[0]
    return Tail(
        [Reduction("first", tuple(column), first)], [], {}, [], [], {first.ref(): first.ref()}
    )


class Walk:
    """Walks back from K tensors at once, and beside them through the source's graph.

    Args:
        joining: Knows what has rows: a `whole.Whole`.
        column: K tensors.
        source: The same in the graph of the source; None: it has none.
        declared: `"sum"` or `"mean"`: what is added up to the tensor is reduced so, whatever
            it is made of; None: the walk goes on to the row reductions.
    """

    def __init__(
        self,
        joining: Any,
        column: Sequence[tf.Tensor],
        source: tf.Tensor | None,
        declared: str | None = None,
    ):
        self._whole = joining
        self._declared = declared
        self.tail = Tail([], [], {}, [], [], {})
        self._kept: set = set()
        if source is None and column[0].op in joining.varying:
            reason = "the model builds another graph on the whole batch than on a tower's rows"
            self.tail.twins[column[0].ref()] = column[0].ref()
            self._end(UNKNOWN, column, column[0], reason)
        else:
            self._visit(tuple(column), column[0] if source is None else source)

    def _visit(self, column: tuple, source: tf.Tensor) -> None:
        """Visits all that a tensor is made of: what an operation reads before itself."""
        waiting: list[tuple[tuple, tf.Tensor, Any]] = [(column, source, None)]
        while waiting:
            column, source, pending = waiting.pop()
            if pending is None:
                if column[0].ref() in self.tail.twins:
                    continue
                self.tail.twins[column[0].ref()] = source.ref()
                pending = self._inputs(column, source)
                if pending is None:
                    continue
            following = next(pending, None)
            if following is None:
                self._keep(column, source)
                continue
            waiting.append((column, source, pending))
            waiting.append((*following, None))

    def _inputs(self, column: tuple, source: tf.Tensor) -> Iterator | None:
        """Returns what K tensors read; None where the walk ends with them."""
        joining, first = self._whole, column[0]
        if known := joining.noted(first):
            self.tail.reductions.append(known._replace(source=source))
            return None
        if first.op not in joining.varying:
            is_whole = first.op in joining.dependent and not row_reductions.is_opaque(first.op)
            if not is_whole and not joining.differs(first, source):
                self.tail.inputs[source.ref()] = first
                return None
        if any(not _is_alike(tensor, source) for tensor in column):
            self._end_unlike(column, source)
            return None
        if first.op in joining.varying:
            kind, reason = self._kind_of(column, source)
            if kind is not None:
                self._end(kind, column, source, reason if kind == UNKNOWN else "")
                return None
        others = zip(*[tensor.op.inputs for tensor in column], strict=True)
        return iter(list(zip(others, source.op.inputs, strict=True)))

    def _kind_of(self, column: tuple, source: tf.Tensor) -> tuple:
        """Returns the kind of the row reduction that K tensors are, or None; and a reason."""
        first = column[0]
        if self._declared:
            is_addition = first.op.type in _ADDITIONS
            return None if is_addition else (UNKNOWN if self._declared == "mean" else "sum"), ""
        kind, reason = self._whole.kind_of(column, source)
        return self._joinable(kind, first) if kind in ("sum", "mean") else (kind, reason)

    def _end_unlike(self, column: tuple, source: tf.Tensor) -> None:
        """Ends the walk where a tower's graph is another one than the source's.

        NOTE: TensorFlow folds a number of rows into a constant where it knows them, of a ragged
        tensor in some towers only. What is a constant in the source is the whole batch's.
        """
        kinds = {tensor.op.type for tensor in column}
        if source.op.type == "Const":
            self._keep(column, source)
        elif source.op.type == "Size" and kinds <= {"Const", "Size"}:
            self._end("size", column, source)
        else:
            self._end(UNKNOWN, column, source, "towers build different graphs there")

    def _joinable(self, kind: str, first: tf.Tensor) -> tuple:
        """Returns the kind of a reduction of rows that numbers of a tower's rows do not enter."""
        found = self._whole.meetings.before(first, is_number=True)
        if not found:
            return kind, ""
        return UNKNOWN, f"{found[0].name} brings a number of the tower's rows into each row"

    def _keep(self, column: tuple, source: tf.Tensor) -> None:
        if source.op not in self._kept:
            self._kept.add(source.op)
            self.tail.operations.append(source.op)
            if column[0].op in self._whole.varying:
                self.tail.waits.extend(op for c in column for op in c.op.control_inputs)

    def _end(self, kind: str, column: Sequence, source: tf.Tensor, reason: str = "") -> None:
        is_number = column[0].dtype.is_floating or column[0].dtype.is_complex
        kind = "first" if kind == UNKNOWN and not is_number else kind
        self.tail.reductions.append(Reduction(kind, tuple(column), source))
        if reason:
            self.tail.unknown.append((column[0], reason))


_ADDITIONS = ("Add", "AddN", "AddV2", "Identity", "Neg", "Sub")


def _is_alike(tensor: tf.Tensor, source: tf.Tensor) -> bool:
    same = tensor.op.type == source.op.type and tensor.value_index == source.value_index
    return same and len(tensor.op.inputs) == len(source.op.inputs)
