"""What travels between devices in a step of a graph.

A tensor that is read on another device than it is made on travels there once, however many
operations read it. What happens inside of functions, loops and branches counts with the
operation that calls them; what TensorFlow itself improves of a graph comes after this. In NCCL's
all-reduce each GPU sends 2 (K - 1) / K of a tensor's bytes to the next one of a ring.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from replicate.app.inspect.description import place_of, size_of
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations

_HOLDER = "OptionalFromValue"  # several tensors that travel as one
_HELD = "OptionalGetValue"  # the same, where they arrive
_AS_LARGE = {"Identity": 0, "Reshape": 0, "SelectV2": 1}  # as which of their inputs
_JOINED = "ConcatV2"  # what is of one kind, end to end
OPTIONAL = "IteratorGetNextAsOptional"  # a batch, or that there is none
_ALL_REDUCE = "NcclAllReduce"
_NEXT = ("IteratorGetNext", OPTIONAL)
_BRANCHES = ("If", "StatelessIf")

Step: TypeAlias = Sequence[tf.Operation | tf.Tensor]
"""What is run, of one graph."""

Shaper: TypeAlias = Callable[[tf.Tensor], tf.TensorShape | None]
"""Knows shapes that TensorFlow does not infer; None: nor does it."""


class Transfer(NamedTuple):
    """What travels from one device to another in a step.

    Attributes:
        source: Where the tensors are made.
        target: Where they are read.
        tensors: How many there are; several that travel as one count as one.
        bytes: Of all whose size is known.
        unsized: How many have a size that only a run can tell, each for itself.
    """

    source: str
    target: str
    tensors: int
    bytes: int
    unsized: int


def unknown_shape(tensor: tf.Tensor) -> None:
    """Knows no shape."""


def row_counts(graph: tf.Graph, batch_size: int) -> dict[str, int]:
    """Returns the operations that make a batch, by name, and how many rows they make.

    Args:
        graph: The training graph.
        batch_size: How many rows the batch has.
    """
    found: dict[str, int] = {}
    for op in graph.get_operations():
        if op.type in _NEXT:
            makers = [op]
            if op.type == OPTIONAL:  # a batch, or a borrowed row where the input has ended
                makers = [user for user in op.outputs[0].consumers() if user.type in _BRANCHES]
            found.update((maker.name, batch_size) for maker in makers)
    return found


def transfers(
    step: Step, row_counts: Mapping[str, int], shape_of: Shaper = unknown_shape
) -> list[Transfer]:
    """Returns what travels between devices when `step` is run, by source and target.

    Args:
        step: What is run.
        row_counts: See there.
        shape_of: See `Shaper`.
    """
    known = Sizes(row_counts, shape_of)
    read: dict[tuple[str, str], dict[Any, None]] = defaultdict(dict)
    sizes: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    rings: dict[bytes, list[tf.Operation]] = defaultdict(list)
    for op in sorted(operations.executed_by(step), key=lambda op: op.name):
        for tensor in op.inputs:
            pair = place_of(tensor.op), place_of(op)
            # NOTE: a resource is read where it is, whoever names it.
            if (
                tensor.dtype != tf.resource
                and pair[0] != pair[1]
                and tensor.ref() not in read[pair]
            ):
                read[pair][tensor.ref()] = None
                parts = tensor.op.inputs if tensor.op.type == _HOLDER else [tensor]
                sizes[pair] += map(known.of, parts)
        if op.type == _ALL_REDUCE:
            rings[op.get_attr("shared_name")].append(op)
    for ring in rings.values():  # of operations in which GPUs meet
        for number, op in enumerate(ring):
            pair, size = (place_of(ring[number - 1]), place_of(op)), known.of(op.inputs[0])
            read[pair][op] = None
            sizes[pair].append(size and 2 * (len(ring) - 1) * size // len(ring))
    return [
        Transfer(*pair, len(read[pair]), sum(one or 0 for one in found), found.count(None))
        for pair, found in sorted(sizes.items())
    ]


class Sizes:
    """How many bytes tensors have when the batch has as many rows as the config says.

    What a graph with a dynamic batch does not know of its shapes, TensorFlow infers in a copy
    of it that is given a batch of known size.

    Args:
        row_counts: See there.
        shape_of: See `Shaper`.
    """

    def __init__(self, row_counts: Mapping[str, int], shape_of: Shaper = unknown_shape):
        self._row_counts = row_counts
        self._shape_of = shape_of
        self._copy: tf.Graph | None = None

    def of(self, tensor: tf.Tensor) -> int | None:
        """Returns a tensor's bytes; None where only a run can tell."""
        if tensor.op.type == _HOLDER:
            held = [self.of(part) for part in tensor.op.inputs]
            return None if None in held else sum(filter(None, held))
        size = size_of(tensor.shape, tensor.dtype)
        if size is not None or tensor.dtype in (tf.string, tf.variant):
            return size
        for shape in (self.shape_of(tensor), self._shape_of(tensor)):
            size = None if shape is None else size_of(shape, tensor.dtype)
            if size is not None:
                return size
        return self._by_inputs(tensor)

    def _by_inputs(self, tensor: tf.Tensor) -> int | None:
        """Returns a tensor's bytes where those of what it is made from tell."""
        op = tensor.op
        parts: list[tf.Tensor] = []
        if op.type in _AS_LARGE:
            parts = [op.inputs[_AS_LARGE[op.type]]]
        elif op.type == _JOINED:
            parts = list(op.inputs[:-1])
        elif op.type == _HELD:
            holder = op.inputs[0].op
            while holder.type == "Identity":
                holder = holder.inputs[0].op
            parts = [holder.inputs[tensor.value_index]] if holder.type == _HOLDER else []
        found = [self.of(part) for part in parts]
        return None if not found or None in found else sum(filter(None, found))

    def shape_of(self, tensor: tf.Tensor) -> tf.TensorShape | None:
        """Returns a tensor's shape, as far as it can be known; None: it is told two of them."""
        if self._copy is None:
            self._copy = self._copied(tensor.graph)
        try:
            inferred = self._copy.get_tensor_by_name(tensor.name).shape
            return tensor.shape.merge_with(inferred)
        except (KeyError, ValueError):  # it is not there, or of another shape
            return None

    def _copied(self, graph: tf.Graph) -> tf.Graph:
        """Returns a graph with the same names and a batch of known size; else an empty one."""
        makers = [op for op in graph.get_operations() if op.name in self._row_counts]
        with tf.Graph().as_default() as copy:
            # NOTE: what nobody reads cannot be replaced.
            read = [tensor for op in makers for tensor in op.outputs if tensor.consumers()]
            known = {tensor.name: self._known(tensor) for tensor in read}
            try:
                tf1.import_graph_def(graph.as_graph_def(), known, name="")
            except (ValueError, tf.errors.OpError):  # a batch of another size, as it turns out
                return tf.Graph()
        return copy

    def _known(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the same kind with as many rows as the batch."""
        shape = tensor.shape
        if shape.rank and shape.as_list()[0] is None:
            shape = tf.TensorShape([self._row_counts[tensor.op.name]]).concatenate(shape[1:])
        return tf1.placeholder(tensor.dtype, shape, name="replicate_known_rows")
