"""Cases of normalisation by statistics that are given, and of softmax and its losses."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import indices, positive, raw, tensor, unit

FAMILY = harness.Family("normalisation")
case = FAMILY.case

F64, F32 = tf.float64, tf.float32

for kind in ("Softmax", "LogSoftmax"):
    for dims in (("B", 3), (2, "B"), (2, 3), ("2B", 3), (3, "B", 2)):
        case(kind, raw(kind), tensor(*dims), dtypes=(F64, F32))
cross = "SoftmaxCrossEntropyWithLogits"
for first, second in (
    (("B", 3), ("B", 3)),
    (("B", 3), (1, 3)),
    (("B", 1), ("B", 3)),
    ((2, 3), (2, 3)),
    ((2, "B"), (2, "B")),
):
    case(cross, raw(cross), tensor(*first), tensor(*second, of=unit), dtypes=(F64, F32))
sparse = "SparseSoftmaxCrossEntropyWithLogits"
for dtype in (tf.int32, tf.int64):
    case(sparse, raw(sparse), tensor("B", 3), indices("B", dtype=dtype), dtypes=(F64, F32))
case(sparse, raw(sparse), tensor(2, 3), indices(2))
case(sparse, raw(sparse), tensor(2, "B"), indices(2, below=1))
case(sparse, raw(sparse), tensor("2B", 3), indices("2B"))

for kind in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
    many = {} if kind == "FusedBatchNorm" else {"dtype": F32}
    for is_training in (True, False):
        function = raw(kind, is_training=is_training)

        def first_three(*operands, function=function):
            return function(*operands)[:3]

        given = [tensor(2, of=positive, **many), tensor(2, **many)]
        start = [np.zeros(0, np.float32)] * 2
        if not is_training:
            start = [tensor(2, **many), tensor(2, of=positive, **many)]
        x = tensor("B", 2, 3, 2, **many)
        case(kind, first_three, x, *given, *start, dtypes=(F32,))


def gradients(kind, is_training, data_format="NHWC"):
    """The gradients of a normalisation, of the statistics that it itself has kept."""

    def make(dy, x, scale):
        forward = getattr(tf.raw_ops, kind)(
            x=x,
            scale=scale,
            offset=tf.zeros([2]),
            mean=tf.zeros([0]) if is_training else tf.fill([2], 0.1),
            variance=tf.zeros([0]) if is_training else tf.fill([2], 0.7),
            is_training=is_training,
            data_format=data_format,
        )
        kept = {f"reserve_space_{n + 1}": found for n, found in enumerate(forward[3:])}
        return getattr(tf.raw_ops, kind.replace("Norm", "NormGrad"))(
            y_backprop=dy,
            x=x,
            scale=scale,
            is_training=is_training,
            data_format=data_format,
            **kept,
        )[:3]

    return make


for kind in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
    for is_training in (True, False):
        made = kind.replace("Norm", "NormGrad")
        pictures = [tensor("B", 2, 3, 2, dtype=F32) for _ in range(2)]
        scale = tensor(2, dtype=F32, of=positive)
        case(made, gradients(kind, is_training), *pictures, scale, dtypes=(F32,))
