"""Operations in an order in which what they read comes first."""

import collections
import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeVar

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import kinds

Each = TypeVar("Each")

_BEGUN = ("EmptyTensorList", "TensorListReserve")
_PASSED = ("Enter", "Identity", "Merge", "Switch")  # what passes a handle on


def behind(tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """Returns the operations that are made from tensors, loops' ways back included.

    Args:
        tensors: Where to begin; what makes them is left out.
    """
    starts = {tensor.op for tensor in tensors}
    return operations.reached_from(starts) - starts


class Behind:
    """The operations of a graph that have effects, or come after one that has.

    Args:
        changes: Those that change a state, or come after one that does.
        checks: Those that check values, or come after one that does, each with these checks as
            bits of a number.
    """

    def __init__(self, changes: Set[tf.Operation], checks: Mapping[tf.Operation, int]):
        self._changes = changes
        self._checks = checks

    def __contains__(self, op: tf.Operation) -> bool:
        return op in self._changes or op in self._checks

    def asks_for(self, op: tf.Operation, control: tf.Operation) -> bool:
        """Whether an effect might be lost if an operation did not wait for a control input.

        A check is not lost if anything that the operation reads comes after it too.
        """
        if control in self._changes:
            return True
        read = 0
        for tensor in op.inputs:
            read |= self._checks.get(tensor.op, 0)
        return bool(self._checks.get(control, 0) & ~read)


def as_made(ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns operations in the order in which they were made, the same in each process.

    TensorFlow lists what uses, or waits for, an operation in an order of addresses.
    """
    return sorted(ops, key=lambda op: op._id)


def is_way_back(op: tf.Operation, tensor: tf.Tensor) -> bool:
    """Whether an operation reads a tensor from a loop's iteration before."""
    return tensor.op.type in kinds.WAYS_BACK and op.type in ("Merge", "RefMerge")


def ordered(
    ops: Set[tf.Operation], more: Mapping[tf.Operation, Sequence[tf.Operation]]
) -> list[tf.Operation]:
    """Returns operations, each after those that it reads from; loops' ways back do not count.

    What leaves a loop comes after the turn that it leaves.
    Lists and other handles come just before they are used: what is found of a list when something
    is written to it is then soon known.

    Args:
        ops: The operations.
        more: What else they come after: what is read from a stack, after the push.
    """
    waiting: dict[tf.Operation, int] = {}
    after: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
    for op in ops:
        before = {tensor.op for tensor in op.inputs if not is_way_back(op, tensor)}
        before = {other for other in (*before, *more.get(op, ()), *_turn_of(op)) if other in ops}
        waiting[op] = len(before)
        for other in before:
            after[other].append(op)
    wanted: dict[tf.Operation, int] = {}
    for op in sorted(ops, key=lambda op: op._id, reverse=True):  # users first: little recursion
        _wanted(op, after, wanted)
    ready = [(wanted[op], op._id, op.name, op) for op in ops if not waiting[op]]
    heapq.heapify(ready)
    found = []
    while ready:
        *_, op = heapq.heappop(ready)
        found.append(op)
        for user in after[op]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (wanted[user], user._id, user.name, user))
    if len(found) < len(ops):
        circle = sorted(op.name for op, number in waiting.items() if number)[:5]
        raise ValueError(f"Operations must not wait for each other; {', '.join(circle)} do.")
    return found


def _turn_of(op: tf.Operation) -> list[tf.Operation]:
    """Returns what ends a turn of the loop's variable that an operation leaves with, if any."""
    if op.type not in kinds.EXITS or op.inputs[0].op.type not in kinds.SWITCHES:
        return []
    merge = op.inputs[0].op.inputs[0].op
    return [tensor.op for tensor in merge.inputs if is_way_back(merge, tensor)]


def _wanted(
    op: tf.Operation,
    after: Mapping[tf.Operation, Sequence[tf.Operation]],
    found: dict[tf.Operation, int],
) -> int:
    """Returns the number of the first operation that uses what one makes or passes on."""
    if op in found:
        return found[op]
    found[op] = op._id
    has_handle = bool(op.outputs) and op.outputs[0].dtype in kinds.HANDLES
    if has_handle and (op.type in _PASSED or op.type in _BEGUN):
        users = [user for user in after.get(op, ()) if user.type not in kinds.EXITS]
        found[op] = min((_wanted(user, after, found) for user in users), default=op._id)
    return found[op]


def in_order(
    before: Mapping[Each, Iterable[Each]], starts: Iterable[Each] | None = None
) -> tuple[list[Each], bool]:
    """Returns keys, each after those before it as far as there are no circles, and if there are.

    Args:
        before: For each key those that come before it.
        starts: The keys that are wanted, with all before them; by default all.
    """
    found: list[Each] = []
    open_ones: set[Each] = set()
    seen: set[Each] = set()
    has_circles = False
    for start in before if starts is None else starts:
        path = [] if start in seen else [(start, iter(before[start]))]
        seen.add(start)
        while path:
            each, others = path[-1]
            open_ones.add(each)
            for other in others:
                has_circles |= other in open_ones
                if other not in seen:
                    seen.add(other)
                    path.append((other, iter(before[other])))
                    break
            else:
                open_ones.discard(each)
                found.append(each)
                path.pop()
    return found, has_circles
