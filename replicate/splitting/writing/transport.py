"""Few transfers: what goes from one device to another at the same time travels together.

Each edge between devices is a transfer; many small ones, not the arithmetic, set the time of a
step. Each device has its own constants. What is joined is sent by the strategy (`levels`). What
else goes from one device to another at one *stage* travels in one Optional: the stage counts how
often what a value is made from has left a device, so that nothing that travels together waits for
itself. And it travels together only if the same fetches want it, so that nothing runs that is not
asked for.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting.structure import effects, frames, kinds, phases
from replicate.splitting.structure.nodes import Maker, Reference, Waited, maker, output
from replicate.splitting.writing import constants, reads_first, turns
from replicate.splitting.writing import writer as writers

_Bits: TypeAlias = dict[Maker, int]


class Readers(NamedTuple):
    """What reads a joined value.

    Attributes:
        reading: What reads it, and as which input.
        waiting: The new operations that wait for it.
        is_fetched: Whether it is run for itself.
    """

    reading: list[tuple[Maker, int]]
    waiting: list[str]
    is_fetched: bool


class Packed(NamedTuple):
    """What the strategy is to know of joins.

    Attributes:
        levels: For each join by name a number, or several, by which they are sorted: those for
            which it is equal are made at the same point of a step, in the same order in all
            workers. Nothing for those that may have no value, or that no step runs.
        readers: What reads each join.
        has_rows: For each device, and there, whether it has rows; None if it always has.
        first: See `reads_first.found`.
        turns: How parts of a device take turns.
    """

    levels: dict[str, tuple[int, ...]]
    readers: dict[str, Readers]
    has_rows: Sequence[Reference | None]
    first: Mapping[Maker, Sequence[Maker]]
    turns: turns.Turns


class _Way(NamedTuple):
    """What travels together.

    Attributes:
        source: The device that it leaves.
        target: The device where it goes.
        stage: How often what it is made from has left a device.
        wanted: Which of what is run wants it, as bits.
        effects: Behind which effects it comes, as bits.
        turn: In which part and phase it is made.
    """

    source: str
    target: str
    stage: int
    wanted: int
    effects: int
    turn: phases.Turn


# Lets something read, in place of a value, what has travelled.
_Use: TypeAlias = Callable[[str], None]
_Uses: TypeAlias = dict[str, list[_Use]]


class Transport:
    """The transfers of a graph that is written, but not added yet.

    Args:
        written: The writer.
        fetch: What is run, in groups that are run together.
    """

    def __init__(self, written: writers.Writer, fetch: Sequence[Sequence[Waited]]):
        self._nodes = written.nodes
        self._changes = written.changes
        self._home = written.home
        self._devices = written.devices
        self._writer = written
        self._fetch = fetch
        self._makers: dict[str, Maker] = {}
        self._copies: dict[tuple[object, ...], str] = {}
        self._controls = dict(written.changes.controls)
        self._parts = written.parts()
        how = self._controls, self._device, self._maker, self._parts
        self._constants = constants.Constants(self._nodes, *how)

    def pack(self) -> Packed:
        """Packs the transfers."""
        readers = self._find_readers()
        self._place_joins(readers)
        has_rows = self._have_rows()
        self._constants.copy(self._writer.is_aside)
        self._learn()
        first = reads_first.found(self._writer, self._before)
        self._turns = self._take_turns(first)
        levels: dict[str, tuple[int, ...]] = {}
        if self._writer.place.workers.is_alone:
            for name in self._changes.joins:
                when = (self._turns.of(name).phase, self._stages[name], self._wanted_by[name])
                if name not in self._dead:
                    levels[name] = (*when, self._effects.get(name, 0))
        else:
            for name, level in self._find_levels(first).items():
                levels[name] = (self._turns.of(name).phase, level)
        for way, uses in self._transfers().items():
            if len(uses) > 1:
                self._send_together(way, uses)
        return Packed(levels, readers, has_rows, first, self._turns)

    def _take_turns(self, first: Mapping[Maker, Sequence[Maker]]) -> turns.Turns:
        """Lets parts of a device take turns.

        NOTE: what comes behind no change of a state waits for nothing that does: whoever fetches a
        value must not cause the change.
        """
        if not self._parts:
            return turns.Turns(self._writer, turns.Runs({}, {}, set(), set()), {})
        aside = {each for each, wanted in self._wanted_by.items() if not wanted & 1}
        runs = turns.Runs(self._parts, self._outside_of_turns(first), aside, self._dead)
        return turns.Turns(self._writer, runs, self._find_effects(effects.changes_state))

    # What is there.

    def _device(self, each: Maker) -> str:
        """Returns the device of an operation."""
        if isinstance(each, str):
            return self._nodes.by_name[each].device
        return self._writer.device_of(each)

    def _maker(self, written: str) -> Maker:
        """Returns what makes an input as it is written."""
        if written not in self._makers:
            self._makers[written] = maker(self._nodes.tensors.get(written, written))
        return self._makers[written]

    def _learn(self) -> None:
        """Finds out where and when everything runs, and who wants it."""
        self._before = self._find_before()
        turns = frames.without_turns(self._before, self._nodes.type_of, self._frame)
        self._order = [each for each in turns if not isinstance(each, frames.Loop)]
        self._has_circles = len(turns) > len(self._order)
        self._places = {each: self._device(each) for each in self._order}
        self._stages = self._find_stages(turns)
        self._wanted_by = self._find_wanted()
        self._dead = self._find_dead()
        self._effects = self._find_effects(effects.has_effect)

    def _find_before(self) -> dict[Maker, list[Maker]]:
        """Returns what everything that runs reads or waits for."""
        before: dict[Maker, list[Maker]] = {}
        changed = {(op, n): reference for op, n, reference in self._changes.inputs}
        waiting: list[Maker] = [*self._nodes.by_name, *self._writer.run_whole]
        while waiting:
            each = waiting.pop()
            if each in before:
                continue
            if isinstance(each, str):
                before[each] = self._inputs(each)
            else:
                before[each] = list(self._inputs_of(each, changed))
            waiting.extend(other for other in before[each] if other not in before)
        self._add_pops(before)
        return before

    def _inputs(self, name: str) -> list[Maker]:
        """Returns what a new operation reads or waits for."""
        found: list[Maker] = []
        for written in self._nodes.by_name[name].input:
            if written.startswith("^"):
                waited = self._nodes.waited(written)
                found.append(written[1:] if waited is None else waited)
            else:
                found.append(self._maker(written))
        return found

    def _inputs_of(
        self,
        op: tf.Operation,
        changed: Mapping[tuple[tf.Operation, int], Reference],
    ) -> Iterator[Maker]:
        for n, tensor in enumerate(op.inputs):
            yield maker(changed.get((op, n), tensor))
        yield from self._controls.get(op, op.control_inputs)

    def _add_pops(self, before: dict[Maker, list[Maker]]) -> None:
        """Adds that what is popped from a stack comes after what is pushed."""
        structure = self._writer.structure
        for pop in structure.pops:
            push = structure.push_of(pop)
            if push is None:
                continue
            names: list[tuple[Maker, Maker]] = [(pop, push)]
            for k in range(len(self._devices)):
                for of_all in (False, True):
                    pair = [self._writer.copy_name(op, k, of_all) for op in (pop, push)]
                    names.append((pair[0], pair[1]))
            for later, earlier in names:
                if later in before and earlier in before:
                    before[later].append(earlier)

    def _settle(self, look: Callable[[], bool]) -> None:
        """Looks at everything in order; if there are circles, until that changes nothing.

        Args:
            look: Returns whether it has changed something.
        """
        while look() and self._has_circles:
            pass

    def _find_stages(
        self, before: Mapping[Maker | frames.Loop, Sequence[Maker | frames.Loop]]
    ) -> Mapping[Maker | frames.Loop, int]:
        """Returns how often what each value is made from has left a device.

        To leave home does not count: coming back leaves another device. To be joined counts though
        a single device, or this worker, has all parts: what waits for a join is not made with it.
        """
        places: dict[Maker | frames.Loop, str] = {**self._places}
        joins = self._changes.joins
        # What enters a loop is where its exits are.
        new = before.keys() - places.keys()
        places |= {each: places[before[each][0]] for each in new}
        stages: dict[Maker | frames.Loop, int] = {}
        for each in before:
            here = (self._home, places[each])
            stages[each] = max(
                (
                    stages[other] + (places[other] not in here or each in joins)
                    for other in before[each]
                ),
                default=0,
            )
        return stages

    def _find_levels(self, first: Mapping[Maker, Sequence[Maker]]) -> dict[str, int]:
        """Returns how many joins each one waits for of those that a step runs.

        The number is the same in all workers, whatever their devices.
        """
        joins = {name for name in self._changes.joins if self._wanted_by[name]}
        levels: dict[Maker | frames.Loop, int] = {}
        for each, others in self._outside_of_turns(first).items():
            levels[each] = max((levels[other] + (other in joins) for other in others), default=0)
        return {name: levels[name] for name in joins}

    def _outside_of_turns(
        self, first: Mapping[Maker, Sequence[Maker]]
    ) -> dict[Maker | frames.Loop, Sequence[Maker | frames.Loop]]:
        """Returns what everything waits for, writes for reads too; see `frames.without_turns`."""
        writes = {write: [*self._before[write], *reads] for write, reads in first.items()}
        before = {**self._before, **writes}
        return frames.without_turns(before, self._nodes.type_of, self._frame)

    def _find_wanted(self) -> _Bits:
        """Returns which groups of what is run want each operation, as bits."""
        wanted: _Bits = collections.defaultdict(int)
        for n, group in enumerate(self._fetch):
            for each in group:
                wanted[maker(each)] |= 1 << n

        def look() -> bool:
            is_changed = False
            for each in reversed(self._order):
                bits = wanted[each]
                for other in self._before[each] if bits else ():
                    is_changed |= bool(bits & ~wanted[other])
                    wanted[other] |= bits
            return is_changed

        self._settle(look)
        return wanted

    def _find_effects(self, counts: Callable[[tf.Operation], bool]) -> _Bits:
        """Returns behind which effects each operation comes, as bits.

        NOTE: fetching a value that comes behind none must cause none.
        """
        ops = [each for each in self._order if isinstance(each, tf.Operation)]
        own = {op: 1 << n for n, op in enumerate(filter(counts, ops))}
        behind: _Bits = collections.defaultdict(int)
        begin = next((n for n, each in enumerate(self._order) if each in own), 0)
        behind_first = self._order[0 if self._has_circles else begin :]

        def look() -> bool:
            is_changed = False
            for each in behind_first:
                bits = behind[each]
                for other in self._before[each]:
                    bits |= behind[other] | own.get(other, 0)
                is_changed |= bits != behind[each]
                behind[each] = bits
            return is_changed

        if own:
            self._settle(look)
        return behind

    def _find_dead(self) -> set[Maker]:
        """Returns what may have no value, since it is in a branch."""
        if {self._nodes.type_of(each) for each in self._order}.isdisjoint(kinds.SWITCHES):
            return set()
        dead = frames.in_branches(self._before, self._nodes.type_of)
        for each in self._order:
            op = self._nodes.original(each) if isinstance(each, str) else each
            if op is not None and op._get_control_flow_context() is not None:
                if op.type not in ("Exit", "Merge"):
                    dead.add(each)
        return dead

    def _frame(self, enter: Maker) -> bytes:
        """Returns the name of the loop that an `Enter` enters."""
        if isinstance(enter, str):
            return self._nodes.by_name[enter].attr["frame_name"].s
        return enter.get_attr("frame_name")

    # Joins.

    def _find_readers(self) -> dict[str, Readers]:
        """Returns what reads each joined value."""
        wanted = {each for group in self._fetch for each in group if isinstance(each, str)}
        found = {name: Readers([], [], name in wanted) for name in self._changes.joined}
        for node in self._nodes.by_name.values():
            for n, written in enumerate(node.input):
                if written in found:
                    found[written].reading.append((node.name, n))
                elif written.startswith("^") and written[1:] in found:
                    found[written[1:]].waiting.append(node.name)
        for op, n, reference in self._changes.inputs:
            if isinstance(reference, str) and reference in found:
                found[reference].reading.append((op, n))
        return found

    def _place_joins(self, readers: dict[str, Readers]) -> None:
        """Puts each join on the device where it is read, if that is one: beside its variable."""
        for name in reversed(readers):
            places = {self._device(reader) for reader, _ in readers[name].reading}
            if readers[name].is_fetched:
                places.add(self._home)
            if len(places) == 1:
                self._nodes.by_name[name].device = places.pop()

    def _have_rows(self) -> list[Reference | None]:
        """Returns on each device whether it has rows, for sums, which wait for that."""
        found: list[Reference | None] = []
        sums = [name for name, join in self._changes.joins.items() if join.number > 1]
        for has_rows, device in zip(self._writer.joins.has_rows, self._devices, strict=True):
            if has_rows is not None and sums:
                has_rows = self._nodes.add("Identity", [has_rows], device, T=tf.bool)
                for name in sums:
                    self._nodes.by_name[name].input.append(self._nodes.wait(has_rows))
            found.append(has_rows if sums else None)
        return found

    # Transfers.

    def _transfers(self) -> dict[_Way, _Uses]:
        """Returns what is read on another device, and by what, by the ways that it travels."""
        found: dict[_Way, _Uses] = collections.defaultdict(lambda: collections.defaultdict(list))
        joins = self._changes.joins
        for node in [each for name, each in self._nodes.by_name.items() if name not in joins]:
            device = node.device
            for n, written in enumerate(node.input):
                if not written.startswith("^") and written not in joins:
                    use = functools.partial(node.input.__setitem__, n)
                    self._note(found, written, device, use)
        for n, (op, _, reference) in enumerate(self._changes.inputs):
            if isinstance(reference, str) and reference not in joins:
                use = functools.partial(self._change, n)
                self._note(found, reference, self._device(op), use)
        self._note_between_wholes(found)
        return found

    def _note_between_wholes(self, found: dict[_Way, _Uses]) -> None:
        """Notes what operations that run once read of others on another device."""
        changed = {(op, n) for op, n, _ in self._changes.inputs}
        for op in self._writer.run_whole:
            target = self._places[op]
            for n, tensor in enumerate(op.inputs):
                if self._places.get(tensor.op, target) == target or (op, n) in changed:
                    continue
                use = functools.partial(self._read, op, n)
                written = self._nodes.name(tensor)
                if self._constants.is_free(written):
                    use(self._constants.on(written, target))
                else:
                    self._note(found, written, target, use)

    def _read(self, op: tf.Operation, n: int, reference: str) -> None:
        self._changes.inputs.append((op, n, reference))

    def _change(self, n: int, reference: str) -> None:
        op, which, _ = self._changes.inputs[n]
        self._changes.inputs[n] = (op, which, reference)

    def _note(self, found: dict[_Way, _Uses], written: str, target: str, use: _Use) -> None:
        made_by = self._maker(written)
        source = self._places[made_by]
        wanted = 0 if source == target else self._wanted_by.get(made_by, 0)
        if not wanted or made_by in self._dead:
            return
        dtype = self.dtype(written)
        if dtype in kinds.HANDLES or dtype._is_ref_dtype:
            return
        behind = self._effects.get(made_by, 0)
        when = (self._stages[made_by], wanted, behind, self._turns.of(made_by))
        found[_Way(source, target, *when)][written].append(use)

    def _send_together(self, way: _Way, uses: _Uses) -> None:
        nodes = self._nodes
        sent = sorted(uses)
        types = [self.dtype(written) for written in sent]
        references = [nodes.tensors.get(written, written) for written in sent]
        shapes = [nodes.shape(reference) for reference in references]
        key = ("sent", way.source, *sent)
        if key not in self._copies:
            self._copies[key] = nodes.add(
                "OptionalFromValue", references, way.source, Toutput_types=types
            )
        got = nodes.add(
            "OptionalGetValue",
            [self._copies[key]],
            way.target,
            output_types=types,
            output_shapes=shapes,
        )
        for n, written in enumerate(sent):
            for use in uses[written]:
                use(output(got, n))

    def dtype(self, written: str) -> tf.DType:
        """Returns the dtype of an input as it is written."""
        tensor = self._nodes.tensors.get(written)
        return tensor.dtype if tensor is not None else self._nodes.dtype(written)
