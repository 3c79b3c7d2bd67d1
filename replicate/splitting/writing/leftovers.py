"""Operations that no step runs any more, but that may still be fetched by name.

Each of them still makes one device's value, of whole values. Run beside a step, it must not read
a variable again, which the step may have written, or draw random numbers anew. So it reads what the
copies have read and drawn, and what their loops and branches have made; it runs none of these
again.
"""

from collections.abc import Hashable
from typing import NamedTuple

from replicate.compat.tensorflow import tf
from replicate.splitting import analysis as analyses
from replicate.splitting.states import COPIED, FLOW, SUM, ListOf, Local, RowNumbers, Rows, Space
from replicate.splitting.structure import kinds, loops, nodes, replacing
from replicate.splitting.writing import different
from replicate.splitting.writing import writer as writers


class Join(NamedTuple):
    """What all devices' copies make, for operations that are left.

    Attributes:
        tensor: The tensor that it replaces.
        users: The operations that are left and read that.
        whole: The new value.
    """

    tensor: tf.Tensor
    users: list[tf.Operation]
    whole: nodes.Reference


def joined(written: writers.Writer) -> list[Join]:
    """Adds the joins that left operations read; no step runs them.

    Args:
        written: The writer, of a graph whose transfers are packed.
    """
    number, found = len(written.nodes.by_name), []
    for op in sorted(written.run_split - written.run_whole.keys(), key=lambda op: op._id):
        if not written.structure.is_outermost(op) or not _makes_its_own(op, written.analysis):
            continue
        root = written.structure.root(op)
        # NOTE: a loop that pops what this one pushes has to wait for this one itself.
        popping = set() if root is None else written.structure.loops_sharing_stacks(root)
        for tensor in op.outputs:
            users = [user for user in tensor.consumers() if user not in written.run_whole]
            users = [user for user in users if written.structure.root(user) not in popping]
            whole = _whole(tensor, written) if users else None
            if whole is not None:
                found.append(Join(tensor, users, whole))
    written.run_aside.update(list(written.nodes.by_name)[number:])
    return found


def repoint(joins: list[Join], written: writers.Writer, made: nodes.Made) -> None:
    """Lets left operations read what the step reads, draws and makes.

    Args:
        joins: What `joined` returned.
        written: The writer.
        made: The new operations by their names.
    """
    for tensor, users, reference in joins:
        whole = nodes.resolved(reference, made)
        whole.set_shape(tensor.shape)
        replacing.read_instead(users, tensor, whole)
    reads = [op for op in written.nodes.graph.get_operations() if op.type == "ReadVariableOp"]
    values = [op.outputs[0] for op in reads if _is_plain(op, written.structure)]
    of_step = {_read_by(value): value for value in values if value.op in written.run_whole}
    for value in values:
        if value.op not in written.run_whole and _read_by(value) in of_step:
            replacing.read_instead(value.consumers(), value, of_step[_read_by(value)])


def _makes_its_own(op: tf.Operation, analysis: analyses.Analysis) -> bool:
    """Whether an operation, run again, might make something else than its copies did."""
    if op.type in (kinds.READS | kinds.DRAWS) or op.type in kinds.EXITS + kinds.MERGES:
        return True
    held = [analysis.state(tensor) for tensor in op.inputs]
    return any(state is FLOW or isinstance(state, ListOf) for state in held)


def _read_by(value: tf.Tensor) -> tuple[Hashable, tf.DType]:
    """Returns what is alike in reads of one value: the variable and the dtype."""
    return value.op.inputs[0].ref(), value.dtype


def _is_plain(op: tf.Operation, structure: loops.Structure) -> bool:
    """Whether an operation may stand for others that read the same."""
    return structure.is_free(op) and not op.control_inputs


def _whole(tensor: tf.Tensor, written: writers.Writer) -> nodes.Reference | None:
    """Returns what all devices' copies make, or None if it cannot be joined."""
    state = written.analysis.state(tensor)
    if state is COPIED:
        return written.own(tensor, 0)
    if state == SUM:
        parts = [written.own(tensor, k) for k in range(len(written.devices))]
        return written.joins.sum_here(parts, tensor.dtype)
    if isinstance(state, Local):
        return different.picked(written, tensor, state)
    if not isinstance(state, Rows) or not _is_counted(state.space, written):
        return None
    if isinstance(state, RowNumbers) and not _is_counted(state.ids.space, written):
        return None
    return written.joins.of_rows(tensor, state)


def _is_counted(space: Space, written: writers.Writer) -> bool:
    """Whether the number of a space's rows is known in a run."""
    is_given = space.is_picked and space.source.ref() in written.analysis.given
    return not space.is_picked or is_given or space.source.op in written.run_split
