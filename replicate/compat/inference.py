"""The shapes that TensorFlow infers of a graph that no one runs.

A graph is given as its definition. What is known of an operation's outputs beforehand is written
into its node: inference of an importer joins it with what it finds, and goes on from there.
"""

from collections.abc import Sequence
from typing import Any

from replicate.compat import importing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1

Dims = list[int | None]

_SHAPES = "_output_shapes"  # what an importer takes for known


class UnfitError(Exception):
    """Shapes that operations of a graph do not allow; the reason is the text."""


def know(node: tf1.NodeDef, shapes: Sequence[Dims | None]) -> None:
    """Writes into a node what is known of its outputs.

    Args:
        node: A node of a graph's definition.
        shapes: For each output its dimensions, None where one, or their number, is not known.
    """
    del node.attr[_SHAPES].list.shape[:]
    for dims in shapes:
        shape = node.attr[_SHAPES].list.shape.add()
        if dims is None:
            shape.unknown_rank = True
        else:
            for size in dims:
                shape.dim.add().size = -1 if size is None else size


class Inferred:
    """The shapes that the import of a graph infers.

    NOTE: a scratch graph gets Python's objects of those operations alone that are asked for. To
    make all of them would take ten times as long as the import.

    Args:
        graph_def: The graph's definition.

    Raises:
        UnfitError: If operations do not allow the shapes of what they read.
    """

    def __init__(self, graph_def: tf1.GraphDef):
        self._graph = tf.Graph()
        try:
            self._waiting = _imported(self._graph, graph_def)
        except (tf.errors.OpError, ValueError) as e:
            raise UnfitError(str(e)) from e
        self._ops: dict[str, tf.Operation] = {}

    def dims(self, tensor: tf.Tensor) -> Dims | None:
        """Returns the dimensions of the tensor of the same name, None where its rank is unknown."""
        name = tensor.op.name
        if name in self._waiting:
            found = self._waiting.pop(name)
            self._ops[name] = tf.Operation._from_c_op(found, self._graph)
        outputs = self._ops[name].outputs if name in self._ops else ()
        if tensor.value_index >= len(outputs):
            return None
        shape = outputs[tensor.value_index].shape
        return None if shape.rank is None else shape.as_list()


def _imported(graph: tf.Graph, graph_def: tf1.GraphDef) -> dict[str, Any]:
    """Imports all nodes; returns what the session's interface calls operations, by name."""
    door, names = tfc.session_api, [node.name for node in graph_def.node]
    with importing.options() as options:
        for name in names:
            door.TF_ImportGraphDefOptionsAddReturnOperation(options, name)
        results = importing.imported(graph, graph_def, options)
        found = door.TF_ImportGraphDefResultsReturnOperations(results)
        door.TF_DeleteImportGraphDefResults(results)
        return dict(zip(names, found, strict=True))
