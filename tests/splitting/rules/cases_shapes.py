"""Cases of operations that move entries, and of sizes that are computed."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import apart, between, listed, raw, shape, size, tensor, truths

FAMILY = harness.Family("shapes")
case = FAMILY.case
op = FAMILY.op

F64 = tf.float64
KINDS = (F64, tf.float32, tf.int32)

reshape = raw("Reshape")
for given, wanted, dtypes in (
    (("B", 6), ("B", 2, 3), KINDS),
    (("B", 6), (-1, 2, 3), (F64,)),
    (("B", 6), ("6B",), (F64,)),
    (("B", 6), (-1,), (F64,)),
    (("B", 6), ("2B", 3), (F64,)),
    (("B", 6), (-1, 3), (F64,)),
    (("2B", 3), ("B", 6), (F64,)),
    (("2B", 3), (-1, 6), (F64,)),
    (("2B", 3), ("B", 2, 3), (F64,)),
    (("2B", 3), ("B", -1), (F64,)),
    (("B", 6), (2, "B", 3), (F64,)),
    (("B", 6), (3, -1), (F64,)),
    ((2, "B", 3), ("2B", 3), (F64,)),
    ((2, "B", 3), (1, "2B", 3), (F64,)),
    ((2, "B", 3), (1, "2B", 3, 1), (F64,)),
    ((2, "B", 3), (2, "3B"), (F64,)),
    ((2, "B", 3), (2, -1), (F64,)),
    ((2, "B", 3), (-1, 3), (F64,)),
    ((2, "3B"), (2, "B", 3), (F64,)),
    ((1, "B", 3), ("B", 3), (F64,)),
    (("B", 3), (1, "B", 1, 3), (F64,)),
    (("B", "B"), ("B", "B", 1), (F64,)),
    (("B",), ("B", 1), (F64,)),
    (("B", 1), ("B",), (F64,)),
    (("B", 1), (-1,), (F64,)),
):
    case("Reshape", reshape, tensor(*given), shape(*wanted), dtypes=dtypes)
case("Reshape", reshape, tensor("B", 6), shape("B", 2, 3, dtype=tf.int64))
for wanted in ([3, 2], [-1], [6, 1]):
    case("Reshape", reshape, tensor(2, 3), wanted)
for wanted in ([-1, 2, 3], [-1, 1], [2, -1]):
    case("Reshape", reshape, tensor("B", 6), wanted)

for axis in (0, 1, 2, -1, -3):
    op("ExpandDims", tensor("B", 3), dtypes=KINDS[:2], axis=axis)
    op("ExpandDims", tensor(2, "B"), axis=axis)
op("ExpandDims", tensor(2, 3), axis=1)
for dims, axes in (
    (("B", 1), [1]),
    (("B", 1), [-1]),
    ((1, "B", 1), [0]),
    ((1, "B", 1), [0, 2]),
    ((1, "B", 1), []),
    (("B", 1, 3), []),
    ((1, 3), []),
    ((1, 3), [0]),
):
    op("Squeeze", tensor(*dims), dtypes=KINDS[:2], axis=axes)
for order in ([1, 0, 2], [2, 0, 1], [0, 2, 1], [2, 1, 0]):
    op("Transpose", tensor("B", 2, 3), perm=order)
    op("Transpose", tensor(2, "B", 3), perm=order)
    op("Transpose", tensor(4, 2, 3), perm=order)
    op("ConjugateTranspose", tensor("B", 2, 3), perm=order)
op("Transpose", tensor("B", "B"), perm=[1, 0])

for axis in (0, 1, 2, -1, -3):
    case("Pack", listed("Pack", "values", axis=axis), tensor("B", 3), tensor("B", 3))
    case("Pack", listed("Pack", "values", axis=axis), tensor(3, "B"), tensor(3, "B"))
case("Pack", listed("Pack", "values"), tensor(), tensor(), tensor())
case("Pack", listed("Pack", "values"), tensor(3), tensor(3))
case("Pack", listed("Pack", "values", axis=1), tensor("B"), tensor("B"), dtypes=(tf.int32,))
for axis in (0, 2):
    op("Unpack", tensor(2, "B", 2), axis=axis, num=2)
op("Unpack", tensor("B", 3), dtypes=KINDS, axis=1, num=3)
op("Unpack", tensor("B", 3), axis=-1, num=3)
op("Unpack", tensor(3, 2), axis=0, num=3)

for axis in (0, 1, -1):
    case("ConcatV2", listed("ConcatV2", "values", axis=axis), tensor("B", 3), tensor("B", 3))
    case("ConcatV2", listed("ConcatV2", "values", axis=axis), tensor(2, 3), tensor(2, 3))
case("ConcatV2", listed("ConcatV2", "values", axis=1), tensor("B", 3), tensor("B", 2), dtypes=KINDS)
case("ConcatV2", listed("ConcatV2", "values", axis=0), tensor("B", 3), tensor(2, 3))
case("ConcatV2", listed("ConcatV2", "values", axis=0), tensor(2, "B"), tensor(1, "B"))
case("ConcatV2", listed("ConcatV2", "values", axis=1), tensor(2, "B"), tensor(2, 3))
case("Concat", lambda *x: tf.raw_ops.Concat(concat_dim=1, values=x), tensor("B", 3), tensor("B", 2))
for axis in (1, -1):
    case(
        "Split",
        lambda x, axis=axis: tf.raw_ops.Split(axis=axis, value=x, num_split=2),
        tensor("B", 4),
    )
case("Split", lambda x: tf.raw_ops.Split(axis=0, value=x, num_split=2), tensor(4, "B"))
case("Split", lambda x: tf.raw_ops.Split(axis=0, value=x, num_split=2), tensor("2B", 3))
case("Split", lambda x: tf.raw_ops.Split(axis=0, value=x, num_split=2), tensor(4, 3))
for sizes in ([1, 3], [1, -1], [4, 0]):
    parts = raw("SplitV", axis=1, num_split=2)
    case("SplitV", parts, tensor("B", 4), sizes)
    op("SplitV", tensor(4, "B"), sizes, axis=0, num_split=2)
    op("SplitV", tensor(4, 2), sizes, axis=0, num_split=2)

for begin, length in (([0, 1], [-1, 2]), ([0, 0], [-1, -1]), ([0, 2], [1, 1])):
    op("Slice", tensor("B", 3), begin, length)
    op("Slice", tensor(2, 3), begin, length)
op("Slice", tensor("B", 3), [0, 1], shape("B", 2))
op("Slice", tensor(3, "B"), [1, 0], shape(2, "B"))
op("Slice", tensor("2B", 3), [0, 1], shape("2B", 2))
op("Slice", tensor("2B", 3), [0, 1], shape("B", 2))
op("Slice", tensor("2B", 3), shape("B", 1), shape("B", 2))
op("Slice", tensor("2B", 3), shape("B", 1), [-1, 2])

KEY = {
    "columns": lambda x: x[:, 1:],
    "column": lambda x: x[:, 1],
    "column kept": lambda x: x[:, 1:2],
    "every second": lambda x: x[:, ::2],
    "backwards": lambda x: x[:, ::-1],
    "new first": lambda x: x[None],
    "new in between": lambda x: x[:, None, 1:],
    "new last": lambda x: x[..., None],
    "ellipsis": lambda x: x[..., 1],
    "all": lambda x: x[:],
    "row": lambda x: x[0],
    "last row": lambda x: x[-1],
    "rows from the second": lambda x: x[1:],
    "rows to the last": lambda x: x[:-1],
    "rows backwards": lambda x: x[::-1],
    "every second row": lambda x: x[::2],
}
for key in KEY.values():
    case("StridedSlice", key, tensor("B", 3))
    case("StridedSlice", key, tensor(3, "B"))
    case("StridedSlice", key, tensor("2B", 3))
    case("StridedSlice", key, tensor(2, 3))
case("StridedSlice", lambda x, n: x[:n, 1:], tensor("B", 3), size())
case("StridedSlice", lambda x, n: x[0:n], tensor("B", 3), size())
case("StridedSlice", lambda x, n: x[:n], tensor("2B", 3), size())
case("StridedSlice", lambda x, n: x[n:], tensor("2B", 3), size())
case("StridedSlice", lambda x, n: x[n - 1], tensor("B", 3), size())
case("StridedSlice", lambda x, n: x[n // 2 :], tensor("B", 3), size())
case("StridedSlice", lambda x, n: x[:, :n], tensor(3, "B"), size())

FIRST = {"begin": [0, 1], "end": [0, 3], "strides": [1, 1], "begin_mask": 1, "end_mask": 1}
sliced = raw("StridedSliceGrad")


def slice_gradient(**attributes):
    return lambda s, dy: tf.raw_ops.StridedSliceGrad(shape=s, dy=dy, **attributes)


case("StridedSliceGrad", slice_gradient(**FIRST), shape("B", 3), tensor("B", 2))
case("StridedSliceGrad", slice_gradient(**FIRST), [2, 3], tensor(2, 2))
case(
    "StridedSliceGrad",
    slice_gradient(
        begin=[0, 1], end=[0, 2], strides=[1, 1], begin_mask=1, end_mask=1, shrink_axis_mask=2
    ),
    shape("B", 3),
    tensor("B"),
)
case(
    "StridedSliceGrad",
    slice_gradient(begin=[0], end=[1], strides=[1], shrink_axis_mask=1),
    shape("B", 3),
    tensor(3),
)
case(
    "StridedSliceGrad",
    slice_gradient(begin=[1], end=[2], strides=[1], shrink_axis_mask=1),
    shape(2, "B", 3),
    tensor("B", 3),
)
case(
    "StridedSliceGrad",
    slice_gradient(
        begin=[0, 0], end=[0, 0], strides=[1, 1], begin_mask=3, end_mask=3, new_axis_mask=1
    ),
    shape("B", 3),
    tensor(1, "B", 3),
)

for paddings in ([[0, 0], [1, 2]], [[1, 0], [0, 0]], [[1, 1], [1, 1]]):
    op("Pad", tensor("B", 3), paddings)
    op("Pad", tensor(3, "B"), paddings)
    op("Pad", tensor(2, 3), paddings)
    op("PadV2", tensor("B", 3), paddings, np.float64(0.5))
    op("PadV2", tensor(2, 3), paddings, tensor())
op("MirrorPad", tensor("B", 3), [[0, 0], [1, 2]], mode="REFLECT")
op("MirrorPad", tensor(2, 3), [[0, 0], [1, 2]], mode="SYMMETRIC")
op("MirrorPad", tensor("B", 3), [[1, 0], [0, 0]], mode="SYMMETRIC")
op("MirrorPadGrad", tensor("B", 6), [[0, 0], [1, 2]], mode="SYMMETRIC")

tile = raw("Tile")
for multiples in ([1, 2], [2, 1], [1, 1], [2, 2]):
    case("Tile", tile, tensor("B", 3), multiples)
    case("Tile", tile, tensor(3, "B"), multiples)
    case("Tile", tile, tensor(2, 3), multiples)
case("Tile", tile, tensor(1, 3), shape("B", 1))
case("Tile", tile, tensor(1, 3), shape("B", 2))
case("Tile", tile, tensor(1, 3), shape("2B", 1))
case("Tile", tile, tensor(2, 3), shape("B", 1))
case("Tile", tile, tensor(3, 1), shape(1, "B"))
case("Tile", tile, tensor(1, 3), shape("B", 1, dtype=tf.int64))
for dims, wanted in (
    (("B", 3), ("B", 3)),
    (("B", 1), ("B", 3)),
    ((3,), ("B", 3)),
    ((1, 3), ("B", 3)),
    ((1,), ("2B",)),
    (("B", 3), (2, "B", 3)),
    ((3, 1), (3, "B")),
    ((), ("B",)),
):
    op("BroadcastTo", tensor(*dims), shape(*wanted))
op("BroadcastTo", tensor(3), [2, 3])
op("BroadcastTo", tensor("B", 3), shape("B", 3, dtype=tf.int64))
for wanted in (("B",), ("B", 3), (3, "B"), ("2B", 2)):
    op("Fill", shape(*wanted), np.float64(0.5))
    op("Fill", shape(*wanted), tensor(), dtypes=KINDS[:2])
op("Fill", [2, 3], tensor())
for axes in ([1], [0], [-1], [0, 1]):
    op("ReverseV2", tensor("B", 3), axis=axes)
    op("ReverseV2", tensor(3, "B"), axis=axes)
op("ReverseV2", tensor(2, 3), axis=[1])
for shift, axes in (([1], [1]), ([1], [0])):
    op("Roll", tensor("B", 3), shift=shift, axis=axes)
op("SpaceToBatchND", tensor("B", 4, 2), [2], [[0, 0]])

# Sizes, seen by what they are used for.

SIZES = {
    "StridedSlice": lambda x: tf.ones(tf.shape(x)[0]) * 2.0,
    "Pack": lambda x: tf.zeros(tf.stack([tf.shape(x)[0], 2])),
    "Mul": lambda x: tf.reshape(x, [tf.shape(x)[0] * tf.shape(x)[1], 1]),
    "FloorDiv": lambda x: tf.reshape(x, [tf.size(x) // tf.shape(x)[1], tf.shape(x)[1]]),
    "ConcatV2": lambda x: tf.fill(tf.concat([tf.shape(x)[:1], [2]], 0), 3),
    "Prod": lambda x: tf.reshape(x, [tf.reduce_prod(tf.shape(x))]),
    "Sub": lambda x: tf.fill([tf.shape(x)[0] * 2 - tf.shape(x)[0]], 1),
    "AddV2": lambda x: tf.fill([tf.shape(x)[0] + 1], 1),
    "Maximum": lambda x: tf.fill([tf.maximum(tf.shape(x)[0], 1)], 1),
    "Cast": lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], F64),
    "Range": lambda x: tf.cast(tf.range(tf.shape(x)[0]), F64)[:, None] * x,
    "GatherV2": lambda x: tf.fill(tf.gather(tf.shape(x), [1, 0]), 2),
    "ExpandDims": lambda x: tf.fill(tf.expand_dims(tf.shape(x)[0], 0), 2),
    "Squeeze": lambda x: tf.fill([tf.squeeze(tf.shape(x)[:1], [0])], 2),
    "Unpack": lambda x: tf.fill([tf.unstack(tf.shape(x))[0], 2], 2),
    "Slice": lambda x: tf.fill(tf.slice(tf.shape(x), [0], [1]), 2),
    "Reshape": lambda x: tf.fill(tf.reshape(tf.shape(x)[0], [1]), 2),
    "Identity": lambda x: tf.fill(tf.identity(tf.shape(x)), 2),
    "Equal": lambda x: tf.where(tf.equal(tf.shape(x)[0], 3), x, 2.0 * x),
    "SelectV2": lambda x: tf.fill([tf.where(tf.shape(x)[0] > 3, tf.shape(x)[0], 7)], 2),
    "BroadcastArgs": lambda x: tf.broadcast_to(
        tf.constant(1.0, F64), tf.broadcast_dynamic_shape(tf.shape(x), tf.constant([1, 1]))
    ),
    "Fill": lambda x: tf.tile(x, tf.fill([2], tf.shape(x)[1])),
    "Minimum": lambda x: x[: tf.minimum(tf.shape(x)[0], 3)],
    "Less": lambda x: tf.cond(tf.shape(x)[0] < 3, lambda: x, lambda: 2.0 * x),
    "Sum": lambda x: tf.fill([tf.reduce_sum(tf.shape(x)[:1])], 2),
    "Size": lambda x: tf.reshape(x, [tf.size(x)]),
    "Rank": lambda x: tf.fill([tf.raw_ops.Rank(input=x)], 2),
    "Neg": lambda x: tf.fill([tf.negative(tf.negative(tf.shape(x)[0]))], 2),
    "FloorMod": lambda x: tf.fill([tf.shape(x)[0] % 3], 2),
}
for kind, function in SIZES.items():
    case(kind, function, tensor("B", 3))
    case(kind, function, tensor("2B", 3))
    case(kind, function, tensor(2, "B"))
SEVERAL = {
    "DynamicStitch": lambda x: tf.reshape(
        x, tf.dynamic_stitch([[0], [1]], [tf.shape(x)[:1], tf.shape(x)[1:]])
    ),
    "ConcatOffset": lambda x: tf.gradients(tf.square(tf.concat([x, 2.0 * x], 1)), x),
    "BroadcastGradientArgs": lambda x: [
        tf.reduce_sum(x, axes)
        for axes in tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=tf.shape(x[:, :1]))
    ],
    "ShapeN": lambda x: [tf.fill(s, 1) for s in tf.shape_n([x, x[:, :1]])],
    "Shape": lambda x: [tf.shape(x), tf.fill(tf.shape(x), 1), tf.cast(tf.shape(x), F64) * x[0, 0]],
    "Bitcast": lambda x: tf.bitcast(tf.shape(x), tf.float32),
}
# Sizes that grow with few rows, and then no more, or from some number on.
SEVERAL |= {
    "Tile": lambda x: tf.tile(x, [1, tf.minimum(tf.shape(x)[0], 3)]),
    "StridedSlice": lambda x: x[:, : tf.minimum(tf.shape(x)[0], 2)],
    "TopKV2": lambda x: tf.math.top_k(x, tf.minimum(tf.shape(x)[0], 2)).values,
    "OneHot": lambda x: tf.one_hot(tf.argmax(x, 1), tf.minimum(tf.shape(x)[0], 3)),
    "Maximum": lambda x: tf.fill([tf.maximum(tf.shape(x)[0], 4), 2], 1),
    "Minimum": lambda x: x * tf.cast(tf.minimum(tf.shape(x)[0], 3), F64),
    "Sub": lambda x: tf.fill([tf.maximum(tf.shape(x)[0] - 3, 0), 2], 1),
    "Fill": lambda x: tf.fill([2, tf.minimum(tf.shape(x)[0], 3)], x[0, 0]),
    "Sum": lambda x: tf.reduce_sum(tf.fill([2, tf.shape(x)[0]], 1)),
    "FloorDiv": lambda x: tf.fill([tf.shape(x)[0] // 2], 1),
    "FloorMod": lambda x: tf.fill([2, tf.shape(x)[0] % 2 + 1], 1),
}
for kind, function in SEVERAL.items():
    case(kind, function, tensor("B", 3))
for kind in ("Reshape", "Pack", "ConcatV2", "Squeeze", "ExpandDims"):
    as_truths = {"dtype": tf.bool, "of": truths}
    moves = {
        "Reshape": lambda x: tf.reshape(x, [-1]),
        "Pack": lambda x: tf.stack([x, x], 1),
        "ConcatV2": lambda x: tf.concat([x, x], 1),
        "Squeeze": lambda x: tf.squeeze(x[:, :1], 1),
        "ExpandDims": lambda x: tf.expand_dims(x, 1),
    }
    case(kind, moves[kind], tensor("B", 3, **as_truths))
    case(kind, moves[kind], tensor(2, 3, dtype=tf.int32, of=between(0, 4)))
    case(kind, moves[kind], tensor("B", 3, of=apart))
