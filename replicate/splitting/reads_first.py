"""Variables are read before they are written, where the graph gives no order."""

import collections
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import definitions, effects, kinds, loops
from replicate.splitting.structure.nodes import Made
from replicate.splitting.writing import writer

_ByVariable: TypeAlias = dict[tf.Operation, list[tf.Operation]]


def read_first(written: writer.Writer, made: Made) -> None:
    """Lets a step read variables before it writes them, where the graph leaves that open.

    Copies on several devices read at different times: without an order, some might see the value
    after the step. A call, a branch or a loop that writes waits as a whole.

    Args:
        written: The split graph.
        made: The new operations by their names.
    """
    aside, nodes = written.run_aside, written.nodes
    running = {op: op.type for op in written.run_whole if op not in aside}
    for name, node in nodes.by_name.items():
        if name not in aside and nodes.original(name) not in aside:
            running[made[name]] = node.op
    reads, writes = _users(running, written.structure)
    behind = operations.behind([op for ops in writes.values() for op in ops], set(running))
    for handle, found in writes.items():
        found_reads = reads.get(handle, ())
        ends = dict.fromkeys(end for op in found_reads for end in _ends(op, running, written))
        first = [op for op in ends if op not in behind]
        for write in found:
            before = set(write.control_inputs)
            write._add_control_inputs([op for op in first if op not in before])


def _users(
    running: Mapping[tf.Operation, str], structure: loops.Structure
) -> tuple[_ByVariable, _ByVariable]:
    """Returns what reads each variable, and what is to wait until that is over.

    What waits is the write, or all that enters the loop in which the write is.

    Args:
        running: The operations that run, and of what kind they are.
        structure: The loops of the graph.
    """
    reads: _ByVariable = collections.defaultdict(list)
    writes: _ByVariable = collections.defaultdict(list)
    entering: dict[loops.Context | None, list[tf.Operation]] = collections.defaultdict(list)
    for op, kind in running.items():
        if kind in kinds.ENTERS and structure.is_outermost(op.inputs[0].op):
            entering[structure.own_loop(op)].append(op)
    for op, kind in running.items():
        for handle in _variables(op, kind):
            if kind in kinds.READS_OF_VALUES or not effects.changes_state(op):
                reads[handle].append(op)
            else:
                root = structure.root(op)
                writes[handle] += [op] if root is None else entering[root]
    return reads, writes


def _variables(op: tf.Operation, kind: str) -> Iterator[tf.Operation]:
    """Yields what made the variables that an operation reads or writes."""
    is_used = kind in kinds.READS_OF_VALUES or kinds.changes_state(kind)
    if is_used or definitions.is_call(kind):
        for tensor in op.inputs:
            handle = operations.made_by(tensor) if tensor.dtype == tf.resource else None
            if handle is not None:
                yield handle


def _ends(
    read: tf.Operation, running: Mapping[tf.Operation, str], written: writer.Writer
) -> list[tf.Operation]:
    """Returns what has a value in each step, and only when a read is over.

    Outside of branches and loops this is the read itself. What waits for an operation of a branch
    that is not taken never runs: of a branch it is the merge, of a loop its exits.
    """

    def is_outermost(op: tf.Operation) -> bool:
        # NOTE: only a copy's original tells whether it is in a branch or a loop.
        return written.structure.is_outermost(written.nodes.original(op.name) or op)

    if is_outermost(read):
        return [read]
    ends, found, waiting = [], {read}, [read]
    while waiting:
        for tensor in waiting.pop().outputs:
            for user in tensor.consumers():
                if user in found or user not in running:
                    continue
                found.add(user)
                if running[user] in ("Merge", "Exit") and is_outermost(user):
                    ends.append(user)
                else:
                    waiting.append(user)
    return ends
