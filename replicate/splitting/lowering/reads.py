"""Reads variables before the loops that use them.

A loop reads a variable in each turn, on the variable's device; and a loop of TensorFlow 1 with
operations on several devices may deadlock. So a variable that a loop does not write is read once,
before the loop, and its value goes the way of the handle: through `Enter` and into branches. A
lookup of some of the variable's rows then picks them from that value.

    Enter(handle) -> ReadVariableOp          ReadVariableOp(handle) -> Enter
    Enter(handle) -> ResourceGather          ReadVariableOp(handle) -> Enter -> GatherV2
"""

import collections
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.structure import effects, kinds, loops, nodes
from replicate.splitting.structure.nodes import Attributes, Moved, Nodes, Reference

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
    reads = {root: _reads(found) for root, found in by_root.items()}
    if not any(reads.values()):
        return {}
    with graph.as_default(), tf1.name_scope(None):
        made = _Made(graph)
        behind_changes = effects.behind_changes(graph)
        for root, found in reads.items():
            if found:
                loop = _Loop(by_root[root], found, behind_changes)
                for op in found:
                    made.replace(op, loop)
        return made.write()


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


class _Loop:
    """An outermost loop.

    Args:
        ops: All operations of the loop, and of those inside of it.
        reads: Those that read a variable which the loop does not write.
        behind_changes: The operations that change a state, or come after one that does.

    Attributes:
        waits: What must have run before a variable is read for the loop.
    """

    def __init__(
        self,
        ops: Sequence[tf.Operation],
        reads: Iterable[tf.Operation],
        behind_changes: Collection[tf.Operation],
    ):
        waits: dict[tf.Operation, None] = {}
        self._devices: dict[loops.Context | None, str] = {}
        read_behind = _before(reads, ops)
        for op in ops:
            if op.type == "LoopCond":
                self._devices[loops.Structure.own_loop(op)] = op.device
            elif op in read_behind and loops.root(op.inputs[0].op) is None:
                waits.update(dict.fromkeys(op.control_inputs))
                # NOTE: a loop waits for its inputs, and so may come after a write.
                if op.inputs[0].op in behind_changes:
                    waits[op.inputs[0].op] = None
        self.waits = tuple(waits)

    def device(self, op: tf.Operation) -> str:
        """Returns where the loop of an operation is."""
        return self._devices[loops.Structure.own_loop(op)]


def _before(reads: Iterable[tf.Operation], ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns what enters a loop for operations in it to run.

    NOTE: not the counter of a gradient, say, which may enter after something has left the loop.
    """
    left, waiting = set(ops).difference(reads), list(reads)
    entering = set()
    while waiting:
        op = waiting.pop()
        if op.type in kinds.ENTERS:
            entering.add(op)
        before = left.intersection([*(tensor.op for tensor in op.inputs), *op.control_inputs])
        left -= before
        waiting += before
    return entering


class _Made:
    """What reads variables in front of loops, and what stands for reads inside of them.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._nodes = Nodes(graph, graph.unique_name("read_before"))
        self._contexts: dict[str, loops.Context | None] = {}
        self._memo: dict[tuple[object, ...], str] = {}
        self._replaced: dict[tf.Operation, str] = {}

    def replace(self, op: tf.Operation, loop: _Loop) -> None:
        """Replaces an operation that reads inside of a loop."""
        way = _way(op.inputs[0])
        if op.type not in _LOOKUPS:
            self._replaced[op] = self._passed(op, nodes.attributes_of(op), way, loop)
            return
        dtype, indices = op.outputs[0].dtype, op.inputs[1]
        values = self._passed(op, {"dtype": nodes.attribute(dtype)}, way, loop)
        inputs: list[Reference] = [values, indices]
        attributes = {"Tparams": dtype, "Tindices": indices.dtype}
        device = loop.device(op)
        if op.type == "ResourceGather":
            batch_dims = op.get_attr("batch_dims")
            axis = self._nodes.constant(np.int32(batch_dims), device, indices)
            self._contexts[axis] = indices.op._get_control_flow_context()
            inputs.append(axis)
            attributes |= {"Taxis": tf.int32, "batch_dims": batch_dims}
        self._replaced[op] = self._nodes.add(
            _LOOKUPS[op.type], inputs, device, controls=op.control_inputs, **attributes
        )
        self._contexts[self._replaced[op]] = op._get_control_flow_context()

    def _passed(
        self, op: tf.Operation, attributes: Attributes, way: Sequence[tf.Tensor], loop: _Loop
    ) -> str:
        """Returns what is read of a variable, at the end of the handle's way."""
        kind = op.type if op.type in _READS else "ReadVariableOp"
        dtype = op.outputs[0].dtype
        value = self._read(kind, attributes, dtype, way[0], loop)
        for tensor in way:
            key = (value, tensor.ref())
            if key not in self._memo:
                self._memo[key] = self._pass(value, tensor, dtype, loop)
            value = self._memo[key]
        return value

    def _read(
        self, kind: str, attributes: Attributes, dtype: tf.DType, entered: tf.Tensor, loop: _Loop
    ) -> str:
        """Returns what is read before a loop."""
        handle = entered.op.inputs[0]
        key = (kind, handle.ref(), dtype, loop)
        if key not in self._memo:
            made_by = operations.made_by(handle)
            device = "" if made_by is None else made_by.device
            self._memo[key] = self._nodes.add(
                kind, [handle], device, controls=loop.waits, **attributes
            )
            inside = loops.Structure.own_loop(entered.op)
            self._contexts[self._memo[key]] = None if inside is None else inside.outer_context
        return self._memo[key]

    def _pass(self, value: str, tensor: tf.Tensor, dtype: tf.DType, loop: _Loop) -> str:
        """Returns a value as an operation passes it on that passed on a handle."""
        op = tensor.op
        inputs, more = [value, *op.inputs[1:]], {}
        if op.type == "Enter":
            for key in ("frame_name", "is_constant", "parallel_iterations"):
                more[key] = op.get_attr(key)
        name = self._nodes.add(
            op.type, inputs, loop.device(op), controls=op.control_inputs, T=dtype, **more
        )
        self._contexts[name] = op._get_control_flow_context()
        return nodes.output(name, tensor.value_index)

    def write(self) -> Moved:
        """Adds everything to the graph, and lets others read it; see `read_before_loops`."""
        made = self._nodes.write(self._contexts)
        moved = {}
        for op, reference in self._replaced.items():
            old, new = op.outputs[0], nodes.resolved(reference, made)
            new.set_shape(old.shape)
            moved[old.ref()] = new
            _move(old, new)
        return moved


def _move(old: tf.Tensor, new: tf.Tensor) -> None:
    """Lets whatever reads a tensor, or waits for it, read or wait for a new one.

    What reads nothing else of the loop must not run in more turns than the old read did.
    """
    pivots = old.op.control_inputs
    users = list(old.consumers())
    nodes.read_instead(users, old, new)
    for user in users:
        if not user.control_inputs and all(each.op.type == "Enter" for each in user.inputs):
            user._add_control_inputs(pivots)
    nodes.wait_instead(old.op._control_outputs, old.op, [new.op])
