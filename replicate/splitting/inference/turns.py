"""A graph's definition for inference: loops make one turn, and lists hold what is written first.

An importer infers shapes along the data, and knows none of what comes around a loop or out of a
list. So here each *link*, a tensor that comes from several sources, is written as the first of
them: a loop's variable as what it begins with, an element of a list as what is written to it. If
the others are then inferred to have the same shape, the link has it, by induction over the turns.
The lengths in which they differ are unknown, and inference starts again.

An importer also evaluates what is constant, and asks for more than a shape needs. A large value
grows with the batch alone by operations that are told a size, which is measured. Nothing evaluates
these, nor what differs by turn: so inference costs what the graph costs, whatever is assumed.
"""

import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from replicate.compat import inference
from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import conditions, kinds, loops, nodes, order
from replicate.splitting.structure.loops import Structure

Sides: TypeAlias = Mapping[Hashable, bool | None]
"""Which side of branches is taken, by the `ref()` of predicates; None if either may be."""

MEASURING = ("Shape", "ShapeN", "Size")

# Which operand tells operations how many entries to make.
_SIZED = {
    **{"BroadcastTo": 1, "Fill": 0, "LinSpace": 2, "MirrorPad": 1, "OneHot": 1, "Pad": 1},
    **{"PadV2": 1, "Range": 1, "ScatterNd": 2, "SparseToDense": 1, "Tile": 1},
    **{"StatelessRandomNormalV2": 0, "StatelessRandomUniformFullIntV2": 0},
    **{"StatelessRandomUniformIntV2": 0, "StatelessRandomUniformV2": 0},
    **{"StatelessTruncatedNormalV2": 0},
}
# Which output is read from a stack, a list or an array; of an optional value, each one.
READS = {
    **{"OptionalGetValue": None, "StackPopV2": 0, "TensorArrayGatherV3": 0},
    **{"TensorArrayReadV3": 0, "TensorListGetItem": 0, "TensorListPopBack": 1},
    "TensorListStack": 0,
}
_STACKED = ("TensorArrayGatherV3", "TensorListStack")
# Of these it is certain which of the elements written they give.
_ORDERED = ("OptionalGetValue", "StackPopV2", "TensorListPopBack")
# Which operand is written to a list or an array, and whether it has many elements.
WRITES = {
    "OptionalFromValue": (0, False),
    "StackPushV2": (1, False),
    "TensorArrayScatterV3": (2, True),
    "TensorArrayWriteV3": (2, False),
    "TensorListFromTensor": (0, True),
    "TensorListPushBack": (1, False),
    "TensorListSetItem": (2, False),
}
_SCALAR = tf.TensorShape([])
# An `Enter` that has a tensor's shape, and a value that no importer evaluates.
_HIDDEN = {"frame_name": b"hidden", "is_constant": True}  # of others the shape is unknown


class Link(NamedTuple):
    """A tensor that comes from around a loop, or out of a list.

    Attributes:
        tensor: The tensor.
        node: The name of the node that stands for it.
        sources: What it may come from, or be an element of.
        has_parts: Whether it is an element of these, without their first dimension.
        is_stacked: Whether it has many elements, along a first dimension of its own.
    """

    tensor: tf.Tensor
    node: str
    sources: Sequence[tf.Tensor]
    has_parts: bool = False
    is_stacked: bool = False

    def lost(self, dims: Callable[[tf.Tensor], Dims | None]) -> list[Dims | None]:
        """Returns the shape that holds, if a source refutes what is inferred; else nothing.

        Args:
            dims: Returns what is inferred of a tensor.
        """
        whole = dims(self.tensor)
        if whole is None:
            return []
        element = list(whole[self.is_stacked :])
        for source in self.sources:
            other = dims(source)
            if other is None or len(other) - self.has_parts != len(element):
                return [None]
            pairs = zip(element, other[self.has_parts :], strict=True)
            element = [size if size == other_size else None for size, other_size in pairs]
        agreed = [*whole[: self.is_stacked], *element]
        return [] if agreed == whole else [agreed]


