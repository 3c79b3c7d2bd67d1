"""Convolutions, pools and images: images lie along the first dimension, each by itself.

NOTE: convolutions, pools and their gradients fail on no images in some builds (oneDNN).
"""

from replicate.splitting.rules import signatures
from replicate.splitting.rules.registry import Case
from replicate.splitting.rules.signatures import Said, by_axes, signature
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
signature("n* -> n*", "DepthToSpace ExtractImagePatches LRN SpaceToDepth")
signature("n* -> n*", "ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor")
signature("n* -> n*", "ResizeNearestNeighborGrad ScaleAndTranslate")
signature("n*, n* -> n*", "DrawBoundingBoxes DrawBoundingBoxesV2 ScaleAndTranslateGrad")
signature("n*, n* -> n*", "ResizeBicubicGrad ResizeBilinearGrad")
signature("3 n* -> n*", "LRNGrad")
signature("n*, n|1* -> n*", "ImageProjectiveTransformV2 ImageProjectiveTransformV3")
signature("...C -> ...C", "AdjustHue AdjustSaturation HSVToRGB RGBToHSV")
signature("...HWC -> ...*", "AdjustContrast AdjustContrastv2 EncodePng")  # a mean, or a file


@by_axes("Conv", needs_rows=True)
def _conv(case: Case) -> Said:
    """`batch_dims` dimensions in front of each image."""
    front = "abcdefgh"[: case.attribute("batch_dims")]
    return signatures.read(case, f"{front}*, * -> {front}*")


@by_axes("MaxPoolWithArgmax", needs_rows=True)
def _pool_with_places(case: Case) -> Said:
    """The pool, and the places of maxima, counted in each image or over all."""
    return _counted_in_images(case, "n* -> n*, n*")


@by_axes("MaxPoolGradGradWithArgmax MaxPoolGradWithArgmax", needs_rows=True)
def _pool_with_places_gradient(case: Case) -> Said:
    """Input, gradient and places."""
    return _counted_in_images(case, "3 n* -> n*")


def _counted_in_images(case: Case, said: str) -> Said:
    if case.attribute("include_batch_in_index"):
        raise WholeError("places are counted over all images")
    return signatures.read(case, said)


@by_axes(
    "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput", needs_rows=True
)
def _input_gradient(case: Case) -> Said:
    """The shape of the input, or of two entries that of an image; the filter, and the gradient."""
    length = case.shape(0)[0].size
    if length is None:
        raise WholeError("a shape is not known")
    return signatures.read(case, "*, *, n* -> n*" if length == 2 else "[n*], *, n* -> n*")


@by_axes(
    """Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2
    DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter""",
    needs_rows=True,
)
def _filter_gradient(case: Case) -> Said:
    """The input, the filter or its shape, and the gradient: a sum over all images."""
    if not case.is_float():
        raise WholeError("only floating sums are joined")
    return signatures.read(case, "n*, *, n* -> *")
