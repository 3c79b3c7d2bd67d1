"""Batch statistics: tower-local variables of which a training step writes one copy.

Moving averages of batch normalization are such variables. Where the first tower's
updates alone run, the first copy is the statistic: checkpoints hold it, and the other
towers' copies, which nothing writes, do not dilute it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.strategy import variables

_WRITES = ("Assign", "ResourceScatter")


def settle(made: Iterable[Any], running: Sequence[Any]) -> None:
    """Lets the first copy of each batch statistic stand for it.

    Args:
        made: The variables that the towers made.
        running: What a training step runs: its train_op and its loss.
    """
    local = [variable for variable in made if isinstance(variable, variables.TowerLocalVariable)]
    if not local:
        return
    executed = _ancestors(running)
    for variable in local:
        later = [write for member in variable.members[1:] for write in _writes(member)]
        if not any(write in executed for write in later):
            variable.follow_first()


def _writes(member: Any) -> list[tf.Operation]:
    """Returns the operations that assign to a resource variable."""
    return [op for op in member.handle.consumers() if op.type.startswith(_WRITES)]


def _ancestors(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches` are run."""
    waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
    found: set = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
            waiting.extend(op.control_inputs)
    return found
