"""What a step leaves open: uses of one variable in no order.

An operation happens after all that it reads or waits for (Lamport 1978). Two uses of a variable,
one of which writes, race if neither happens after the other, unless both add to it, or only one of
them can run. What this cannot see: a function that is called is one use, whatever it does inside,
and of a loop's uses only those within one turn are told apart.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import definitions, effects, kinds, loops, order

_ADDING = frozenset(
    """AssignAddVariableOp AssignSubVariableOp ResourceApplyGradientDescent ResourceScatterAdd
    ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterSub""".split()
)


class Use(NamedTuple):
    """What reads or writes a variable.

    Attributes:
        op: The operation.
        is_write: Whether it writes; it may read as well.
    """

    op: tf.Operation
    is_write: bool


class Race(NamedTuple):
    """Two uses of a variable in no order.

    Attributes:
        variable: The operation that made the variable.
        first: A use; the one that reads, where only one of them writes.
        second: A use that writes.
        is_settled: Whether the graph was given an order of the two: the read comes first.
    """

    variable: tf.Operation
    first: Use
    second: Use
    is_settled: bool = False

    def source(self) -> tf.Operation:
        """Returns the operation with which all begins that is open."""
        return self.variable if self.first.is_write else self.first.op


def find(graph: tf.Graph, fetches: Iterable[types.Fetch]) -> list[Race]:
    """Returns the races of a step, in the order in which operations were made.

    Args:
        graph: The graph.
        fetches: All that a step runs.
    """
    ops, written = _written(graph, fetches)
    numbers: dict[tf.Operation, int] = {}
    for use in itertools.chain(*written.values()):
        numbers.setdefault(use.op, 1 << len(numbers))
    of_turn = _before(ops, numbers, over_turns=False)
    of_all = _before(ops, numbers, over_turns=True)
    races = []
    for variable, found in written.items():
        for one, other in itertools.combinations(found, 2):
            loop = loops.root(one.op)
            before = of_all if loop is None or loop is not loops.root(other.op) else of_turn
            is_ordered = numbers[one.op] & before[other.op] or numbers[other.op] & before[one.op]
            if one.op is not other.op and not is_ordered and _may_clash(one, other):
                first, second = sorted((one, other), key=lambda use: use.is_write)
                races.append(Race(variable, first, second))
    return races


def settle(graph: tf.Graph, fetches: Sequence[types.Fetch]) -> list[Race]:
    """Finds races of a step, and lets reads come first where it can, as a split graph does.

    Args:
        graph: The graph, of which no session has run anything yet.
        fetches: All that a step runs.
    """
    races = find(graph, fetches)
    if not races:
        return []
    ops, written = _written(graph, fetches)
    structure = loops.Structure(graph)
    writes = [use.op for found in written.values() for use in found if use.is_write]
    behind_writes = operations.behind(writes, set(ops))

    def may_wait(race: Race) -> bool:
        read, write = race.first.op, race.second.op
        is_plain = structure.is_outermost(read) and structure.root(write) is None
        return is_plain and not race.first.is_write and read not in behind_writes

    settled = [race._replace(is_settled=may_wait(race)) for race in races]
    for race in settled:
        if race.is_settled:
            race.second.op._add_control_inputs([race.first.op])
    return settled


def _written(
    graph: tf.Graph, fetches: Iterable[types.Fetch]
) -> tuple[list[tf.Operation], dict[tf.Operation, list[Use]]]:
    """Returns the operations of a step, as they were made, and the uses of what it writes."""
    executed = operations.executed_by(fetches)
    ops = [op for op in graph.get_operations() if op in executed]
    makers = [op for op in ops if op.type == "VarHandleOp"]
    used = {op: [use for use in uses(op.outputs[0]) if use.op in executed] for op in makers}
    return ops, {op: found for op, found in used.items() if any(use.is_write for use in found)}


def _may_clash(one: Use, other: Use) -> bool:
    """Whether the order of two uses of a variable may matter."""
    if not (one.is_write or other.is_write):
        return False
    if one.op.type in _ADDING and other.op.type in _ADDING:
        return False
    branches, others = _branches(one.op), _branches(other.op)
    return all(others.get(predicate, side) == side for predicate, side in branches.items())


def _branches(op: tf.Operation) -> dict[object, int]:
    """Returns the branches of version 1 that an operation is in: predicates, and which side."""
    found, context = {}, op._get_control_flow_context()
    while context is not None:
        if not context.IsWhileContext():
            found[context.pred.ref()] = context.branch
        context = context.outer_context
    return found


def _before(
    ops: Sequence[tf.Operation], numbers: Mapping[tf.Operation, int], *, over_turns: bool
) -> dict[tf.Operation, int]:
    """Returns for each operation which others come before it, as bits, with its own.

    Args:
        ops: The operations in the order in which they were made.
        numbers: The bits of those that are told.
        over_turns: Whether what a turn of a loop takes from the turn before counts.
    """
    found = {op: numbers.get(op, 0) for op in ops}
    is_done = False
    while not is_done:
        is_done = True
        for op, old in found.items():
            new = old
            for tensor in op.inputs:
                if over_turns or not order.is_way_back(op, tensor):
                    new |= found[tensor.op]
            for waited in op.control_inputs:
                new |= found[waited]
            if new != old:
                found[op], is_done = new, False
    return found


def uses(handle: tf.Tensor) -> Iterator[Use]:
    """Yields the uses of a variable, of which a handle is given."""
    writes = set(operations.writing(handle))
    for op in operations.users(handle):
        if definitions.is_call(op.type):
            is_hidden = not operations.bodies(op) and effects.changes_state(op)
            yield Use(op, op in writes or is_hidden)
        elif op.type in kinds.READS_OF_VALUES or kinds.changes_state(op.type):
            yield Use(op, op.type not in kinds.READS_OF_VALUES)
