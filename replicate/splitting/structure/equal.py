"""Finds equal tensors: those that the same operations make of the same tensors.

Two masks by one condition pick the same rows, though each has an operation of its own.
"""

from collections.abc import Hashable

from replicate.compat.tensorflow import tf

# Deterministic operations, as conditions are made by.
_KINDS = """
Cast Equal ExpandDims Greater GreaterEqual Identity Less LessEqual LogicalAnd LogicalNot LogicalOr
NotEqual Reshape Squeeze StridedSlice Where
""".split()
_DEEPEST = 16
_MOST_ENTRIES = 256


def key(tensor: tf.Tensor, depth: int = _DEEPEST) -> Hashable:
    """Returns a key: if the keys of two tensors are equal, so are their values."""
    op = tensor.op
    if op.type == "Const" and (tensor.shape.num_elements() or 0) <= _MOST_ENTRIES:
        return "Const", _attributes(op)
    if op.type not in _KINDS or not depth:
        return tensor.ref()
    inputs = tuple(key(each, depth - 1) for each in op.inputs)
    # NOTE: in a branch that is not taken nothing has a value.
    return op.type, tensor.value_index, _attributes(op), op._get_control_flow_context(), inputs


def _attributes(op: tf.Operation) -> tuple[tuple[str, bytes], ...]:
    attributes = op.node_def.attr
    return tuple(
        (name, attributes[name].SerializeToString(deterministic=True))
        for name in sorted(attributes)
        if not name.startswith("_")
    )


def follows_alike(
    tensor: tf.Tensor, given: tf.Tensor, other: tf.Tensor, other_given: tf.Tensor
) -> bool:
    """Whether one tensor is made from a given one just as another is.

    Args:
        tensor: The tensor.
        given: What it is made from, beside constants.
        other: The other tensor, perhaps of another graph.
        other_given: What the other one is made from.
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
