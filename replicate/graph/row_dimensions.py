"""Which dimensions of a tensor depend on how many rows a tower has.

With a dynamic batch these are the dimensions that are unknown, where nothing but the rows
is unknown of the batch. Where more is, as the length of padded sequences, TensorFlow's own
shape inference is asked twice: it copies the tower's operations into scratch graphs whose
batches have two known sizes, and what differs, or still depends on the data, is rows. With
a static batch the model's graph on the whole batch tells: what differs from it is rows.
"""

import logging
from collections.abc import Container, Sequence
from typing import Protocol

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry, functions, shape_probes

_log = logging.getLogger("replicate")

# Batch sizes that many numbers divide.
_SIZES = (2520, 5040)


class RowDimensions:
    """The dimensions of one tower's tensors that are rows.

    Args:
        given: The tower's part of the batch: its dense tensors.
        varying: Tells what is made from the batch.
        shapes: Those of them that are the shape of a sparse tensor.
        is_laid_out: Whether the batch has sparse or ragged tensors.
    """

    def __init__(
        self,
        given: Sequence[tf.Tensor],
        varying: Container[tf.Operation],
        shapes: Sequence[tf.Tensor] = (),
        is_laid_out: bool = False,
    ):
        self._varying = varying
        self._shapes = {tensor.ref() for tensor in shapes}
        unknown = [_unknown(tensor) for tensor in given]
        self._is_plain = not is_laid_out and all(
            axes is not None and set(axes) <= {0} for axes in unknown
        )
        self._given = given
        self._probes: list[shape_probes.Probe] | None = []

    def of(
        self, tensor: tf.Tensor, whole: tf.Tensor | None = None, is_certain: bool = False
    ) -> tuple[int, ...] | None:
        """Returns the dimensions of a tensor that are rows; None where its rank is unknown.

        Args:
            tensor: A tensor of the tower.
            whole: The same one in the graph of the whole batch, where the batch is static.
            is_certain: Whether to ask even where it costs more: an unknown dimension may
                be one that TensorFlow infers once the batch is known.
        """
        rank = tensor.shape.rank
        if rank is None:
            return None if tensor.op in self._varying else ()
        unknown = _unknown(tensor)
        rows = set(unknown) if unknown and tensor.op in self._varying else set()
        if rows and (is_certain or not self._is_plain):
            rows &= self._of_data(tensor)
        if whole is not None and whole.shape.rank == rank:
            sizes = zip(tensor.shape.as_list(), whole.shape.as_list(), strict=True)
            rows |= {i for i, (own, all_) in enumerate(sizes) if own != all_}
        return tuple(sorted(rows))

    def _of_data(self, tensor: tf.Tensor) -> set[int]:
        """Returns the dimensions that stay unknown, or differ, between two sizes of batches."""
        every = set(range(tensor.shape.rank))
        if self._probes is None:
            return every
        try:
            self._probes = self._probes or [
                shape_probes.Probe(self._given, size, self._shapes) for size in _SIZES
            ]
            small, large = [probe.shape_of(tensor) for probe in self._probes]
        except (ValueError, TypeError, tf.errors.OpError) as reason:
            _log.debug("The shapes behind %s cannot be inferred: %s", tensor.name, reason)
            self._probes = None
            return every
        return every if small.rank is None else every & set(_differing(small, large))

    def called(self, op: tf.Operation, whole: tf.Operation | None = None) -> "list[Called] | None":
        """Returns the functions that an operation calls; None: they cannot be looked into.

        Args:
            op: An operation of the tower.
            whole: The same one in the graph of the whole batch, where the batch is static.
        """
        if whole is not None:
            return _compared(op, whole)
        if not self._is_plain and op.outputs and self._probes is not None:
            for tensor in op.outputs:
                self._of_data(tensor) if tensor.shape.rank else None
            if self._probes:
                return _probed([(probe, probe.root) for probe in self._probes], op)
        return _compared(op, op)


