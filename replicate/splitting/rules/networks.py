"""Layers: images, quantisation, losses, normalisation, and recurrent cells.

NOTE: convolutions, pools and their gradients fail on no images in some builds (oneDNN).
"""

from replicate.splitting.rules.registry import Case
from replicate.splitting.rules.signatures import by_axes, signature
from replicate.splitting.states import WholeError

signature(
    "n*, * -> n*",
    "AvgPool AvgPool3D Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPool3D MaxPoolV2",
    needs_rows=True,
)
signature("3 n* -> n*", "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad", needs_rows=True)
signature("3 n* -> n*", "MaxPoolGradGrad MaxPoolGradGradV2 MaxPool3DGradGrad", needs_rows=True)
signature("[n*], n* -> n*", "AvgPoolGrad AvgPool3DGrad", needs_rows=True)
signature(
    "n*, *, n* -> n*",
    "Conv2DBackpropInputV2 Conv3DBackpropInput Dilation2DBackpropInput",
    needs_rows=True,
)
signature(
    "n* -> n*",
    """DepthToSpace ExtractImagePatches LRN ResizeArea ResizeBicubic ResizeBilinear
    ResizeNearestNeighbor ResizeNearestNeighborGrad ScaleAndTranslate SpaceToDepth""",
)
signature(
    "n*, n* -> n*",
    """DrawBoundingBoxes DrawBoundingBoxesV2 ResizeBicubicGrad ResizeBilinearGrad
    ScaleAndTranslateGrad""",
)
signature("3 n* -> n*", "LRNGrad")
signature("n*, n|1* -> n*", "ImageProjectiveTransformV2 ImageProjectiveTransformV3")
signature("...C -> ...C", "AdjustHue AdjustSaturation HSVToRGB RGBToHSV")
signature("...HWC -> ...*", "AdjustContrast AdjustContrastv2 EncodePng")  # a mean, or a file


_OVER_ALL = {"include_batch_in_index": "places are counted over all images"}
signature("n* -> n*, n*", "MaxPoolWithArgmax", needs_rows=True, unless=_OVER_ALL)
signature(
    "3 n* -> n*",
    "MaxPoolGradGradWithArgmax MaxPoolGradWithArgmax",
    needs_rows=True,
    unless=_OVER_ALL,
)


@by_axes("Conv", needs_rows=True)
def _conv(case: Case) -> str:
    """`batch_dims` dimensions in front of each image."""
    front = "abcdefgh"[: case.attribute("batch_dims")]
    return f"{front}*, * -> {front}*"


@by_axes(
    "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput", needs_rows=True
)
def _input_gradient(case: Case) -> str:
    """The shape of the input, or of two entries that of an image; the filter, and the gradient."""
    length = case.shape(0)[0].size
    if length is None:
        raise WholeError("a shape is not known")
    return "*, *, n* -> n*" if length == 2 else "[n*], *, n* -> n*"


@by_axes(
    """Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2
    DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter""",
    needs_rows=True,
)
def _filter_gradient(case: Case) -> str:
    """The input, the filter or its shape, and the gradient: a sum over all images."""
    if not case.is_float():
        raise WholeError("only floating sums are joined")
    return "n*, *, n* -> *"


# Values rounded to the steps of a range. Gradients by its ends are sums over rows.
# NOTE: on GPUs such a sum of no rows may be left unset.

signature("... -> ...", "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars")
signature("2 ... -> ...", "FakeQuantWithMinMaxArgsGradient")
signature("2 ... -> ..., , ", "FakeQuantWithMinMaxVarsGradient", needs_rows=True)
signature("...C, 2 C -> ...C", "FakeQuantWithMinMaxVarsPerChannel")
signature("2 ...C, 2 C -> ...C, 2 C", "FakeQuantWithMinMaxVarsPerChannelGradient", needs_rows=True)

# Softmax, cross entropies, and batch normalisation by given statistics.

signature("...C -> ...C", "LogSoftmax Softmax")
signature("nC, n -> n, nC", "SparseSoftmaxCrossEntropyWithLogits")
signature("...|1C, ...|1C -> ..., ...C", "SoftmaxCrossEntropyWithLogits")


_OF_THE_BATCH = {"is_training": "its statistics are of the whole batch"}
# Other outputs are the mean and variance that it is given, but not of no rows.
signature(
    "n*, C, C, C, C -> n*, =",
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
    needs_rows=True,
    unless=_OF_THE_BATCH,
)
# Gradients by `x`, and by scale and offset, which are sums over rows; the rest is empty.
signature(
    "n*, n*, C, C, C -> n*, C, C, =",
    "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
    unless=_OF_THE_BATCH,
)

# Recurrent cells: steps [T, n, D], states [n, C], weights and biases; T is the number of steps.
# Gradients by weights are sums over rows.
signature("T, TnD, 2 nC -> TnC", "BlockLSTM BlockLSTMV2", needs_rows=True)
signature(
    "T, TnD, 2 nC, 5 *, 9 TnC -> TnD, 2 nC, 5 *", "BlockLSTMGrad BlockLSTMGradV2", needs_rows=True
)
signature("nD, 2 nC -> nC", "LSTMBlockCell", needs_rows=True)
signature("nD, nC -> nC", "GRUBlockCell", needs_rows=True)
signature("nD, nC, 4 *, 4 nC -> nC", "GRUBlockCellGrad", needs_rows=True)
# The products with the weights are not its own. NOTE: with peepholes the kernel may write gradients
# into the buffer of weights that it still reads, if nothing else reads them: so it might on
# devices, to which they were sent.
signature(
    "nD, 2 nC, 5 *, 8 nC -> 2 nC, 3 C",
    "LSTMBlockCellGrad",
    needs_rows=True,
    unless={"use_peephole": "its kernel may overwrite what was sent to devices"},
)
