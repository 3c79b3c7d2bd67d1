"""Splits one device's graph by rows over K devices, in place.

This is right for every graph: each operation is replaced by something that makes the same values,
by a rule for its kind, and an operation without a rule runs once, on whole values.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import analysis as analyses
from replicate.splitting import mirrored as mirroring
from replicate.splitting import places, slices, states
from replicate.splitting.inference import facts as graph_facts
from replicate.splitting.inference.extents import Extent
from replicate.splitting.lowering import batch_norm, branches, functions, reads
from replicate.splitting.states import Space
from replicate.splitting.structure import effects, loops, order, replacing
from replicate.splitting.structure.nodes import Changes, Made, Nodes, Waited, resolved
from replicate.splitting.structure.replacing import Moved, fetch_moved, moved_to
from replicate.splitting.writing import (
    copied,
    inputs,
    leftovers,
    levels,
    reads_first,
    transport,
    workers,
    writer,
)
from replicate.strategy import base


class Result:
    """What became of a graph.

    Args:
        fetch: What is run in place of what is kept.
        moved: The tensors in place of those of lowered operations, by the `ref()` of these.
        written: The graph's writer.
        made: The new operations by their names.
        held: The operations for which each device keeps what all its parts compute.
        sliced: The variables that are cut.

    Attributes:
        fetch: As given.
        made: As given.
        copies: The operations that hold copies of variables.
        sliced: As given.
        held: As given.
    """

    def __init__(
        self,
        fetch: list[Any],
        moved: Moved,
        written: writer.Writer,
        made: Made,
        held: Sequence[tf.Operation],
        sliced: slices.Sliced,
    ):
        self.fetch = fetch
        self._moved = moved
        self._analysis = written.analysis
        self._writer = written
        self.made = made
        self.sliced = sliced
        self.copies: copied.Holders = written.copied.holders
        self.held = held

    def how(self, op: tf.Operation) -> str:
        """Returns `"split"`, `"whole"` or `"size"`, for what became of an operation."""
        if op.outputs and op.outputs[0].ref() in self._moved:
            op = self._moved[op.outputs[0].ref()].op
        found = self._analysis.how.get(op)
        if found is states.SIZE:
            return "size"
        return "whole" if found is None else "split"

    def why(self, op: tf.Operation) -> str:
        """Returns why an operation is whole; empty if it need not be split."""
        return self._analysis.why.get(op, "")

    def shape(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the extents of a tensor, or None if its rank is unknown."""
        return self._analysis.facts.shape(tensor)

    def state(self, tensor: tf.Tensor) -> states.State:
        """Returns what devices hold of a tensor."""
        return self._analysis.state(tensor)

    @property
    def split(self) -> set[tf.Operation]:
        """The operations of which each device runs a copy."""
        return self._writer.run_split

    @property
    def whole(self) -> set[tf.Operation]:
        """The operations that run once."""
        return set(self._writer.run_whole)


def split_graph(
    given: Sequence[types.Rows],
    devices: Sequence[str],
    keep: Sequence[types.Fetch | list[types.Fetch]],
    *,
    home: str,
    random_numbers: str = "one_device",
    static_rows: int | None = None,
    cluster: workers.WorkerBatch | None = None,
    mirrored: Sequence[tf.Variable] = (),
    slicing: slices.Slicing = slices.NOTHING,
    is_optimized: bool = True,
    strategy: base.DistributionStrategy | None = None,
    micro_batches: int = 1,
) -> Result:
    """Splits the current graph over K devices, in place.

    Args:
        given: The tensors of the batch, with rows along their first axis.
        devices: The K devices.
        keep: What will be run: tensors and operations, and lists of those that are run together.
        home: The device of joined values and of small whole numbers.
        random_numbers: `"one_device"`: what is drawn is what one device draws; `"per_device"`:
            each device draws its own.
        static_rows: B, if the size of the batch is static.
        cluster: The workers, if there are several: the batch is all workers'.
        mirrored: The variables, on the first device, of which each device gets a copy; see
            `mirrored.Mirrored` for those that stay as they are.
        slicing: Which variables are cut.
        is_optimized: Whether sessions optimize the graph, and so leave out branches that are known
            not to be taken.
        strategy: What adds up devices' parts; by default one that does so where sums are read.
        micro_batches: m: K * m parts are split as over as many devices; those of a device, which
            are numbered together, take turns.
    """
    strategy = strategy or base.DistributionStrategy(devices, (home,))
    leaves = given if static_rows != 1 else ()  # one row is whole
    groups = [each if isinstance(each, list) else [each] for each in keep]
    options = (random_numbers, static_rows, cluster, mirrored, slicing, is_optimized, micro_batches)
    parts = tuple(device for device in devices for _ in range(micro_batches))
    plan = _Plan(_Asked(leaves, parts, groups, home, *options))
    written, fetch = plan.write()
    places.choose(written, strategy)
    packed = transport.Transport(written, fetch).pack()
    left = leftovers.joined(written) if cluster is None else []
    joined = levels.Levels(written, packed)
    made = written.nodes.write()
    added = joined.make(strategy, made)
    _apply(written.changes, made)
    _refuse_feeding(written.nodes, made)
    reads_first.apply(packed.first, made)
    if cluster is None:
        leftovers.repoint(left, written, made)
    whole = {**made, **added}
    found = [[resolved(each, whole) for each in group] for group in fetch]
    plan.place.check_first(written, made)
    fetch_moved(tf1.get_default_graph(), plan.moved)
    kept = zip(keep, found, strict=True)
    fetched = [group if isinstance(each, list) else group[0] for each, group in kept]
    return Result(fetched, plan.moved, written, made, packed.turns.held, plan.sliced)


