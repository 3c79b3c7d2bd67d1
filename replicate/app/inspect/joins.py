"""The collectives of a graph, in which a worker meets the others, and what it brings to them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from replicate.app.inspect import cost, traffic
from replicate.compat.tensorflow import tf

__all__ = ["of", "row_counts"]

_KINDS = {
    "CollectiveReduceV2": cost.ALL_REDUCE,
    "CollectiveGatherV2": cost.ALL_GATHER,
}
_NEXT = ("IteratorGetNext", "IteratorGetNextAsOptional")
_OPTIONAL = "IteratorGetNextAsOptional"
_BRANCHES = ("If", "StatelessIf")
_LENGTHENED = "Pad"  # what is gathered has as many rows as the next power of two


def of(
    operations: Iterable[tf.Operation], row_counts: Mapping[str, int] | None = None
) -> list[cost.Collective]:
    """Returns the collectives among operations of one graph, in the order in which they were made.

    Args:
        operations: Of a step.
        row_counts: For the operations that make the batch, by name, how many rows they make.
    """
    sizes = traffic.Sizes(row_counts or {})
    found = {op for op in operations if op.type in _KINDS}
    in_order = sorted(found, key=lambda op: op._id)
    return [cost.Collective(_KINDS[op.type], _size(op.inputs[0], sizes)) for op in in_order]


def row_counts(graph: tf.Graph, batch_size: int) -> dict[str, int]:
    """Returns the operations that make a worker's batch, by name, and how many rows they make.

    Args:
        graph: The training graph.
        batch_size: How many rows the worker has.
    """
    found: dict[str, int] = {}
    for op in graph.get_operations():
        if op.type in _NEXT:
            makers: Iterator[Any] = iter([op])
            if op.type == _OPTIONAL:  # a batch, or a row on loan where the input has ended
                makers = (user for user in op.outputs[0].consumers() if user.type in _BRANCHES)
            found.update((maker.name, batch_size) for maker in makers)
    return found


def _size(tensor: tf.Tensor, sizes: traffic.Sizes) -> int | None:
    """Returns how many bytes a worker brings; None where only a run can tell."""
    size = sizes.of(tensor)
    if size is not None:
        return size
    slices = next((op for op in _behind(tensor) if op.type == _LENGTHENED), None)
    shape = None if slices is None else sizes.shape_of(slices.inputs[0])
    if shape is None or not shape.is_fully_defined():
        return None
    rows, width = shape[0], shape[1:].num_elements()
    return (1 << max(rows - 1, 0).bit_length()) * width * tensor.dtype.size


def _behind(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that a tensor has passed, the last one first, along first inputs."""
    op = tensor.op
    while op is not None:
        yield op
        op = op.inputs[0].op if len(op.inputs) else None
