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


def follows_alike(
    tensor: tf.Tensor, given: tf.Tensor, other: tf.Tensor, other_given: tf.Tensor
) -> bool:
    """Whether a tensor is made from a given one as another is from another, by operations alone.

    Args:
        tensor: A tensor.
        given: What it is made from, and constants.
        other: A tensor, perhaps of another graph.
        other_given: What that is made from.
    """
    waiting, seen = [(tensor, other)], set()
    while waiting:
        one, two = waiting.pop()
        pair = (one.ref(), two.ref())
        if pair in seen or (one is given and two is other_given):
            continue
        seen.add(pair)
        if one is given or two is other_given or not _are_alike(one, two):
            return False
        waiting.extend(zip(one.op.inputs, two.op.inputs, strict=True))
    return True


def _are_alike(one: tf.Tensor, two: tf.Tensor) -> bool:
    a, b = one.op, two.op
    return (
        (a.type, one.value_index, len(a.inputs)) == (b.type, two.value_index, len(b.inputs))
        and (bool(a.inputs) or a.type == "Const")
        and not a.op_def.is_stateful
        and a._get_control_flow_context() is None
        and _attributes(a) == _attributes(b)
    )