class Dimensions(Protocol):
    """The dimensions of one function's tensors that are rows."""

    def axes(self, tensor: tf.Tensor) -> tuple[int, ...]:
        """Returns the dimensions of a tensor that are rows."""

    def called(self, op: tf.Operation) -> "list[Called] | None":
        """Returns the functions that an operation calls; None: they cannot be looked into."""

    def whole(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the tensor in the same function of the whole batch, where that is static."""

    def is_folded(self, tensor: tf.Tensor) -> bool:
        """Whether a number of rows has been folded into what a tensor is made of."""


Called = tuple[functions.Body, Dimensions]


def _differing(one: tf.TensorShape, other: tf.TensorShape) -> tuple[int, ...]:
    """Returns the dimensions that two shapes do not have in common; an unknown one differs."""
    if one.rank is None or one.rank != other.rank:
        return tuple(range(one.rank or 0))
    sizes = zip(one.as_list(), other.as_list(), strict=True)
    return tuple(i for i, (a, b) in enumerate(sizes) if a is None or a != b)


def _compared(op: tf.Operation, whole: tf.Operation) -> list[Called] | None:
    pairs = [functions.bodies(each) for each in (op, whole)]
    if None in pairs or len(pairs[0]) != len(pairs[1]):
        return None
    return [(body, _Compared(other)) for body, other in zip(*pairs, strict=True)]


class _Compared:
    """A function beside the same one of the whole batch; with a dynamic batch, beside itself."""

    def __init__(self, whole: functions.Body):
        graphs = [tensor.graph for tensor in (*whole.outputs, *whole.inputs)]
        self._graph = graphs[0] if graphs else None

    def whole(self, tensor: tf.Tensor) -> tf.Tensor | None:
        try:
            return self._graph.get_tensor_by_name(tensor.name)
        except (KeyError, ValueError):
            return None

    def is_folded(self, tensor: tf.Tensor) -> bool:
        for op in ancestry.made_from([tensor]):
            if op.type == "Const":
                other = self.whole(op.outputs[0])
                if other is None or not _is_same(op.outputs[0], other):
                    return True
        return False

    def axes(self, tensor: tf.Tensor) -> tuple[int, ...]:
        other = self.whole(tensor)
        if other is None:
            return tuple(range(tensor.shape.rank or 0))
        return _differing(tensor.shape, other.shape)

    def called(self, op: tf.Operation) -> list[Called] | None:
        try:
            return _compared(op, self._graph.get_operation_by_name(op.name))
        except (KeyError, ValueError):
            return None


def _probed(scratches: Sequence, op: tf.Operation) -> list[Called] | None:
    found = functions.bodies(op)
    inlined = [scratch.children.get(op) for _, scratch in scratches]
    if found is None or None in inlined:
        return None
    return [
        (
            body,
            _Probed(
                [(probe, part[n]) for (probe, _), part in zip(scratches, inlined, strict=True)]
            ),
        )
        for n, body in enumerate(found)
    ]


class _Probed:
    """A function in two scratch graphs."""

    def __init__(self, scratches: Sequence):
        self._scratches = scratches

    def whole(self, tensor: tf.Tensor) -> None:
        return None

    def is_folded(self, tensor: tf.Tensor) -> bool:
        return False

    def axes(self, tensor: tf.Tensor) -> tuple[int, ...]:
        try:
            return _differing(*(probe.copy(tensor, own).shape for probe, own in self._scratches))
        except (ValueError, TypeError, tf.errors.OpError):
            return tuple(range(tensor.shape.rank or 0))

    def called(self, op: tf.Operation) -> list[Called] | None:
        for tensor in op.outputs:
            self.axes(tensor)
        return _probed(self._scratches, op)


def _unknown(tensor: tf.Tensor) -> list[int] | None:
    if tensor.shape.rank is None:
        return None
    return [i for i, size in enumerate(tensor.shape.as_list()) if size is None]


def _is_same(tensor: tf.Tensor, other: tf.Tensor) -> bool:
    if other.op.type != "Const":
        return False
    return tensor.op.get_attr("value") == other.op.get_attr("value")


def sliced(op: tf.Operation, items: list) -> list | None:
    """Returns what a slice of one dimension takes of a list; None where only a run tells."""
    bounds = [tf.get_static_value(tensor) for tensor in op.inputs[1:]]
    if any(bound is None or len(bound) != 1 for bound in bounds):
        return None
    begin, end, step = (int(bound[0]) for bound in bounds)
    if op.get_attr("new_axis_mask") or op.get_attr("ellipsis_mask"):
        return None
    if op.get_attr("shrink_axis_mask"):
        return [items[begin]] if -len(items) <= begin < len(items) else None
    begin = None if op.get_attr("begin_mask") else begin
    end = None if op.get_attr("end_mask") else end
    return items[begin:end:step]
