"""Variables that loops read, read in front of them.

In a loop a variable would be read in each turn, where the variable is. A loop of TensorFlow 1
whose operations are on several devices may wait for itself for ever. So what a loop does not
write it does not read either: the variable is read once, before the loop begins, and its value
goes the way that the handle went, through `Enter` and into branches. A lookup of some of the
variable's rows then picks them from that value.

    Enter(handle) -> ReadVariableOp          ReadVariableOp(handle) -> Enter
    Enter(handle) -> ResourceGather          ReadVariableOp(handle) -> Enter -> GatherV2
"""

import collections
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.structure import effects, loops, nodes
from replicate.splitting.structure.nodes import Nodes, Reference

_READS = ("ReadVariableOp", "VarIsInitializedOp", "VariableShape")
_LOOKUPS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
_ENTERS = ("Enter", "RefEnter")
_PASSED = ("Enter", "Identity", "Switch")


def read_before_loops(graph: tf.Graph, ops: Iterable[tf.Operation]) -> dict[Any, tf.Tensor]:
    """Lets loops read no variable that they do not write.

    Args:
        graph: The graph; its functions are lowered.
        ops: The loops of these are changed, each with the loops around it and inside of it.

    Returns:
        For each `ref()` of an output of an operation that reads in a loop the tensor in its place.
    """
    wanted = {loops.root(op) for op in ops} - {None}
    by_root: dict[Any, list] = collections.defaultdict(list)
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
                loop = _Loop(by_root[root], behind_changes)
                for op in found:
                    made.replace(op, loop)
        return made.write()


def _reads(ops: Collection[tf.Operation]) -> list[tf.Operation]:
    """Returns which operations of an outermost loop read a variable that it does not write."""
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
    """Returns as what a handle goes from the outside of all loops to where it is read.

    Nothing, if it does not only enter loops and branches.
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
        behind_changes: The operations that change a state, or come after one that does.

    Attributes:
        waits: What is to be over before a variable is read for the loop.
        devices: Where the loop, and those inside of it, are.
    """

    def __init__(self, ops: Iterable[tf.Operation], behind_changes: Collection[tf.Operation]):
        waits: dict[tf.Operation, None] = {}
        self.devices: dict[Any, str] = {}
        for op in ops:
            if op.type == "LoopCond":
                self.devices[loops.Structure.own_loop(op)] = op.device
            elif op.type in _ENTERS and loops.root(op.inputs[0].op) is None:
                waits.update(dict.fromkeys(op.control_inputs))
                # NOTE: a loop begins when it has its inputs, and so may come after a write.
                if op.inputs[0].op in behind_changes:
                    waits[op.inputs[0].op] = None
        self.waits = tuple(waits)

    def device(self, op: tf.Operation) -> str:
        """Returns where the loop of an operation is."""
        return self.devices[loops.Structure.own_loop(op)]


class _Made:
    """What reads variables in front of loops, and what stands for reads inside of them.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._nodes = Nodes(graph, graph.unique_name("read_before"))
        self._contexts: dict[str, Any] = {}
        self._memo: dict = {}
        self._replaced: dict[tf.Operation, str] = {}

    def replace(self, op: tf.Operation, loop: _Loop) -> None:
        """Has another operation stand for one that reads inside of a loop."""
        way = _way(op.inputs[0])
        if op.type not in _LOOKUPS:
            self._replaced[op] = self._passed(op, nodes.attributes_of(op), way, loop)
            return
        dtype, indices = op.outputs[0].dtype, op.inputs[1]
        values = self._passed(op, {"dtype": nodes.attribute(dtype)}, way, loop)
        inputs, kinds = [values, indices], {"Tparams": dtype, "Tindices": indices.dtype}
        device = loop.device(op)
        if op.type == "ResourceGather":
            batch_dims = op.get_attr("batch_dims")
            axis = self._nodes.constant(np.int32(batch_dims), device, indices)
            self._contexts[axis] = indices.op._get_control_flow_context()
            inputs.append(axis)
            kinds |= {"Taxis": tf.int32, "batch_dims": batch_dims}
        self._replaced[op] = self._nodes.add(
            _LOOKUPS[op.type], inputs, device, controls=op.control_inputs, **kinds
        )
        self._contexts[self._replaced[op]] = op._get_control_flow_context()

    def _passed(
        self, op: tf.Operation, attributes: dict, way: Sequence[tf.Tensor], loop: _Loop
    ) -> Reference:
        """Returns what is read of a variable, as it is where the variable's handle was."""
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
        self, kind: str, attributes: dict, dtype: tf.DType, entered: tf.Tensor, loop: _Loop
    ) -> str:
        """Returns what is read in front of a loop."""
        handle = entered.op.inputs[0]
        key = (kind, handle.ref(), dtype, loop)
        if key not in self._memo:
            device = operations.made_by(handle).device
            self._memo[key] = self._nodes.add(
                kind, [handle], device, controls=loop.waits, **attributes
            )
            context = loops.Structure.own_loop(entered.op).outer_context
            self._contexts[self._memo[key]] = context
        return self._memo[key]

    def _pass(self, value: str, tensor: tf.Tensor, dtype: tf.DType, loop: _Loop) -> str:
        """Returns a value as it is behind an operation that a handle passes."""
        op = tensor.op
        inputs, more = [value, *op.inputs[1:]], {}
        if op.type == "Enter":
            for key in ("frame_name", "is_constant", "parallel_iterations"):
                more[key] = op.get_attr(key)
        name = self._nodes.add(
            op.type, inputs, loop.device(op), controls=op.control_inputs, T=dtype, **more
        )
        self._contexts[name] = op._get_control_flow_context()
        return f"{name}:{tensor.value_index}" if tensor.value_index else name

    def write(self) -> dict[Any, tf.Tensor]:
        """Adds all to the graph, and lets others read it; returns it by what it stands for."""
        made = self._nodes.write()
        for name, context in self._contexts.items():
            if context is not None:
                made[name]._set_control_flow_context(context)
        moved = {}
        for op, reference in self._replaced.items():
            old, new = op.outputs[0], nodes.tensor(reference, made)
            new.set_shape(old.shape)
            moved[old.ref()] = new
            _move(old, new)
        return moved


def _move(old: tf.Tensor, new: tf.Tensor) -> None:
    """Lets all that reads what was read in a loop, or waits for it, do so of what stands for it.

    What reads nothing else of the loop is to run in no more turns than the read did.
    """
    pivots = old.op.control_inputs
    for user in list(old.consumers()):
        for n, tensor in enumerate(user.inputs):
            if tensor is old:
                user._update_input(n, new)
        if not user.control_inputs and all(each.op.type == "Enter" for each in user.inputs):
            user._add_control_inputs(pivots)
    for user in list(old.op._control_outputs):
        waits = [waited for waited in user.control_inputs if waited is not old.op]
        user._remove_all_control_inputs()
        user._add_control_inputs([*waits, new.op])
