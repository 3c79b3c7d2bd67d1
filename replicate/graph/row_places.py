"""Places of rows: where they are made, what keeps them, and what rows they pick."""

from collections.abc import Sequence

from replicate.compat.tensorflow import tf
from replicate.graph import row_wise


def is_picked_by_values(op: tf.Operation, rule: row_wise.Rule, axes: Sequence[tuple]) -> bool:
    """Whether an operation may pick rows, or put them together, by what its indices say."""
    if rule.rows_of is None or not axes[rule.rows_of]:
        return False
    rows = axes[rule.rows_of]
    if op.type == "GatherV2":
        axis = tf.get_static_value(op.inputs[2])
        rank = op.inputs[0].shape.rank
        is_known = axis is not None and rank is not None
        return not is_known or int(axis) % rank in rows
    if op.type == "GatherNd":
        depth, batch = op.inputs[1].shape[-1], op.get_attr("batch_dims") if _has_dims(op) else 0
        return depth is None or any(batch <= axis < batch + depth for axis in rows)
    return True


def lays_out(op: tf.Operation) -> bool:
    """Whether an operation is of sparse or ragged tensors, whose layout goes in and out."""
    return op.type in row_wise.OF_PLACES


def _has_dims(op: tf.Operation) -> bool:
    return "batch_dims" in {attr.name for attr in op.op_def.attr}


def entries(tensor: tf.Tensor) -> set:
    """Returns the different entries of a constant: of ones in each row, one."""
    return set(tf.make_ndarray(tensor.op.get_attr("value")).reshape(-1).tolist())


def counts_up(op: tf.Operation) -> bool:
    """Whether a range begins with the first row, and goes on in the rows' order."""
    start, delta = (tf.get_static_value(op.inputs[n]) for n in (0, 2))
    return start is not None and start == 0 and (delta is None or delta > 0)


def names_widths(op: tf.Operation) -> bool:
    """Whether a ragged tensor is made as wide as it says, not as its widest row."""
    shape = tf.get_static_value(op.inputs[0])
    return shape is not None and shape.ndim == 1 and not any(size < 0 for size in shape[1:])


_KEEPING = frozenset(
    """
    Add AddV2 BroadcastTo Cast ConcatV2 Equal ExpandDims Gather GatherNd GatherV2 Greater
    GreaterEqual Identity Less LessEqual Mul NotEqual OneHot Pack Placeholder Reshape ResourceGather
    Select SelectV2 Shape Size Slice Squeeze StridedSlice Switch Tile Transpose ZerosLike OnesLike
    """.split()
)


def keeps_places(op: tf.Operation) -> bool:
    """Whether places of rows are still those of the same rows after an operation.

    They may be stretched and shifted, as offsets into all tokens of all rows are, or name what
    is no row; what limits them, turns them around or takes one from the other names other rows.
    """
    if op.type in _KEEPING or op.type not in row_wise.RULES or op.type in row_wise.OF_ONE:
        return True
    return bool(row_wise.RULES[op.type].indices)
