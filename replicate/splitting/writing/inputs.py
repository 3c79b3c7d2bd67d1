"""Features and labels as tensors with rows: dense ones, and the parts of sparse and ragged ones."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.splitting.analysis import FILLS, SPREADS, Given
from replicate.splitting.inference import extents, probes
from replicate.splitting.rules import random, sparse
from replicate.splitting.states import SIZE, Ids, Local, RowNumbers, Rows, Space
from replicate.splitting.structure import equal, loops, order

Bounds: TypeAlias = Callable[[int], tuple[rows.Bound, rows.Bound]]
"""Returns the first row of device k, and the row after its last one."""


class Inputs(NamedTuple):
    """The tensors of a batch.

    Attributes:
        given: For the analysis.
        known: For the facts.
    """

    given: list[Given]
    known: list[probes.Known]


def of(
    batch: Space, tensors: Iterable[types.Rows], bounds: Bounds, num_devices: int, device: str
) -> Inputs:
    """Returns the tensors of a batch.

    Args:
        batch: The space of their rows.
        tensors: Dense, sparse or `numbered` ragged tensors of shape [B, ...].
        bounds: Which rows are each device's.
        num_devices: K.
        device: Where sparse and ragged tensors are cut.
    """
    found = Inputs([], [])
    for tensor in tensors:
        if isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor)):
            add = _add_sparse if isinstance(tensor, tf.SparseTensor) else _add_ragged
            with tf.control_dependencies(None), tf1.device(device):
                add(found, batch, tensor, bounds, num_devices)
        else:
            found.given.append(Given(tensor, Rows(0, batch)))
            found.known.append(probes.KnownRows(tensor, 0))
    return found


def _add_sparse(
    found: Inputs, batch: Space, whole: tf.SparseTensor, bounds: Bounds, num_devices: int
) -> None:
    parts = [rows.cut(whole, *bounds(k)) for k in range(num_devices)]
    entries = Space(whole.values.op.name, whole.values)
    numbers = RowNumbers(0, entries, Ids(batch, 0))
    found.given.extend(
        [
            Given(whole.indices, numbers, tuple(part.indices for part in parts)),
            Given(whole.values, Rows(0, entries), tuple(part.values for part in parts)),
            Given(whole.dense_shape, SIZE, tuple(part.dense_shape for part in parts)),
        ]
    )
    for tensor in (whole.indices, whole.values):
        found.known.append(probes.KnownRows(tensor, 0, True))
    inner = whole.shape[1:].as_list() if whole.shape.rank else [None] * (_rank(whole) - 1)
    found.known.append(probes.KnownShape(whole.dense_shape, [extents.BATCH, *inner]))


def is_known_ragged(value: types.Rows | None) -> bool:
    """Whether a value is a ragged tensor that can be split by rows."""
    return (
        isinstance(value, tf.RaggedTensor)
        and value.ragged_rank == 1
        and value.uniform_row_length is None
        and value.flat_values.shape.rank is not None
    )


def numbered(whole: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the same ragged tensor made from its values' numbers of rows.

    Otherwise a model would work these out from where rows begin and end, which cannot be split.
    """
    with tf.control_dependencies(None), tf1.name_scope("ragged"):
        splits = whole.row_splits
        lengths = tf.identity(splits[1:] - splits[:-1])
        number = tf.raw_ops.Shape(input=lengths, out_type=splits.dtype)[0]
        return tf.RaggedTensor.from_value_rowids(
            whole.flat_values, _value_rows(whole), number, validate=False
        )


