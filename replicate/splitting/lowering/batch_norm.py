"""Batch normalisation in training, written as the sums that it is made of.

The kernels of fused operations take mean and variance of all rows that they have. Written as plain
operations, the sums over rows are parts on the devices, which are joined, and the rest is split.

For x of N entries per channel, over all dimensions but the channels':

    mean = sum(x) / N,  variance = sum((x - mean)^2) / N
    y = (x - mean) * scale / sqrt(variance + epsilon) + offset

and with dy the gradient by y, s = 1 / sqrt(variance + epsilon), p = sum(dy * (x - mean)):

    doffset = sum(dy),  dscale = p * s
    dx = scale * s * (dy - doffset / N - (x - mean) * s^2 * p / N)

(Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167.)
"""

import contextlib
from collections.abc import Collection

from replicate.compat.tensorflow import tf
from replicate.splitting.structure import replacing
from replicate.splitting.structure.replacing import Moved

_FORWARD = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_BACKWARD = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
_PASSED = ("Identity", "Switch", "Merge", "OptionalFromValue", "OptionalGetValue")


def lower(graph: tf.Graph, ops: Collection[tf.Operation]) -> Moved:
    """Writes fused batch normalisations in training as plain operations.

    Whatever reads their outputs then reads those of the new operations, but for what forward
    operations reserve for their gradients: that means different things on different devices.
    Operations in loops stay as they are.

    Args:
        graph: The graph.
        ops: The operations among which to look.

    Returns:
        The new tensors, by the `ref()` of those that they stand for.
    """
    wanted = set(ops)
    fused = [
        op
        for op in graph.get_operations()
        if op in wanted and op.type in _FORWARD + _BACKWARD and _is_lowered(op)
    ]
    moved: Moved = {}
    moments: dict[tf.Operation, _Moments] = {}
    for op in fused:
        if op.type in _FORWARD:
            with _written_for(op):
                moments[op], outputs = _forward(op)
            moved |= replacing.replace(op, outputs)
    for op in fused:
        if op.type in _BACKWARD and _is_of_training(op):
            with _written_for(op):
                outputs = _backward(op, moments.get(_before_identities(op.inputs[3]).op))
            moved |= replacing.replace(op, outputs)
    return moved


class _Moments:
    """Mean and variance of each channel.

    Args:
        op: A fused operation.
        x: Its input, of float32.

    Attributes:
        axes: All dimensions but the channels'.
        mean: Of shape [1, ..., C, ..., 1].
        variance: Biased, of the same shape.
    """

    def __init__(self, op: tf.Operation, x: tf.Tensor):
        layout = op.get_attr("data_format").decode()
        self.axes = [axis for axis, letter in enumerate(layout) if letter != "C"]
        self.mean = tf.reduce_mean(x, self.axes, keepdims=True)
        squares = tf.math.squared_difference(x, self.mean)
        self.variance = tf.reduce_mean(squares, self.axes, keepdims=True)


def _forward(op: tf.Operation) -> tuple[_Moments, list[tf.Tensor]]:
    x, scale, offset, old_mean, old_variance = (_as_float(tensor) for tensor in op.inputs)
    moments = _Moments(op, x)
    factor = _by_channel(scale, moments) * _inverse_deviation(op, moments)
    y = (x - moments.mean) * factor + _by_channel(offset, moments)
    mean, biased = (tf.reshape(each, [-1]) for each in (moments.mean, moments.variance))
    number = _number(x, scale)
    variance = biased * (number / tf.maximum(number - 1.0, 1.0))
    share = op.get_attr("exponential_avg_factor") if _has(op, "exponential_avg_factor") else 1.0
    if share != 1.0:
        mean = old_mean * (1.0 - share) + mean * share
        variance = old_variance * (1.0 - share) + variance * share
    return moments, _as_outputs(op, [y, mean, variance])


