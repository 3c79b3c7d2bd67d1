"""Features and labels as tensors with rows: dense ones, and what other ones are made of."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.splitting.analysis import FILLS, Given
from replicate.splitting.inference import extents, probes
from replicate.splitting.rules import random, sparse
from replicate.splitting.states import SIZE, Ids, Local, Rows, Space
from replicate.splitting.structure import equal, loops, order

# Returns the first row of device k, and the row after its last one; ints, or tensors.
Bounds = Callable[[int], tuple[Any, Any]]


class Inputs(NamedTuple):
    """What a batch gives.

    Attributes:
        given: Its tensors, for the analysis.
        known: What facts are to be told of tensors' lengths.
        shapes: What facts are to be told of vectors that are shapes.
    """

    given: list[Given]
    known: list[probes.KnownRows]
    shapes: dict


def of(
    batch: Space, tensors: Iterable[Any], bounds: Bounds, num_devices: int, device: str
) -> Inputs:
    """Returns what the tensors of a batch give.

    Args:
        batch: Whose rows they have.
        tensors: Dense, sparse or `numbered` ragged tensors of shape [B, ...].
        bounds: Which rows are each device's.
        num_devices: K.
        device: Where sparse and ragged tensors are cut.
    """
    found = Inputs([], [], {})
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
    given = {
        "indices": Rows(0, entries, Ids(batch, 0)),
        "values": Rows(0, entries),
        "dense_shape": SIZE,
    }
    for name, state in given.items():
        held = tuple(getattr(part, name) for part in parts)
        found.given.append(Given(getattr(whole, name), state, held))
    for tensor in (whole.indices, whole.values):
        found.known.append(probes.KnownRows(tensor, 0, True))
    inner = whole.shape[1:].as_list() if whole.shape.rank else [None] * (_rank(whole) - 1)
    found.shapes[whole.dense_shape.ref()] = [extents.BATCH, *inner]


def is_known_ragged(value: Any) -> bool:
    """Whether a value is a ragged tensor of which each device can have its own rows."""
    return (
        isinstance(value, tf.RaggedTensor)
        and value.ragged_rank == 1
        and value.uniform_row_length is None
        and value.flat_values.shape.rank is not None
    )


def numbered(whole: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the same ragged tensor, with what tells devices their own rows.

    Its values' numbers of rows are its own to tell; else a model would work them out from where
    rows begin and end.
    """
    with tf.control_dependencies(None), tf1.name_scope("ragged"):
        splits = whole.row_splits
        lengths = tf.identity(splits[1:] - splits[:-1])
        number = tf.raw_ops.Shape(input=lengths, out_type=splits.dtype)[0]
        return tf.RaggedTensor.from_value_rowids(
            whole.flat_values, _value_rows(whole), number, validate=False
        )


def _counted(numbered: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lengths of rows, and where rows begin and end, that `numbered` began with."""
    lengths = numbered.nrows().op.inputs[0].op.inputs[0]
    return lengths, lengths.op.inputs[0].op.inputs[0].op.inputs[0]


def _value_rows(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns which row each value is of."""
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
        Given(numbers, Rows(0, entries, Ids(batch)), tuple(_value_rows(part) for part in parts)),
        Given(splits, Local(sparse.Bounds(batch, entries)), tuple(splits_of)),
        Given(lengths, Rows(0, batch), tuple(each[1:] - each[:-1] for each in splits_of)),
    ]
    more = _numbers_anew(splits)
    given.extend(Given(each, given[1].state, given[1].parts) for each in more)
    found.given.extend(given)
    found.known.extend(probes.KnownRows(tensor, 0, True) for tensor in (values, numbers, *more))
    found.known.extend([probes.KnownRows(splits, 0, False, 1), probes.KnownRows(lengths)])


def _numbers_anew(splits: tf.Tensor) -> list[tf.Tensor]:
    """Returns what TensorFlow's own code has made of where rows begin: which row each value is of.

    It does so although a ragged tensor knows, for example where it sums over values.
    """
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
    """Returns what facts are to be told of rows that operations pick."""
    return [
        probes.KnownRows(op.outputs[n], 0, True)
        for op in ops
        for n in sparse.PICKING.get(op.type, ())
    ]


def made(
    ops: set[tf.Operation],
    given: Iterable[tf.Tensor],
    rows: int,
    structure: loops.Structure,
) -> set[tf.Operation]:
    """Returns what makes rows of a static batch, and is not made from it.

    So do constants, fills and draws whose shapes have the number of rows, as the first states of
    a recurrent model.

    Args:
        ops: All operations behind the batch.
        given: The tensors of the batch.
        rows: B.
        structure: The graph's loops.
    """
    seen = ops | {tensor.op for tensor in given}
    waiting, found = list(ops), set()
    while waiting:
        for tensor in waiting.pop().inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                waiting.append(tensor.op)
                if structure.is_free(tensor.op) and _makes_rows(tensor.op, rows):
                    found.add(tensor.op)
    return found


def _makes_rows(op: tf.Operation, rows: int) -> bool:
    """Whether an operation makes as many rows.

    NOTE: whole numbers may be a shape, or axes. Those count that a loop begins with.
    """
    if op.type not in (*FILLS, "Range") and op.type not in random.SEEDED:
        return False
    made = op.outputs[0]
    if not made.shape.rank or rows not in made.shape.as_list():
        return False
    is_number = not (made.dtype.is_floating or made.dtype.is_complex)
    if op.type in (*random.SEEDED, "Range") or not is_number:
        return True
    return any(user.type == "Enter" for user in made.consumers())
