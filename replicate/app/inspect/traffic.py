"""What travels between devices in a step of a graph, and where its operations run.

A tensor that is read on another device than it is made on travels there once, however many
operations read it. What happens inside of functions, loops and branches counts with the
operation that calls them; what TensorFlow itself improves of a graph comes after this. In NCCL's
all-reduce each GPU sends 2 (K - 1) / K of a tensor's bytes to the next one of a ring.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from replicate import devices
from replicate.compat.tensorflow import tf
from replicate.graph import operations

_HOLDER = "OptionalFromValue"  # several tensors that travel as one
_HELD = "OptionalGetValue"  # the same, where they arrive
_AS_LARGE = {"Identity": 0, "Reshape": 0, "SelectV2": 1}  # as which of their inputs
_JOINED = "ConcatV2"  # what is of one kind, end to end
_ALL_REDUCE = "NcclAllReduce"

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


def size_of(shape: tf.TensorShape, dtype: tf.DType) -> int | None:
    """Returns how many bytes a tensor has; None where only a run can tell."""
    count = shape.num_elements()
    is_known = count is not None and dtype not in (tf.string, tf.variant, tf.resource)
    return count * dtype.base_dtype.size if is_known else None


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
    first = (devices.local_devices("GPU") or ("/device:CPU:0",))[0]
    if named.device_type and named.device_type not in first:
        first = f"/device:{named.device_type}:0"
    whole = tf.DeviceSpec.from_string(first).make_merged_spec(named)
    return devices.canonical_or_same(whole.to_string())


def unknown_shape(tensor: tf.Tensor) -> None:
    """Knows no shape."""


def transfers(step: Step, shape_of: Shaper = unknown_shape) -> list[Transfer]:
    """Returns what travels between devices when `step` is run, by source and target.

    Args:
        step: What is run.
        shape_of: See `Shaper`.
    """
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
                sizes[pair] += (bytes_of(part, shape_of) for part in parts)
        if op.type == _ALL_REDUCE:
            rings[op.get_attr("shared_name")].append(op)
    for ring in rings.values():  # of operations in which GPUs meet
        for number, op in enumerate(ring):
            pair = place_of(ring[number - 1]), place_of(op)
            size = bytes_of(op.inputs[0], shape_of)
            read[pair][op] = None
            sizes[pair].append(size and 2 * (len(ring) - 1) * size // len(ring))
    return [
        Transfer(*pair, len(read[pair]), sum(one or 0 for one in found), found.count(None))
        for pair, found in sorted(sizes.items())
    ]


def bytes_of(tensor: tf.Tensor, shape_of: Shaper) -> int | None:
    """Returns a tensor's bytes; None where only a run can tell.

    Args:
        tensor: The tensor; several that travel as one count together.
        shape_of: See `Shaper`.
    """
    op, parts = tensor.op, list[tf.Tensor]()
    if op.type == _HOLDER:
        parts = list(op.inputs)
    elif tensor.dtype not in (tf.string, tf.variant):
        size = size_of(tensor.shape, tensor.dtype)
        shape = shape_of(tensor) if size is None else None
        size = size if shape is None else size_of(shape, tensor.dtype)
        if size is not None:
            return size
        parts = _parts(op, tensor.value_index)
    sizes = [bytes_of(part, shape_of) for part in parts]
    return None if not sizes or None in sizes else sum(filter(None, sizes))


def _parts(op: tf.Operation, index: int) -> list[tf.Tensor]:
    """Returns what an output of an operation has all bytes of."""
    if op.type in _AS_LARGE:
        return [op.inputs[_AS_LARGE[op.type]]]
    if op.type == _JOINED:
        return list(op.inputs[:-1])
    if op.type != _HELD:
        return []
    holder = op.inputs[0].op
    while holder.type == "Identity":
        holder = holder.inputs[0].op
    return [holder.inputs[index]] if holder.type == _HOLDER else []
