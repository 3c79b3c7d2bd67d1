"""Definitions of new operations, collected and added to a graph at once.

To add operations one by one takes Python most of a second for a thousand of them; the importer
adds all of them together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from replicate.compat import importing
from replicate.compat.tensorflow import tf, tf1

# A new operation's output, `name` or `name:1`; or a tensor of the graph.
Reference = Any

_OF_ORIGINALS = ("_class", "_output_shapes", "_xla_compile_id", "_grappler_do_not_remove")

# The attributes by which an operation's outputs have their dtype, the first that it has.
_DTYPES = ("DstT", "out_type", "dtype", "T", "Tparams")


class Nodes:
    """New operations of a graph, under a prefix of their own.

    Args:
        graph: The graph.
        prefix: Of the names of operations that are no copies.

    Attributes:
        graph: The graph.
        by_name: The definitions.
        tensors: Tensors of the graph that new operations read, by the names that they read.
    """

    def __init__(self, graph: tf.Graph, prefix: str):
        self.graph = graph
        self._prefix = prefix
        self._definition = tf1.GraphDef()
        self._definition.versions.CopyFrom(graph.graph_def_versions)
        self.by_name: dict[str, Any] = {}
        self.tensors: dict[str, tf.Tensor] = {}
        self._waits: dict[str, tf.Operation] = {}
        self._originals: dict[str, tf.Operation] = {}
        self._constants: dict = {}
        self._removed: set[str] = set()

    def name(self, reference: Reference) -> str:
        """Returns what an input is written as."""
        if isinstance(reference, str):
            return reference
        name = f"{self._prefix}/given/{reference.op.name}/{reference.value_index}"
        self.tensors[name] = reference
        return name

    def wait(self, waited: Any) -> str:
        """Returns what a control input is written as.

        Args:
            waited: A reference, or an operation of the graph.
        """
        if isinstance(waited, str):
            return "^" + waited.split(":")[0]
        op = getattr(waited, "op", waited)
        name = f"{self._prefix}/waited/{op.name}"
        self._waits[name] = op
        return "^" + name

    def waited(self, name: str) -> tf.Operation | None:
        """Returns the operation of the graph that a control input is; None: a new one."""
        return self._waits.get(name.lstrip("^"))

    def add(
        self,
        type: str,
        inputs: Sequence[Reference],
        device: str,
        *,
        controls: Sequence[Any] = (),
        name: str | None = None,
        **attributes: Any,
    ) -> str:
        """Adds an operation, and returns its name.

        Args:
            type: The kind of operation.
            inputs: What it reads.
            device: Where it runs.
            controls: What it waits for: see `wait`.
            name: Its name; None: one that tells its kind.
            **attributes: Its attributes.
        """
        name = name or f"{self._prefix}/{type}_{len(self._definition.node)}"
        read = [*map(self.name, inputs), *map(self.wait, controls)]
        node = self._definition.node.add(name=name, op=type, device=device, input=read)
        self.by_name[name] = node
        for key, value in attributes.items():
            node.attr[key].CopyFrom(attribute(value))
        return name

    def copy(self, op: tf.Operation, name: str, device: str, definition: Any = None) -> Any:
        """Adds a copy of an operation, without inputs; returns its definition.

        Args:
            op: The operation.
            name: The copy's name.
            device: Where it runs.
            definition: What `definition` returned, where many copies have it in common.
        """
        node = self._definition.node.add()
        node.MergeFrom(definition or self.definition(op))
        node.name, node.device = name, device
        self.by_name[name] = node
        self._originals[name] = op
        return node

    @staticmethod
    def definition(op: tf.Operation) -> Any:
        """Returns the definition of an operation without name, device and inputs."""
        attributes = op.node_def.attr.items()
        kept = {key: value for key, value in attributes if key not in _OF_ORIGINALS}
        return tf1.NodeDef(op=op.type, attr=kept)

    def original(self, name: str) -> tf.Operation | None:
        """Returns of what operation a new one is a copy; None: of none."""
        return self._originals.get(name)

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
            after: What it is made after: of a loop or branch, in which it then is.
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
        """Takes an operation out again."""
        self._removed.add(name)
        del self.by_name[name]

    def write(self) -> dict[str, tf.Operation]:
        """Adds all operations to the graph; returns them by their names."""
        if self._removed:
            kept = [node for node in self._definition.node if node.name not in self._removed]
            definition = tf1.GraphDef()
            definition.versions.CopyFrom(self._definition.versions)
            definition.node.extend(kept)
            self._definition = definition
        with self.graph.as_default():
            return importing.add(self._definition, self.tensors, self._waits)


def tensor(reference: Reference, made: dict[str, tf.Operation]) -> Any:
    """Returns what a reference stands for, once new operations are made; others as they are."""
    if not isinstance(reference, str):
        return reference
    name, _, index = reference.partition(":")
    return made[name].outputs[int(index or 0)]


def attribute(value: Any) -> Any:
    """Returns a value as an attribute has it."""
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
        made.type = value.as_datatype_enum
    elif isinstance(value, tf.TensorShape):
        made.shape.CopyFrom(value.as_proto())
    elif isinstance(value, np.ndarray):
        made.tensor.CopyFrom(tf.make_tensor_proto(value))
    elif isinstance(value, (list, tuple)):
        _fill(made.list, value)
    else:
        made.CopyFrom(value)
    return made


def _fill(found: Any, values: Sequence) -> None:
    found.SetInParent()
    for value in values:
        if isinstance(value, tf.DType):
            found.type.append(value.as_datatype_enum)
        elif isinstance(value, tf.TensorShape):
            found.shape.add().CopyFrom(value.as_proto())
        else:
            found.i.append(value)
