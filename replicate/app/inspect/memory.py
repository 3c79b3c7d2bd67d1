"""How much memory the tensors of a step need on each device, at least; nothing is run.

A tensor is there from when it is made until the last operation that reads it has run. So while an
operation runs, all those are there that are made by what must come before it and read by what
must come after it, whatever order TensorFlow takes; and a device needs as much as they come to
where they are most. They are what a forward pass keeps for the gradients, gradients that wait for
one another, weights that came from another device.

What may be no memory of its own on a device counts as nothing: variables that are read where they
are, slices and other views, loops and branches, what functions give back, lists, `int32` of a GPU,
tensors whose size only a run can tell. What TensorFlow itself improves of a graph comes after this.
"""

import collections
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from replicate.app.inspect import traffic
from replicate.compat.tensorflow import tf
from replicate.graph import operations

# What gives back the memory that it reads.
_SAME = frozenset(
    "Bitcast CheckNumerics EnsureShape Enter Exit ExpandDims Identity IdentityN "
    "PlaceholderWithDefault PreventGradient Print Reshape Snapshot Squeeze StopGradient".split()
)
# What may give back that or a part of it, where there is as much of it.
_PARTS = frozenset(
    "All Any BatchToSpaceND BroadcastTo Cast ConcatV2 Conj Max Mean Merge Min MirrorPad Pack Pad "
    "PadV2 Prod Real ReverseV2 Slice SpaceToBatchND Split SplitV StridedSlice Sum "
    "TensorArrayReadV3 Tile Transpose Unpack".split()
)
_VARIABLES = frozenset(("ReadVariableOp", "VariableV2"))
_INTO, _OUT = frozenset(("Enter", "Switch")), frozenset(("Exit", "Merge"))  # loops and branches
_BACK = "NextIteration"
# Looked at are so many operations of a device, at which most would be there if `_ordered` were the
# order of the step: among those that read a tensor of at least a part of the largest one.
_MOMENTS, _LARGE = 8, 10


class _Held(NamedTuple):
    """A tensor in the memory of a device.

    Attributes:
        size: In bytes.
        makers: It is there as soon as one of them has run, on this device or another.
        readers: The operations that read it there.
    """

    size: int
    makers: Sequence[tf.Operation]
    readers: Sequence[tf.Operation]


def held(step: traffic.Step, places: traffic.Places, sizes: traffic.Sizes) -> dict[str, int]:
    """Returns how many bytes of tensors each device holds at one moment of a step, at least.

    Args:
        step: What is run.
        places: Where its operations run.
        sizes: How many bytes its tensors have.
    """
    executed = operations.executed_by(step)
    ordered = _ordered(executed)
    numbers = {op: number for number, op in enumerate(ordered)}
    found = {}
    for device, tensors in _held(ordered, places, sizes).items():
        changes: collections.Counter[int] = collections.Counter()
        for one in tensors:
            changes[min(map(numbers.__getitem__, one.makers))] += one.size
            changes[max(map(numbers.__getitem__, one.readers)) + 1] -= one.size
        there = list(itertools.accumulate(changes[number] for number in range(len(ordered))))
        least = max(one.size for one in tensors) / _LARGE
        large = {op for one in tensors if one.size >= least for op in one.readers}
        highest = sorted(large, key=lambda op: -there[numbers[op]])[:_MOMENTS]
        found[device] = max(_held_at(op, tensors, executed) for op in highest)
    return found


def _ordered(executed: set[tf.Operation]) -> list[tf.Operation]:
    """Returns operations in an order in which they can run."""
    users: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
    missing: collections.Counter[tf.Operation] = collections.Counter()
    for op in executed:
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if before.type != _BACK:
                users[before].append(op)
                missing[op] += 1
    found = sorted((op for op in executed if not missing[op]), key=lambda op: op.name)
    for op in found:  # which grows meanwhile
        for user in users[op]:
            missing[user] -= 1
            if not missing[user]:
                found.append(user)
    return found


def _held(
    ordered: Sequence[tf.Operation], places: traffic.Places, sizes: traffic.Sizes
) -> dict[str, list[_Held]]:
    """Returns the tensors that each device holds."""
    unsure: set[tf.Operation] = set()
    readers: dict[tuple[str, tf.Tensor], list[tf.Operation]] = collections.defaultdict(list)
    for op in ordered:
        device = places.of(op)
        if op.type in _INTO or (
            op.type not in _OUT and any(tensor.op in unsure for tensor in op.inputs)
        ):
            unsure.add(op)
        for tensor in op.inputs:
            readers[device, _memory_of(tensor, device, places).ref()].append(op)
    found: dict[str, list[_Held]] = collections.defaultdict(list)
    for (device, ref), users in readers.items():
        tensor = ref.deref()
        is_here = places.of(tensor.op) == device
        is_view = is_here and _may_be_shared(tensor, places, sizes)
        is_elsewhere = tensor.dtype == tf.int32 and "GPU" in device  # such are the CPU's
        is_other = tensor.op in unsure or tensor.dtype == tf.variant or is_elsewhere or is_view
        size = 0 if is_other else sizes.of(tensor)
        if size:
            found[device].append(_Held(size, [tensor.op] if is_here else users, users))
    return found


def _memory_of(tensor: tf.Tensor, device: str, places: traffic.Places) -> tf.Tensor:
    """Returns the tensor whose memory another one has on a device."""
    while tensor.op.type in _SAME and places.of(tensor.op) == device:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _may_be_shared(tensor: tf.Tensor, places: traffic.Places, sizes: traffic.Sizes) -> bool:
    """Tells whether a tensor's memory may be that of something else that is counted."""
    op, dtype = tensor.op, tensor.dtype.base_dtype
    if op.type in _VARIABLES or tensor.dtype != dtype:  # a reference to a variable
        return True
    may_be_given = op.type in _PARTS or operations.is_call(op)
    for given in op.inputs:
        if given.dtype == tf.variant:
            # A batch is nowhere else, nor is what has come from another device.
            holder = _memory_of(given, places.of(op), places).op
            is_shared = holder.type != traffic.OPTIONAL and places.of(holder) == places.of(op)
        elif given.dtype == tf.resource:
            is_shared = may_be_given
        else:
            size, most = sizes.of(tensor), sizes.of(given)
            is_as_large = size is None or most is None or size <= most
            is_shared = may_be_given and given.dtype.base_dtype == dtype and is_as_large
        if is_shared:
            return True
    return False


def _held_at(op: tf.Operation, tensors: Sequence[_Held], executed: set[tf.Operation]) -> int:
    """Returns how many bytes of tensors are there while an operation runs, at least."""
    before, after = operations.executed_by([op]), operations.behind([op], executed)
    # What it makes itself may take the place of what it reads.
    return sum(
        one.size
        for one in tensors
        if one.makers != [op] and not before.isdisjoint(one.makers)
        if not after.isdisjoint(one.readers)
    )
