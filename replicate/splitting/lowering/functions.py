"""Functional control flow, written as the operations of TensorFlow 1.

`While`, `If` and calls of functions are one operation each, and what is inside of them cannot be
split. So a loop is written as `Enter`, `Merge`, `Switch`, `NextIteration` and `Exit`, a branch as
`Switch` and `Merge`, and functions are written where they are called, as a session of TensorFlow
does when it begins. The functional operations stay in the graph for those who fetch them by name;
nothing else reads them.

Only functions that read are written out. In them no order matters but that of their values, so
that of a function only what its outputs are made from is written, without its control inputs.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import placement
from replicate.splitting.structure import definitions, effects, kinds, order
from replicate.splitting.structure.nodes import Nodes, Reference

_OF_FUNCTIONS = ("_class", "_output_shapes", "_xla_compile_id")


class Context:
    """The loop or the branches that operations belong to, as TensorFlow asks for them.

    Args:
        outer_context: What the loop or branches are in; None: in nothing.
        parallel_iterations: Of a loop; None: branches.
    """

    # NOTE: exporting a graph writes the contexts that are in its collections; this is in none.

    def __init__(self, outer_context: Any, parallel_iterations: int | None):
        self.outer_context = outer_context
        self.parallel_iterations = parallel_iterations

    def IsWhileContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether this is a loop."""
        return self.parallel_iterations is not None

    def IsCondContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether these are branches."""
        return self.parallel_iterations is None

    def IsXLAContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether XLA compiles what is inside, which it does not."""
        return False


class _Place(NamedTuple):
    """Where operations are written.

    Attributes:
        context: Their control flow context.
        device: Of those that name none.
        pivot: What those without inputs wait for, so that they run when all others do.
        waits: What is to be over before anything here begins.
    """

    context: Any
    device: str
    pivot: tuple[Reference, ...] = ()
    waits: tuple[Any, ...] = ()


def lower(graph: tf.Graph, ops: Iterable[tf.Operation]) -> dict[Any, tf.Tensor]:
    """Writes functional control flow as operations of TensorFlow 1.

    What reads an output of a functional operation reads the new one, and what waits for the
    operation waits for all its new outputs. Gradients are to be taken before. What writes, prints
    or runs Python inside of a function stays as it is, and so does what XLA is to compile.

    Args:
        graph: The graph.
        ops: What is lowered is among these.

    Returns:
        For each `ref()` of an output of an operation that was lowered the tensor in its place.
    """
    functions = definitions.Functions(graph)
    ops = set(ops)
    lowered = {
        op: op.control_inputs
        for op in ops
        if op.type in definitions.WRITTEN
        and len(op.outputs)
        and functions.can_be_written(op.node_def)
    }
    if not lowered:
        return {}
    with graph.as_default(), tf1.name_scope(None):
        behind_changes = effects.behind_changes(graph)
        lowering = _Lowering(graph, functions, behind_changes)
        return lowering.run([op for op in order.ordered(ops, lowered) if op in lowered])


