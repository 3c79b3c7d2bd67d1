"""Definitions of new operations, collected and added to a graph at once.

Adding a thousand operations one by one takes Python most of a second; the importer adds all of them
together.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from replicate.compat import importing
from replicate.compat.tensorflow import tf, tf1

Reference: TypeAlias = str | tf.Tensor
"""A new operation's output, `name` or `name:1`; or a tensor of the graph."""

Waited: TypeAlias = str | tf.Tensor | tf.Operation
"""What is waited for, or run: a `Reference`, or an operation of the graph."""

Maker: TypeAlias = str | tf.Operation
"""A new operation by its name, or an operation of the graph."""

Made: TypeAlias = Mapping[str, Any]
"""New operations of a graph by their names, and tensors by the names of sums."""

Attributes: TypeAlias = Mapping[str, Any]
"""Attributes of an operation by their names."""

Shapes: TypeAlias = Sequence[tf.TensorShape]
"""What is known of the shapes of an operation's outputs; of no output, if nothing is known."""

_SHAPES = "_output_shapes"  # what the importer takes for known
_OF_ORIGINALS = ("_class", _SHAPES, "_xla_compile_id", "_grappler_do_not_remove")

# The attributes that may name the dtype of an operation's outputs: the first one that is there.
_DTYPES = ("DstT", "out_type", "dtype", "T", "Tparams")


class Node:
    """The definition of a new operation; faster to read and change than a `NodeDef`.

    Attributes:
        name: Its name.
        op: The kind of operation.
        device: Where it runs.
        input: What it reads, and waits for, as a `NodeDef` has it.
        attr: Its attributes. Copies share this mapping: it is replaced, never changed.
        shapes: What is known of its outputs, beside what the importer infers.
    """

    __slots__ = ("attr", "device", "input", "name", "op", "shapes")

    def __init__(self, name: str, op: str, device: str, input: list[str], attr: Attributes):
        self.name = name
        self.op = op
        self.device = device
        self.input = input
        self.attr = attr
        self.shapes: Shapes = ()

    def set(self, key: str, value: Any) -> None:
        """Sets an attribute of this operation alone."""
        self.attr = {**self.attr, key: attribute(value)}


