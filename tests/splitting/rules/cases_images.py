"""Cases of operations on pictures: convolutions, pools, sizes and colours."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import apart, raw, shape, tensor, unit

FAMILY = harness.Family("images")
case = FAMILY.case
op = FAMILY.op

F64, F32 = tf.float64, tf.float32
ONES = {"strides": [1, 1, 1, 1], "padding": "SAME"}
HALF = {"strides": [1, 2, 2, 1], "padding": "VALID"}
CUBE = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
PICTURE, KERNEL, MADE = ("B", 4, 4, 2), (3, 3, 2, 3), ("B", 4, 4, 3)

op("Conv2D", tensor(*PICTURE), tensor(*KERNEL), dtypes=(F64, F32), **ONES)
op("Conv2D", tensor(*PICTURE), tensor(*KERNEL), **HALF)
op("Conv2D", tensor(2, 4, 4, 2), tensor(*KERNEL), **ONES)
op("Conv2D", tensor(2, 4, 4, "B"), tensor(3, 3, "B", 3), **ONES)
op("Conv2D", tensor("B", 4, 4, 2), tensor(3, 3, 2, "B"), **ONES)
op(
    "Conv2DBackpropInput",
    shape(*PICTURE),
    tensor(*KERNEL),
    tensor(*MADE),
    dtypes=(F64, F32),
    **ONES,
)
op("Conv2DBackpropInput", [2, 4, 4, 2], tensor(*KERNEL), tensor(2, 4, 4, 3), **ONES)
op("Conv2DBackpropFilter", tensor(*PICTURE), list(KERNEL), tensor(*MADE), dtypes=(F64, F32), **ONES)
op("Conv2DBackpropFilter", tensor(2, 4, 4, 2), list(KERNEL), tensor(2, 4, 4, 3), **ONES)
op("Conv", tensor(*PICTURE), tensor(*KERNEL), strides=[1, 1, 1, 1], padding="SAME")

VOLUME, FILTER, RESULT = ("B", 2, 2, 2, 2), (2, 2, 2, 2, 3), ("B", 2, 2, 2, 3)
op("Conv3D", tensor(*VOLUME), tensor(*FILTER), **CUBE)
op("Conv3DBackpropInputV2", shape(*VOLUME), tensor(*FILTER), tensor(*RESULT), **CUBE)
op("Conv3DBackpropFilterV2", tensor(*VOLUME), list(FILTER), tensor(*RESULT), **CUBE)

DEEP, DEEPER = (3, 3, 2, 2), ("B", 4, 4, 4)
op("DepthwiseConv2dNative", tensor(*PICTURE), tensor(*DEEP), **ONES)
op("DepthwiseConv2dNativeBackpropInput", shape(*PICTURE), tensor(*DEEP), tensor(*DEEPER), **ONES)
op("DepthwiseConv2dNativeBackpropFilter", tensor(*PICTURE), list(DEEP), tensor(*DEEPER), **ONES)

DILATED = {"strides": [1, 1, 1, 1], "rates": [1, 2, 2, 1], "padding": "SAME"}
op("Dilation2D", tensor(*PICTURE), tensor(3, 3, 2), **DILATED)
for kind in ("Dilation2DBackpropInput", "Dilation2DBackpropFilter"):
    op(kind, tensor(*PICTURE), tensor(3, 3, 2), tensor(*PICTURE), **DILATED)

POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
POOL3 = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
LISTS = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1]}
SMALL = ("B", 2, 2, 2)
op("AvgPool", tensor(*PICTURE), dtypes=(F64, F32), **POOL)
op("AvgPool", tensor(2, 4, 4, 2), **POOL)
op("AvgPool", tensor(2, 4, 4, "B"), **POOL)
op("MaxPool", tensor(*PICTURE), dtypes=(F64, F32), **POOL)
op("MaxPool", tensor(2, 4, 4, 2), **POOL)
op("MaxPoolV2", tensor(*PICTURE), *LISTS.values(), padding="VALID")
op("MaxPoolWithArgmax", tensor(*PICTURE, of=apart), **POOL)
included = raw("MaxPoolWithArgmax", include_batch_in_index=True, **POOL)
case("MaxPoolWithArgmax", included, tensor(*PICTURE, of=apart))
op("AvgPoolGrad", shape(*PICTURE), tensor(*SMALL), **POOL)
op("AvgPool3D", tensor("B", 2, 2, 4, 2, dtype=F32), **POOL3)
op("AvgPool3DGrad", shape("B", 2, 2, 4, 2), tensor("B", 1, 1, 2, 2, dtype=F32), **POOL3)
op("MaxPool3D", tensor("B", 2, 2, 4, 2, dtype=F32), **POOL3)


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

op("LRN", tensor(*PICTURE, dtype=F32), depth_radius=1)
op("LRNGrad", *(tensor(*PICTURE, dtype=F32) for _ in range(3)), depth_radius=1)
op("SpaceToDepth", tensor(*PICTURE), block_size=2)
op("DepthToSpace", tensor("B", 2, 2, 4), block_size=2)
PATCHES = {"strides": [1, 2, 2, 1], "rates": [1, 1, 1, 1], "padding": "VALID"}
op("ExtractImagePatches", tensor(*PICTURE), ksizes=[1, 2, 2, 1], **PATCHES)

for kind in ("Bilinear", "NearestNeighbor", "Bicubic", "Area"):
    op(f"Resize{kind}", tensor(*PICTURE), [3, 5])
    op(f"Resize{kind}", tensor(2, 4, 4, 2), [3, 5])
for kind in ("Bilinear", "Bicubic"):
    kind = f"Resize{kind}Grad"
    op(kind, tensor("B", 3, 5, 2, dtype=F32), tensor(*PICTURE, dtype=F32))
op("ResizeNearestNeighborGrad", tensor("B", 3, 5, 2), [4, 4])
SCALE = {"scale": [0.8, 1.2], "translation": [0.1, -0.2]}
op("ScaleAndTranslate", tensor(*PICTURE, dtype=F32), size=[3, 5], **SCALE)
op("ScaleAndTranslateGrad", tensor("B", 3, 5, 2, dtype=F32), tensor(*PICTURE, dtype=F32), **SCALE)
TURN = np.array([[1.0, 0.1, 0.0, -0.1, 1.0, 0.0, 0.0, 0.0]], np.float32)
for kind, more in (("ImageProjectiveTransformV2", ()), ("ImageProjectiveTransformV3", (0.5,))):
    turned = raw(kind, interpolation="BILINEAR")
    case(kind, turned, tensor(*PICTURE, dtype=F32), TURN, [3, 3], *more)
    case(
        kind, turned, tensor(*PICTURE, dtype=F32), tensor("B", 8, dtype=F32, of=unit), [3, 3], *more
    )
COLOURS = ("B", 2, 2, 3)
for kind in ("RGBToHSV", "HSVToRGB"):
    op(kind, tensor(*COLOURS, of=unit))
    op(kind, tensor("B", 3, of=unit))
    op(kind, tensor(2, 3, of=unit))
for kind in ("AdjustContrastv2", "AdjustHue", "AdjustSaturation"):
    op(kind, tensor(*COLOURS, dtype=F32, of=unit), tensor(dtype=F32, of=unit))
    op(kind, tensor(2, *COLOURS, dtype=F32, of=unit), 0.7)
op("DrawBoundingBoxes", tensor(*COLOURS, dtype=F32), tensor("B", 1, 4, dtype=F32, of=unit))
op(
    "DrawBoundingBoxesV2",
    tensor(*COLOURS, dtype=F32),
    tensor("B", 1, 4, dtype=F32, of=unit),
    np.ones([1, 3], np.float32),
)