class Turns:
    """The definition of a graph of which each loop makes one turn.

    Args:
        graph: The graph.
        structure: Its loops, stacks and lists.
        ops: The operations that are wanted.
        vectors: Tensors that are shapes, of which each inference assumes the entries, and how many
            these are.

    Attributes:
        structure: As given.
        ops: The operations, each after what it reads.
        links: What comes from around a loop, or out of a list.
    """

    def __init__(
        self,
        graph: tf.Graph,
        structure: Structure,
        ops: Collection[tf.Operation],
        vectors: Sequence[tuple[tf.Tensor, int]] = (),
    ):
        self.structure = structure
        self._graph_def = _definition(graph, ops)
        self._nodes = {node.name: node for node in self._graph_def.node}
        self.ops = order.ordered(set(ops), {})
        self._places = {op: n for n, op in enumerate(self.ops)}
        self.links: list[Link] = []
        self._instead: dict[str, str] = {}  # the nodes that stand for tensors
        for op in self.ops:
            self._straighten(op)
        self._hide_sizes()
        self._entries = {vector.ref(): self._open(vector, number) for vector, number in vectors}
        self._redirect()
        self._numbers = {node.name: n for n, node in enumerate(self._graph_def.node)}

    def written(
        self,
        known: Mapping[Any, Dims],
        entries: Mapping[Any, Dims],
        refuted: Mapping[str, Dims | None],
        sides: Sides,
    ) -> tf1.GraphDef:
        """Returns the definition for one inference.

        Args:
            known: The dimensions of tensors, by `ref()`.
            entries: The entries of the `vectors`, by `ref()`.
            refuted: What is known of links that do not have the shapes of their first sources, by
                the nodes that stand for them.
            sides: What is known of branches.
        """
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(self._graph_def)
        outputs: dict[tf.Operation, list[Dims | None]] = {}
        for ref, dims in known.items():
            tensor = ref.deref()
            outputs.setdefault(tensor.op, [None] * len(tensor.op.outputs))
            outputs[tensor.op][tensor.value_index] = dims
        for op, shapes in outputs.items():
            inference.know(graph_def.node[self._numbers[op.name]], shapes)
        for ref, numbers in entries.items():
            for name, number in zip(self._entries[ref], numbers, strict=True):
                if number is not None:
                    node = graph_def.node[self._numbers[name]]
                    dtype = tf.as_dtype(node.attr["dtype"].type)
                    value = np.array(number, dtype.as_numpy_dtype)
                    _rewrite(node, "Const", [], dtype=dtype, value=value)
        for name, shape in refuted.items():
            node = graph_def.node[self._numbers[name]]
            dtype = tf.as_dtype(node.attr["T" if "T" in node.attr else "dtype"].type)
            _rewrite(node, "Placeholder", [], dtype=dtype, shape=tf.TensorShape(shape))
        if sides:
            self._leave_out(graph_def, sides)
        return graph_def

    @functools.cached_property
    def predicates(self) -> list[tf.Tensor]:
        """The predicates of branches, each after what it is made from."""
        predicates = map(conditions.predicate_of, filter(conditions.begins_branch, self.ops))
        return list({each.ref(): each for each in predicates}.values())

    @functools.cached_property
    def _conditions(self) -> conditions.Conditions:
        return conditions.Conditions(self.ops[0].graph)

    def _leave_out(self, graph_def: tf1.GraphDef, sides: Sides) -> None:
        """Lets branches that are not taken, or of which that is not known, read unknown lengths."""
        for op in self.ops:
            node, dtype = graph_def.node[self._numbers[op.name]], op.outputs and op.outputs[0].dtype
            if op.type == "Switch" and conditions.begins_branch(op) and dtype not in kinds.HANDLES:
                predicate = conditions.predicate_of(op).ref()
                if predicate in sides:
                    open_node = graph_def.node.add(name=self._unused(f"{op.name}/open"))
                    _rewrite(open_node, "Placeholder", [], dtype=dtype, shape=op.inputs[0].shape)
                    read = [open_node.name, open_node.name]
                    if sides[predicate] is not None:
                        read[int(bool(sides[predicate]))] = node.input[0]
                    _rewrite(node, "IdentityN", read, T=[dtype, dtype])
            elif op.type == "Merge" and not order.is_way_back(op, op.inputs[-1]):
                taken = [n for n, each in enumerate(op.inputs) if self._is_taken(each, sides)]
                if len(taken) == 1:
                    number = graph_def.node.add(name=self._unused(f"{op.name}/taken"))
                    _rewrite(number, "Placeholder", [], dtype=tf.int32, shape=_SCALAR)
                    read = [node.input[taken[0]], number.name]
                    _rewrite(node, "IdentityN", read, T=[dtype, tf.int32])

    def _is_taken(self, tensor: tf.Tensor, sides: Sides) -> bool:
        """Whether a tensor may have a value."""
        branches = self._conditions.of(tensor)
        return all(sides.get(predicate.ref()) in (None, side) for predicate, side in branches)

    @property
    def doubtful(self) -> list[str]:
        """The nodes of links that may be any of several elements of a list."""
        return [link.node for link in self.links if link.tensor.op.type != "Merge"]

    def refuted(self, dims: Callable[[tf.Tensor], Dims | None]) -> dict[str, Dims | None]:
        """Returns what holds of links that do not have the shapes of their first sources.

        Args:
            dims: Returns what is inferred of a tensor.
        """
        return {link.node: agreed for link in self.links for agreed in link.lost(dims)}

    def _open(self, vector: tf.Tensor, number: int) -> list[str]:
        """Lets all read entries in place of a vector; returns the nodes of these."""
        dtype, name = vector.dtype, self._unused(f"{vector.op.name}/entries")
        names = [
            self._new("Placeholder", f"{name}/{n}", [], dtype=dtype, shape=_SCALAR)
            for n in range(number)
        ]
        self._instead[vector.name] = self._new("Pack", name, names, T=dtype, N=number)
        return names

    def _redirect(self) -> None:
        """Lets all read what stands for a tensor in place of it."""
        if self._instead:
            for node in self._graph_def.node:
                for n, read in enumerate(node.input):
                    name = read if ":" in read else f"{read}:0"
                    if name in self._instead:
                        node.input[n] = self._instead[name]

    # Loops.

    def _straighten(self, op: tf.Operation) -> None:
        """Rewrites a border of a loop, or what is read from a list."""
        if op.type in ("Enter", "Exit", "NextIteration"):
            _rewrite(self._nodes[op.name], "Identity", [op.inputs[0].name], T=op.inputs[0].dtype)
        elif op.type == "Switch" and op.inputs[1].op.type == "LoopCond":
            name, dtype = op.inputs[0].name, op.inputs[0].dtype
            _rewrite(self._nodes[op.name], "IdentityN", [name, name], T=[dtype, dtype])
        elif op.type == "Merge" and order.is_way_back(op, op.inputs[-1]):
            self._begin_loop(op)
        elif op.type in READS:
            self._read(op)

    def _begin_loop(self, merge: tf.Operation) -> None:
        """Lets a loop's variable be what it begins with, of a value that no one knows."""
        start, dtype = merge.inputs[0], merge.inputs[0].dtype
        stands = self._opaque(f"{merge.name}/first", start.name, dtype)
        turn = self._constant(f"{merge.name}/turn", 0)
        _rewrite(self._nodes[merge.name], "IdentityN", [stands, turn], T=[dtype, tf.int32])
        if dtype not in kinds.HANDLES:
            self.links.append(Link(merge.outputs[0], stands, list(merge.inputs)))

    # Lists.

    def _read(self, op: tf.Operation) -> None:
        """Lets what is read from a list be what is written to it."""
        writes = [write for write in writes_to(self.structure, op) if write in self._places]
        earlier = [write for write in writes if self._places[write] < self._places[op]]
        if not earlier or len({WRITES[write.type][1] for write in writes}) > 1:
            return
        first = min(earlier, key=self._places.__getitem__)
        writes.sort(key=lambda write: write is not first)
        names = []
        for tensor in op.outputs:
            sources = [written(write, tensor) for write in writes]
            is_read = READS[op.type] in (None, tensor.value_index) and None not in sources
            if not is_read or tensor.dtype in kinds.HANDLES:
                if len(op.outputs) == 1:
                    return
                names.append(self._new("Placeholder", f"{op.name}/other", [], dtype=tensor.dtype))
                continue
            names.append(self._linked(tensor, sources, WRITES[first.type][1]))
            self._instead[tensor.name] = names[-1]  # other outputs keep it from being constant
        dtypes = [tensor.dtype for tensor in op.outputs]
        _rewrite(self._nodes[op.name], "IdentityN", names, T=dtypes)

    def _linked(self, tensor: tf.Tensor, sources: Sequence[Any], has_parts: bool) -> str:
        """Returns the node that stands for what is read from a list."""
        op, dtype, name = tensor.op, tensor.dtype, sources[0].name
        is_stacked = op.type in _STACKED
        if has_parts:
            name = self._part(name, f"{op.name}/part", dtype)
        if is_stacked:
            stands = self._stacked(op, name, dtype)
        elif op.type in _ORDERED and len(sources) == 1:
            stands = self._new("Identity", f"{op.name}/written", [name], T=dtype)
        else:
            stands = self._opaque(f"{op.name}/written", name, dtype)
        self.links.append(Link(tensor, stands, sources, has_parts, is_stacked))
        return stands

    def _part(self, many: str, name: str, dtype: tf.DType) -> str:
        """Returns the node of one of many elements, also of none."""
        first = self._constant(f"{name}/place", 0)
        return self._new("Gather", name, [many, first], Tparams=dtype, Tindices=tf.int32)

    def _stacked(self, op: tf.Operation, element: str, dtype: tf.DType) -> str:
        """Returns the node of as many elements as an operation reads; no one evaluates it."""
        name = f"{op.name}/stack"
        number = self._number(op, f"{name}/number")
        shape = self._new("Shape", f"{name}/element", [element], T=dtype, out_type=tf.int32)
        axis = self._constant(f"{name}/axis", 0)
        kinds_of = {"T": tf.int32, "Tidx": tf.int32, "N": 2}
        whole = self._new("ConcatV2", f"{name}/shape", [number, shape, axis], **kinds_of)
        return self._new("Empty", name, [whole], dtype=dtype)

    def _number(self, op: tf.Operation, name: str) -> str:
        """Returns the node of how many elements are read, as a vector of one entry."""
        if op.type == "TensorArrayGatherV3":
            indices = op.inputs[1]
            return self._new("Shape", name, [indices.name], T=indices.dtype, out_type=tf.int32)
        if op.get_attr("num_elements") >= 0:
            return self._constant(name, [op.get_attr("num_elements")])
        sources = self.structure.list_sources(op.inputs[0])
        if len(sources) == 1 and sources[0].type == "TensorListReserve":
            return self._new("Pack", name, [sources[0].inputs[1].name], T=tf.int32, N=1)
        return self._new("Placeholder", name, [], dtype=tf.int32, shape=tf.TensorShape([1]))

    # What no one evaluates.

    def _hide_sizes(self) -> None:
        """Lets no one evaluate what is as large as something measured."""
        measured: set[tf.Operation] = set()
        for op in self.ops:
            operands = op.inputs
            if op.type in MEASURING:
                if not all(tensor.shape.is_fully_defined() for tensor in operands):
                    measured.add(op)
            elif any(tensor.op in measured for tensor in operands):
                measured.add(op)
                if op.type in _SIZED and operands[_SIZED[op.type]].op in measured:
                    self._hide(op)

    def _hide(self, op: tf.Operation) -> None:
        node = self._nodes[op.name]
        sized = self._added(f"{op.name}/sized")
        name = sized.name
        sized.CopyFrom(node)
        sized.name = name
        _rewrite(node, "Enter", [name], T=op.outputs[0].dtype, **_HIDDEN)

    # Nodes.

    def _opaque(self, name: str, read: str, dtype: tf.DType) -> str:
        """Returns a node of a tensor's shape; an importer does not evaluate it."""
        return self._new("Enter", name, [read], T=dtype, **_HIDDEN)

    def _constant(self, name: str, value: int | list[int]) -> str:
        return self._new("Const", name, [], dtype=tf.int32, value=np.array(value, np.int32))

    def _new(self, kind: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds a node and returns its name."""
        node = self._added(name)
        _rewrite(node, kind, inputs, **attributes)
        return node.name

    def _added(self, name: str) -> tf1.NodeDef:
        node = self._graph_def.node.add(name=self._unused(name))
        self._nodes[node.name] = node
        return node

    def _unused(self, name: str) -> str:
        while name in self._nodes:
            name += "_"
        return name


def _definition(graph: tf.Graph, ops: Collection[tf.Operation]) -> tf1.GraphDef:
    """Returns the definition of operations, without devices and waits."""
    graph_def = graph.as_graph_def()
    if len(ops) < len(graph_def.node):
        names = {op.name for op in ops}
        nodes = [node for node in graph_def.node if node.name in names]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
    for node in graph_def.node:
        node.device = ""
        while node.input and node.input[-1].startswith("^"):
            del node.input[-1]
        if "_class" in node.attr:
            del node.attr["_class"]  # the operation that it names may be left out
    return graph_def


def writes_to(structure: Structure, op: tf.Operation) -> list[tf.Operation]:
    """Returns what writes to the stack, list or array that an operation reads, as in `WRITES`."""
    if op.type == "StackPopV2":
        push = structure.push_of(op)
        return [] if push is None else [push]
    if op.type.startswith("TensorArray"):
        array = loops.handle_of(op.inputs[0])
        while not structure.array_writes(array) and array.type == "TensorArrayGradV3":
            array = loops.handle_of(array.inputs[0])
        return [each for each in structure.array_writes(array) if each.type in WRITES]
    writes: list[tf.Operation] = []
    for source in structure.list_sources(op.inputs[0]):
        writes += [source] if source.type in WRITES else structure.list_writes(source)
    return writes


def written(write: tf.Operation, read: tf.Tensor) -> tf.Tensor | None:
    """Returns what an operation writes for an output of one that reads."""
    if write.type == "OptionalFromValue":
        n = read.value_index
        return write.inputs[n] if n < len(write.inputs) else None
    return write.inputs[WRITES[write.type][0]]


def _rewrite(node: tf1.NodeDef, kind: str, inputs: Sequence[str], **attributes: Any) -> None:
    """Makes a node one of another kind."""
    name = node.name
    node.Clear()
    node.name, node.op = name, kind
    node.input.extend(inputs)
    for key, value in attributes.items():
        node.attr[key].CopyFrom(nodes.attribute(value))
