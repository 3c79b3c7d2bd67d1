"""What a step leaves open: uses of one variable in no order.

An operation happens after all that it reads or waits for (Lamport 1978). Two uses of a variable,
one of which writes, race if neither happens after the other, unless both add to it, or only one of
them can run. What this cannot see: a function that is called is one use, whatever it does inside,
and of a loop's uses only those within one turn are told apart.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import definitions, effects, kinds, loops, order

_VARIABLES = ("TemporaryVariable", "VarHandleOp", "Variable", "VariableV2")
_CONTROL_FLOW = (*kinds.ENTERS, *kinds.EXITS, *kinds.MERGES, *kinds.SWITCHES, *kinds.WAYS_BACK)
_PASSING = frozenset((*_CONTROL_FLOW, "Identity", "IdentityN", "RefIdentity"))
_ADDING = frozenset(
    """AssignAdd AssignAddVariableOp AssignSub AssignSubVariableOp ApplyGradientDescent
    ResourceApplyGradientDescent ResourceScatterAdd ResourceScatterNdAdd ResourceScatterNdSub
    ResourceScatterSub ScatterAdd ScatterNdAdd ScatterNdSub ScatterSub""".split()
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

    def sources(self) -> list[tf.Operation]:
        """Returns the operations with which all begins that is open."""
        return [self.variable if self.first.is_write else self.first.op]


_Ops: TypeAlias = Mapping[tf.Operation, None]
_Uses: TypeAlias = Mapping[tf.Operation, Sequence[Use]]


def find(graph: tf.Graph, fetches: Iterable[types.Fetch]) -> list[Race]:
    """Returns the races of a step.

    Args:
        graph: The graph.
        fetches: All that a step runs.
    """
    return list(_races(*_used(graph, fetches)))


def settle(graph: tf.Graph, fetches: Iterable[types.Fetch]) -> list[Race]:
    """Finds races of a step, and lets reads come first where it can, as a split graph does.

    Args:
        graph: The graph, of which no session has run anything yet.
        fetches: All that a step runs.
    """
    ops, uses = _used(graph, fetches)
    races = list(_races(ops, uses))
    if not races:
        return []
    structure = loops.Structure(graph)
    writes = [use.op for found in uses.values() for use in found if use.is_write]
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


def _used(graph: tf.Graph, fetches: Iterable[types.Fetch]) -> tuple[_Ops, _Uses]:
    """Returns the operations of a step, as they were made, and the uses of its variables."""
    executed = operations.executed_by(fetches)
    ops = {op: None for op in graph.get_operations() if op in executed}
    return ops, {op: list(_uses(op.outputs[0], ops)) for op in ops if op.type in _VARIABLES}


def _races(ops: _Ops, uses: _Uses) -> Iterator[Race]:
    """Yields all races, in the order in which operations were made."""
    written = {op: found for op, found in uses.items() if any(use.is_write for use in found)}
    numbers: dict[tf.Operation, int] = {}
    for use in itertools.chain(*written.values()):
        numbers.setdefault(use.op, 1 << len(numbers))
    of_turn = _before(ops, numbers, over_turns=False)
    of_all = _before(ops, numbers, over_turns=True)
    for variable, found in written.items():
        for one, other in itertools.combinations(found, 2):
            if one.op is other.op or not _may_clash(one, other):
                continue
            loop = loops.root(one.op)
            before = of_all if loop is None or loop is not loops.root(other.op) else of_turn
            if numbers[one.op] & before[other.op] or numbers[other.op] & before[one.op]:
                continue
            first, second = sorted((one, other), key=lambda use: use.is_write)
            yield Race(variable, first, second)


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
    ops: _Ops, numbers: Mapping[tf.Operation, int], *, over_turns: bool
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


# Uses of variables.


def _uses(variable: tf.Tensor, ops: _Ops | None, seen: set[object] | None = None) -> Iterator[Use]:
    """Yields the uses of a variable.

    Args:
        variable: Its handle, or a reference to it.
        ops: What runs; None: all, in a function.
        seen: The tensors that stand for it, as far as they are known.
    """
    seen = set() if seen is None else seen
    seen.add(variable.ref())
    for user in variable.consumers():
        if ops is not None and user not in ops:
            continue
        use = _use(user, variable)
        if use is not None:
            yield use
        passed = [output for output in user.outputs if _stands_for(output, user)]
        for output in passed:
            if output.ref() not in seen:
                yield from _uses(output, ops, seen)
        if user.type == "Identity" and variable.dtype._is_ref_dtype:  # its output is no copy
            readers = user.outputs[0].consumers()
            yield from (Use(op, is_write=False) for op in readers if ops is None or op in ops)


def _stands_for(output: tf.Tensor, user: tf.Operation) -> bool:
    """Whether what an operation gives back may be the variable that it was given."""
    if output.dtype._is_ref_dtype:
        return True
    return output.dtype == tf.resource and user.type in _PASSING


def _use(op: tf.Operation, variable: tf.Tensor) -> Use | None:
    """Returns an operation as a use; None if it passes the variable on, or has no use for it."""
    if variable.dtype._is_ref_dtype:
        definition = tfc.op_def_registry.get(op.type)
        count = sum(argument.is_ref for argument in definition.input_arg)
        by_reference = any(tensor is variable for tensor in op.inputs[:count])
        if by_reference and op.type in _PASSING:
            return None
        return Use(op, by_reference and kinds.changes_state(op.type))
    if op.type in _PASSING:
        return None
    if definitions.is_call(op.type):
        return Use(op, _is_written_inside(op, variable))
    if op.type in kinds.READS_OF_VALUES:
        return Use(op, is_write=False)
    return Use(op, is_write=True) if kinds.changes_state(op.type) else None


def _is_written_inside(op: tf.Operation, variable: tf.Tensor) -> bool:
    """Whether a function that an operation calls writes a variable, as far as that is known."""
    bodies = operations.bodies(op)
    if not bodies:
        return effects.changes_state(op)
    inner = [
        own
        for body in bodies
        for own, given in zip(body.inputs, body.arguments, strict=True)
        if given is variable
    ]
    return any(use.is_write for own in inner for use in _uses(own, None))
