"""With REPLICATE_DEBUG=1, checks the shapes of copies while a graph is built.

A copy's shape is the whole one, but for its rows: so a wrong rule may show before anything runs.
"""

import os

from replicate.compat.tensorflow import tf
from replicate.splitting.states import Local, Partial, Rows
from replicate.splitting.structure.nodes import Made
from replicate.splitting.writing import writer as writers


def are_wanted() -> bool:
    """Whether shapes are to be checked."""
    return os.environ.get("REPLICATE_DEBUG") == "1"


def check_shapes(written: writers.Writer, made: Made) -> None:
    """Compares the shapes of copies with those of the operations that they are copies of.

    Args:
        written: The writer.
        made: The new operations by their names.

    Raises:
        ValueError: If one does not fit; names the tensor, the device and both shapes.
    """
    for op in written.run_split:
        for k in range(len(written.devices)):
            copy = made.get(written.copy_name(op, k))
            pairs = () if copy is None else zip(op.outputs, copy.outputs, strict=True)
            for tensor, own in pairs:
                wanted = _wanted(written, tensor, k)
                if not own.shape.is_compatible_with(wanted):
                    raise ValueError(
                        "A device's part of a value has the whole one's shape, but for its rows: "
                        f"{tensor.name}, {written.analysis.state(tensor)}, would be of shape "
                        f"{wanted} on device {k}, and is of {own.shape}. The rule of {op.type} is "
                        f"wrong: it gives {written.analysis.how.get(op)}."
                    )


def _wanted(written: writers.Writer, tensor: tf.Tensor, k: int) -> tf.TensorShape:
    """Returns the shape that device k's part has, as far as that is known."""
    analysis = written.analysis
    state, shape = analysis.state(tensor), tensor.shape
    if isinstance(state, Local) or shape.rank is None or not isinstance(state, (Rows, Partial)):
        return tf.TensorShape(None)
    lengths = shape.as_list()
    if isinstance(state, Rows):
        total, length = analysis.facts.static_rows, lengths[state.axis]
        lengths[state.axis] = None
        if total and length is not None and not state.space.is_picked:
            own = max(written.joins.static_run(k)[1], 1)
            lengths[state.axis] = length // total * own
    return tf.TensorShape(lengths)
