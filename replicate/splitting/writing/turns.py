"""Parts of one device take turns: each begins a phase when the part before has ended it."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting.inference import extents
from replicate.splitting.structure import effects, frames, kinds, phases
from replicate.splitting.structure.nodes import Maker
from replicate.splitting.writing import writer as writers

_Maker: TypeAlias = Maker | frames.Loop


class Runs(NamedTuple):
    """What is known of a graph that is written.

    Attributes:
        parts: Of copies, by their names, the parts; nothing where each device has one part.
        before: What everything waits for, loops' turns left out; each comes behind what it names.
        aside: What no step runs.
        dead: What may have no value, since it is in a branch.
    """

    parts: Mapping[Maker, int]
    before: dict[_Maker, Sequence[_Maker]]
    aside: Set[Maker]
    dead: Set[Maker]


class Turns:
    """Lets the parts of a graph take turns, where devices have several.

    Args:
        written: The writer, of a graph of which nothing is added yet.
        runs: What is known of it.
        changes: Behind which changes of a state each operation comes, as bits.

    Attributes:
        gates: For each join of a step, and each part of it, what the next part waits for.
        held: The operations for which each device keeps what all its parts compute.
    """

    def __init__(self, written: writers.Writer, runs: Runs, changes: Mapping[Maker, int]):
        self._written = written
        self._nodes = written.nodes
        self._runs = runs
        self._changes = changes
        self._phases = phases.Phases[_Maker](
            runs.before, {**runs.parts}, self._may_join, runs.aside
        )
        self.held = self._find_held()
        self.gates = self._wait()

    def of(self, each: _Maker) -> phases.Turn:
        """Returns when an operation runs."""
        return self._phases.turn(each)

    def _wait(self) -> dict[str, list[str | None]]:
        """Adds what makes each part wait; returns `gates`."""
        in_loops = frames.in_loops(self._runs.before, self._kind)

        def bits_of(each: _Maker) -> int | None:
            is_new = isinstance(each, str) and each not in in_loops and self._is_in_step(each)
            return self._bits(each) if is_new else None

        gates: dict[tuple[int, phases.Kind], str] = {}
        devices, number = self._written.devices, self._written.micro_batches
        for part, kind, ends, begins in self._phases.in_turn(number, bits_of):
            gate = self._nodes.add("NoOp", [], devices[part], controls=list(map(str, ends)))
            for each in map(str, begins):
                self._nodes.by_name[each].input.append(self._nodes.wait(gate))
            gates[part, kind] = gate
        waiting: dict[str, list[str | None]] = {}
        joins = self._written.changes.joins if gates else ()
        for name in filter(self._is_in_step, joins):
            ended = phases.Kind(self.of(name).phase - 1, self._bits(name))
            waiting[name] = [gates.get((k, ended)) for k in range(len(devices))]
        return waiting

    def _find_held(self) -> list[tf.Operation]:
        """Returns the operations for which all parts keep what they make; changes come last."""
        before = self._runs.before
        reads = {each for each in before if self._kind(each) in kinds.READS_OF_VALUES}
        whole = [each for each in before if isinstance(each, tf.Operation)]
        changing = [op for op in whole if effects.changes_state(op)]
        found: dict[tf.Operation, None] = {}
        for each, user in self._phases.held(reads, self._bytes_of_row, self._bits):
            end = user if self._bits(user) & ~self._bits(each) else self._phases.end(each)
            new = self._bits(end) & ~self._bits(each)
            if new:
                found[changing[new.bit_length() - 1]] = None
            elif not self._bits(each):  # else it is a change that makes it wait
                op = self._nodes.original(str(end))
                found |= {} if op is None else {op: None}
        return sorted(found, key=effects.changes_state)

    def _bits(self, each: _Maker) -> int:
        return 0 if isinstance(each, frames.Loop) else self._changes.get(each, 0)

    def _bytes_of_row(self, each: _Maker) -> int:
        """Returns how much a copy makes of each row."""
        op = self._nodes.original(each) if isinstance(each, str) else None
        facts, outputs = self._written.analysis.facts, [] if op is None else op.outputs
        shapes = [(tensor, facts.shape(tensor)) for tensor in outputs]
        return sum(
            extents.num_bytes(shape, tensor.dtype, 1)
            for tensor, shape in shapes
            if shape is not None and any(extent.has_rows() for extent in shape)
        )

    def _may_join(self, each: _Maker) -> bool:
        """Whether an operation may belong to the part that alone reads what it makes."""
        if not isinstance(each, str):
            return isinstance(each, frames.Loop)
        is_new = self._nodes.original(each) is None and each not in self._written.changes.joins
        return is_new and (self._kind(each) != "Const" or bool(self._nodes.by_name[each].input))

    def _kind(self, each: _Maker) -> str:
        return "" if isinstance(each, frames.Loop) else self._nodes.type_of(each)

    def _is_in_step(self, each: str) -> bool:
        """Whether each step runs a new operation; what is in a branch may have no value."""
        return each not in self._runs.aside and each not in self._runs.dead
