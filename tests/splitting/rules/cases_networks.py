"""Cases of losses, quantisation, normalisation by given statistics, and recurrent cells."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import indices, positive, raw, tensor, unit

FAMILY = harness.Family("networks")
case = FAMILY.case
op = FAMILY.op

F64, F32 = tf.float64, tf.float32

for kind in ("Softmax", "LogSoftmax"):
    for dims in (("B", 3), (2, "B"), (2, 3), ("2B", 3), (3, "B", 2)):
        op(kind, tensor(*dims), dtypes=(F64, F32))
cross = "SoftmaxCrossEntropyWithLogits"
for first, second in (
    (("B", 3), ("B", 3)),
    (("B", 3), (1, 3)),
    (("B", 1), ("B", 3)),
    ((2, 3), (2, 3)),
    ((2, "B"), (2, "B")),
):
    op(cross, tensor(*first), tensor(*second, of=unit), dtypes=(F64, F32))
sparse = "SparseSoftmaxCrossEntropyWithLogits"
for dtype in (tf.int32, tf.int64):
    op(sparse, tensor("B", 3), indices("B", dtype=dtype), dtypes=(F64, F32))
op(sparse, tensor(2, 3), indices(2))
op(sparse, tensor(2, "B"), indices(2, below=1))
op(sparse, tensor("2B", 3), indices("2B"))


def negative(numbers, shape):
    """Ends of ranges that some values, from -1 to 1, are below."""
    return -unit(numbers, shape)


quantised = "FakeQuantWithMinMax"
for dims in (("B", 3), (2, "B"), ("2B", 3, 2, 2), (2, 3)):
    x, dy = tensor(*dims), tensor(*dims)
    op(f"{quantised}Args", x, dtypes=(F32,), min=-0.4, max=0.6)
    by_args = raw(f"{quantised}ArgsGradient", min=-0.4, max=0.6)
    case(f"{quantised}ArgsGradient", by_args, dy, x, dtypes=(F32,))
    for each, ends in (("", ()), ("PerChannel", dims[-1:])):
        low, high = tensor(*ends, of=negative), tensor(*ends, of=unit)
        of_range = f"{quantised}Vars{each}"
        op(of_range, x, low, high, dtypes=(F32,))
        op(f"{of_range}Gradient", dy, x, low, high, dtypes=(F32,))

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


# Recurrent cells, of two units.

LSTM = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
WEIGHTS = [tensor(*dims, dtype=F32) for dims in ((5, 8), (2,), (2,), (2,), (8,))]
OF_GATES = [tensor(*dims, dtype=F32) for dims in ((5, 4), (5, 2), (4,), (2,))]


def steps(kind, number, **options):
    """All steps of an LSTM, and the gradients by all that it reads."""
    of_gradient = kind.replace("LSTM", "LSTMGrad")
    peepholes = {"use_peephole": options.get("use_peephole", False)}

    def make(*operands):
        read = {"seq_len_max": np.int64(number), **dict(zip(LSTM, operands, strict=True))}
        made = getattr(tf.raw_ops, kind)(**read, **options)
        gradients = {"cs_grad": tf.sin(made.cs), "h_grad": tf.sin(made.h)}
        gradient = getattr(tf.raw_ops, of_gradient)
        return [made.h, made.cs, *gradient(**read, **made._asdict(), **gradients, **peepholes)]

    return make


for kind in ("BlockLSTM", "BlockLSTMV2"):
    both = f"{kind} {kind.replace('LSTM', 'LSTMGrad')}"
    options = {"cell_clip": 0.5, "use_peephole": True}
    states = [tensor("B", 2, dtype=F32), tensor("B", 2, dtype=F32)]
    case(both, steps(kind, 3, **options), tensor(3, "B", 3, dtype=F32), *states, *WEIGHTS)
    case(both, steps(kind, 2), tensor(3, "B", 3, dtype=F32), *states, *WEIGHTS)
    states = [tensor(4, 2, dtype=F32), tensor(4, 2, dtype=F32)]
    case(both, steps(kind, 1), tensor("B", 4, 3, dtype=F32), *states, *WEIGHTS)


def lstm_step(x, cs, h, *more):
    """One step of an LSTM, and its gradient."""
    *weights, cs_grad, h_grad = more
    read = dict(zip(LSTM, (x, cs, h, *weights), strict=True))
    made = tf.raw_ops.LSTMBlockCell(**read)
    kept = {name: getattr(made, name) for name in ("i", "cs", "f", "o", "ci", "co")}
    more = {"cs_grad": cs_grad, "h_grad": h_grad, "use_peephole": False}
    return [made.h, made.cs, *tf.raw_ops.LSTMBlockCellGrad(**read, **kept, **more)]


def gru_step(x, h, *more):
    """One step of a GRU, and its gradient."""
    *weights, gradient = more
    read = dict(zip(("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c"), (x, h, *weights), strict=True))
    made = tf.raw_ops.GRUBlockCell(**read)
    kept = {name: getattr(made, name) for name in ("r", "u", "c")}
    return [made.h, *tf.raw_ops.GRUBlockCellGrad(**read, **kept, d_h=gradient)]


for rows in ("B", 4):
    x, h = tensor(rows, 3, dtype=F32), tensor(rows, 2, dtype=F32)
    case("LSTMBlockCell LSTMBlockCellGrad", lstm_step, x, h, h, *WEIGHTS, h, h)
    case("GRUBlockCell GRUBlockCellGrad", gru_step, x, h, *OF_GATES, h)
