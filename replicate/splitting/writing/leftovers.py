"""Operations that are not run as they were, and may be fetched by name all the same.

Each of them still makes one device's value, of whole values. What is read of a variable, or drawn,
must then be the same: else it might be read again after the step has written, or drawn anew. So
what is left reads what the copies have read and drawn, and what their loops and branches have made
of it; it runs no loop and no branch again.
"""

from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting.states import FIRST, FLOW, SUM, ListOf, Rows, Space
from replicate.splitting.structure import kinds, loops, nodes

_ENDS = ("Exit", "RefExit", "Merge", "RefMerge")


class Join(NamedTuple):
    """What all devices' copies make, for those that are left.

    Attributes:
        tensor: What it stands for.
        users: The operations that are left, and read it.
        whole: The reference to it; it is made only when it is fetched.
    """

    tensor: tf.Tensor
    users: list[tf.Operation]
    whole: nodes.Reference


def joined(written: Any) -> list[Join]:
    """Adds the joins that what is left of a graph reads; no step runs them.

    Args:
        written: The writer, of a graph whose transfers are packed.
    """
    number, found = len(written.nodes.by_name), []
    for op in sorted(written.run_split - written.run_whole, key=lambda op: op._id):
        if not written.structure.is_outermost(op) or not _makes_its_own(op, written.analysis):
            continue
        for tensor in op.outputs:
            users = [user for user in tensor.consumers() if user not in written.run_whole]
            whole = _whole(tensor, written) if users else None
            if whole is not None:
                found.append(Join(tensor, users, whole))
    written.run_aside.update(list(written.nodes.by_name)[number:])
    return found


def repoint(joins: list[Join], written: Any, made: dict[str, tf.Operation]) -> None:
    """Lets what is left of a graph read what the step reads, draws and makes.

    Args:
        joins: What `joined` returned.
        written: The writer.
        made: The new operations by their names.
    """
    for tensor, users, whole in joins:
        whole = nodes.tensor(whole, made)
        whole.set_shape(tensor.shape)
        _read_instead(users, tensor, whole)
    reads = [op for op in written.nodes.graph.get_operations() if op.type == "ReadVariableOp"]
    reads = [op for op in reads if _is_plain(op, written.structure)]
    of_step = {op.inputs[0].ref(): op for op in reads if op in written.run_whole}
    for op in reads:
        instead = of_step.get(op.inputs[0].ref(), op)
        if op not in written.run_whole and instead.outputs[0].dtype == op.outputs[0].dtype:
            _read_instead(op.outputs[0].consumers(), op.outputs[0], instead.outputs[0])


def _makes_its_own(op: tf.Operation, analysis: Any) -> bool:
    """Whether an operation, run once more, might make something else than its copies."""
    if op.type in (kinds.READS | kinds.DRAWS) or op.type in _ENDS:
        return True
    held = [analysis.state(tensor) for tensor in op.inputs]
    return any(state is FLOW or isinstance(state, ListOf) for state in held)


def _is_plain(op: tf.Operation, structure: loops.Structure) -> bool:
    """Whether an operation may stand for others that read the same."""
    return structure.is_free(op) and not op.control_inputs


def _whole(tensor: tf.Tensor, written: Any) -> nodes.Reference | None:
    """Returns what all devices' copies make; None: it is not to be joined."""
    state = written.analysis.state(tensor)
    if state == FIRST:
        return written.own(tensor, 0)
    if state == SUM:
        return _sum(tensor, written)
    if not isinstance(state, Rows) or not _is_counted(state.space, written):
        return None
    if state.ids is not None and not _is_counted(state.ids.space, written):
        return None
    return written.joins.of_rows(tensor, state)


def _is_counted(space: Space, written: Any) -> bool:
    """Whether the devices count a space's rows."""
    return not space.is_picked or space.source.op in written.run_split


def _sum(tensor: tf.Tensor, written: Any) -> nodes.Reference:
    """Returns the sum of what devices with rows hold."""
    parts, dtype = [], tensor.dtype
    zero = written.constant(np.zeros([], dtype.as_numpy_dtype), None)
    for k, has_rows in enumerate(written.joins.has_rows):
        part = written.own(tensor, k)
        if has_rows is not None:
            kinds = {"T": dtype}
            part = written.nodes.add("SelectV2", [has_rows, part, zero], written.home, **kinds)
        parts.append(part)
    return written.nodes.add("AddN", parts, written.home, T=dtype, N=len(parts))


def _read_instead(users: Any, old: tf.Tensor, new: tf.Tensor) -> None:
    for user in users if new is not old else ():
        for n, read in enumerate(user.inputs):
            if read is old:
                user._update_input(n, new)
