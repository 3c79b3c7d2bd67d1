"""Takes branches of which the graph alone tells that they are taken.

A session leaves out the branch that a constant predicate does not take, and what nothing but that
branch needs, as an update that one of its values waits for. Split over devices it would run. So
whatever reads what such branches merge reads the value of the one that is taken.

    x -> Switch(x, True) -> Neg -> Merge -> Sum          x -> Neg -> Sum
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.splitting.structure import effects, kinds, replacing
from replicate.splitting.structure.replacing import Moved

_LIVING = (*kinds.MERGES, "ControlTrigger")  # run, whatever they wait for


Known: TypeAlias = Callable[[tf.Tensor], bool | None]
"""Returns whether a predicate is true, or None if that is not known beforehand."""


def is_open(predicate: tf.Tensor) -> None:
    """Tells of no predicate whether it is true, as a session that optimizes nothing."""
    del predicate


def known(predicate: tf.Tensor) -> bool | None:
    """Returns whether a predicate is true, or None if a session does not find out beforehand."""
    op = predicate.op
    if op.type == "Identity":
        return known(op.inputs[0])
    if op.type in ("LogicalAnd", "LogicalOr"):
        values, decisive = [known(each) for each in op.inputs], op.type == "LogicalOr"
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    if predicate.dtype != tf.bool or not _is_folded(predicate):
        return None
    value = tfc.smart_cond.smart_constant_value(predicate)
    return None if value is None else bool(value)


def _is_folded(tensor: tf.Tensor) -> bool:
    """Whether a session works out a value beforehand, if what makes it has no state.

    It does so of constants other than text, and of shapes of which it knows every length.
    """
    found, waiting = set(), [tensor]
    while waiting:
        op = waiting.pop().op
        if op in found:
            continue
        found.add(op)
        if any(each.dtype == tf.string for each in op.outputs):
            return False
        if op.type == "Rank":
            if op.inputs[0].shape.rank is None:
                return False
        elif op.type in ("Shape", "ShapeN", "Size"):
            if not all(each.shape.is_fully_defined() for each in op.inputs):
                return False
        elif op.inputs:
            waiting.extend(op.inputs)
        elif op.type != "Const":
            return False
    return True


def take(graph: tf.Graph, known: Known) -> Moved:
    """Lets what reads the result of known branches read that of the branch which is taken.

    The branches themselves stay in the graph, to be fetched by name.

    Args:
        graph: The graph; functional branches are lowered.
        known: What is known of predicates.

    Returns:
        The tensors in place of those that known branches get and give, by the `ref()` of these.
    """
    switches = _known_switches(graph, known)
    if not switches:
        return {}
    dead, merges = _dead(switches)
    pairs = [(op.outputs[value], op.inputs[0]) for op, value in switches.items() if op not in dead]
    for op, numbers in merges.items():
        if op not in dead and _is_decided(op, numbers):
            pairs.append((op.outputs[0], op.inputs[1 - min(numbers)]))
    behind_changes = effects.behind_changes(graph)
    moved = {}
    for old, new in pairs:
        waits = [each for each in old.op.control_inputs if each not in dead]
        if old.op.type == "Switch" and old.op.inputs[1].op in behind_changes:
            waits.append(old.op.inputs[1].op)
        moved[old.ref()] = _in_place(old, new, waits)
    for old, _ in pairs:
        new = replacing.moved_to(moved, old)
        replacing.read_instead(old.consumers(), old, new)
        replacing.wait_instead(old.op._control_outputs, old.op, [new.op])
    return moved


def _known_switches(graph: tf.Graph, known: Known) -> dict[tf.Operation, bool]:
    """Returns the switches of which the predicates are known, with these."""
    values: dict[int, bool | None] = {}
    found = {}
    for op in graph.get_operations():
        if op.type == "Switch":
            predicate = op.inputs[1]
            if id(predicate) not in values:
                values[id(predicate)] = known(predicate)
            value = values[id(predicate)]
            if value is not None:
                found[op] = value
    return found


def _dead(
    switches: Mapping[tf.Operation, bool],
) -> tuple[set[tf.Operation], dict[tf.Operation, set[int]]]:
    """Returns what never runs, and of merges which inputs never have a value."""
    dead: set[tf.Operation] = set()
    merges: dict[tf.Operation, set[int]] = collections.defaultdict(set)
    tensors = [op.outputs[not value] for op, value in switches.items()]
    while tensors:
        tensor = tensors.pop()
        waiting = []
        for op in tensor.consumers():
            if op.type in kinds.MERGES:
                merges[op].update(n for n, each in enumerate(op.inputs) if each is tensor)
                if _may_run(op, merges[op]):
                    continue
            waiting.append(op)
        while waiting:
            op = waiting.pop()
            if op not in dead:
                dead.add(op)
                tensors.extend(op.outputs)
                waiting.extend(each for each in op._control_outputs if each.type not in _LIVING)
    return dead, merges


def _may_run(merge: tf.Operation, dead: Iterable[int]) -> bool:
    """Whether a merge may get a value; that of a loop gets its first one from outside."""
    return any(
        n not in dead and tensor.op.type not in kinds.WAYS_BACK
        for n, tensor in enumerate(merge.inputs)
    )


def _is_decided(merge: tf.Operation, dead: set[int]) -> bool:
    """Whether a merge gets the value of one of two branches, and nothing asks which it was."""
    is_loop = any(tensor.op.type in kinds.WAYS_BACK for tensor in merge.inputs)
    is_asked = bool(merge.outputs[1].consumers())
    return len(merge.inputs) == 2 and len(dead) == 1 and not is_loop and not is_asked


def _in_place(old: tf.Tensor, new: tf.Tensor, waits: Sequence[tf.Operation]) -> tf.Tensor:
    """Returns what stands for the first of two tensors: the second, or a copy of it.

    A copy waits for what the first one waits for, and can be fetched from a session.
    """
    op = old.op
    if not waits and op.graph.is_fetchable(new.op):
        return new
    with replacing.written("taken", op.graph, op.device, op._get_control_flow_context(), waits):
        return tf.identity(new)
