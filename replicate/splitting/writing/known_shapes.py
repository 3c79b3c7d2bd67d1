"""What is known of the shapes of devices' parts before anything runs, or from numbers of rows.

A part's shape is the whole one, but for its rows. The importer joins this with what it infers of a
copy. So a copy knows what its original knows, and what a wrong rule makes is refused.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting.states import COPIED, Partial, Rows, State
from replicate.splitting.structure.nodes import Reference, Shapes

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers


def of_copies(written: "writers.Writer", op: tf.Operation) -> list[Shapes]:
    """Returns for each device what is known of the outputs of its copy of an operation."""
    analysis, found = written.analysis, dict[int, Shapes]()
    states = [COPIED if analysis.is_at_hand(each) else analysis.state(each) for each in op.outputs]
    made = list(zip(op.outputs, states, strict=True))
    numbers = [_own_rows(written, k) for k in range(len(written.devices))]
    for rows in set(numbers):
        found[rows] = tuple(_of(written, *each, rows) for each in made)
    return [found[rows] for rows in numbers]


def of_part(written: "writers.Writer", tensor: tf.Tensor, state: State, k: int) -> tf.TensorShape:
    """Returns what is known of device k's part of a tensor that is in a state."""
    return _of(written, tensor, state, _own_rows(written, k))


def _of(
    written: "writers.Writer", tensor: tf.Tensor, state: State, own_rows: int
) -> tf.TensorShape:
    shape = tensor.shape
    if isinstance(state, Partial) or state is COPIED or shape.rank is None:
        return shape
    if not isinstance(state, Rows):
        return tf.TensorShape(None)
    lengths = shape.as_list()
    total, length = written.analysis.facts.static_rows, lengths[state.axis]
    is_told = total and length is not None and not state.space.is_picked
    lengths[state.axis] = length // total * own_rows if is_told else None
    return tf.TensorShape(lengths)


def from_rows(written: "writers.Writer", leaf: tf.Tensor, k: int | None) -> Reference | None:
    """Returns a shape or size that is made from a number of rows, and waits for no tensor.

    Args:
        written: The writer.
        leaf: The shape or size of a tensor.
        k: Whose: device k's, or the whole one.

    Returns:
        The number, or None if something else must be known, or be waited for.
    """
    tensor = written.analysis.measured(leaf)
    state, facts = written.analysis.state(tensor), written.analysis.facts
    if not isinstance(state, Rows) or leaf.op.type == "Rank":
        return None
    multiple, lengths = facts.multiple(tensor, state.axis), facts.known_shape(tensor, state.axis)
    if multiple is None or lengths is None:
        return None
    others = [0 if axis == state.axis else length for axis, length in enumerate(lengths)]
    controls = None if None in others else written.order_of(leaf.op)
    if controls is None:
        return None
    kind, home = leaf.dtype.as_numpy_dtype, written.home
    scale, rest = np.arange(len(others)) == state.axis, np.array(others, kind)
    number = written.joins.number_of_rows(state.space, k, leaf.dtype)
    if leaf.op.type == "Size":
        entries = math.prod(length for length in lengths if length is not None)
        scale, rest = np.array(entries), np.array(0, kind)
    numbers = (written.constant(each.astype(kind), None) for each in (scale * multiple, rest))
    scaled = written.nodes.add("Mul", [next(numbers), number], home, T=leaf.dtype)
    read = [scaled, next(numbers)]
    return written.nodes.add("AddV2", read, home, controls=controls, T=leaf.dtype)


def _own_rows(written: "writers.Writer", k: int) -> int:
    """Returns how many rows of a static batch a device has or borrows; of another batch 0."""
    return written.place.static_run(k)[1] if written.analysis.facts.static_rows else 0