class _Lowering:
    """Definitions of operations in place of functional ones.

    Args:
        graph: The graph.
        functions: Its functions.
        behind_changes: Its operations that change a state, or come after one that does.
    """

    def __init__(self, graph: tf.Graph, functions: definitions.Functions, behind_changes: set):
        self._behind_changes = behind_changes
        self._graph = graph
        self._functions = functions
        self._nodes = Nodes(graph, graph.unique_name("lowered"))
        self._contexts: dict[str, Any] = {}
        self._written: dict[Any, list[Reference]] = {}

    def run(self, ops: Sequence[tf.Operation]) -> dict[Any, tf.Tensor]:
        """Writes operations, and lets others read what is new; returns it by what is old."""
        for op in ops:
            self._written[op] = self._write(op)
        made = self._nodes.write()
        for name, context in self._contexts.items():
            if context is not None:
                made[name]._set_control_flow_context(context)
        outputs = {op: [_tensor(each, made) for each in self._written[op]] for op in ops}
        for op in ops:
            self._replace(op, outputs[op])
        return {
            old.ref(): new for op in ops for old, new in zip(op.outputs, outputs[op], strict=True)
        }

    def _write(self, op: tf.Operation) -> list[Reference]:
        inputs = [self._newest(tensor) for tensor in op.inputs]
        waits: list[Any] = []
        # NOTE: an operation waits for all of its inputs, and so may come after a write.
        before = [tensor.op for tensor in op.inputs if tensor.op in self._behind_changes]
        for waited in dict.fromkeys([*op.control_inputs, *before]):
            waits.extend(self._written.get(waited, [waited]))
        context = op._get_control_flow_context()
        # NOTE: in a loop what has no inputs at all would not be in the loop's frame.
        pivot = () if context is None else tuple(inputs[:1])
        name = self._graph.unique_name(op.name + "/lowered")
        return self._functional(
            op.node_def, inputs, name, _Place(context, op.device, pivot, tuple(waits))
        )

    def _newest(self, tensor: tf.Tensor) -> Reference:
        if tensor.op in self._written:
            return self._written[tensor.op][tensor.value_index]
        return tensor

    def _replace(self, op: tf.Operation, outputs: Sequence[tf.Tensor]) -> None:
        """Lets all that reads an operation or waits for it read or wait for new ones."""
        for old, new in zip(op.outputs, outputs, strict=True):
            if new.dtype not in (tf.resource, tf.variant):
                new.set_shape(old.shape)
            for user in list(old.consumers()):
                if user not in self._written:
                    for n, tensor in enumerate(user.inputs):
                        if tensor is old:
                            user._update_input(n, new)
        for user in list(op._control_outputs):
            if user not in self._written:
                waits = [waited for waited in user.control_inputs if waited is not op]
                user._remove_all_control_inputs()
                user._add_control_inputs([*waits, *(new.op for new in outputs)])

    # What is written in place of one operation.

    def _functional(
        self, node: Any, inputs: Sequence[Reference], name: str, place: _Place
    ) -> list[Reference]:
        if node.op in definitions.CALLS:
            return self._inline(node.attr["f"].func.name, inputs, name, place)
        if node.op in definitions.BRANCHES:
            return self._branches(node, inputs, name, place)
        return self._loop(node, inputs, name, place)

    def _branches(
        self, node: Any, inputs: Sequence[Reference], name: str, place: _Place
    ) -> list[Reference]:
        """Each input goes to the one branch that runs; what the other makes is dead."""
        inside = _Place(Context(place.context, None), place.device)
        which, *values = inputs

        def switch(label, value, dtype):
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
                "Identity", [_output(chosen, n)], f"{name}/pivot_{label}", inside, T=tf.bool
            )
            arguments = [_output(value, n) for value in switched]
            function = node.attr[branch].func.name
            # NOTE: branches are two contexts: what one of them makes the other cannot read.
            where = inside._replace(context=Context(place.context, None), pivot=(pivot,))
            results.append(self._inline(function, arguments, f"{name}/{label}", where))
        return [
            self._add("Merge", pair, f"{name}/merge_{n}", place, T=dtype, N=2)
            for n, (*pair, dtype) in enumerate(zip(*results, _types(node, "Tout"), strict=True))
        ]

    def _loop(
        self, node: Any, inputs: Sequence[Reference], name: str, place: _Place
    ) -> list[Reference]:
        """What a body returns as it was given enters as a constant, the rest goes round."""
        inside = _Place(Context(place.context, _parallel_iterations(node)), place.device)
        types, body = _types(node, "T"), node.attr["body"].func.name
        fixed = self._fixed(body)
        turning = [n for n in range(len(inputs)) if n not in fixed]
        values = self._enter(inputs, types, fixed, name, inside, place)

        def turn(type, read, label, n, **more):
            return self._add(type, read, f"{name}/{label}_{n}", inside, T=types[n], **more)

        for n in turning:
            values[n] = turn("Merge", [values[n], f"{name}/next_{n}"], "merge", n, N=2)
        where = inside._replace(pivot=(values[turning[0]],))
        goes_on = self._inline(node.attr["cond"].func.name, values, f"{name}/cond", where)
        goes_on = self._add("LoopCond", goes_on, f"{name}/loop_cond", inside)
        switches = {n: turn("Switch", [values[n], goes_on], "switch", n) for n in turning}
        for n, switch in switches.items():
            values[n] = turn("Identity", [_output(switch, 1)], "body", n)
        where = inside._replace(pivot=(values[turning[0]],))
        results = self._inline(body, values, f"{name}/body", where)
        outputs = list(inputs)
        for n, switch in switches.items():
            turn("NextIteration", [results[n]], "next", n)
            outputs[n] = turn("Exit", [switch], "exit", n)
        return outputs

    def _enter(
        self,
        inputs: Sequence[Reference],
        types: Sequence[tf.DType],
        fixed: set[int],
        name: str,
        inside: _Place,
        place: _Place,
    ) -> list[Reference]:
        """Returns a loop's inputs as they are inside of its frame."""
        parallel = inside.context.parallel_iterations
        frame = {"frame_name": name, "parallel_iterations": parallel}
        values: list[Reference] = []
        for n, given in enumerate(inputs):
            label = f"{name}/enter_{n}"
            attributes = {**frame, "T": types[n], "is_constant": n in fixed}
            values.append(self._add("Enter", [given], label, inside, place.waits, **attributes))
        return values

    def _fixed(self, body: str) -> set[int]:
        """Returns which of a loop's values its body returns as they were given, but for one."""
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
            fixed.discard(0)  # something goes round, or nothing would
        return fixed

    def _inline(
        self, function: str, arguments: Sequence[Reference], prefix: str, place: _Place
    ) -> list[Reference]:
        """Writes what a function's outputs are made from; returns the outputs."""
        definition = self._functions.definition(function)
        names = [argument.name for argument in definition.signature.input_arg]
        values = {name: [value] for name, value in zip(names, arguments, strict=True)}
        offsets: dict[str, dict[str, int]] = {}

        def value(text):
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
                values[node.name] = [_output(made, n) for n in range(number)]
        return [value(text) for text in returned]

    def _copy(self, node: Any, inputs: Sequence[Reference], name: str, place: _Place) -> Reference:
        """Writes an operation of a function."""
        waits: tuple = ()
        if not inputs:
            waits = (*place.pivot, *place.waits)
        elif kinds.is_stateful(node.op) or node.op in definitions.CALLING:
            waits = place.waits
        made = self._add(node.op, inputs, name, place, waits)
        attributes = {key: value for key, value in node.attr.items() if key not in _OF_FUNCTIONS}
        self._nodes.by_name[made].attr.update(attributes)
        return made

    def _add(
        self,
        type: str,
        inputs: Sequence[Reference],
        name: str,
        place: _Place,
        waits: Sequence[Any] = (),
        **attributes: Any,
    ) -> str:
        self._contexts[name] = place.context
        return self._nodes.add(type, inputs, place.device, controls=waits, name=name, **attributes)


def _parallel_iterations(node: Any) -> int:
    return node.attr["parallel_iterations"].i or 10


def _types(node: Any, attribute: str) -> list[tf.DType]:
    return [tf.as_dtype(each) for each in node.attr[attribute].list.type]


def _output(name: str, n: int) -> str:
    return f"{name}:{n}" if n else name


def _tensor(reference: Reference, made: dict[str, tf.Operation]) -> tf.Tensor:
    if not isinstance(reference, str):
        return reference
    name, _, n = reference.partition(":")
    return made[name].outputs[int(n or 0)]


def _device(outer: str, own: str) -> str:
    return placement.merged(outer, own) if outer and own else own or outer
