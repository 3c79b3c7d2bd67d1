"""Copies operations of the current graph, with some of their inputs replaced.

A copy has the attributes of its original; its device is the one in force where the copy is
made. The importer of graphs makes all copies at once, so that a hundred operations cost
little more than one.
"""

from collections.abc import Hashable, Mapping, Sequence

from replicate.compat.tensorflow import tf, tf1

_COLOCATION = "_class"


def copied(
    operations: Sequence[tf.Operation], replaced: Mapping[Hashable, tf.Tensor], name: str
) -> dict[Hashable, tf.Tensor]:
    """Copies operations, on the current device.

    Args:
        operations: Operations of the current graph, each once.
        replaced: What copies read in place of a tensor, by the tensor's `ref()`. Of the other
            inputs that no copied operation makes, they read the originals.
        name: Name scope of the copies; TensorFlow may add a number.

    Returns:
        The copies' outputs by the originals' `ref()`. Where a copied operation waits for
        another one that is copied, the copy waits for the copy; for no other it waits.
    """
    if not operations:
        return {}
    inside = {op.name for op in operations}
    graph_def = tf1.GraphDef(versions=tf1.get_default_graph().graph_def_versions)
    inputs = {}
    for op in operations:
        graph_def.node.append(_node(op, inside))
        for tensor in op.inputs:
            if tensor.op.name not in inside or tensor.ref() in replaced:
                inputs[_name_of(tensor)] = replaced.get(tensor.ref(), tensor)
    outputs = [tensor for op in operations for tensor in op.outputs]
    names = [tensor.name for tensor in outputs]
    found = tf.import_graph_def(graph_def, inputs, names, name)
    return {tensor.ref(): copy for tensor, copy in zip(outputs, found, strict=True)}


def _node(op: tf.Operation, inside: set[str]) -> tf1.NodeDef:
    """Returns the definition of a copy: no device, nothing that names what is not copied."""
    node = tf1.NodeDef()
    node.CopyFrom(op.node_def)
    node.device = ""
    if _COLOCATION in node.attr:
        del node.attr[_COLOCATION]
    kept = [name for name in node.input if not name.startswith("^") or name[1:] in inside]
    node.input[:] = kept
    return node


def _name_of(tensor: tf.Tensor) -> str:
    """Returns a tensor's name as an importer's map of inputs spells it."""
    return tensor.name.removesuffix(":0")