def _counted(numbered: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lengths and the splits of rows that `numbered` made a ragged tensor from."""
    lengths = numbered.nrows().op.inputs[0].op.inputs[0]
    return lengths, lengths.op.inputs[0].op.inputs[0].op.inputs[0]


def _value_rows(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns the row of each value."""
    splits = ragged.row_splits
    places = tf.range(tf.shape(ragged.flat_values, out_type=splits.dtype)[0])
    return tf.searchsorted(splits, places, "right", splits.dtype) - 1


def _add_ragged(
    found: Inputs, batch: Space, whole: tf.RaggedTensor, bounds: Bounds, num_devices: int
) -> None:
    """Adds a ragged tensor that `numbered` returned."""
    values, numbers, splits = whole.flat_values, whole.value_rowids(), whole.row_splits
    lengths, source = _counted(whole)
    source = tf.RaggedTensor.from_row_splits(values, source, validate=False)
    parts = [rows.cut(source, *bounds(k)) for k in range(num_devices)]
    entries = Space(values.op.name, values)
    splits_of = [part.row_splits for part in parts]
    given = [
        Given(values, Rows(0, entries), tuple(part.flat_values for part in parts)),
        Given(numbers, RowNumbers(0, entries, Ids(batch)), tuple(map(_value_rows, parts))),
        Given(splits, Local(sparse.Bounds(batch, entries)), tuple(splits_of)),
        Given(lengths, Rows(0, batch), tuple(each[1:] - each[:-1] for each in splits_of)),
    ]
    more = _numbers_anew(splits)
    given.extend(Given(each, given[1].state, given[1].parts) for each in more)
    found.given.extend(given)
    found.known.extend(probes.KnownRows(tensor, 0, True) for tensor in (values, numbers, *more))
    found.known.extend([probes.KnownRows(splits, 0, False, 1), probes.KnownRows(lengths)])


def _numbers_anew(splits: tf.Tensor) -> list[tf.Tensor]:
    """Returns the rows of values that TensorFlow worked out from splits, as for a sum of values."""
    with tf.Graph().as_default():
        places = tf1.placeholder(splits.dtype, splits.shape)
        values = tf1.placeholder(tf.float32, [None])
        made = tf.RaggedTensor.from_row_splits(values, places, validate=False).value_rowids()
    return [
        op.outputs[0]
        for op in order.behind([splits])
        if op.type == made.op.type and equal.follows_alike(op.outputs[0], splits, made, places)
    ]


def _rank(tensor: tf.SparseTensor) -> int:
    known = [tensor.indices.shape[1:].num_elements(), tensor.dense_shape.shape.num_elements()]
    return next((rank for rank in known if rank is not None), 2)


def picked(ops: Iterable[tf.Operation]) -> list[probes.KnownRows]:
    """Returns the rows that operations pick, for the facts."""
    return [
        probes.KnownRows(tensor, 0, True)
        for op in ops
        for n, tensor in enumerate(op.outputs)
        if op.type == "DynamicPartition" or n in sparse.PICKING.get(op.type, ())
    ]


def made(
    ops: set[tf.Operation],
    given: Iterable[tf.Tensor],
    number: int,
    structure: loops.Structure,
) -> set[tf.Operation]:
    """Returns what makes rows of a static batch and is not made from the batch.

    These are constants, fills and draws whose shapes have the number of rows, as the first states
    of a recurrent model.

    Args:
        ops: All operations behind the batch.
        given: The tensors of the batch.
        number: B.
        structure: The graph's loops.
    """
    seen = ops | {tensor.op for tensor in given}
    waiting = list(ops)
    found: set[tf.Operation] = set()
    while waiting:
        for tensor in waiting.pop().inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                waiting.append(tensor.op)
                if structure.is_free(tensor.op) and _makes_rows(tensor.op, number):
                    found.add(tensor.op)
    return found


def _makes_rows(op: tf.Operation, number: int) -> bool:
    """Whether an operation makes as many rows.

    NOTE: whole numbers may be a shape, or axes: only those count that a loop begins with.
    """
    if op.type not in (*FILLS, *SPREADS, "Range") and op.type not in random.SEEDED:
        return False
    made = op.outputs[0]
    if op.type == "Range" and any(user.type == "DynamicPartition" for user in made.consumers()):
        return (made.shape.num_elements() or 1) % number == 0  # entries of rows are parted
    if not made.shape.rank or number not in made.shape.as_list():
        return False
    is_number = not (made.dtype.is_floating or made.dtype.is_complex)
    if op.type in (*random.SEEDED, "Range") or not is_number:
        return True
    return any(user.type == "Enter" for user in made.consumers())
