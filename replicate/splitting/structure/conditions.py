"""Which branches must be taken for a tensor to have a value."""

from collections.abc import Hashable
from typing import TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting.structure import kinds

_Conditions: TypeAlias = frozenset[tuple[Hashable, bool]]
"""Predicates of branches, by `ref()`, and on which side of them something is."""


class Conditions:
    """Which branches must be taken for a tensor to have a value, by the data.

    Gradients of branches have no control flow context, so contexts do not tell.

    Args:
        graph: The graph, complete.
    """

    def __init__(self, graph: tf.Graph):
        self._found: dict[tf.Operation, _Conditions] = {}
        self._predicates: dict[Hashable, tf.Tensor] = {}
        ops = graph.get_operations()
        is_changed = any(begins_branch(op) for op in ops)
        while is_changed:
            is_changed = False
            for op in ops:
                new = self._of_inputs(op)
                if new and new != self._found.get(op):
                    self._found[op] = new
                    is_changed = True

    def of(self, tensor: tf.Tensor) -> list[tuple[tf.Tensor, bool]]:
        """Returns the predicates, innermost first, and on which side of them a tensor is."""
        found = [(self._predicates[key], side) for key, side in self._of_tensor(tensor)]
        return sorted(found, key=lambda each: (-len(self._of_tensor(each[0])), each[0].name))

    def _of_inputs(self, op: tf.Operation) -> _Conditions:
        if op.type in kinds.MERGES:
            ways = [t for t in op.inputs if t.op.type not in kinds.WAYS_BACK]
            return frozenset.intersection(*[self._of_tensor(tensor) for tensor in ways])
        found = [self._of_tensor(tensor) for tensor in op.inputs]
        found += [self._found.get(control, frozenset()) for control in op.control_inputs]
        return frozenset[tuple[Hashable, bool]]().union(*found)

    def _of_tensor(self, tensor: tf.Tensor) -> _Conditions:
        found = self._found.get(tensor.op, frozenset())
        if begins_branch(tensor.op):
            predicate = predicate_of(tensor.op)
            self._predicates[predicate.ref()] = predicate
            found |= {(predicate.ref(), bool(tensor.value_index))}
        return found


def begins_branch(op: tf.Operation) -> bool:
    """Whether an operation is a `Switch`, and not a loop's."""
    return op.type in kinds.SWITCHES and op.inputs[1].op.type != "LoopCond"


def predicate_of(switch: tf.Operation) -> tf.Tensor:
    """Returns what decides which side of a branch is taken."""
    predicate = switch.inputs[1]
    while predicate.op.type == "Identity":
        predicate = predicate.op.inputs[0]
    return predicate
