"""Definitions of operations that are copied together, for each later tower.

What is alike in all towers is looked at once: the definition, and what it reads and waits for.
"""

from collections.abc import Callable, Iterator
from typing import Any

from replicate.compat.tensorflow import tf, tf1

COLOCATION = "_class"


class Definitions:
    """Definitions of operations that are copied together.

    Args:
        names: The first tower's operations, and the names that all copies end with.
        versions: Of the graph's definitions.
        resolve: From a tensor to the one that is read in its place.
        is_given: Whether a tensor is read that each tower was given.
        is_waited_for: Whether a copy waits for an operation that its original waits for.
        may_differ: Whether the towers' definitions may differ by more than devices.

    Attributes:
        size: Bytes of what one tower has, but for names.
        special: Those operations whose definitions differ between towers by more than devices.
        inputs: By what names in the definitions end with, tensors that are read.
        waits: By what names in the definitions end with, operations that are waited for.
    """

    def __init__(
        self,
        names: dict[tf.Operation, str],
        versions: Any,
        resolve: Callable,
        is_given: Callable,
        is_waited_for: Callable,
        may_differ: Callable,
    ):
        self.names = names
        self.inputs: dict[str, tf.Tensor] = {}
        self.waits: dict[str, tf.Operation] = {}
        self._resolve = resolve
        self._is_given = is_given
        self._is_waited_for = is_waited_for
        self._known: dict = {}
        self._versions = versions
        self._graph_def = tf1.GraphDef()
        self.special = {op for op in names if may_differ(op)}
        self._alike = [self._of_all(op) for op in names]
        self.size = sum(node.ByteSize() for node, _, _ in self._alike)

    def _of_all(self, op: tf.Operation) -> tuple:
        """Returns what is alike in all towers: a definition, and what it reads and waits for."""
        node = op.node_def  # a new one each time
        node.attr.pop(COLOCATION, None)
        del node.input[:]
        reads = [self._read(tensor) for tensor in op.inputs]
        waits = [self._waited(before) for before in filter(self._is_waited_for, op.control_inputs)]
        return node, reads, waits

    def take(self) -> Any:
        """Returns the GraphDef of all that was defined since it was taken last."""
        taken, self._graph_def = self._graph_def, tf1.GraphDef()
        taken.versions.CopyFrom(self._versions)
        return taken

    def define(self, prefix: str) -> Iterator[tuple[tf.Operation, Any]]:
        """Yields operations and new definitions of their copies in one tower.

        Args:
            prefix: What the tower's names begin with.
        """
        for (op, name), (alike, reads, waits) in zip(self.names.items(), self._alike, strict=True):
            node = self._graph_def.node.add()
            node.CopyFrom(alike)
            node.name = f"{prefix}{name}"
            node.input.extend([f"{prefix}{read}" for read in reads])
            node.input.extend([f"^{prefix}{wait}" for wait in waits])
            yield op, node

    def _read(self, tensor: tf.Tensor) -> str:
        tensor = self._resolve(tensor)
        if tensor.op in self.names and not self._is_given(tensor):
            return f"{self.names[tensor.op]}:{tensor.value_index}"
        if tensor.ref() not in self._known:
            self._known[tensor.ref()] = f"given.{len(self._known)}"
            self.inputs[self._known[tensor.ref()]] = tensor
        return self._known[tensor.ref()]

    def _waited(self, op: tf.Operation) -> str:
        if op in self.names:
            return self.names[op]
        if op not in self._known:
            self._known[op] = f"before.{len(self._known)}"
            self.waits[self._known[op]] = op
        return self._known[op]
