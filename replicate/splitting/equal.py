"""Which tensors are equal, since the same operations make them of the same tensors.

Two masks by one condition pick the same rows, though each has an operation of its own.
"""

from typing import Any

from replicate.compat.tensorflow import tf

# What conditions are made by: operations that always give the same for the same operands.
_KINDS = """
Cast Equal ExpandDims Greater GreaterEqual Identity Less LessEqual LogicalAnd LogicalNot LogicalOr
NotEqual Reshape Squeeze StridedSlice Where
""".split()
_DEEPEST = 16
_MOST_ENTRIES = 256


def key(tensor: tf.Tensor, depth: int = _DEEPEST) -> Any:
    """Returns what is equal for two tensors only if their values are."""
    op = tensor.op
    if op.type == "Const" and (tensor.shape.num_elements() or 0) <= _MOST_ENTRIES:
        return "Const", _attributes(op)
    if op.type not in _KINDS or not depth:
        return tensor.ref()
    inputs = tuple(key(each, depth - 1) for each in op.inputs)
    # NOTE: what is made in a branch that is not taken is not there.
    return op.type, tensor.value_index, _attributes(op), op._get_control_flow_context(), inputs


def _attributes(op: tf.Operation) -> tuple:
    attributes = op.node_def.attr
    return tuple(
        (name, attributes[name].SerializeToString(deterministic=True))
        for name in sorted(attributes)
        if not name.startswith("_")
    )
