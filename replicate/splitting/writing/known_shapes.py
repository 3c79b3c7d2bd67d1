"""What is known of the shapes of devices' parts before anything runs.

A part's shape is the whole one, but for its rows. The importer joins this with what it infers of a
copy. So a copy knows what its original knows, and what a wrong rule makes is refused.
"""

from typing import TYPE_CHECKING

from replicate.compat.tensorflow import tf
from replicate.splitting.states import COPIED, Partial, Rows, State
from replicate.splitting.structure.nodes import Shapes

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


def _own_rows(written: "writers.Writer", k: int) -> int:
    """Returns how many rows of a static batch a device has or borrows; of another batch 0."""
    return written.place.static_run(k)[1] if written.analysis.facts.static_rows else 0
