"""What has an effect happens once, and reads come before writes where no order is given."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry
from replicate.splitting import loops

_WRITING = (
    "Assign",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "Scatter",
    "Apply",
    "SparseApply",
)
_EFFECTS = (
    *_WRITING,
    "PyFunc",
    "EagerPyFunc",
    "Print",
    "Queue",
    "LookupTableI",
    "LookupTableR",
    "WriteSummary",
    "WriteScalarSummary",
    "WriteHistogramSummary",
    "Barrier",
    "Stage",
    "Unstage",
    "Map",
    "OrderedMap",
    "ResourceAccumulator",
    "Accumulator",
    "SparseAccumulator",
    "ResourceCountUpTo",
    "ResourceConditionalAccumulator",
)
_PASSING = ("Switch", "Enter", "Identity")
READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


def has_effect(op: tf.Operation) -> bool:
    """Whether an operation does something beside making its outputs."""
    return _may_have_effect(op.type) and op.op_def.is_stateful


@functools.cache
def _may_have_effect(kind: str) -> bool:
    return kind.startswith(_EFFECTS)


@functools.cache
def _writes(kind: str) -> bool:
    return kind.startswith(_WRITING)


def behind(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns those of a graph's operations that come after one with an effect."""
    ops = set(ops)
    sources = [op for op in ops if has_effect(op)]
    return ancestry.behind(sources, ops) - set(sources) if sources else set()


def with_behind(graph: tf.Graph, given: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """Returns the operations with effects, and those that come after one.

    Args:
        graph: The graph.
        given: The tensors of the batch; effects that these come after are over for all else.
    """
    ops = set(graph.get_operations())
    before = ancestry.executed_by(list(given))
    sources = [op for op in ops if op not in before and has_effect(op)]
    return ancestry.behind(sources, ops) if sources else set()


def keep_whole(
    ops: Iterable[tf.Operation], structure: loops.Structure, assumptions: loops.Assumptions
) -> None:
    """Lets loops be whole in which something has an effect.

    Args:
        ops: The operations of a graph.
        structure: Its loops.
        assumptions: Where it is noted.
    """
    for op in ops:
        root = structure.root(op)
        if root is not None and has_effect(op) and not assumptions.is_whole(root):
            assumptions.make_loop_whole(op, f"{op.type} has an effect")


def order(written: Any, made: dict[str, tf.Operation]) -> None:
    """Lets a step read variables before it writes them, where the graph leaves that open.

    Copies on several devices read at several times: without an order some might see the value of
    after the step.

    Args:
        written: The writer.
        made: The new operations by their names.
    """
    aside, nodes = written.run_aside, written.nodes
    kinds = {op: op.type for op in written.run_whole if op not in aside}
    for name, node in nodes.by_name.items():
        if name not in aside and nodes.original(name) not in aside:
            kinds[made[name]] = node.op
    running = set(kinds)
    reads, writes = _users(kinds)
    behind = ancestry.behind([op for ops in writes.values() for op in ops], running)
    for handle, found in writes.items():
        found_reads = reads.get(handle, ())
        ends = dict.fromkeys(end for op in found_reads for end in _ends(op, running, written))
        first = [op for op in ends if op not in behind]
        for write in found:
            before = set(write.control_inputs)
            write._add_control_inputs([op for op in first if op not in before])


def _users(kinds: Mapping[tf.Operation, str]) -> tuple[dict, dict]:
    """Returns what reads each variable, and what writes it outside of branches and loops.

    Args:
        kinds: The operations that run, and of what kind they are.
    """
    reads: dict[tf.Operation, list] = {}
    writes: dict[tf.Operation, list] = {}
    for op, kind in kinds.items():
        is_read = kind in READS
        if not is_read and not _writes(kind):
            continue
        for tensor in op.inputs:
            handle = tensor.op if tensor.dtype == tf.resource else None
            while handle is not None and handle.type in _PASSING:
                handle = handle.inputs[0].op
            if handle is None or handle.type != "VarHandleOp":
                continue
            if is_read:
                reads.setdefault(handle, []).append(op)
            elif op._get_control_flow_context() is None:
                writes.setdefault(handle, []).append(op)
    return reads, writes


def _ends(read: tf.Operation, running: set[tf.Operation], written: Any) -> list[tf.Operation]:
    """Returns what has a value only when a read is over, and has one in each step.

    Outside of branches and loops this is the read. What waits for an operation of a branch that
    is not taken would never run; so inside it is what the branches merge in, or the loop's exits.
    """
    if read._get_control_flow_context() is None:
        return [read]
    ends, found, waiting = [], {read}, [read]
    while waiting:
        for tensor in waiting.pop().outputs:
            for user in tensor.consumers():
                if user in found or user not in running:
                    continue
                found.add(user)
                # NOTE: of a copy only its original tells in what it is.
                original = written.nodes.original(user.name) or user
                if user.type in ("Merge", "Exit") and written.structure.is_outermost(original):
                    ends.append(user)
                else:
                    waiting.append(user)
    return ends
