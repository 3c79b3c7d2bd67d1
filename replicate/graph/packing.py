"""How many tensors travel: which of them share a transfer, and as numbers of what dtype."""

import math
from collections.abc import Sequence

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.graph import reductions

# Between devices tensors of up to this size share a transfer: one costs more than its bytes.
SMALL_BYTES = 1 << 16
# An Optional holds up to so many: the time of TensorFlow's inference of shapes grows with the cube.
_OPTIONAL_SIZE = 16
# Between workers tensors of one dtype share a transfer, up to this many bytes of them.
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


class Packing:
    """Which of N tensors travel together, flat and end to end.

    Those of a pack that are alike but for their first dimension are put end to end as they are, so
    that few operations make a pack. A tensor whose shape only a run tells travels alone.

    Args:
        rows: K x N dense tensors; a column has one shape and dtype.
        each: A tensor of up to this many bytes shares its transfer with others of its dtype; of
            0 none does.
        together: Up to how many bytes share one transfer.

    Attributes:
        packs: The numbers of the columns that share a transfer: one list for each.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[tf.Tensor]],
        each: float = math.inf,
        together: float = math.inf,
    ):
        columns = [reductions.require_alike(column) for column in zip(*rows, strict=True)]
        self._shapes = [_static_shape(column) for column in columns]
        self.packs: list[list[int]] = []
        opened: dict[tf.DType, tuple[list[int], float]] = {}
        for n, (column, shape) in enumerate(zip(columns, self._shapes, strict=True)):
            dtype = column[0].dtype
            size = shape.num_elements() * dtype.size if shape.is_fully_defined() else math.inf
            if not 0 < each >= size:
                self.packs.append([n])
                continue
            members, held = opened.get(dtype, ([], 0.0))
            if not members or held + size > together:
                members, held = [], 0.0
                self.packs.append(members)
            members.append(n)
            opened[dtype] = members, held + size
        self._alike = [self._only_in_length(members) for members in self.packs]

    def pack(
        self, row: Sequence[tf.Tensor], device: str | None = None, counts: bool | tf.Tensor = True
    ) -> list[tf.Tensor]:
        """Returns M <= N tensors that hold a row's N, packed on the row's device.

        Args:
            row: The N tensors.
            device: The row's device.
            counts: Whether the row counts, a bool or of shape []; otherwise all is zero.
        """
        with reductions.on(device):
            packed = [
                _end_to_end([[row[n] for n in columns] for columns in alike])
                if len(members) > 1
                else row[members[0]]
                for members, alike in zip(self.packs, self._alike, strict=True)
            ]
            return reductions.masked(packed, counts)

    def unpack(self, packed: Sequence[tf.Tensor], device: str | None = None) -> list[tf.Tensor]:
        """Returns a row's N tensors again, on the row's device."""
        row: dict[int, tf.Tensor] = {}
        with reductions.on(device):
            for members, alike, tensor in zip(self.packs, self._alike, packed, strict=True):
                row.update(self._cut(alike, tensor) if len(members) > 1 else {members[0]: tensor})
        return [row[n] for n in range(len(row))]

    def _only_in_length(self, members: Sequence[int]) -> list[list[int]]:
        """Returns the columns of a pack: lists of those that only differ in length."""
        alike: dict[tuple[int, ...] | None, list[int]] = {}
        for n in members:
            shape = self._shapes[n]
            alike.setdefault(tuple(shape[1:].as_list()) if shape.rank else None, []).append(n)
        return list(alike.values())

    def _cut(self, alike: Sequence[Sequence[int]], flat: tf.Tensor) -> dict[int, tf.Tensor]:
        """Returns the tensors of one pack again, by their columns."""
        sizes = [sum(self._shapes[n].num_elements() for n in columns) for columns in alike]
        found: dict[int, tf.Tensor] = {}
        for columns, part in zip(alike, _split(flat, sizes), strict=True):
            shapes = [self._shapes[n].as_list() for n in columns]
            if not shapes[0]:
                parts = tf.unstack(part, len(columns))
            else:
                lengths, inner = [shape[0] for shape in shapes], shapes[0][1:]
                joined = tf.reshape(part, [sum(lengths), *inner]) if inner else part
                parts = _split(joined, lengths)
            found.update(zip(columns, parts, strict=True))
        return found


def sent(tensors: Sequence[tf.Tensor], source: str | None, target: str | None) -> list[tf.Tensor]:
    """Returns tensors as one device gets them from another: in a graph, in few transfers.

    Args:
        tensors: N tensors of the source, of any dtypes and shapes.
        source: Canonical name of the device that sends.
        target: Canonical name of the device that receives.
    """
    if source == target or not source or not target or len(tensors) < 2 or tf.executing_eagerly():
        return list(tensors)
    found: list[tf.Tensor] = []
    for begin in range(0, len(tensors), _OPTIONAL_SIZE):
        held = list(tensors[begin : begin + _OPTIONAL_SIZE])
        types_, shapes = [t.dtype for t in held], [t.shape for t in held]
        with reductions.on(source):
            optional = tf.raw_ops.OptionalFromValue(components=held)
        with reductions.on(target):
            found += tf.raw_ops.OptionalGetValue(
                optional=optional, output_types=types_, output_shapes=shapes
            )
    return found


def _end_to_end(alike: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
    """Returns tensors of one dtype, flat, one after the other.

    Args:
        alike: Lists of tensors that are alike but for the first dimension, if they have one.
    """
    flat = []
    for tensors in alike:
        rank, joined = tensors[0].shape.rank, tensors[0]
        if rank == 0:
            joined = tf.stack(tensors)
        elif len(tensors) > 1:
            joined = tf.concat(tensors, 0)
        flat.append(tf.reshape(joined, [-1]) if rank > 1 else joined)
    return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def _split(tensor: tf.Tensor, lengths: Sequence[int]) -> list[tf.Tensor]:
    """Returns the parts of a tensor, cut along its first dimension."""
    return [tensor] if len(lengths) == 1 else tf.split(tensor, lengths)


def _static_shape(column: Sequence[tf.Tensor]) -> tf.TensorShape:
    """Returns a column's shape where every tower knows it; else an unknown one."""
    shapes = [tensor.shape for tensor in column]
    known = all(shape.is_fully_defined() for shape in shapes)
    return shapes[0] if known else tf.TensorShape(None)


