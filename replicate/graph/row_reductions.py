"""The operations that reduce rows, and how each joins over towers.

    kind      the whole batch's value, of K towers' r_i        its derivative by r_i
    sum       sum of r_i                                       1
    mean      sum of e_i / E r_i, e_i the elements averaged    e_i / E, where E is their sum
    size      sum of r_i
    shape     sum of the dimensions that are rows
    all, any  of r_i
    unknown   sum of w_i r_i, w_i = n_i / B                    w_i

What a tower without rows brings counts for nothing, even where it is not finite.
"""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import reductions

# Of these each row brings its own addend, whatever the other rows are.
_SUMS = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "BiasAddGrad",
        "Bincount",
        "Conv2DBackpropFilter",
        "Conv3DBackpropFilterV2",
        "DenseBincount",
        "DepthwiseConv2dNativeBackpropFilter",
        "HistogramFixedWidth",
        "L2Loss",
        "MatMul",
        "ScatterNd",
        "SegmentSum",
        "SparseReduceSum",
        "SparseSegmentSum",
        "SparseTensorDenseMatMul",
        "Sum",
        "UnsortedSegmentSum",
    }
)
_KINDS = {
    **dict.fromkeys(_SUMS, "sum"),
    "All": "all",
    "Any": "any",
    "Mean": "mean",
    "Rank": "first",
    "Shape": "shape",
    "ShapeN": "shape",
    "Size": "size",
}
LENGTHS = ("Shape", "ShapeN", "Size")
_LOOKING = ("CheckNumerics", "CheckNumericsV2", "Print")  # stateful, and a copy may look as well
_OPAQUE = frozenset(
    {
        "Case",
        "Enter",
        "Exit",
        "If",
        "Merge",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "Switch",
        "While",
    }
)


def is_opaque(op: tf.Operation) -> bool:
    """Whether nobody can copy an operation and know that the copy does what it does."""
    if "_gradient_op_type" in op.node_def.attr:
        return True  # its gradient may look at tensors of the tower by itself
    return op.type in _OPAQUE or (op.op_def.is_stateful and op.type not in _LOOKING)


def kind_of(op: tf.Operation, with_rows: Sequence[bool], axes: Sequence[tuple]) -> str:
    """Returns how an operation without rows has reduced those of its inputs.

    Args:
        op: The operation.
        with_rows: Which of its inputs have rows.
        axes: Which dimensions of each input are rows.
    """
    if op.type == "DenseBincount" and op.get_attr("binary_output"):
        return "unknown"
    if op.type == "Einsum":
        return "sum" if _has_one_row_label(op, with_rows, axes) else "unknown"
    if op.type in ("MatMul", *(name for name in _SUMS if name.startswith("BatchMatMul"))):
        return "sum" if all(with_rows) else "unknown"
    return _KINDS.get(op.type, "unknown")


def _has_one_row_label(op: tf.Operation, with_rows: Sequence[bool], axes: Sequence[tuple]) -> bool:
    """Whether rows are summed together in all operands that have them."""
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    labels = set()
    for term, has_rows, own in zip(terms, with_rows, axes, strict=True):
        if "." in term:
            return False
        if has_rows:
            labels.add(frozenset(term[axis] for axis in own))
    return len(labels) == 1 and len(next(iter(labels))) == 1


