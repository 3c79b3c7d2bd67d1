"""As what tensors travel between workers, and which of them share a transfer."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf

# Tensors of one dtype share a transfer, up to this many bytes of them.
PACK_BYTES = 1 << 22
_PIECE_BYTES = 1 << 17
# Tensors of several dtypes share one, too, as float64: those of up to this many bytes as such.
MIXED_BYTES = 1 << 12

# What collectives cannot add up travels as something that they can.
_CARRIERS = {
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.bfloat16: tf.float32,
}
_CARRIED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_EXACT = (tf.float16, tf.float32, tf.float64, tf.int32)  # in float64


def pack_bytes(workers: int) -> int:
    """Returns up to how many bytes tensors share a transfer of a ring of W workers.

    A ring cuts a pack into W pieces, each a message: one of 128 KiB takes as long as a message's
    latency of 0.1 ms at 10 Gbit/s.
    """
    return max(PACK_BYTES, workers * _PIECE_BYTES)


def packs(tensors: Sequence[tf.Tensor], most: int = PACK_BYTES) -> list[list[int]]:
    """Returns which tensors travel together: those of one dtype whose shapes are known.

    Args:
        tensors: N dense tensors.
        most: Up to how many bytes; 0: each one travels by itself.
    """
    packs: list[list[int]] = []
    open_packs: dict = {}
    for n, tensor in enumerate(tensors):
        if not tensor.shape.is_fully_defined():
            packs.append([n])
            continue
        size = tensor.shape.num_elements() * tensor.dtype.size
        members, held = open_packs.get(tensor.dtype, (None, 0))
        if members is None or held + size > most:
            members, held = [], 0
            packs.append(members)
        members.append(n)
        open_packs[tensor.dtype] = (members, held + size)
    return packs


def of_few_dtypes(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns tensors of which small ones are float64, if they are of several dtypes."""
    small = {
        n
        for n, tensor in enumerate(tensors)
        if tensor.dtype in _EXACT
        and tensor.shape.is_fully_defined()
        and tensor.shape.num_elements() * tf.float64.size <= MIXED_BYTES
    }
    if len({tensors[n].dtype for n in small}) < 2:
        return list(tensors)
    return [tf.cast(t, tf.float64) if n in small else t for n, t in enumerate(tensors)]


def is_sent(value: Any) -> bool:
    """Whether workers can send a value to each other: it is a number."""
    dtype = value.dtype
    return dtype in _CARRIED or dtype in _CARRIERS or dtype.is_complex or dtype == tf.uint64


def carried(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor as collectives add it up."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype in _CARRIED:
        return tensor
    if tensor.dtype.is_complex:
        return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
    if tensor.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    if tensor.dtype in _CARRIERS:
        return tf.cast(tensor, _CARRIERS[tensor.dtype])
    raise TypeError(
        f"Workers join numbers: {tensor.name} is of {tensor.dtype.name}. Keep it in each worker."
    )


def restored(tensor: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Returns what `carried` has changed in the dtype that it had."""
    if before.dtype.is_complex:
        return tf.complex(tensor[0], tensor[1])
    if before.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.uint64)
    return tensor if tensor.dtype == before.dtype else tf.cast(tensor, before.dtype)


def lengthened(tensor: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with as many rows, of which the last are zeros."""
    missing = size - tf.shape(tensor)[0]
    after = tf.concat([[missing], tf.zeros([tf.rank(tensor) - 1], tf.int32)], 0)
    longer = tf.pad(tensor, tf.stack([tf.zeros_like(after), after], 1))
    longer.set_shape([None, *tensor.shape[1:]])
    return longer