def even_share(tensors: Sequence[tf.Tensor], number: int) -> float:
    """Returns up to how many bytes share a transfer, if a number of devices sum a pack each.

    NOTE: of few bytes a device of its own is not worth more transfers.
    """
    sizes = [t.shape.num_elements() * t.dtype.size for t in tensors if t.shape.is_fully_defined()]
    return max(sum(sizes) / number, _PIECE_BYTES)


def pack_bytes(workers: int) -> int:
    """Returns up to how many bytes tensors share a transfer of a ring of W workers.

    A ring cuts a pack into W pieces, each a message: one of 128 KiB takes as long as a message's
    latency of 0.1 ms at 10 Gbit/s.
    """
    return max(PACK_BYTES, workers * _PIECE_BYTES)


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


def is_sent(value: types.Gradient) -> bool:
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


def longest(text: tf.Tensor) -> tf.Tensor:
    """Returns how many bytes the longest of some texts has, int32; at least 1."""
    return tf.reduce_max(tf.concat([[1], tf.reshape(tf.strings.length(text), [-1])], 0))


def letters(text: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns texts as numbers: their bytes, [..., length], and how many each has, int32."""
    found = tf.io.decode_raw(text, tf.uint8, fixed_length=length)
    found.set_shape([*text.shape, None])
    return found, tf.strings.length(text)


def text(letters: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns what `letters` made numbers of."""
    names = tf.constant([bytes([number]) for number in range(256)])
    whole = tf.strings.reduce_join(tf.gather(names, tf.cast(letters, tf.int32)), -1)
    return tf.strings.substr(whole, tf.zeros_like(sizes), sizes)
