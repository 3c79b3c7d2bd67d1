"""Reads variables before the loops that use them.

A loop reads a variable in each turn, on the variable's device; and a loop of TensorFlow 1 with
operations on several devices may deadlock. So a variable that a loop does not write is read once,
before the loop, and its value goes the way of the handle: through `Enter` and into branches. A
lookup of some of the variable's rows then picks them from that value.

    Enter(handle) -> ReadVariableOp          ReadVariableOp(handle) -> Enter
    Enter(handle) -> ResourceGather          ReadVariableOp(handle) -> Enter -> GatherV2
"""

import collections
import contextlib
from collections.abc import Collection, Iterable, Sequence

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import effects, kinds, loops, nodes, replacing
from replicate.splitting.structure.replacing import Moved

_READS = ("ReadVariableOp", "VarIsInitializedOp", "VariableShape")
_LOOKUPS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
_PASSED = ("Enter", "Identity", "Switch")


def read_before_loops(graph: tf.Graph, ops: Iterable[tf.Operation]) -> Moved:
    """Reads variables that loops do not write before the loops.

    Args:
        graph: The graph; its functions are lowered.
        ops: Whose loops are changed, each with the loops around it and inside of it.

    Returns:
        The tensors in place of the outputs of reads in loops, by the `ref()` of these.
    """
    wanted = {loops.root(op) for op in ops} - {None}
    by_root: dict[loops.Context | None, list[tf.Operation]] = collections.defaultdict(list)
    for op in graph.get_operations() if wanted else ():
        root = loops.root(op)
        if root in wanted:
            by_root[root].append(op)
    reads = {root: found for root, ops in by_root.items() if (found := _reads(ops))}
    if not reads:
        return {}
    made, moved = _Reads(graph, [op for ops in by_root.values() for op in ops]), {}
    behind_changes = effects.behind_changes(graph)
    for root, found in reads.items():
        waits = _waits(by_root[root], found, behind_changes)
        for op in found:
            moved[op.outputs[0].ref()] = made.in_place(op, waits)
    for ref, new in moved.items():
        new.set_shape(ref.deref().shape)
        _move(ref.deref(), new)
    return moved


def _reads(ops: Collection[tf.Operation]) -> list[tf.Operation]:
    """Returns the operations of an outermost loop that read a variable which it does not write."""
    using = [op for op in ops if any(tensor.dtype == tf.resource for tensor in op.inputs)]
    written = {
        operations.made_by(tensor)
        for op in using
        for tensor in (op.inputs if effects.changes_state(op) else ())
        if tensor.dtype == tf.resource
    }
    return [
        op
        for op in using
        if (op.type in _READS or op.type in _LOOKUPS)
        and operations.made_by(op.inputs[0]) not in {None, *written}
        and _way(op.inputs[0])
    ]


def _way(handle: tf.Tensor) -> list[tf.Tensor]:
    """Returns a handle's copies from outside of all loops to where it is read.

    Returns nothing if the handle does not only enter loops and branches.
    """
    way = []
    while loops.root(handle.op) is not None:
        if handle.op.type not in _PASSED:
            return []
        way.append(handle)
        handle = handle.op.inputs[0]
    return way[::-1]


def _waits(
    ops: Collection[tf.Operation],
    reads: Iterable[tf.Operation],
    behind_changes: Collection[tf.Operation],
) -> Sequence[tf.Operation]:
    """Returns what must have run before variables are read for an outermost loop.

    Args:
        ops: All operations of the loop, and of those inside of it.
        reads: Those that read a variable which the loop does not write.
        behind_changes: The operations that change a state, or come after one that does.
    """
    waits: set[tf.Operation] = set()
    # NOTE: only what reads come behind; a gradient's counter may enter after something has left.
    left, waiting = set(ops).difference(reads), list(reads)
    while waiting:
        op = waiting.pop()
        if op.type in kinds.ENTERS and loops.root(op.inputs[0].op) is None:
            # NOTE: a loop waits for its inputs, and so may come after a write.
            waits.update(op.control_inputs, {op.inputs[0].op}.intersection(behind_changes))
        before = left.intersection([*(tensor.op for tensor in op.inputs), *op.control_inputs])
        left -= before
        waiting += before
    return tuple(sorted(waits, key=lambda op: op._id))


class _Reads:
    """What is read in front of loops, and the ways of what is read into them.

    Args:
        graph: The graph.
        ops: The operations of its loops.
    """

    def __init__(self, graph: tf.Graph, ops: Iterable[tf.Operation]):
        self._graph = graph
        own_loop = loops.Structure.own_loop
        self._devices = {own_loop(op): op.device for op in ops if op.type == "LoopCond"}
        self._made: dict[tuple[object, ...], tf.Tensor] = {}

    def in_place(self, op: tf.Operation, waits: Sequence[tf.Operation]) -> tf.Tensor:
        """Returns what stands for the output of an operation that reads inside of a loop."""
        way = _way(op.inputs[0])
        value = self._value(op, way[0], waits)
        for tensor in way:
            key = (value.ref(), tensor.ref())
            if key not in self._made:
                self._made[key] = self._pass(value, tensor)
            value = self._made[key]
        if op.type in _READS:
            return value
        indices = op.inputs[1]
        with self._written(op), tf.control_dependencies([indices]):
            if op.type == "ResourceGatherNd":
                return tf.raw_ops.GatherNd(params=value, indices=indices)
            axis = op.get_attr("batch_dims")
            return tf.raw_ops.GatherV2(params=value, indices=indices, axis=axis, batch_dims=axis)

    def _value(
        self, op: tf.Operation, entered: tf.Tensor, waits: Sequence[tf.Operation]
    ) -> tf.Tensor:
        """Returns what an operation reads, or picks from, read before its loop."""
        handle, dtype = entered.op.inputs[0], op.outputs[0].dtype
        kind = op.type if op.type in _READS else "ReadVariableOp"
        attributes = nodes.attributes_of(op) if op.type in _READS else {"dtype": dtype}
        inside = loops.Structure.own_loop(entered.op)
        outside = None if inside is None else inside.outer_context
        key = (kind, handle.ref(), dtype, waits, outside)
        if key not in self._made:
            made_by = operations.made_by(handle)
            device = "" if made_by is None else made_by.device
            with replacing.written("read_before", self._graph, device, outside, waits):
                self._made[key] = replacing.create(kind, [handle], [dtype], attributes)[0]
        return self._made[key]

    def _pass(self, value: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a value as an operation passes it on that passed on a handle."""
        op, attributes = tensor.op, nodes.attributes_of(tensor.op)
        dtypes = [value.dtype] * len(op.outputs)
        with self._written(op):
            inputs = [value, *op.inputs[1:]]
            made = replacing.create(op.type, inputs, dtypes, {**attributes, "T": value.dtype})
        return made[tensor.value_index]

    def _written(self, op: tf.Operation) -> contextlib.AbstractContextManager[None]:
        context = op._get_control_flow_context()
        device = self._devices[loops.Structure.own_loop(op)]
        return replacing.written("read_before", self._graph, device, context, op.control_inputs)


def _move(old: tf.Tensor, new: tf.Tensor) -> None:
    """Lets whatever reads a tensor, or waits for it, read or wait for a new one.

    What reads nothing else of the loop must not run in more turns than the old read did.
    """
    pivots = old.op.control_inputs
    users = list(old.consumers())
    replacing.read_instead(users, old, new)
    for user in users:
        if not user.control_inputs and all(each.op.type == "Enter" for each in user.inputs):
            user._add_control_inputs(pivots)
    replacing.wait_instead(old.op._control_outputs, old.op, [new.op])
