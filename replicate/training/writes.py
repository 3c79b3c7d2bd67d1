"""Who writes the model's variables in a training step: all towers together, or one alone.

An optimizer lets the towers meet, and updates a variable once. Code that assigns by
itself does so in every tower, from the tower's own rows: towers would race, or the first
one's rows alone would count. That is refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, shared_reads
from replicate.strategy import sharing, variables
from replicate.training import joining


def refuse_lone(
    creations: sharing.Creations,
    join: joining.Joining,
    running: Sequence[Any],
    updates: Sequence[Any] = (),
) -> None:
    """Refuses a step in which a tower writes by itself a variable that all towers share.

    Args:
        creations: The log of what the towers made.
        join: Joins what the towers bring.
        running: What a step runs: tensors and operations.
        updates: Those of the first tower that stand for all towers'. They may write from its
            rows alone what no other tower reads.

    Raises:
        TowerMismatchError: Names the variable, the tower and the operation.
    """
    rows = join.whole.rows
    if rows.is_single:
        return
    executed = ancestry.executed_by(running)
    spared = ancestry.executed_by(updates)
    later = {i: creations.operations(i) for i in range(1, len(rows.weights))}
    for variable in _shared(creations):
        _check_copies(variable, executed)
        for op in _uses(variable, executed, spared):
            users = {op, *_readers(op, executed)}
            tower_id = next((i for i, made in later.items() if not users.isdisjoint(made)), None)
            if tower_id is None and op not in spared and not join.whole.is_lone:
                tower_id = 0 if op in join.whole.varying else None
            if tower_id is not None:
                raise _refusal(variable, op, tower_id)


def _shared(creations: sharing.Creations) -> list:
    """Returns the variables that towers share, each once."""
    return list({id(v): v for v in [*creations.all(), *tf1.global_variables()]}.values())


def order(creations: sharing.Creations, join: joining.Joining, running: Sequence[Any]) -> None:
    """Has a step write variables behind its batch, and behind what it reads of them in no order.

    Of several towers one might read the old value of a variable and another one the new, as of a
    global step that a rate is made from: their copies of what they write from it would part. And
    a step that finds its input ended could still decay an optimizer's averages, in some copies.
    So writes wait: but what the batch itself waits for, as an input_fn that counts, and reads
    behind a write, which stay there. What is waited for waits for no such write, by any way.

    Args:
        creations: See `refuse_lone`.
        join: See `refuse_lone`.
        running: See `refuse_lone`.
    """
    rows = join.whole.rows
    if rows.is_single:
        return
    executed = ancestry.executed_by(running)
    batch = [tensor.op for tensor in rows.given[0] if tensor.op in executed][:1]
    before_batch = ancestry.executed_by(batch)
    members = [member for v in _shared(creations) for member in getattr(v, "members", (v,))]
    writes = [
        [op for op in ancestry.writes(member) if op in executed and op not in before_batch]
        for member in members
    ]
    behind = ancestry.behind([op for ops in writes for op in ops], executed)
    for member, found in zip(members, writes, strict=True):
        reads = found and [
            op for op in member.handle.consumers() if op.type == "ReadVariableOp" and op in executed
        ]
        first = [op for op in (*batch, *reads) if op not in behind and _is_outermost(op)]
        for write in filter(_is_outermost, found):
            before = set(write.control_inputs)
            write._add_control_inputs([op for op in first if op not in before])


def _is_outermost(op: tf.Operation) -> bool:
    return op._get_control_flow_context() is None


def _check_copies(variable: Any, executed: set) -> None:
    """Refuses a step after which the copies of a mirrored variable would differ."""
    members = getattr(variable, "members", ())
    if isinstance(variable, variables.TowerLocalVariable) or len(members) == 1:
        return
    writes = [[op for op in ancestry.writes(member) if op in executed] for member in members]
    written = [ops for ops in writes if ops]
    if written and len(written) < len(members):
        raise errors.TowerMismatchError(
            f"All copies of a mirrored variable are written: a step writes {len(written)} of "
            f"{len(members)} copies of {variable.name} ({written[0][-1].name}). Use the variable's "
            "assign, assign_add or assign_sub, which reach all copies, in place of operations on "
            'its handle, or strategy="parameter_server", which has one copy.'
        )


def _uses(variable: Any, executed: set, spared: set) -> Iterator[tf.Operation]:
    """Yields what writes a variable that towers share, and whatever may meet a spared write."""
    if isinstance(variable, variables.TowerLocalVariable):
        return
    for member in getattr(variable, "members", (variable,)):
        for write in ancestry.writes(member):
            if write in executed and write not in spared:
                yield write
            elif write in executed:
                yield from (op for op in member.handle.consumers() if op in executed)


def _readers(op: tf.Operation, executed: set) -> Iterator[tf.Operation]:
    """Yields what uses a variable's value, which towers that are copies read once for all."""
    if op.type == "ReadVariableOp":
        yield from (user for user in shared_reads.users(op.outputs[0]) if user in executed)


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
