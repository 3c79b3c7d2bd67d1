"""What a step of a graph does where: operations of each device, and tensors that travel.

A tensor that is read on another device than it is made on travels there once, however many
operations read it. What happens inside of functions, loops and branches counts with the
operation that calls them; what TensorFlow itself improves of a graph comes after this. In NCCL's
all-reduce each GPU sends 2 (K - 1) / K of a tensor's bytes to the next one of a ring.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from replicate import devices
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations

_CPU = "/device:CPU:0"
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


def size_of(shape: tf.TensorShape, dtype: tf.DType) -> int | None:
    """Returns how many bytes a tensor has; None where only a run can tell."""
    count = shape.num_elements()
    is_known = count is not None and dtype not in (tf.string, tf.variant, tf.resource)
    return count * dtype.base_dtype.size if is_known else None


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


def place_of(op: tf.Operation) -> str:
    """Returns the device on which an operation runs.

    What works on a variable, an iterator or a table is where that is, whatever it was told; and
    one that was not told is where the first that works on it was told to be.
    """
    resources = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
    if resources and not operations.is_call(op):
        return place_of(resources[0].op)
    made = [tensor for tensor in op.outputs if tensor.dtype == tf.resource]
    users = (user for tensor in made for user in tensor.consumers())
    told = (one.device for one in (op, *users) if one.device and not operations.is_call(one))
    return _placed(op.device or next(told, None))


@functools.cache
def _placed(device: str | None) -> str:
    """Returns the whole name of a device that is named in part, or not at all.

    Where nothing is named TensorFlow takes the first GPU, or the CPU where there is none.
    """
    found = devices.canonical_or_same(device)
    named = tf.DeviceSpec.from_string(found)
    if named.device_type and named.device_index is not None:
        return found
    first = (devices.local_devices("GPU") or (_CPU,))[0]
    if named.device_type and named.device_type not in first:
        first = f"/device:{named.device_type}:0"
    whole = tf.DeviceSpec.from_string(first).make_merged_spec(named)
    return devices.canonical_or_same(whole.to_string())


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
