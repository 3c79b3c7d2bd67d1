"""Convolutions, pools and images: images lie along the first dimension, each by itself.

NOTE: convolutions, pools and their gradients fail on no images in some builds (oneDNN).
"""

from replicate.splitting.rules import items
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import SUM, Split, WholeError


@rule(
    *"""AvgPool AvgPool3D Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPool3D
    MaxPoolV2""".split()
)
def _windows(case: Case) -> Split:
    """Images first; all other inputs are filters, or sizes of windows."""
    return items.never_none(items.split_first(case))


@rule(
    *"""DepthToSpace ExtractImagePatches LRN ResizeArea ResizeBicubic ResizeBilinear
    ResizeNearestNeighbor ResizeNearestNeighborGrad ScaleAndTranslate SpaceToDepth""".split()
)
def _images(case: Case) -> Split:
    """Images first; all other inputs are sizes and places of images."""
    return items.split_first(case)


@rule("Conv")
def _conv(case: Case) -> Split:
    """`batch_dims` dimensions in front of each image."""
    _, rows = items.rows_of(case, (0,))
    if rows.axis >= case.attribute("batch_dims"):
        raise WholeError("rows are inside of the items")
    return items.never_none(items.in_front(case, rows, items=(0,)))


@rule(
    *"""DrawBoundingBoxes DrawBoundingBoxesV2 ResizeBicubicGrad ResizeBilinearGrad
    ScaleAndTranslateGrad""".split()
)
def _two_images(case: Case) -> Split:
    """Two inputs with an entry for each image; the others are for all images."""
    return items.split_first(case, items=(0, 1))


@rule("LRNGrad")
def _three_images(case: Case) -> Split:
    """Three inputs with an entry for each image."""
    return items.split_first(case, items=(0, 1, 2))


@rule(
    *"""MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2
    MaxPoolGradV2""".split()
)
def _maximum_gradient(case: Case) -> Split:
    """The input, the pool, and a gradient; then sizes of windows."""
    return items.never_none(items.split_first(case, items=(0, 1, 2)))


@rule("MaxPoolWithArgmax")
def _pool_with_places(case: Case) -> Split:
    """The pool, and the places of maxima, counted in each image or over all."""
    _count_in_images(case)
    return items.never_none(items.split_first(case))


@rule("MaxPoolGradGradWithArgmax", "MaxPoolGradWithArgmax")
def _pool_with_places_gradient(case: Case) -> Split:
    """Input, gradient and places, each with an entry for each image."""
    _count_in_images(case)
    return items.never_none(items.split_first(case, items=(0, 1, 2)))


def _count_in_images(case: Case) -> None:
    if case.attribute("include_batch_in_index"):
        raise WholeError("places are counted over all images")


@rule("AvgPool3DGrad", "AvgPoolGrad")
def _pool_gradient(case: Case) -> Split:
    """The shape of the input, and the gradient."""
    return items.never_none(items.split_first(case, items=(1,), shapes=(0,)))


@rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def _input_gradient(case: Case) -> Split:
    """The shape of the input, the filter, and the gradient.

    A shape of two entries is the images' height and width.
    """
    length = case.shape(0)[0].size
    if length is None:
        raise WholeError("a shape is not known")
    shapes = () if length == 2 else (0,)
    return items.never_none(items.split_first(case, items=(2,), shapes=shapes))


@rule("Conv2DBackpropInputV2", "Conv3DBackpropInput", "Dilation2DBackpropInput")
def _input_gradient_of_input(case: Case) -> Split:
    """The input, the filter, and the gradient."""
    return items.never_none(items.split_first(case, items=(0, 2)))


@rule(
    *"""Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2
    DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter""".split()
)
def _filter_gradient(case: Case) -> Split:
    """The input, the filter or its shape, and the gradient: a sum over all images."""
    if not case.is_float():
        raise WholeError("only floating sums are joined")
    return items.never_none(items.split_first(case, items=(0, 2), gives=[SUM]))


@rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def _transform(case: Case) -> Split:
    """Images, a transform for each or one for all, the new size, and a value to fill with."""
    _, rows = items.rows_of(case, (0,))
    if rows.axis != 0:
        raise WholeError("rows are inside of the items")
    others = [items.same(case, n) for n in range(2, len(case.inputs))]
    return Split([rows, items.along_or_one(case, 1, rows.at(0)), *others], [rows.at(0)])


@rule("AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV")
def _pixels(case: Case) -> Split:
    """[..., 3], color by color."""
    return items.split(case, 1)


@rule("AdjustContrast", "AdjustContrastv2", "EncodePng")
def _whole_images(case: Case) -> Split:
    """[..., height, width, channels]: it makes a mean, or a file, of each image."""
    return items.split(case, 3)
