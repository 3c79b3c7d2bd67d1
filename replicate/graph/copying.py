"""Copies operations, with some of their inputs replaced.

A copy has the attributes of its original; its device is the one in force where the copy is
made. The importer of graphs makes all copies at once, so that a hundred operations cost
little more than one, and the originals may well be in another graph.
"""

from collections.abc import Hashable, Mapping, Sequence

from replicate.compat.tensorflow import tf, tf1

_COLOCATION = "_class"


def copied(
    operations: Sequence[tf.Operation], replaced: Mapping[Hashable, tf.Tensor], name: str
) -> dict[Hashable, tf.Tensor]:
    """Copies operations into the current graph, on the current device.

    Args:
        operations: Operations of one graph, each once.
        replaced: What copies read in place of a tensor, by the tensor's `ref()`. Of the other
            inputs that no copied operation makes, they read the originals, which then must be
            in the current graph.
        name: Name scope of the copies; TensorFlow may add a number.

    Returns:
        The copies' outputs by the originals' `ref()`. Where a copied operation waits for
        another one that is copied, the copy waits for the copy; for no other it waits.
    """
    if not operations:
        return {}
    inside = {op.name for op in operations}
    graph_def = tf1.GraphDef()
    graph_def.versions.CopyFrom(operations[0].graph.graph_def_versions)
    inputs = {}
    for op in operations:
        graph_def.node.append(_node(op, inside))
        for tensor in op.inputs:
            if tensor.op.name not in inside or tensor.ref() in replaced:
                inputs[_name_of(tensor)] = replaced.get(tensor.ref(), tensor)
    _add_functions(graph_def, operations)
    outputs = [tensor for op in operations for tensor in op.outputs]
    found = tf.import_graph_def(
        graph_def,
        input_map=inputs,
        return_elements=[tensor.name for tensor in outputs],
        name=name,
    )
    return {tensor.ref(): copy for tensor, copy in zip(outputs, found, strict=True)}


def _node(op: tf.Operation, inside: set[str]) -> tf1.NodeDef:
    """Returns the definition of a copy: no device, nothing that names what is not copied."""
    node = tf1.NodeDef()
    node.CopyFrom(op.node_def)
    node.device = ""
    if _COLOCATION in node.attr:
        del node.attr[_COLOCATION]
    kept = [name for name in node.input if not name.startswith("^") or name[1:] in inside]
    del node.input[:]
    node.input.extend(kept)
    return node


def _name_of(tensor: tf.Tensor) -> str:
    """Returns a tensor's name as an importer's map of inputs spells it."""
    return tensor.name.removesuffix(":0") if tensor.value_index == 0 else tensor.name


def _add_functions(graph_def: tf1.GraphDef, operations: Sequence[tf.Operation]) -> None:
    """Adds the functions that operations call, where the current graph lacks them."""
    graph = operations[0].graph
    if graph is not tf1.get_default_graph() and any(_calls(op) for op in operations):
        graph_def.library.CopyFrom(graph.as_graph_def().library)


def _calls(op: tf.Operation) -> bool:
    return any(attr.WhichOneof("value") == "func" for attr in op.node_def.attr.values())
