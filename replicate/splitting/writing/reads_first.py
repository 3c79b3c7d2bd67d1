"""Variables are read before they are written, where the graph gives no order."""

import collections
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import definitions, effects, kinds, loops
from replicate.splitting.structure.nodes import Made, Maker, Reference, maker
from replicate.splitting.writing import writer as writers

_Before: TypeAlias = Mapping[Maker, Sequence[Maker]]
_ByVariable: TypeAlias = dict[Maker, list[Maker]]


def found(written: writers.Writer, before: _Before) -> dict[Maker, list[Maker]]:
    """Returns what a step's writes of variables are to wait for, where the graph leaves that open.

    These are its reads. Copies on several devices read at different times: without an order, some
    might see the value after the step. A call, a branch or a loop that writes waits as a whole. Of
    reads behind a write these are copies, on its device, of what the graph lets it wait for.

    Args:
        written: The writer, of a graph of which nothing is added yet.
        before: What everything that runs reads or waits for.
    """
    running = _Running(written, before)
    reads, writes = running.users()
    behind = running.behind([each for found in writes.values() for each in found])
    first: dict[Maker, list[Maker]] = {}
    for variable, waiting in writes.items():
        reading = reads.get(variable, ())
        ends = dict.fromkeys(end for read in reading for end in running.ends(read))
        copies = [each for each in dict.fromkeys([*reading, *ends]) if isinstance(each, str)]
        copies = [each for each in copies if each in behind]
        free = [end for end in ends if end not in behind]
        for write in waiting:
            first[write] = [*first.get(write, ()), *free, *running.over(copies, write, behind)]
    return first


def apply(first: Mapping[Maker, Sequence[Maker]], made: Made) -> None:
    """Lets writes wait for reads.

    Args:
        first: What `found` returned.
        made: The new operations by their names.
    """
    for write, reads in first.items():
        op, *ends = [made[each] if isinstance(each, str) else each for each in (write, *reads)]
        known = set(op.control_inputs)
        op._add_control_inputs([end for end in dict.fromkeys(ends) if end not in known])


class _Running:
    """What a step runs of a graph that is written.

    Args:
        written: See `found`.
        before: See `found`.
    """

    def __init__(self, written: writers.Writer, before: _Before):
        self._nodes = written.nodes
        self._before = before
        self._structure = written.structure
        self._changed = {(op, n): reference for op, n, reference in written.changes.inputs}
        new = {name: node.op for name, node in self._nodes.by_name.items()}
        everything = {**{op: op.type for op in written.run_whole}, **new}
        self._kinds: dict[Maker, str] = {
            each: kind for each, kind in everything.items() if not written.is_aside(each)
        }
        self._users: dict[Maker, list[Maker]] = collections.defaultdict(list)
        for each in self._kinds:
            for other in before[each]:
                self._users[other].append(each)

    def users(self) -> tuple[_ByVariable, _ByVariable]:
        """Returns what reads each variable, and what is to wait until that is over.

        What waits is the write, or all that enters the loop in which the write is.
        """
        reads: _ByVariable = collections.defaultdict(list)
        writes: _ByVariable = collections.defaultdict(list)
        entering: dict[loops.Context | None, list[Maker]] = collections.defaultdict(list)
        for each, kind in self._kinds.items():
            if kind in kinds.ENTERS and isinstance(each, tf.Operation):
                entered = self._changed.get((each, 0), each.inputs[0])
                if isinstance(entered, str) or self._structure.is_outermost(entered.op):
                    entering[self._structure.own_loop(each)].append(each)
        for each, kind in self._kinds.items():
            for variable in self._variables(each, kind):
                if kind in kinds.READS_OF_VALUES or not self._changes_state(each, kind):
                    reads[variable].append(each)
                else:
                    root = None if isinstance(each, str) else self._structure.root(each)
                    writes[variable] += [each] if root is None else entering[root]
        return reads, writes

    def _changes_state(self, each: Maker, kind: str) -> bool:
        op = self._original(each)
        return kinds.changes_state(kind) if op is None else effects.changes_state(op)

    def _original(self, each: Maker) -> tf.Operation | None:
        """Returns an operation of the graph, or that which a new one is a copy of, if any."""
        return self._nodes.original(each) if isinstance(each, str) else each

    def _variables(self, each: Maker, kind: str) -> Iterator[Maker]:
        """Yields what made the variables that an operation reads or writes."""
        is_used = kind in kinds.READS_OF_VALUES or kinds.changes_state(kind)
        if not is_used and not definitions.is_call(kind):
            return
        read: Sequence[Reference]
        if isinstance(each, str):
            inputs = self._nodes.by_name[each].input
            read = [written for written in inputs if not written.startswith("^")]
        else:
            read = [self._changed.get((each, n), tensor) for n, tensor in enumerate(each.inputs)]
        for reference in read:
            variable = self._variable(reference)
            if variable is not None:
                yield variable

    def _variable(self, reference: Reference) -> Maker | None:
        """Returns what made the variable that a value is a handle of; of other values None."""
        while isinstance(reference, str):
            if reference in self._nodes.tensors:
                reference = self._nodes.tensors[reference]
                continue
            node = self._nodes.by_name[str(maker(reference))]
            if node.op == "VarHandleOp":
                return node.name
            if node.op not in operations.PASSING:
                return None
            reference = node.input[0]
        return operations.made_by(reference) if reference.dtype == tf.resource else None

    def behind(self, starts: Sequence[Maker]) -> set[Maker]:
        """Returns operations, and all that run behind one of them."""
        found: set[Maker] = set()
        waiting = list(starts)
        while waiting:
            each = waiting.pop()
            if each not in found:
                found.add(each)
                waiting.extend(self._users[each])
        return found

    def over(self, copies: Sequence[str], write: Maker, behind: Set[Maker]) -> list[str]:
        """Returns, of copies behind writes, those whose originals a write comes after."""
        found: set[Maker] = set()
        waiting: list[Maker] = [write] if copies else []
        while waiting:
            each = waiting.pop()
            if each in behind and each not in found:
                found.add(each)
                waiting.extend(self._before[each])
        return [
            each
            for each in copies
            if self._original(each) in found
            and (self._is_outermost(each) or self._are_in_one_branch(each, write))
        ]

    def _are_in_one_branch(self, *makers: Maker) -> bool:
        ops = [self._original(each) for each in makers]
        return len({op and op._get_control_flow_context() for op in ops}) == 1

    def ends(self, read: Maker) -> list[Maker]:
        """Returns what has a value in each step, and only when a read is over.

        Outside of branches and loops this is the read itself. What waits for an operation of a
        branch that is not taken never runs: of a branch it is the merge, of a loop its exits.
        """
        if self._is_outermost(read):
            return [read]
        ends, found, waiting = [], {read}, [read]
        while waiting:
            for user in self._users[waiting.pop()]:
                if user in found:
                    continue
                found.add(user)
                # NOTE: of a new operation only its original tells whether it is in a branch.
                is_end = self._kinds[user] in ("Merge", "Exit") and self._original(user) is not None
                if is_end and self._is_outermost(user):
                    ends.append(user)
                else:
                    waiting.append(user)
        return ends

    def _is_outermost(self, each: Maker) -> bool:
        op = self._original(each)
        return op is None or self._structure.is_outermost(op)
