"""Cases of operations on pictures: convolutions, pools, sizes and colours."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import apart, raw, shape, tensor, unit

FAMILY = harness.Family("images")
case = FAMILY.case

F64, F32 = tf.float64, tf.float32
ONES = {"strides": [1, 1, 1, 1], "padding": "SAME"}
HALF = {"strides": [1, 2, 2, 1], "padding": "VALID"}
CUBE = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
PICTURE, KERNEL, MADE = ("B", 4, 4, 2), (3, 3, 2, 3), ("B", 4, 4, 3)

case("Conv2D", raw("Conv2D", **ONES), tensor(*PICTURE), tensor(*KERNEL), dtypes=(F64, F32))
case("Conv2D", raw("Conv2D", **HALF), tensor(*PICTURE), tensor(*KERNEL))
case("Conv2D", raw("Conv2D", **ONES), tensor(2, 4, 4, 2), tensor(*KERNEL))
case("Conv2D", raw("Conv2D", **ONES), tensor(2, 4, 4, "B"), tensor(3, 3, "B", 3))
case("Conv2D", raw("Conv2D", **ONES), tensor("B", 4, 4, 2), tensor(3, 3, 2, "B"))
case(
    "Conv2DBackpropInput",
    raw("Conv2DBackpropInput", **ONES),
    shape(*PICTURE),
    tensor(*KERNEL),
    tensor(*MADE),
    dtypes=(F64, F32),
)
case(
    "Conv2DBackpropInput",
    raw("Conv2DBackpropInput", **ONES),
    [2, 4, 4, 2],
    tensor(*KERNEL),
    tensor(2, 4, 4, 3),
)
case(
    "Conv2DBackpropFilter",
    raw("Conv2DBackpropFilter", **ONES),
    tensor(*PICTURE),
    list(KERNEL),
    tensor(*MADE),
    dtypes=(F64, F32),
)
case(
    "Conv2DBackpropFilter",
    raw("Conv2DBackpropFilter", **ONES),
    tensor(2, 4, 4, 2),
    list(KERNEL),
    tensor(2, 4, 4, 3),
)
case("Conv", raw("Conv", strides=[1, 1, 1, 1], padding="SAME"), tensor(*PICTURE), tensor(*KERNEL))

VOLUME, FILTER, RESULT = ("B", 2, 2, 2, 2), (2, 2, 2, 2, 3), ("B", 2, 2, 2, 3)
case("Conv3D", raw("Conv3D", **CUBE), tensor(*VOLUME), tensor(*FILTER))
case(
    "Conv3DBackpropInputV2",
    raw("Conv3DBackpropInputV2", **CUBE),
    shape(*VOLUME),
    tensor(*FILTER),
    tensor(*RESULT),
)
case(
    "Conv3DBackpropFilterV2",
    raw("Conv3DBackpropFilterV2", **CUBE),
    tensor(*VOLUME),
    list(FILTER),
    tensor(*RESULT),
)

DEEP, DEEPER = (3, 3, 2, 2), ("B", 4, 4, 4)
case("DepthwiseConv2dNative", raw("DepthwiseConv2dNative", **ONES), tensor(*PICTURE), tensor(*DEEP))
case(
    "DepthwiseConv2dNativeBackpropInput",
    raw("DepthwiseConv2dNativeBackpropInput", **ONES),
    shape(*PICTURE),
    tensor(*DEEP),
    tensor(*DEEPER),
)
case(
    "DepthwiseConv2dNativeBackpropFilter",
    raw("DepthwiseConv2dNativeBackpropFilter", **ONES),
    tensor(*PICTURE),
    list(DEEP),
    tensor(*DEEPER),
)

DILATED = {"strides": [1, 1, 1, 1], "rates": [1, 2, 2, 1], "padding": "SAME"}
case("Dilation2D", raw("Dilation2D", **DILATED), tensor(*PICTURE), tensor(3, 3, 2))
for kind in ("Dilation2DBackpropInput", "Dilation2DBackpropFilter"):
    case(kind, raw(kind, **DILATED), tensor(*PICTURE), tensor(3, 3, 2), tensor(*PICTURE))

POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
POOL3 = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
LISTS = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1]}
SMALL = ("B", 2, 2, 2)
case("AvgPool", raw("AvgPool", **POOL), tensor(*PICTURE), dtypes=(F64, F32))
case("AvgPool", raw("AvgPool", **POOL), tensor(2, 4, 4, 2))
case("AvgPool", raw("AvgPool", **POOL), tensor(2, 4, 4, "B"))
case("MaxPool", raw("MaxPool", **POOL), tensor(*PICTURE), dtypes=(F64, F32))
case("MaxPool", raw("MaxPool", **POOL), tensor(2, 4, 4, 2))
case("MaxPoolV2", raw("MaxPoolV2", padding="VALID"), tensor(*PICTURE), *LISTS.values())
case("MaxPoolWithArgmax", raw("MaxPoolWithArgmax", **POOL), tensor(*PICTURE, of=apart))
included = raw("MaxPoolWithArgmax", include_batch_in_index=True, **POOL)
case("MaxPoolWithArgmax", included, tensor(*PICTURE, of=apart))
case("AvgPoolGrad", raw("AvgPoolGrad", **POOL), shape(*PICTURE), tensor(*SMALL))
case("AvgPool3D", raw("AvgPool3D", **POOL3), tensor("B", 2, 2, 4, 2, dtype=F32))
case(
    "AvgPool3DGrad",
    raw("AvgPool3DGrad", **POOL3),
    shape("B", 2, 2, 4, 2),
    tensor("B", 1, 1, 2, 2, dtype=F32),
)
case("MaxPool3D", raw("MaxPool3D", **POOL3), tensor("B", 2, 2, 4, 2, dtype=F32))


def pooled(kind, operand, **more):
    """The gradient of a pool, of what the pool itself made."""

    def make(x, dy):
        y = tf.raw_ops.MaxPool(input=x, **POOL)
        return getattr(tf.raw_ops, kind)(orig_input=x, orig_output=y, grad=dy, **more)

    case(kind, make, tensor(*PICTURE, of=apart), tensor(*operand))


def pooled_in_space(kind, operand):
    def make(x, dy):
        y = tf.raw_ops.MaxPool3D(input=x, **POOL3)
        return getattr(tf.raw_ops, kind)(orig_input=x, orig_output=y, grad=dy, **POOL3)

    case(kind, make, tensor("B", 2, 2, 4, 2, of=apart), tensor(*operand), dtypes=(F32,))


pooled("MaxPoolGrad", SMALL, **POOL)
pooled("MaxPoolGradV2", SMALL, padding="VALID", **LISTS)
pooled("MaxPoolGradGrad", PICTURE, **POOL)
pooled("MaxPoolGradGradV2", PICTURE, padding="VALID", **LISTS)
pooled_in_space("MaxPool3DGrad", ("B", 1, 1, 2, 2))
pooled_in_space("MaxPool3DGradGrad", ("B", 2, 2, 4, 2))


def with_argmax(kind, is_included=False):
    def make(x, dy):
        _, places = tf.raw_ops.MaxPoolWithArgmax(
            input=x, include_batch_in_index=is_included, **POOL
        )
        options = {**POOL, "include_batch_in_index": is_included}
        return getattr(tf.raw_ops, kind)(input=x, grad=dy, argmax=places, **options)

    return make


for is_included in (False, True):
    kind = "MaxPoolGradWithArgmax"
    case(kind, with_argmax(kind, is_included), tensor(*PICTURE, of=apart), tensor(*SMALL))

case("LRN", raw("LRN", depth_radius=1), tensor(*PICTURE, dtype=F32))
case("LRNGrad", raw("LRNGrad", depth_radius=1), *(tensor(*PICTURE, dtype=F32) for _ in range(3)))
case("SpaceToDepth", raw("SpaceToDepth", block_size=2), tensor(*PICTURE))
case("DepthToSpace", raw("DepthToSpace", block_size=2), tensor("B", 2, 2, 4))
PATCHES = {"strides": [1, 2, 2, 1], "rates": [1, 1, 1, 1], "padding": "VALID"}
case(
    "ExtractImagePatches",
    raw("ExtractImagePatches", ksizes=[1, 2, 2, 1], **PATCHES),
    tensor(*PICTURE),
)

for kind in ("Bilinear", "NearestNeighbor", "Bicubic", "Area"):
    case(f"Resize{kind}", raw(f"Resize{kind}"), tensor(*PICTURE), [3, 5])
    case(f"Resize{kind}", raw(f"Resize{kind}"), tensor(2, 4, 4, 2), [3, 5])
for kind in ("Bilinear", "Bicubic"):
    kind = f"Resize{kind}Grad"
    case(kind, raw(kind), tensor("B", 3, 5, 2, dtype=F32), tensor(*PICTURE, dtype=F32))
case("ResizeNearestNeighborGrad", raw("ResizeNearestNeighborGrad"), tensor("B", 3, 5, 2), [4, 4])
case("ResizeBilinear", raw("ResizeBilinear"), tensor("B", 4, 4, "B"), [3, 5], worlds=("none",))
SCALE = {"scale": [0.8, 1.2], "translation": [0.1, -0.2]}
case(
    "ScaleAndTranslate", raw("ScaleAndTranslate", size=[3, 5], **SCALE), tensor(*PICTURE, dtype=F32)
)
case(
    "ScaleAndTranslateGrad",
    raw("ScaleAndTranslateGrad", **SCALE),
    tensor("B", 3, 5, 2, dtype=F32),
    tensor(*PICTURE, dtype=F32),
)
TURN = np.array([[1.0, 0.1, 0.0, -0.1, 1.0, 0.0, 0.0, 0.0]], np.float32)
for kind, more in (("ImageProjectiveTransformV2", ()), ("ImageProjectiveTransformV3", (0.5,))):
    turned = raw(kind, interpolation="BILINEAR")
    case(kind, turned, tensor(*PICTURE, dtype=F32), TURN, [3, 3], *more)
    case(
        kind, turned, tensor(*PICTURE, dtype=F32), tensor("B", 8, dtype=F32, of=unit), [3, 3], *more
    )
COLOURS = ("B", 2, 2, 3)
for kind in ("RGBToHSV", "HSVToRGB"):
    case(kind, raw(kind), tensor(*COLOURS, of=unit))
    case(kind, raw(kind), tensor("B", 3, of=unit))
    case(kind, raw(kind), tensor(2, 3, of=unit))
for kind in ("AdjustContrastv2", "AdjustHue", "AdjustSaturation"):
    case(kind, raw(kind), tensor(*COLOURS, dtype=F32, of=unit), tensor(dtype=F32, of=unit))
    case(kind, raw(kind), tensor(2, *COLOURS, dtype=F32, of=unit), 0.7)
case(
    "DrawBoundingBoxes",
    raw("DrawBoundingBoxes"),
    tensor(*COLOURS, dtype=F32),
    tensor("B", 1, 4, dtype=F32, of=unit),
)
case(
    "DrawBoundingBoxesV2",
    raw("DrawBoundingBoxesV2"),
    tensor(*COLOURS, dtype=F32),
    tensor("B", 1, 4, dtype=F32, of=unit),
    np.ones([1, 3], np.float32),
)