class Nodes:
    """New operations of a graph.

    Args:
        graph: The graph.
        prefix: Begins the names of operations that are no copies.

    Attributes:
        graph: The graph.
        by_name: The definitions.
        tensors: The graph's tensors that new operations read, by the names that stand for them.
    """

    def __init__(self, graph: tf.Graph, prefix: str):
        self.graph = graph
        self._prefix = prefix
        self.by_name: dict[str, Node] = {}
        self.tensors: dict[str, tf.Tensor] = {}
        self._waits: dict[str, tf.Operation] = {}
        self._originals: dict[str, tf.Operation] = {}
        self._constants: dict[tuple[object, ...], str] = {}
        self._number = 0

    def name(self, reference: Reference) -> str:
        """Returns how an input is written."""
        if isinstance(reference, str):
            return reference
        name = f"{self._prefix}/given/{reference.op.name}/{reference.value_index}"
        self.tensors[name] = reference
        return name

    def wait(self, waited: Waited) -> str:
        """Returns how a control input is written."""
        if isinstance(waited, str):
            return "^" + waited.split(":")[0]
        op = getattr(waited, "op", waited)
        name = f"{self._prefix}/waited/{op.name}"
        self._waits[name] = op
        return "^" + name

    def waited(self, name: str) -> tf.Operation | None:
        """Returns the operation that a control input is, or None if it is a new one."""
        return self._waits.get(name.lstrip("^"))

    def add(
        self,
        type: str,
        inputs: Sequence[Reference],
        device: str,
        *,
        controls: Sequence[Waited] = (),
        name: str = "",
        **attributes: Any,
    ) -> str:
        """Adds an operation, and returns its name.

        Args:
            type: The kind of operation.
            inputs: What it reads.
            device: Where it runs.
            controls: What it waits for.
            name: Its name; by default one that tells its kind.
            **attributes: Its attributes.
        """
        name = name or f"{self._prefix}/{type}_{self._number}"
        read = [*map(self.name, inputs), *map(self.wait, controls)]
        made = {key: attribute(value) for key, value in attributes.items()}
        self._add(Node(name, type, device, read, made))
        return name

    def copy(
        self, op: tf.Operation, name: str, device: str, attributes: Attributes, shapes: Shapes = ()
    ) -> Node:
        """Adds a copy of an operation, without inputs; returns its definition.

        Args:
            op: The operation.
            name: The copy's name.
            device: Where it runs.
            attributes: Its attributes, as those of `attributes_of`.
            shapes: What is known of its outputs.
        """
        node = Node(name, op.type, device, [], attributes)
        node.shapes = shapes
        self._originals[name] = op
        self._add(node)
        return node

    def _add(self, node: Node) -> None:
        if node.name in self.by_name:
            raise ValueError(
                f"A new operation's name is its own; {node.name} is that of two. This is an error "
                "in replicate; please report it."
            )
        self.by_name[node.name] = node
        self._number += 1

    def type_of(self, made_by: Maker) -> str:
        """Returns the kind of an operation, a new one or one of the graph."""
        return self.by_name[made_by].op if isinstance(made_by, str) else made_by.type

    def original(self, name: str) -> tf.Operation | None:
        """Returns the operation that a new one is a copy of, or None if it is no copy."""
        return self._originals.get(name)

    def know(self, reference: Reference, shape: tf.TensorShape) -> Reference:
        """Notes the shape of a new operation's only output, but of a copy, which is told its own.

        Returns the reference.
        """
        if isinstance(reference, str) and reference in self.by_name:
            node = self.by_name[reference]
            node.shapes = node.shapes or (shape,)
        return reference

    def shape(self, reference: Reference) -> tf.TensorShape:
        """Returns what is known of the shape of an output."""
        if not isinstance(reference, str):
            return reference.shape
        name, _, index = reference.partition(":")
        shapes = self.by_name[name].shapes
        return shapes[int(index or 0)] if int(index or 0) < len(shapes) else tf.TensorShape(None)

    def dtype(self, reference: str) -> tf.DType:
        """Returns the dtype of a new operation's output."""
        name, _, index = reference.partition(":")
        op = self._originals.get(name)
        if op is not None:
            return op.outputs[int(index or 0)].dtype.base_dtype
        attributes = self.by_name[name].attr
        if "output_types" in attributes:
            return tf.as_dtype(attributes["output_types"].list.type[int(index or 0)])
        for key in _DTYPES:
            if key in attributes:
                return tf.as_dtype(attributes[key].type)
        return tf.variant if self.by_name[name].op == "OptionalFromValue" else tf.bool

    def constant(self, value: Any, device: str, after: Reference | None = None) -> str:
        """Returns a constant.

        Args:
            value: An array, or a number of NumPy's.
            device: Where it is.
            after: What it waits for, so that it is in the same loop or branch.
        """
        value = np.asarray(value)
        waits = None if after is None else self.wait(after)
        key = (value.tobytes(), value.dtype.str, value.shape, device, waits)
        if key not in self._constants:
            self._constants[key] = self.add(
                "Const",
                [],
                device,
                controls=() if after is None else [after],
                value=value,
                dtype=tf.as_dtype(value.dtype),
            )
        return self._constants[key]

    def remove(self, name: str) -> None:
        """Removes an operation."""
        del self.by_name[name]

    def write(self) -> dict[str, tf.Operation]:
        """Adds all operations to the graph; returns them by their names."""
        definition = tf1.GraphDef()
        definition.versions.CopyFrom(self.graph.graph_def_versions)
        shared: dict[int, tf1.NodeDef] = {}
        known: dict[int, tf1.AttrValue] = {}
        for node in self.by_name.values():
            key = id(node.attr)
            if key not in shared:
                shared[key] = tf1.NodeDef(attr=node.attr)
            made = definition.node.add()
            made.MergeFrom(shared[key])
            made.name, made.op, made.device = node.name, node.op, node.device
            made.input.extend(node.input)
            if node.shapes:
                key = id(node.shapes)
                if key not in known:
                    known[key] = attribute(node.shapes)
                made.attr[_SHAPES].CopyFrom(known[key])
        with self.graph.as_default():
            return importing.add(definition, self.tensors, self._waits)


