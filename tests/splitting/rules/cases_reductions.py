"""Cases of operations that reduce, or go along, an axis."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import (
    among,
    apart,
    between,
    indices,
    positive,
    raw,
    real,
    some_nan,
    tensor,
    truths,
)

FAMILY = harness.Family("reductions")
case = FAMILY.case
op = FAMILY.op

F64, F32 = tf.float64, tf.float32


def reductions(kind, of=real, dtype=F64, dtypes=(F64,)):
    """All axes, kept or not, with rows on each."""
    for axes in ([0], [1], [0, 1], [-1], [], 0):
        for keeps in (False, True):
            function = raw(kind, axis=np.array(axes, np.int32), keep_dims=keeps)
            if keeps and axes in ([], 0):
                continue
            dtypes_ = dtypes if axes == [0] else (dtype,)
            case(kind, function, tensor("B", 3, of=of), dtypes=dtypes_)
            case(kind, function, tensor(2, "2B", of=of), dtypes=(dtype,))
            case(kind, function, tensor(2, 3, of=of), dtypes=(dtype,))
    op(kind, tensor("B", 3, 2, of=of), dtypes=(dtype,), axis=[0, 2])
    op(kind, tensor(3, "B", 2, of=of), dtypes=(dtype,), axis=[1, 2])
    op(kind, tensor("B", "B", of=of), dtypes=(F64,), axis=[0]) if of is real else None


for kind in ("Sum", "Mean", "Max", "Min"):
    reductions(kind, dtypes=(F64, F32, tf.half))
    reductions(kind, between(-9, 9), tf.int32)
for kind in ("Max", "Min"):  # what is no number is the largest and the smallest of all
    for axis in ([0], [1], [0, 1]):
        op(kind, tensor("B", 3, of=some_nan), dtypes=(F64, F32, tf.half), axis=axis)
reductions("Prod", positive)
reductions("EuclideanNorm")
for kind in ("All", "Any"):
    reductions(kind, truths, tf.bool, (tf.bool,))
op("Sum", tensor("B", 3), dtypes=(tf.complex128,), axis=[0])
op("Mean", tensor("B", 3), dtypes=(tf.complex128,), axis=[0])
case("Sum", lambda x: tf.reduce_sum(x), tensor("B", 3))
case("Sum", lambda x: tf.reduce_sum(x, tf.range(tf.rank(x))), tensor("B", 3))
case("Mean", lambda x: tf.math.reduce_variance(x, 0), tensor("B", 3))
case("Max", lambda x: tf.reduce_logsumexp(x, 0), tensor("B", 3))
case("Max", lambda x: tf.reduce_logsumexp(x, 1), tensor("B", 3))

for kind in ("ArgMax", "ArgMin"):
    for axis in (0, 1, -1):
        op(kind, tensor("B", 3, of=apart), dtypes=(F64, F32), dimension=axis)
        op(kind, tensor(3, "B", of=apart), dimension=axis)
    op(kind, tensor(2, 3, of=apart), dimension=1)
    op(kind, tensor(2, 3, "B", of=apart), dimension=1)
    op(kind, tensor("B", 3, 2, of=apart), dimension=1, output_type=tf.int32)
for kind in ("Cumsum", "Cumprod", "CumulativeLogsumexp"):
    for axis in (0, 1, -1):
        for options in ({}, {"exclusive": True}, {"reverse": True}):
            op(kind, tensor("B", 3), axis=axis, **options)
        op(kind, tensor(3, "B"), axis=axis)
        op(kind, tensor(2, 3), axis=axis)
op("L2Loss", tensor("B", 3), dtypes=(F64, F32))
op("L2Loss", tensor(2, "B"))
op("L2Loss", tensor(2, 3))
op("BiasAddGrad", tensor("B", 3), dtypes=(F64, F32))
op("BiasAddGrad", tensor("B", 2, 2, 3))
op("BiasAddGrad", tensor(2, "B"))
op("BiasAddGrad", tensor(2, "B", 3))
op("BiasAddGrad", tensor(2, 3))
op("BiasAddGrad", tensor("B", 3, 2, 2), data_format="NCHW")
op("BiasAddGrad", tensor(2, "B", 2, 2), data_format="NCHW")

op("HistogramFixedWidth", tensor("B"), np.array([-1.0, 1.0]), 4)
op("HistogramFixedWidth", tensor("B", 2), np.array([-1.0, 1.0]), 4)
for dims in (("B",), ("2B",)):
    weights = tensor(*dims)
    op("Bincount", indices(*dims), 4, weights)
    op("DenseBincount", indices(*dims), 4, weights)
op("DenseBincount", indices("B", 3), 4, tensor("B", 3))
binary = raw("DenseBincount", binary_output=True)
case("DenseBincount", binary, indices("B"), 4, tensor("B"))
case("DenseBincount", binary, indices("B", 3), 4, tensor("B", 3))
case("DenseBincount", lambda x: tf.math.bincount(x, minlength=4, maxlength=4), indices("B"))
for batch, along, dims in (
    (0, 1, ("B", 4)),
    (1, 0, (4, "B")),
    (0, 2, ("B", 2, 4)),
    (1, 2, (2, "B", 4)),
):
    reverse = raw("ReverseSequence", seq_dim=along, batch_dim=batch)
    case("ReverseSequence", reverse, tensor(*dims), indices("B", below=5))
    if batch:
        continue
    op("ReverseSequence", tensor(4, 3), indices(3), seq_dim=0, batch_dim=1)
op("Reverse", tensor("B", 3), np.array([False, True]))
op("Reverse", tensor("B", 3), np.array([True, False]))
op("Reverse", tensor(2, 3), np.array([True, False]))
case(
    "Sum",
    lambda x: tf.reduce_sum(tf.strings.length(x), 0),
    tensor("B", 2, dtype=tf.string, of=among("a", "bcd")),
)