def _backward(op: tf.Operation, moments: _Moments | None) -> list[tf.Tensor]:
    gradient, x, scale = (_as_float(tensor) for tensor in op.inputs[:3])
    if moments is None:
        moments = _Moments(op, x)
    axes, inverse = moments.axes, _inverse_deviation(op, moments)
    centered = x - moments.mean
    to_offset = tf.reduce_sum(gradient, axes, keepdims=True)
    product = tf.reduce_sum(gradient * centered, axes, keepdims=True)
    number = _number(x, scale)
    slope = product * tf.square(inverse) / number
    inner = gradient - to_offset / number - centered * slope
    to_x = inner * (_by_channel(scale, moments) * inverse)
    to_scale, to_offset = (tf.reshape(each, [-1]) for each in (product * inverse, to_offset))
    return _as_outputs(op, [to_x, to_scale, to_offset])


def _inverse_deviation(op: tf.Operation, moments: _Moments) -> tf.Tensor:
    return tf.math.rsqrt(moments.variance + op.get_attr("epsilon"))


def _number(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Returns how many entries each channel has, as float32."""
    size, channels = (tf.size(each, out_type=tf.int64) for each in (x, scale))
    return tf.cast(size // tf.maximum(channels, 1), tf.float32)


def _by_channel(parameter: tf.Tensor, moments: _Moments) -> tf.Tensor:
    """Returns a parameter of shape [C] so that it is broadcast along the channels of x."""
    rank = len(moments.axes) + 1
    if rank - 1 not in moments.axes:
        return parameter
    return tf.reshape(parameter, [1 if axis in moments.axes else -1 for axis in range(rank)])


def _as_float(tensor: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.dtype == tf.float32 else tf.cast(tensor, tf.float32)


def _as_outputs(op: tf.Operation, values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Casts values to the dtypes of an operation's first outputs."""
    return [
        value if value.dtype == old.dtype else tf.cast(value, old.dtype)
        for old, value in zip(op.outputs, values, strict=False)
    ]


# What is written anew, and where.


def _has(op: tf.Operation, attribute: str) -> bool:
    return attribute in op.node_def.attr


def _is_lowered(op: tf.Operation) -> bool:
    context = op._get_control_flow_context()
    while context is not None:
        if context.IsWhileContext():
            return False
        context = context.outer_context
    return op.get_attr("is_training")


def _is_of_training(op: tf.Operation) -> bool:
    """Whether a gradient reads mean and variance as one operation in training reserved them."""
    source = _source(op.inputs[3], 3)
    return source is not None and source is _source(op.inputs[4], 4)


def _before_identities(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _source(reserved: tf.Tensor, n: int) -> tf.Operation | None:
    """Returns the operation in training, if any, whose output n a gradient's input comes from."""
    waiting, seen = [reserved], set()
    while waiting:
        tensor = waiting.pop()
        if tensor.op.type in _FORWARD and tensor.value_index == n:
            return tensor.op if tensor.op.get_attr("is_training") else None
        if tensor.op in seen or tensor.op.type not in _PASSED:
            continue
        seen.add(tensor.op)
        waiting.extend(tensor.op.inputs[:1] if tensor.op.type == "Switch" else tensor.op.inputs)
    return None


def _written_for(op: tf.Operation) -> contextlib.AbstractContextManager[None]:
    """Makes operations like another one: on its device, in its branch, after what it waits for."""
    context = op._get_control_flow_context()
    return replacing.written(f"{op.name}/split/", op.graph, op.device, context, _awaited(op))


def _awaited(op: tf.Operation) -> list[tf.Operation]:
    """Returns what an operation waits for, besides what it is certain to compute with.

    NOTE: TensorFlow lets an operation wait through its inputs where these wait already; of old
    statistics, which may be constants made for it alone, nothing may be left that is read.
    """
    old = [tensor.op for tensor in op.inputs[3:]] if op.type in _FORWARD else []
    return [*op.control_inputs, *(each for each in old if each.inputs or each.control_inputs)]