def shapes_of(op: tf.Operation) -> Shapes:
    """Returns the shapes of an operation's outputs, for copies that make the same values."""
    return tuple(tensor.shape for tensor in op.outputs)


def attributes_of(op: tf.Operation) -> dict[str, Any]:
    """Returns an operation's attributes, without those that are the original's alone."""
    found = op.node_def.attr.items()
    return {key: value for key, value in found if key not in _OF_ORIGINALS}


class Join(NamedTuple):
    """What the strategy makes of parts when all else is in the graph.

    Until then an operation of this name stands for it, which reads the parts, and behind those of
    rows how many each worker has, int32, of shape [W].

    Attributes:
        number: How many parts there are: K, one of each device, which counts if that has rows; or
            1, which this worker brings.
        axis: The axis along which parts are put end to end; None: they are added.
    """

    number: int
    axis: int | None = None


@dataclasses.dataclass
class Changes:
    """What becomes of operations that are in the graph already, once the new ones are.

    Attributes:
        inputs: Operations, the number of one of their inputs, and what it reads from then on.
        controls: Operations, and all that they wait for from then on.
        joins: What the strategy makes, in the same order in all workers.
        gathered: The names of operations that make rows of devices those of all.
    """

    inputs: list[tuple[tf.Operation, int, Reference]] = dataclasses.field(default_factory=list)
    controls: list[tuple[tf.Operation, Sequence[Waited]]] = dataclasses.field(default_factory=list)
    joins: dict[str, Join] = dataclasses.field(default_factory=dict)
    gathered: list[str] = dataclasses.field(default_factory=list)

    @property
    def joined(self) -> dict[str, None]:
        """The names of operations that join parts, each before what reads it."""
        return dict.fromkeys([*self.joins, *self.gathered])


def output(name: str, index: int) -> str:
    """Returns the reference to an output of a new operation."""
    return f"{name}:{index}" if index else name


def maker(reference: Waited) -> Maker:
    """Returns the operation that a reference is of."""
    if isinstance(reference, str):
        return reference.split(":")[0]
    return getattr(reference, "op", reference)


def resolved(reference: Waited, made: Made) -> tf.Tensor | tf.Operation:
    """Returns what a reference stands for, once new operations are made."""
    if not isinstance(reference, str):
        return reference
    name, _, index = reference.partition(":")
    found = made[name]
    return found.outputs[int(index or 0)] if isinstance(found, tf.Operation) else found


def attribute(value: Any) -> tf1.AttrValue:
    """Returns a value as an attribute."""
    made = tf1.AttrValue()
    if isinstance(value, bool):
        made.b = value
    elif isinstance(value, int):
        made.i = value
    elif isinstance(value, float):
        made.f = value
    elif isinstance(value, bytes):
        made.s = value
    elif isinstance(value, str):
        made.s = value.encode()
    elif isinstance(value, tf.DType):
        made.type = value.base_dtype.as_datatype_enum
    elif isinstance(value, tf.TensorShape):
        made.shape.CopyFrom(value.as_proto())
    elif isinstance(value, np.ndarray):
        made.tensor.CopyFrom(tf.make_tensor_proto(value))
    elif isinstance(value, (list, tuple)):
        _fill(made.list, value)
    else:
        made.CopyFrom(value)
    return made


def _fill(found: Any, values: Sequence[Any]) -> None:
    found.SetInParent()
    for value in values:
        if isinstance(value, tf.DType):
            found.type.append(value.base_dtype.as_datatype_enum)
        elif isinstance(value, tf.TensorShape):
            found.shape.add().CopyFrom(value.as_proto())
        else:
            found.i.append(value)
