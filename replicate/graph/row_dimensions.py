"""Which dimensions of a tensor depend on how many rows a tower has.

With a dynamic batch these are the dimensions that are unknown, where nothing but the rows
is unknown of the batch. Where more is, as the length of padded sequences, TensorFlow's own
shape inference is asked twice: it copies the tower's operations into scratch graphs whose
batches have two known sizes, and what differs, or still depends on the data, is rows. With
a static batch the model's graph on the whole batch tells: what differs from it is rows.
"""

import logging
from collections.abc import Container, Sequence

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, copying

_log = logging.getLogger("replicate")

# Batch sizes that many numbers divide, and an extent for what else is unknown of a batch.
_SIZES = (2520, 5040)
_EXTENT = 48


class RowDimensions:
    """The dimensions of one tower's tensors that are rows.

    Args:
        given: The tower's part of the batch: its dense tensors.
        varying: Tells what is made from the batch.
    """

    def __init__(self, given: Sequence[tf.Tensor], varying: Container[tf.Operation]):
        self._varying = varying
        unknown = [_unknown(tensor) for tensor in given]
        self._is_plain = all(axes is not None and set(axes) <= {0} for axes in unknown)
        self._given = given
        self._probes: list[_Probe] | None = []

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
            self._probes = self._probes or [_Probe(self._given, size) for size in _SIZES]
            small, large = [probe.shape_of(tensor) for probe in self._probes]
        except (ValueError, TypeError, tf.errors.OpError) as reason:
            _log.debug("The shapes behind %s cannot be inferred: %s", tensor.name, reason)
            self._probes = None
            return every
        if small.rank is None or large.rank is None:
            return every
        sizes = zip(small.as_list(), large.as_list(), strict=True)
        return {i for i, (one, other) in enumerate(sizes) if one is None or one != other}


def _unknown(tensor: tf.Tensor) -> list[int] | None:
    if tensor.shape.rank is None:
        return None
    return [i for i, size in enumerate(tensor.shape.as_list()) if size is None]


class _Probe:
    """A scratch graph in which a batch has a known size.

    Args:
        given: The tower's part of the batch: its dense tensors.
        size: How many rows it has there.
    """

    def __init__(self, given: Sequence[tf.Tensor], size: int):
        self._given = list(given)
        self._size = size
        self._graph = tf.Graph()
        self._copies: dict = {}
        self._ends: set = set()

    def shape_of(self, tensor: tf.Tensor) -> tf.TensorShape:
        """Returns what TensorFlow infers of a tensor's shape."""
        with self._graph.as_default():
            if not self._ends:
                self._start()
            if tensor.ref() not in self._copies:
                new = ancestry.made_from([tensor], ends=self._ends) - self._ends
                self._copies.update(copying.copied(list(new), self._copies, "probe"))
                self._ends |= new
            return self._copies[tensor.ref()].shape

    def _start(self) -> None:
        for tensor in self._given:
            shape = tensor.shape
            if shape.rank:
                inner = [_EXTENT if size is None else size for size in shape.as_list()[1:]]
                known = tf.compat.dimension_value(shape[0])
                shape = [self._size if known is None else known, *inner]
            self._copies[tensor.ref()] = tf1.placeholder(tensor.dtype, shape)
            self._ends.add(tensor.op)


def sliced(op: tf.Operation, items: list) -> list | None:
    """Returns what a slice of one dimension takes of a list; None where only a run tells."""
    bounds = [tf.get_static_value(tensor) for tensor in op.inputs[1:]]
    if any(bound is None or len(bound) != 1 for bound in bounds):
        return None
    begin, end, step = (int(bound[0]) for bound in bounds)
    if op.get_attr("shrink_axis_mask"):
        return [items[begin]]
    begin = None if op.get_attr("begin_mask") else begin
    end = None if op.get_attr("end_mask") else end
    return items[begin:end:step]
