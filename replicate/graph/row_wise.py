"""Which operations keep the rows of a batch apart: what they make of a row reads that row alone.

A rule says which inputs are operands (the others are axes, shapes, bounds), and whether the
operation keeps rows apart where they lie along some of its operands' dimensions. What has no
rule is not known to keep them apart.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf


class Rule(NamedTuple):
    """How an operation treats rows.

    Attributes:
        operands: Which inputs are operands; None: all of them.
        is_apart: From the operation and the dimensions of each input that are rows to whether
            rows stay apart.
        indices: Which inputs say where values lie: by places of the rows alone, rows stay apart.
        rows_of: Which input they index, where rows of it may be picked; None: none.
    """

    operands: tuple[int, ...] | None
    is_apart: Callable[[tf.Operation, Sequence[tuple]], bool]
    indices: tuple[int, ...] = ()
    rows_of: int | None = None


def rule_of(op: tf.Operation) -> Rule | None:
    """Returns how an operation treats rows; None: nobody knows."""
    return RULES.get(op.type)


def is_container(op: tf.Operation) -> bool:
    """Whether an operation moves tensors in and out of a list, which has no rows to be seen."""
    return op.type.startswith(("TensorList", "TensorArray"))


def _always(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    return True


def _first(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """Rows are items of a batch."""
    return all(axis == 0 for own in axes for axis in own)


def _before_last(number: int) -> Callable:
    """Rows lie before the last dimensions, in which an operation works."""

    def is_apart(op: tf.Operation, axes: Sequence[tuple]) -> bool:
        for tensor, own in zip(op.inputs, axes, strict=True):
            rank = tensor.shape.rank
            if rank is None or any(axis >= rank - number for axis in own):
                return not own
        return True

    return is_apart


def _along(number: int, data: int = 0) -> Callable:
    """An operation works along dimensions that an input names."""

    def is_apart(op: tf.Operation, axes: Sequence[tuple]) -> bool:
        named, rank = tf.get_static_value(op.inputs[number]), op.inputs[data].shape.rank
        if not axes[data]:
            return True
        if op.inputs[number].op.type == "BroadcastGradientArgs":
            return True  # what was broadcast along rows has none itself, and shows it next
        if named is None or rank is None:
            return False
        return not any(int(axis) % rank in axes[data] for axis in np.reshape(named, [-1]))

    return is_apart


def _reversed_along(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    return op.get_attr("seq_dim") not in axes[0]


def _unpacked(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    rank = op.inputs[0].shape.rank
    return rank is not None and op.get_attr("axis") % rank not in axes[0]


def _joined(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """Rows are put after rows, or beside them, but not after what are none."""
    named, rank = tf.get_static_value(op.inputs[-1]), op.inputs[0].shape.rank
    if named is None or rank is None:
        return False
    along = [int(named) % rank in own for own in axes[:-1]]
    return all(along) or not any(along)


def _padded(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    return all(_has_no_width(op.inputs[1], axis) for axis in axes[0])


def _has_no_width(widths: tf.Tensor, axis: int) -> bool:
    """Whether a padding adds nothing along a dimension."""
    known = tf.get_static_value(widths)
    if known is not None:
        return not np.any(known[axis])
    if widths.op.type != "Pack":
        return False
    known = tf.get_static_value(widths.op.inputs[axis])
    return known is not None and not np.any(known)


def _sliced(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """A slice takes all rows in their order, or one of them."""
    entries = _entries(op)
    if entries is None:
        return False
    begin, _, steps = (tf.get_static_value(tensor) for tensor in op.inputs[1:])
    for entry in (entries[axis] for axis in axes[0]):
        if entry is None or op.get_attr("shrink_axis_mask") & 1 << entry:
            continue
        from_first = op.get_attr("begin_mask") & 1 << entry
        from_first = from_first or (begin is not None and begin[entry] == 0)
        to_last = op.get_attr("end_mask") & 1 << entry
        if not (from_first and to_last and (steps is None or steps[entry] == 1)):
            return False
    return True


def _entries(op: tf.Operation) -> list | None:
    """Returns which entry of a slice is about each dimension; of one without any, None."""
    number, rank = op.inputs[1].shape[0], op.inputs[0].shape.rank
    if number is None or rank is None:
        return None
    dots, added = op.get_attr("ellipsis_mask"), op.get_attr("new_axis_mask")
    named = [entry for entry in range(number) if not (dots | added) & 1 << entry]
    before = [entry for entry in named if not dots or 1 << entry < dots]
    after = named[len(before) :]
    return [*before, *[None] * (rank - len(named)), *after]


def _cut(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    tensor, begin, size = op.inputs
    lengths = tensor.shape.as_list()
    for axis in axes[0]:
        first, taken = _entry(begin, axis), _entry(size, axis)
        is_all = taken is not None and taken in (-1, lengths[axis])
        if first != 0 or not (is_all or _is_length(size, axis)):
            return False
    return True


def _entry(vector: tf.Tensor, number: int) -> int | None:
    """Returns an entry of a vector that is made of numbers, where it is known."""
    if vector.op.type == "Pack":
        known = tf.get_static_value(vector.op.inputs[number])
        return None if known is None else int(known)
    known = tf.get_static_value(vector)
    return None if known is None else int(known[number])


def _is_length(vector: tf.Tensor, axis: int) -> bool:
    """Whether an entry of a vector is how long a tensor is along a dimension of rows."""
    if vector.op.type != "Pack":
        return False
    found = vector.op.inputs[axis].op
    if found.type != "StridedSlice" or found.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(found.inputs[1])
    is_one = bool(found.get_attr("shrink_axis_mask")) and begin is not None
    return is_one and int(begin[0]) == axis == 0


def _contracted(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """Rows are no dimension over which products are summed up."""
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    turned = [bool(op.get_attr(name)) for name in names]
    for tensor, own, is_last in zip(op.inputs, axes, (not turned[0], turned[1]), strict=True):
        rank = tensor.shape.rank
        if rank is None or rank - (1 if is_last else 2) in own:
            return not own
    return True


def _summed(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    terms, result = op.get_attr("equation").decode().split("->")
    for term, tensor, own in zip(terms.split(","), op.inputs, axes, strict=True):
        before, dots, after = term.partition("...")
        rank = tensor.shape.rank
        if own and rank is None:
            return False
        inner = ["..."] * (rank - len(before) - len(after)) if dots else []
        labels = [*before, *inner, *after]
        if any(labels[axis] not in (*result, "...") for axis in own):
            return False
    return True


def _normalised(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """In training each channel is normalised by itself: layer normalisation has rows there."""
    if not op.get_attr("is_training"):
        return True
    channel = op.get_attr("data_format").decode().find("C")
    return set(axes[0]) <= {channel}


def _summed_up(op: tf.Operation, axes: Sequence[tuple]) -> bool:
    """A sparse tensor is reduced along other dimensions than the first."""
    named, rank = tf.get_static_value(op.inputs[3]), op.inputs[2].shape[0]
    if named is None or rank is None:
        return False
    return not any(int(axis) % rank == 0 for axis in np.reshape(named, [-1]))


_ELEMENTWISE = """
Abs Acos Acosh Add AddN AddV2 Angle ApproximateEqual AsString Asin Asinh Atan Atan2 Atanh BesselI0
BesselI0e BesselI1 BesselI1e Betainc BiasAdd BiasAddV1 Bitcast BitwiseAnd BitwiseOr BitwiseXor
Bucketize Cast Ceil CheckNumerics CheckNumericsV2 ClipByValue Complex ComplexAbs Conj Cos Cosh
Dawsn Digamma Div DivNoNan Elu EluGrad EnsureShape Enter Equal Erf Erfc Erfinv Exit Exp Expint
Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel
Floor FloorDiv FloorMod FresnelCos FresnelSin
Greater GreaterEqual GuaranteeConst Identity IdentityN Igamma IgammaGradA Igammac Imag Inv InvGrad
Invert IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p
LogicalAnd LogicalNot LogicalOr LoopCond Maximum Merge Minimum Mod Mul MulNoNan Ndtri Neg
NextAfter NextIteration NotEqual OnesLike Pack ParallelConcat Polygamma PopulationCount Pow
PreventGradient QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 Real RealDiv
Reciprocal ReciprocalGrad RegexFullMatch RegexReplace Relu Relu6 Relu6Grad ReluGrad RightShift Rint
Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Snapshot
Softplus SoftplusGrad Softsign SoftsignGrad Spence Sqrt SqrtGrad Square SquaredDifference
StaticRegexFullMatch StaticRegexReplace StopGradient StringJoin StringLength StringLower StringStrip
StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub
Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta
"""
# The first input alone is an operand: the others are shapes, permutations, numbers.
OF_ONE = frozenset(
    """
    BroadcastTo DecodeBase64 DecodeJSONExample DecodeRaw DynamicPartition EncodeBase64 ExpandDims
    BatchToSpaceND Print Reshape SpaceToBatchND Squeeze Substr Tile Transpose UnicodeTranscode
    """.split()
)
# Without operands, the rows are made.
_MADE = """
Empty ParameterizedTruncatedNormal RandomPoissonV2 RandomStandardNormal RandomUniform
RandomUniformInt StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform
StatelessRandomUniformInt StatelessRandomUniformV2 StatelessTruncatedNormal
StatelessTruncatedNormalV2 TruncatedNormal
"""
# Rows are items of a batch, in whatever comes in.
_OF_ITEMS = """
AdjustContrastv2 AdjustHue AdjustSaturation AvgPool AvgPool3D Conv2D Conv3D CropAndResize
DepthToSpace DepthwiseConv2dNative Dilation2D ExtractImagePatches ImageProjectiveTransformV3 InTopK
InTopKV2 LRN LRNGrad LSTMBlockCell GRUBlockCell MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad
MaxPoolV2 MaxPoolWithArgmax Multinomial ParseExample ParseExampleV2 ResizeArea ResizeBicubic
ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad
SoftmaxCrossEntropyWithLogits SpaceToDepth SparseSoftmaxCrossEntropyWithLogits StatelessMultinomial
DenseToDenseSetOperation EditDistance MatrixDiag MatrixDiagV2 MatrixDiagV3
"""
# The first input is a shape.
_OF_ITEMS_BACK = """
AvgPoolGrad AvgPool3DGrad Conv2DBackpropInput Conv3DBackpropInputV2
DepthwiseConv2dNativeBackpropInput
"""
# Time comes first there, or an axis that nobody can mistake for rows.
_OF_SEQUENCES = """
BlockLSTM BlockLSTMV2 CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2 CudnnRNN CudnnRNNV2
CudnnRNNV3
"""
_ALONG_LAST = """
Cross FFT HSVToRGB IFFT IRFFT LogSoftmax RFFT RGBToHSV Softmax TopK TopKV2
"""
_ALONG_LAST_TWO = """
BandedTriangularSolve Cholesky FFT2D IFFT2D IRFFT2D MatrixBandPart MatrixDeterminant MatrixDiagPart
MatrixDiagPartV2 MatrixDiagPartV3 MatrixExponential MatrixInverse MatrixSetDiag MatrixSetDiagV2
MatrixSetDiagV3 MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve RFFT2D Qr
SelfAdjointEigV2 LogMatrixDeterminant Svd TridiagonalSolve
"""
_REDUCTIONS = "All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod ReduceJoin Sum"
# What says where values lie goes in with them.
OF_PLACES = frozenset(
    """
    RaggedGather RaggedRange RaggedTensorToSparse RaggedTensorToTensor SparseAdd SparseConcat
    SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv
    SparseDenseCwiseMul SparseFillEmptyRows SparseReorder SparseReshape SparseSlice SparseSoftmax
    SetSize DenseToSparseSetOperation SparseToSparseSetOperation
    SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense StringNGrams StringSplit
    StringSplitV2
    """.split()
)


def _named(names: str, operands: tuple | None, is_apart: Callable) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule(operands, is_apart))


RULES: dict[str, Rule] = {
    **_named(_ELEMENTWISE, None, _always),
    **dict.fromkeys(OF_ONE, Rule((0,), _always)),
    **_named(_MADE, (), _always),
    **_named(_OF_ITEMS, None, _first),
    **_named(_OF_ITEMS_BACK, (1, 2), _first),
    **_named(_OF_SEQUENCES, None, _always),
    **_named(_ALONG_LAST, (0,), _before_last(1)),
    **_named(_ALONG_LAST_TWO, None, _before_last(2)),
    **_named(_REDUCTIONS, (0,), _along(1)),
    **_named("Cumprod Cumsum CumulativeLogsumexp ReverseV2", (0,), _along(1)),
    **_named("SplitV", (0,), _along(2)),
    **_named("HistogramFixedWidth", (0, 1), _always),
    **_named("Roll", (0, 1), _along(2)),
    **_named("OneHot", (0, 2, 3), _always),
    **_named("RandomGamma Switch", (0, 1), _always),
    **_named("DenseBincount LowerBound UpperBound", (0,), _first),
    **_named("Split", (1,), _along(0, data=1)),
    **_named("ReverseSequence", (0,), _reversed_along),
    **_named("Unpack", (0,), _unpacked),
    **_named("ConcatV2", None, _joined),
    **_named("MirrorPad Pad PadV2", (0,), _padded),
    **_named("StridedSlice", (0,), _sliced),
    **_named("Slice", (0,), _cut),
    **_named("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", None, _contracted),
    **_named("Einsum", None, _summed),
    **_named("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", (0,), _normalised),
    **_named("Fill LookupTableFind LookupTableFindV2", (1,), _always),
    **_named("StridedSliceGrad", (4,), _always),
    **dict.fromkeys(OF_PLACES, Rule((), _always, tuple(range(8)))),
    **dict.fromkeys(("SparseReduceMax", "SparseReduceSum"), Rule((), _summed_up, tuple(range(8)))),
    **dict.fromkeys(("Gather", "GatherV2", "GatherNd"), Rule((0, 1), _always, (1,), 0)),
    **dict.fromkeys(("ResourceGather", "ResourceGatherNd"), Rule((1,), _always)),
    "ScatterNd": Rule((0, 1), _always, (0,), 1),
    **dict.fromkeys(
        ("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub"),
        Rule((0, 1, 2), _always, (1,), 2),
    ),
    **dict.fromkeys(
        [f"Segment{k}{v}" for k in ("Max", "Min", "Prod", "Sum") for v in ("", "V2")]
        + ["SegmentMean"]
        + [f"UnsortedSegment{k}" for k in ("Join", "Max", "Min", "Prod", "Sum")],
        Rule((0, 1), _always, (1,), 0),
    ),
    **dict.fromkeys(
        [f"SparseSegment{k}{n}" for k in ("Mean", "SqrtN", "Sum") for n in ("", "WithNumSegments")],
        Rule((0, 1, 2), _always, (1, 2), 1),
    ),
}
