"""Features and labels as tensors with rows: dense ones, and what sparse ones are made of."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.splitting import extents, probes
from replicate.splitting.analysis import Given
from replicate.splitting.rules import spaces
from replicate.splitting.states import SIZE, Ids, Rows, Space

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
    known: list[probes.Given]
    shapes: dict


def of(
    batch: Space, tensors: Iterable[Any], bounds: Bounds, num_devices: int, device: str
) -> Inputs:
    """Returns what the tensors of a batch give.

    Args:
        batch: Whose rows they have.
        tensors: Dense or sparse tensors of shape [B, ...].
        bounds: Which rows are each device's.
        num_devices: K.
        device: Where sparse tensors are cut.
    """
    found = Inputs([], [], {})
    for tensor in tensors:
        if isinstance(tensor, tf.SparseTensor):
            with tf.control_dependencies(None), tf1.device(device):
                _add_sparse(found, batch, tensor, bounds, num_devices)
        else:
            found.given.append(Given(tensor, Rows(0, batch)))
            found.known.append(probes.Given(tensor, 0))
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
        found.known.append(probes.Given(tensor, 0, True))
    inner = whole.shape[1:].as_list() if whole.shape.rank else [None] * (_rank(whole) - 1)
    found.shapes[whole.dense_shape.ref()] = [extents.BATCH, *inner]


def _rank(tensor: tf.SparseTensor) -> int:
    known = [tensor.indices.shape[1:].num_elements(), tensor.dense_shape.shape.num_elements()]
    return next((rank for rank in known if rank is not None), 2)


def picked(ops: Iterable[tf.Operation]) -> list[probes.Given]:
    """Returns what facts are to be told of rows that operations pick."""
    return [
        probes.Given(op.outputs[n], 0, True) for op in ops for n in spaces.PICKING.get(op.type, ())
    ]
