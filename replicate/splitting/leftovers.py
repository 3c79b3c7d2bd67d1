"""Operations that are not run as they were, and may be fetched by name all the same.

Each of them still makes one device's value, of whole values. What is read of a variable, or drawn,
must then be the same: else it might be read again after the step has written, or drawn anew. So
what is left reads what the copies have read and drawn.
"""

from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import effects, nodes
from replicate.splitting.rules import random
from replicate.splitting.states import Rows


def repoint(written: Any, made: dict[str, tf.Operation], device: str) -> None:
    """Lets what is left of a graph read what copies have read of variables, and have drawn.

    Args:
        written: The writer.
        made: The new operations by their names.
        device: Where rows are joined for it.
    """
    for op in sorted(written.run_split, key=lambda op: op._id):
        is_once = op.type in effects.READS or op.type in random.SEEDED
        if not is_once or op._get_control_flow_context() is not None:
            continue
        for tensor in op.outputs:
            state = written.analysis.state(tensor)
            users = [user for user in tensor.consumers() if user not in written.run_whole]
            if users and isinstance(state, Rows) and not state.space.is_picked:
                joined = _joined(tensor, state, written, made, device)
                for user in users:
                    for n, read in enumerate(user.inputs):
                        if read is tensor:
                            user._update_input(n, joined)


def _joined(
    tensor: tf.Tensor, state: Rows, written: Any, made: dict[str, tf.Operation], device: str
) -> tf.Tensor:
    """Returns the rows of all devices' copies; it is made only when it is fetched."""
    rows = written.joins.runs_of(state.space)
    multiple = written.analysis.facts.multiple(tensor, state.axis)
    names = [written.copy_name(tensor.op, k) for k in range(len(written.devices))]
    parts = [made[name].outputs[tensor.value_index] for name in names]
    with tf.control_dependencies(None), tf1.device(device), tf1.name_scope("replicate_split/"):
        found = tf.concat(parts, state.axis)
        if not rows.is_exact:  # rows on loan are the last ones
            total = nodes.tensor(rows.total, made)
            if multiple is None:
                total *= tf.shape(found)[state.axis] // nodes.tensor(rows.sum, made)
            else:
                total *= multiple
            lengths = tf.one_hot(state.axis, tensor.shape.rank, total + 1, 0) - 1
            found = tf.slice(found, tf.zeros_like(lengths), lengths)
    found.set_shape(tensor.shape)
    return found
