"""Functional control flow, written as the operations of TensorFlow 1.

`While`, `If` and calls of functions are one operation each, whose inside cannot be split. So a loop
is written as `Enter`, `Merge`, `Switch`, `NextIteration` and `Exit`, a branch as `Switch` and
`Merge`, and functions are written where they are called, just as a session of TensorFlow does. The
functional operations stay in the graph, to be fetched by name; nothing else reads them.

Only functions that read are written out. Their order does not matter, so only what their outputs
are made from is written, without control inputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import placement
from replicate.splitting.lowering import branches
from replicate.splitting.structure import definitions, effects, kinds, loops, order, replacing
from replicate.splitting.structure.nodes import Nodes, Reference, Waited, output, resolved
from replicate.splitting.structure.replacing import Moved

_OF_FUNCTIONS = ("_class", "_output_shapes", "_xla_compile_id")


class _Place(NamedTuple):
    """Where operations are written.

    Attributes:
        context: Their control flow context, if any.
        device: The device of operations that name none.
        pivot: What operations without inputs wait for, so that they run when all others do.
        waits: What must have run before any of them.
    """

    context: loops.Context | None
    device: str
    pivot: tuple[Reference, ...] = ()
    waits: tuple[Waited, ...] = ()


def lower(
    graph: tf.Graph, ops: Iterable[tf.Operation], known: branches.Known = branches.is_open
) -> Moved:
    """Writes functional control flow as operations of TensorFlow 1.

    Whatever reads an output of a functional operation then reads the new one, and whatever waits
    for the operation waits for all its new outputs. Gradients must have been taken before. A
    function that writes, prints or runs Python stays as it is, and so does what XLA compiles. Of
    branches of which it is known that they are taken, the other one does not count.

    Args:
        graph: The graph.
        ops: The operations of which those that can be are lowered.
        known: What is known of predicates.

    Returns:
        The tensors in place of lowered operations' outputs, by the `ref()` of these.
    """
    functions = definitions.Functions(graph)
    ops = set(ops)
    which = {op: known(op.inputs[0]) for op in ops if op.type in definitions.BRANCHES}
    taken = {
        op: "then_branch" if value else "else_branch"
        for op, value in which.items()
        if value is not None
    }
    lowered = {
        op: op.control_inputs
        for op in ops
        if op.type in definitions.WRITTEN
        and len(op.outputs)
        and functions.can_be_written(op.node_def, taken.get(op, ""))
    }
    with graph.as_default(), tf1.name_scope(None):
        for op in sorted(taken.keys() - lowered.keys(), key=lambda op: op._id):
            _let_go(op, functions.definition(op.get_attr(taken[op]).name))
        if not lowered:
            return {}
        behind_changes = effects.behind_changes(graph)
        lowering = _Lowering(graph, functions, behind_changes, taken)
        return lowering.run([op for op in order.ordered(ops, lowered) if op in lowered])


def _let_go(op: tf.Operation, taken: Any) -> None:
    """Lets a branch that stays a call wait for nothing that only the branch not taken reads."""
    if taken is None or op._get_control_flow_context() is not None:
        return
    used = definitions.used(taken, taken.node_def)
    for n, argument in enumerate(taken.signature.input_arg, 1):
        tensor = op.inputs[n]
        is_unread = argument.name not in used and tensor.dtype not in kinds.HANDLES
        if is_unread and tensor.shape.rank is not None:
            op._update_input(n, tf.zeros([size or 0 for size in tensor.shape], tensor.dtype))


class _Lowering:
    """Writes operations in place of functional ones.

    Args:
        graph: The graph.
        functions: Its functions.
        behind_changes: Its operations that change a state, or come after one that does.
        taken: For branches that are known to be taken their attribute.
    """

    def __init__(
        self,
        graph: tf.Graph,
        functions: definitions.Functions,
        behind_changes: set[tf.Operation],
        taken: Mapping[tf.Operation, str],
    ):
        self._behind_changes = behind_changes
        self._taken = taken
        self._graph = graph
        self._functions = functions
        self._nodes = Nodes(graph, graph.unique_name("lowered"))
        self._contexts: dict[str, loops.Context | None] = {}
        self._written: dict[tf.Operation, list[Reference]] = {}

    def run(self, ops: Sequence[tf.Operation]) -> Moved:
        """Writes operations, and lets others read them; see `lower`."""
        for op in ops:
            self._written[op] = self._write(op)
        made = self._nodes.write()
        for name, context in self._contexts.items():
            if context is not None:
                made[name]._set_control_flow_context(context)
        outputs = {op: [resolved(each, made) for each in self._written[op]] for op in ops}
        moved: Moved = {}
        for op in ops:
            for old, new in zip(op.outputs, outputs[op], strict=True):
                if new.dtype not in kinds.HANDLES:
                    new.set_shape(old.shape)
            moved |= replacing.replace(op, outputs[op])
        return moved

    def _write(self, op: tf.Operation) -> list[Reference]:
        inputs = [self._newest(tensor) for tensor in op.inputs]
        waits: list[Waited] = []
        # NOTE: an operation waits for all of its inputs, and so may come after a write.
        before = [each.op for each in self._read_by(op) if each.op in self._behind_changes]
        for waited in dict.fromkeys([*op.control_inputs, *before]):
            waits.extend(self._written.get(waited, [waited]))
        context = op._get_control_flow_context()
        # NOTE: in a loop, an operation without any inputs would not be in the loop's frame.
        pivot = () if context is None else tuple(inputs[:1])
        name = self._graph.unique_name(op.name + "/lowered")
        place = _Place(context, op.device, pivot, tuple(waits))
        if op in self._taken:
            return self._inline(op.get_attr(self._taken[op]).name, inputs[1:], name, place)
        return self._functional(op.node_def, inputs, name, place)

    def _read_by(self, op: tf.Operation) -> Sequence[tf.Tensor]:
        """Returns what an operation reads; of known branches, what the one taken reads."""
        if op not in self._taken:
            return list(op.inputs)
        definition = self._functions.definition(op.get_attr(self._taken[op]).name)
        names = [argument.name for argument in definition.signature.input_arg]
        returned = [definition.ret[each.name] for each in definition.signature.output_arg]
        used = definitions.used(definition, definitions.in_order(definition, returned, set(names)))
        which, *values = op.inputs
        pairs = zip(names, values, strict=True)
        return [which, *(value for name, value in pairs if name in used)]

    def _newest(self, tensor: tf.Tensor) -> Reference:
        if tensor.op in self._written:
            return self._written[tensor.op][tensor.value_index]
        return tensor

    # What is written in place of one operation.

    def _functional(
        self, node: tf1.NodeDef, inputs: Sequence[Reference], name: str, place: _Place
    ) -> list[Reference]:
        if node.op in definitions.CALLS:
            return self._inline(node.attr["f"].func.name, inputs, name, place)
        if node.op in definitions.BRANCHES:
            return self._branches(node, inputs, name, place)
        return self._loop(node, inputs, name, place)

    def _branches(
        self, node: tf1.NodeDef, inputs: Sequence[Reference], name: str, place: _Place
    ) -> list[Reference]:
        """Each input goes to the branch that runs; in the other one nothing has a value."""
        inside = _Place(replacing.Context(place.context, None), place.device)
        which, *values = inputs

        def switch(label: str, value: Reference, dtype: tf.DType) -> str:
            return self._add(
                "Switch", [value, which], f"{name}/{label}", inside, place.waits, T=dtype
            )

        chosen = switch("switch_pred", which, tf.bool)
        switched = [
            switch(f"switch_{n}", value, dtype)
            for n, (value, dtype) in enumerate(zip(values, _types(node, "Tin"), strict=True))
        ]
        results = []
        for label, branch, n in (("else", "else_branch", 0), ("then", "then_branch", 1)):
            pivot = self._add(
                "Identity", [output(chosen, n)], f"{name}/pivot_{label}", inside, T=tf.bool
            )
            arguments = [output(value, n) for value in switched]
            function = node.attr[branch].func.name
            # NOTE: branches are two contexts: what one of them makes the other cannot read.
            where = inside._replace(context=replacing.Context(place.context, None), pivot=(pivot,))
            results.append(self._inline(function, arguments, f"{name}/{label}", where))
        return [
            self._add("Merge", pair, f"{name}/merge_{n}", place, T=dtype, N=2)
            for n, (*pair, dtype) in enumerate(zip(*results, _types(node, "Tout"), strict=True))
        ]

    def _loop(
        self, node: tf1.NodeDef, inputs: Sequence[Reference], name: str, place: _Place
    ) -> list[Reference]:
        """What a body returns unchanged enters as a constant, the rest goes round."""
        parallel = node.attr["parallel_iterations"].i or 10
        inside = _Place(replacing.Context(place.context, parallel), place.device)
        types, body = _types(node, "T"), node.attr["body"].func.name
        fixed = self._fixed(body)
        turning = [n for n in range(len(inputs)) if n not in fixed]

        def turn(type: str, read: Sequence[Reference], label: str, n: int, **more: Any) -> str:
            waits = place.waits if type == "Enter" else ()
            return self._add(type, read, f"{name}/{label}_{n}", inside, waits, T=types[n], **more)

        frame = {"frame_name": name, "parallel_iterations": parallel}
        values: list[Reference] = [
            turn("Enter", [given], "enter", n, is_constant=n in fixed, **frame)
            for n, given in enumerate(inputs)
        ]
        for n in turning:
            values[n] = turn("Merge", [values[n], f"{name}/next_{n}"], "merge", n, N=2)
        where = inside._replace(pivot=(values[turning[0]],))
        condition = self._inline(node.attr["cond"].func.name, values, f"{name}/cond", where)
        goes_on = self._add("LoopCond", condition, f"{name}/loop_cond", inside)
        switches = {n: turn("Switch", [values[n], goes_on], "switch", n) for n in turning}
        for n, switch in switches.items():
            values[n] = turn("Identity", [output(switch, 1)], "body", n)
        where = inside._replace(pivot=(values[turning[0]],))
        results = self._inline(body, values, f"{name}/body", where)
        outputs = list(inputs)
        for n, switch in switches.items():
            turn("NextIteration", [results[n]], "next", n)
            outputs[n] = turn("Exit", [switch], "exit", n)
        return outputs

    def _fixed(self, body: str) -> set[int]:
        """Returns which of a loop's values its body returns unchanged; one always goes round."""
        definition = self._functions.definition(body)
        passed = {node.name: node.input[0] for node in definition.node_def if node.op == "Identity"}
        fixed = set()
        for n, (given, returned) in enumerate(
            zip(definition.signature.input_arg, definition.signature.output_arg, strict=True)
        ):
            origin = definition.ret[returned.name]
            while origin.split(":")[0] in passed:
                origin = passed[origin.split(":")[0]]
            if origin == given.name:
                fixed.add(n)
        if len(fixed) == len(definition.signature.input_arg):
            fixed.discard(0)
        return fixed

    def _inline(
        self, function: str, arguments: Sequence[Reference], prefix: str, place: _Place
    ) -> list[Reference]:
        """Writes what a function's outputs are made from, and returns these."""
        definition = self._functions.definition(function)
        names = [argument.name for argument in definition.signature.input_arg]
        values: dict[str, list[Reference]] = {
            name: [value] for name, value in zip(names, arguments, strict=True)
        }
        offsets: dict[str, dict[str, int]] = {}

        def value(text: str) -> Reference:
            name, *rest = text.split(":")
            return values[name][offsets[name][rest[0]] + int(rest[1]) if rest else 0]

        returned = [definition.ret[each.name] for each in definition.signature.output_arg]
        for node in definitions.in_order(definition, returned, set(names)):
            inputs = [value(text) for text in node.input if not text.startswith("^")]
            offsets[node.name], number = definitions.offsets(node)
            name = f"{prefix}/{node.name}"
            where = place._replace(device=_device(place.device, node.device))
            if self._functions.can_be_written(node):
                values[node.name] = self._functional(node, inputs, f"{name}/lowered", where)
            else:
                made = self._copy(node, inputs, name, where)
                values[node.name] = [output(made, n) for n in range(number)]
        return [value(text) for text in returned]

    def _copy(
        self, node: tf1.NodeDef, inputs: Sequence[Reference], name: str, place: _Place
    ) -> str:
        """Writes an operation of a function."""
        waits: tuple[Waited, ...] = ()
        if not inputs:
            waits = (*place.pivot, *place.waits)
        elif kinds.is_stateful(node.op) or node.op in definitions.CALLING:
            waits = place.waits
        made = self._add(node.op, inputs, name, place, waits)
        attributes = {key: value for key, value in node.attr.items() if key not in _OF_FUNCTIONS}
        self._nodes.by_name[made].attr = attributes
        return made

    def _add(
        self,
        type: str,
        inputs: Sequence[Reference],
        name: str,
        place: _Place,
        waits: Sequence[Waited] = (),
        **attributes: Any,
    ) -> str:
        self._contexts[name] = place.context
        return self._nodes.add(type, inputs, place.device, controls=waits, name=name, **attributes)


def _types(node: tf1.NodeDef, attribute: str) -> list[tf.DType]:
    return [tf.as_dtype(each) for each in node.attr[attribute].list.type]


def _device(outer: str, own: str) -> str:
    return placement.merged(outer, own) if outer and own else own or outer