class _Asked(NamedTuple):
    """What `split_graph` is asked for; see there."""

    leaves: Sequence[types.Rows]
    devices: tuple[str, ...]
    groups: Sequence[Sequence[types.Fetch]]
    home: str
    random_numbers: str
    static_rows: int | None
    cluster: workers.WorkerBatch | None
    mirrored: Sequence[tf.Variable]
    slicing: slices.Slicing
    is_optimized: bool
    micro_batches: int


class _Plan:
    """What is known of a graph that is to be split, before it is written.

    Args:
        asked: What is asked for.

    Attributes:
        moved: The tensors in place of those of lowered operations, by the `ref()` of these.
        sliced: The variables that are cut.
        place: Which rows this worker has.
    """

    def __init__(self, asked: _Asked):
        self._graph, self._asked = tf1.get_default_graph(), asked
        tensors = tf.nest.flatten(asked.leaves, expand_composites=True)
        self.moved, self.sliced = _lowered(self._graph, tensors, asked)
        structure = loops.Structure(self._graph, effects.with_behind(self._graph, tensors))
        self._assumptions = loops.Assumptions(structure)
        self._groups = [[moved_to(self.moved, each) for each in group] for group in asked.groups]
        joined = [tensor.op for tensor in self.sliced.joined]
        copies = mirroring.Mirrored(self._graph, structure, asked.mirrored, asked.devices, joined)
        handles = [op.outputs[0] for op in copies.handles]
        static_rows, number = asked.static_rows, len(asked.devices)
        self._ops, self._aside = _order(tensors, handles, structure, self.moved, static_rows)
        cluster = asked.cluster or workers.alone(asked.leaves, static_rows, asked.home)
        self.place = workers.Place(cluster, number, asked.home)
        batch = Space("the batch")
        found = inputs.of(batch, asked.leaves, self.place.bounds, number, asked.home)
        known = [*found.known, *inputs.picked(self._ops)]
        facts = graph_facts.Facts(
            self._graph, known, structure, self.place.num_devices, static_rows
        )
        self._analysis = analyses.Analysis(
            found.given, batch, facts, self._assumptions, copies, asked.random_numbers
        )

    def write(self) -> tuple[writer.Writer, list[list[Waited]]]:
        """Writes the copies that are wanted; returns the writer, and what is run."""
        fetches = itertools.chain(self._analysis.mirrored.writes, *self._groups)
        self._analysis.run(self._ops, self._aside, list(fetches))
        with tf1.name_scope("replicate_split/"):
            nodes = Nodes(self._graph, self._graph.unique_name("rows"))
        devices, home = self._asked.devices, self._asked.home
        written = writer.Writer(
            self._analysis, devices, home, self.place, nodes, self._asked.micro_batches
        )
        fetch = [[written.fetch(each) for each in group] for group in self._groups]
        written.finish()
        return written, fetch


def _lowered(
    graph: tf.Graph, given: Sequence[tf.Tensor], asked: _Asked
) -> tuple[Moved, slices.Sliced]:
    """Writes functions, batch statistics and large variables as what they are made of.

    Where sessions optimize the graph, of branches that are known to be taken they alone are left.
    """
    known = branches.known if asked.is_optimized else branches.is_open
    moved = functions.lower(graph, order.behind(given), known)
    moved |= branches.take(graph, known)
    moved |= reads.read_before_loops(graph, order.behind(given))
    sliced = slices.Sliced(graph, asked.slicing)
    parted = sliced.lower()
    behind = order.behind(given)
    ops = [op for op in graph.get_operations() if op in behind]
    return {**moved, **parted, **batch_norm.lower(graph, ops)}, sliced


def _order(
    given: Sequence[tf.Tensor],
    handles: Sequence[tf.Tensor],
    structure: loops.Structure,
    moved: Moved,
    static_rows: int | None,
) -> tuple[list[tf.Operation], set[tf.Operation]]:
    """Returns all operations behind the batch or what holds variables, each after what it reads.

    Lowered ones are left out. And those of them that are behind what holds variables alone.
    """
    starts = [*given, *structure.list_starts()]
    ops = order.behind(starts) | {tensor.op for tensor in structure.list_starts()}
    if static_rows and given:
        made = inputs.made(ops, given, static_rows, structure)
        ops |= made | order.behind(tensor for op in made for tensor in op.outputs)
        ops -= {tensor.op for tensor in given}
    aside = order.behind(handles) - ops
    ops, more = structure.with_pops(ops | aside)
    return order.ordered(ops - set(map(replacing.operation, moved)), more), aside


def _refuse_feeding(nodes: Nodes, made: Made) -> None:
    """Lets no session feed what has copies: it would feed the original alone."""
    originals = (nodes.original(name) for name in made)
    for op in {op for op in originals if op is not None}:
        for tensor in op.outputs:
            op.graph.prevent_feeding(tensor)


def _apply(changes: Changes, made: Made) -> None:
    """Lets operations that run once read joined values, and wait for copies."""
    for op, n, reference in changes.inputs:
        op._update_input(n, resolved(reference, made))
    for op, controls in changes.controls:
        op._remove_all_control_inputs()
        op._add_control_inputs([made[each] if isinstance(each, str) else each for each in controls])
