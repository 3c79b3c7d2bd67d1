"""Effects happen once, and variables are read before they are written if no order is given."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import definitions, kinds, loops
from replicate.splitting.structure import order as order_of
from replicate.splitting.structure.nodes import Made, Nodes, Waited

_MEASURES = ("Rank", "Shape", "ShapeN", "Size")


_ByVariable: TypeAlias = dict[tf.Operation, list[tf.Operation]]


class Written(Protocol):
    """A split graph, as far as effects are concerned; see `writer.Writer`."""

    nodes: Nodes
    structure: loops.Structure
    run_whole: dict[tf.Operation, None]
    run_aside: set[Waited]


def has_effect(op: tf.Operation) -> bool:
    """Whether an operation, or a function that it calls, does more than make its outputs."""
    return _has(op, kinds.has_effect)


def changes_state(op: tf.Operation) -> bool:
    """Whether an operation has an effect other than to check values."""
    return _has(op, kinds.changes_state)


def _has(op: tf.Operation, of_kind: Callable[[str], bool]) -> bool:
    if definitions.is_call(op.type):
        return definitions.Functions(op.graph).has_effect(op.node_def, of_kind)
    return of_kind(op.type)


def behind_changes(graph: tf.Graph) -> set[tf.Operation]:
    """Returns the operations that change a state, or come after one that does."""
    ops = set(graph.get_operations())
    sources = [op for op in ops if changes_state(op)]
    return operations.behind(sources, ops) if sources else set()


def with_behind(graph: tf.Graph, given: Iterable[tf.Tensor]) -> order_of.Behind:
    """Returns the operations with effects, and those that come after one.

    Reading a tensor's shape does not count as coming after a check of its values, if something
    else reads the values: the check is made for that.

    Args:
        graph: The graph.
        given: The tensors of the batch; effects that they come after are over for all else.
    """
    ops = set(graph.get_operations())
    before = operations.executed_by(list(given))
    sources = [op for op in ops if op not in before and has_effect(op)]
    changing = [op for op in sources if changes_state(op)]
    changes = operations.behind(changing, ops) if changing else set()
    return order_of.Behind(changes, _behind_checks([op for op in sources if op not in changes]))


def _behind_checks(sources: Iterable[tf.Operation]) -> dict[tf.Operation, int]:
    """Returns operations that check values, and all behind them, with these checks as bits."""
    found: dict[tf.Operation, int] = {}
    waiting = collections.deque((op, 1 << n) for n, op in enumerate(sources))
    while waiting:
        op, bits = waiting.popleft()
        new = bits & ~found.get(op, 0)
        if not new:
            continue
        found[op] = found.get(op, 0) | new
        waiting.extend((user, new) for user in op._control_outputs)
        for tensor in op.outputs:
            users = tensor.consumers()
            others = [user for user in users if user.type not in _MEASURES]
            waiting.extend((user, new) for user in others or users)
    return found


def keep_whole(
    ops: Iterable[tf.Operation], structure: loops.Structure, assumptions: loops.Assumptions
) -> None:
    """Notes that loops in which something has an effect are whole.

    Args:
        ops: The operations of a graph.
        structure: Its loops.
        assumptions: Where to note it.
    """
    for op in ops:
        root = structure.root(op)
        if root is None or op.type in kinds.CHECKS or assumptions.is_whole(root):
            continue
        if has_effect(op):
            assumptions.make_loop_whole(op, f"{op.type} has an effect")


def order(written: Written, made: Made) -> None:
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
            if kind in kinds.READS_OF_VALUES or not changes_state(op):
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
    read: tf.Operation, running: Mapping[tf.Operation, str], written: Written
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
