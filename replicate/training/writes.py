"""Who writes the model's variables in a training step: all towers together, or one alone.

An optimizer lets the towers meet, and updates a variable once. Code that assigns by
itself does so in every tower, from the tower's own rows: towers would race, or the first
one's rows alone would count. That is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry
from replicate.strategy import context, variables


def refuse_lone(
    towers: Sequence[Any],
    made: Iterable[Any],
    share: context.Share,
    running: Sequence[Any],
    updates: Sequence[Any] = (),
) -> None:
    """Refuses a step in which a tower writes by itself a variable that all towers share.

    Args:
        towers: K towers.
        made: The variables that the towers made.
        share: The towers' parts of the batch.
        running: What a step runs: tensors and operations.
        updates: Those of the first tower that stand for all towers'. They may write from its
            rows alone what no other tower reads.

    Raises:
        TowerMismatchError: Names the variable, the tower and the operation.
    """
    executed = ancestry.executed_by(running)
    spared = ancestry.executed_by(updates)
    shared = {id(variable): variable for variable in [*made, *tf1.global_variables()]}
    for variable in shared.values():
        for write in _writes(variable):
            if write not in executed:
                continue
            users = variable.handle.consumers() if write in spared else [write]
            user = _first_alone([op for op in users if op in executed], towers, share, spared)
            if user is not None:
                raise _refusal(variable, *user)


def _writes(variable: Any) -> Iterator[tf.Operation]:
    """Yields the operations that write a variable, if towers share it."""
    if not isinstance(variable, variables.TowerLocalVariable):
        for member in getattr(variable, "members", (variable,)):
            yield from ancestry.writes(member)


def _first_alone(
    operations: Sequence[tf.Operation], towers: Sequence[Any], share: context.Share, spared: set
) -> tuple[tf.Operation, int] | None:
    """Returns the first operation that a tower alone runs, and the tower."""
    for op in operations:
        for tower in towers[1:]:
            if op.name.startswith(tower.scope):
                return op, tower.tower_id
        if op not in spared and (readers := _readers(op, share)):
            return op, readers[0]
    return None


def _readers(write: tf.Operation, share: context.Share) -> list[int]:
    """Returns the towers from whose rows a write is made; none where all have a part in it."""
    behind = ancestry.made_from([write])
    own = [rows for rows, has in zip(_own(share), share.has_rows, strict=True) if has is not False]
    readers = [i for i, rows in enumerate(own) if not behind.isdisjoint(rows)]
    return readers if len(readers) < len(own) else []


def _own(share: context.Share) -> list[set]:
    """Returns for each tower the operations that give rows to it alone."""
    given = [set(operations) for operations in share.given]
    return [own.difference(*given[:i], *given[i + 1 :]) for i, own in enumerate(given)]


def _refusal(variable: Any, op: tf.Operation, tower_id: int) -> errors.TowerMismatchError:
    if variable.trainable:
        return errors.TowerMismatchError(
            "An optimizer must meet the other towers before it updates the model: tower "
            f"{tower_id} updates {variable.name} by itself ({op.name}). Wrap the optimizer "
            "in replicate.TowerOptimizer, or give it as optimizer_fn."
        )
    return errors.TowerMismatchError(
        "A variable that all towers share is written once per step, for all of them: tower "
        f"{tower_id} uses {variable.name} by itself ({op.name}). Make it with "
        "aggregation=tf.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, and what towers "
        "assign is joined; with synchronization=tf.VariableSynchronization.ON_READ as well, each "
        "tower has a copy of its own."
    )
