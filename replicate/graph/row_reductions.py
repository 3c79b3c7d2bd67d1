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
from replicate.graph import carriers, collectives, reductions

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
    """Joins row reductions of K towers, of W workers.

    A reduction joins in its worker first. What workers must then add up it asks for by `yield`,
    so that many reductions share a transfer.

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

    def join(self, asked: Sequence[tuple]) -> list[tuple]:
        """Joins N reductions.

        Args:
            asked: N tuples of a kind, its K tensors, and what else the kind wants.

        Returns:
            N pairs of the joined value, and its K derivatives by the towers' own; None: 1.
        """
        totals = None if self._across is None else self._across.totals
        return collectives.together([getattr(self, kind)(*of) for kind, *of in asked], totals)

    # What each kind asks for.

    def sum(self, column: Sequence[tf.Tensor]):
        """Gives the sum."""
        (total,) = yield [self._local(self._masked(column))]
        return total, None

    size = sum

    def shape(self, column: Sequence[tf.Tensor], axes: Sequence[int]):
        """Gives the shape of all towers' rows together; `axes` are the dimensions of rows."""
        rank = column[0].shape[0]
        is_row = tf.constant([axis in axes for axis in range(rank)])
        (total,) = yield [self._local(self._masked(column))]
        return tf.where(is_row, total, column[0]), None

    def all(self, column: Sequence[tf.Tensor]):
        """Asks whether one fails; a tower without rows does not ask."""
        failing, _ = yield from self.any([tf.logical_not(part) for part in column])
        return tf.logical_not(failing), None

    def any(self, column: Sequence[tf.Tensor]):
        """Asks whether one holds."""
        (found,) = yield [tf.reduce_any(tf.stack(self._masked(column)), 0)]
        return found, None

    def mean(self, column: Sequence[tf.Tensor]):
        """Gives the mean weighted by the elements that each tower averaged."""
        if column[0].dtype.is_integer:
            return (yield from self._mean_of_integers(column))
        counts = self._counts(column)
        if not any(map(tf.is_tensor, counts)):
            total = sum(counts) * (1 if self._across is None else self._across.size)
            factors = [count / total if total else float("nan") for count in counts]
            (mean,) = yield [self._local(self._times(column, factors))]
            return mean, factors
        number = self._local(counts)
        if self._across is None:
            factors = self._divided(counts, number)
            return self._local(self._times(column, factors)), factors
        # NOTE: divided once all is added up: the elements and their number share a transfer.
        wide = [tf.cast(part, tf.float32) if part.dtype.size < 4 else part for part in column]
        added, number = yield [self._local(self._times(wide, counts)), number]
        number = tf.stop_gradient(number)  # it came with the elements, and is not made of them
        mean = tf.cast(added / tf.cast(number, added.dtype), column[0].dtype)
        return mean, self._divided(counts, number)

    def _mean_of_integers(self, column: Sequence[tf.Tensor]):
        """Divides the sum of all towers' elements; each tower's own mean was rounded."""
        sums, counts = [], []
        for tensor, device in zip(column, self._devices, strict=True):
            values, axis = tensor.op.inputs
            with reductions.on(device):
                kept = tensor.op.get_attr("keep_dims")
                sums.append(tf.raw_ops.Sum(input=values, axis=axis, keep_dims=kept))
                counts.append(tf.cast(_averaged(tensor), tensor.dtype))
        total, count = yield [self._local(self._masked(parts)) for parts in (sums, counts)]
        return tf.truncatediv(total, count), None

    def unknown(self, column: Sequence[tf.Tensor]):
        """Gives the mean weighted by rows."""
        (total,) = yield [reductions.weighted_sum_onto(column, self._weights, self._home)]
        return total, self._weights

    def first(self, column: Sequence[tf.Tensor]):
        """Gives what the first tower has, on which alone the value depends."""
        value, across = column[0], self._across
        if across is not None and carriers.is_sent(value):
            (value,) = yield [across.of_first(value)]
        is_first = across is None or across.is_first
        return value, [1.0 if is_first else 0.0] + [0.0] * (len(column) - 1)

    # In one worker.

    def _masked(self, column: Sequence[tf.Tensor]) -> list:
        return reductions.mask_rows(column, self._has_rows)

    def _local(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return reductions.sum_onto(list(tensors), self._home)

    def _counts(self, column: Sequence[tf.Tensor]) -> list:
        """Returns how many elements each tower averaged: all ints, or all float64 tensors."""
        counts = []
        for tensor, has_rows, device in zip(column, self._has_rows, self._devices, strict=True):
            with reductions.on(device):
                counts.append(_averaged(tensor) if has_rows is not False else 0)
        is_certain = all(isinstance(has, bool) for has in self._has_rows)
        if is_certain and not any(map(tf.is_tensor, counts)):
            return counts
        return self._masked([tf.cast(count, tf.float64) for count in counts])

    def _times(self, column: Sequence[tf.Tensor], factors: Sequence[Any]) -> list:
        """Multiplies each tower's tensor by its factor, on its device."""
        products = []
        for tensor, factor, device in zip(column, factors, self._devices, strict=True):
            with reductions.on(device):
                products.append(_times(tensor, factor))
        return products

    def _divided(self, counts: Sequence[tf.Tensor], total: tf.Tensor) -> list:
        parts = []
        for count, device in zip(counts, self._devices, strict=True):
            with reductions.on(device):
                parts.append(count / total)
        return parts


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
