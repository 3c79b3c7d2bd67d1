"""The shapes that TensorFlow infers of a graph that no one runs.

A graph is given as its definition. What is known of an operation's outputs beforehand is written
into its node: inference of an importer joins it with what it finds, and goes on from there.
Inference of an importer ends at loops' variables; that of Grappler, TensorFlow's optimizer of
graphs, goes around loops, and its Python module is private.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from replicate.compat import importing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import Door, tf, tf1

Dims = list[int | None]

_SHAPES = "_output_shapes"  # what an importer takes for known

grappler_item = Door(
    "tensorflow.python.grappler.item",
    {"Item": "infers shapes around loops, where importers know none"},
)


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
            with self._graph.as_default():
                op = self._graph._create_op_from_tf_operation(found, compute_device=False)
            self._ops[name] = op
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


def infer_around_loops(
    graph_def: tf1.GraphDef,
    given: Mapping[str, Sequence[Dims | None]],
    dtypes: Mapping[str, Sequence[tf.DType]],
) -> dict[str, list[Dims | None]]:
    """Infers shapes also around loops.

    Args:
        graph_def: The graph.
        given: For operations by name the shapes of their outputs.
        dtypes: For the same operations the dtypes of their outputs.

    Returns:
        For operations by name the shapes of their outputs; none if Grappler refuses the graph.
    """
    meta = tf1.MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def)
    meta.meta_info_def.stripped_op_list.SetInParent()
    moved = {}
    for name, shapes in given.items():
        for n, dims in enumerate(shapes):
            if dims is not None and None not in dims:
                made = _empty(meta.graph_def, f"{name}/given{n}", dims, dtypes[name][n])
                moved[f"{name}:{n}" if n else name] = made
    for node in meta.graph_def.node:
        for n, read in enumerate(node.input):
            if read in moved:
                node.input[n] = moved[read]
    # Grappler asks what is fetched, and infers the shapes of everything.
    meta.collection_def["train_op"].node_list.value.append(graph_def.node[-1].name)
    try:
        found = grappler_item.Item(meta).GetOpProperties()
    except (tf.errors.OpError, ValueError):
        return {}
    return {name: [_dims(each.shape) for each in outputs] for name, outputs in found.items()}


def _empty(graph_def: tf1.GraphDef, name: str, dims: Dims, dtype: tf.DType) -> str:
    """Adds an operation of a known shape, and returns its name.

    NOTE: of a placeholder Grappler takes the shape for unknown, as anything may be fed.
    """
    shape = graph_def.node.add(op="Const", name=f"{name}/shape")
    shape.attr["dtype"].type = tf.int32.as_datatype_enum
    shape.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(list(dims), tf.int32, [len(dims)]))
    node = graph_def.node.add(op="Empty", name=name, input=[shape.name])
    node.attr["dtype"].type = dtype.base_dtype.as_datatype_enum
    node.attr["init"].b = False
    return name


def _dims(shape: Any) -> Dims | None:
    if shape.unknown_rank:
        return None
    return [None if dim.size < 0 else dim.size for dim in shape.dim]