class Join:
    """Joins row reductions of K towers.

    Args:
        has_rows: K truths: bools, or bool tensors of shape [].
        devices: The K towers' devices.
        home: Where the joined value goes.
        weights: K parts for what is unknown: floats, or float64 tensors of shape [].
        across: Joins what workers bring, a `collectives.Across`; None: there is one worker.
    """

    def __init__(
        self,
        has_rows: Sequence,
        devices: Sequence[str],
        home: str,
        weights: Sequence[Any],
        across: Any = None,
    ):
        self._has_rows = has_rows
        self._devices = devices
        self._home = home
        self._weights = weights
        self._across = across

    def sum(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns the sum of K tensors, and that its derivatives are 1."""
        return self._sum(self._masked(column)), None

    def size(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns the sum of K numbers of elements, which has no derivative."""
        return self._sum(self._masked(column)), None

    def shape(self, column: Sequence[tf.Tensor], axes: Sequence[int]) -> tf.Tensor:
        """Returns the shape of all towers' rows together.

        Args:
            column: K shapes, of shape [rank].
            axes: The dimensions that are rows.
        """
        rank = column[0].shape[0]
        is_row = tf.constant([axis in axes for axis in range(rank)])
        return tf.where(is_row, self._sum(self._masked(column)), column[0])

    def all(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns whether all of K bool tensors hold; a tower without rows does not ask."""
        failing = self._masked([tf.logical_not(part) for part in column])
        return tf.logical_not(self._any(failing)), None

    def any(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns whether any of K bool tensors holds."""
        return self._any(self._masked(column)), None

    def mean(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns the mean weighted by the elements that each tower averaged."""
        if column[0].dtype.is_integer:
            return self._mean_of_integers(column), None
        factors = self._parts(column)
        averaged = []
        for tensor, factor, device in zip(column, factors, self._devices, strict=True):
            with reductions.on(device):
                averaged.append(_times(tensor, factor))
        return self._sum(averaged), factors

    def _mean_of_integers(self, column: Sequence[tf.Tensor]) -> tf.Tensor:
        """Divides the sum of all towers' elements; each tower's own mean was rounded."""
        sums, counts = [], []
        for tensor, device in zip(column, self._devices, strict=True):
            values, axis = tensor.op.inputs
            with reductions.on(device):
                kept = tensor.op.get_attr("keep_dims")
                sums.append(tf.raw_ops.Sum(input=values, axis=axis, keep_dims=kept))
                counts.append(tf.cast(_averaged(tensor), tensor.dtype))
        total, count = (self._sum(self._masked(parts)) for parts in (sums, counts))
        return tf.truncatediv(total, count)

    def unknown(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns the mean weighted by rows."""
        found = reductions.weighted_sum_onto(column, self._weights, self._home)
        return self._everywhere(found), self._weights

    def first(self, column: Sequence[tf.Tensor]) -> tuple:
        """Returns what the first tower has, on which alone the value depends."""
        is_first = self._across is None or self._across.is_first
        value = column[0] if self._across is None else self._across.from_first(column[:1])[0]
        return value, [1.0 if is_first else 0.0] + [0.0] * (len(column) - 1)

    def _masked(self, column: Sequence[tf.Tensor]) -> list:
        return reductions.mask_rows(column, self._has_rows)

    def _sum(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return self._everywhere(reductions.sum_onto(list(tensors), self._home))

    def _any(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return self._everywhere(tf.reduce_any(tf.stack(tensors), 0))

    def _everywhere(self, value: tf.Tensor) -> tf.Tensor:
        return value if self._across is None else self._across.total(value)

    def _parts(self, column: Sequence[tf.Tensor]) -> list:
        """Returns e_i / E: floats where shapes say so, else float64 tensors of shape []."""
        counts = []
        for tensor, has_rows, device in zip(column, self._has_rows, self._devices, strict=True):
            with reductions.on(device):
                counts.append(_averaged(tensor) if has_rows is not False else 0)
        if not any(tf.is_tensor(count) for count in counts) and self._is_certain():
            total = sum(counts) * (1 if self._across is None else self._across.size)
            return [count / total if total else float("nan") for count in counts]
        counts = [tf.cast(count, tf.float64) for count in counts]
        counts = self._masked(counts)
        total = self._sum(counts)
        parts = []
        for count, device in zip(counts, self._devices, strict=True):
            with reductions.on(device):
                parts.append(count / total)
        return parts

    def _is_certain(self) -> bool:
        return all(isinstance(has, bool) for has in self._has_rows)


def _averaged(tensor: tf.Tensor) -> Any:
    """Returns over how many elements each entry of a mean was taken: an int, or a scalar."""
    before = tensor.op.inputs[0]
    if before.shape.is_fully_defined() and tensor.shape.is_fully_defined():
        return before.shape.num_elements() // max(tensor.shape.num_elements(), 1)
    if tensor.shape.is_fully_defined():
        return tf.size(before, tf.int64) // max(tensor.shape.num_elements(), 1)
    return tf.size(before, tf.int64) // tf.maximum(tf.size(tensor, tf.int64), 1)


def _times(tensor: tf.Tensor, factor: Any) -> tf.Tensor:
    """Multiplies by a factor of which zero keeps out even NaN."""
    if isinstance(factor, float) and factor == 0:
        return tf.zeros_like(tensor)
    return tf.math.multiply_no_nan(tensor, reductions.as_dtype(factor, tensor.dtype))
