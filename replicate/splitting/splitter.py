"""Splits one device's graph by rows over K devices, in place.

Right for every graph, because each operation is replaced by something that gives the same values,
by one rule per kind of operation, and what has no rule runs once, on whole values.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import analysis as analyses
from replicate.splitting import states
from replicate.splitting.inference import facts as known
from replicate.splitting.lowering import batch_norm, functions, reads
from replicate.splitting.mirroring import mirroring
from replicate.splitting.states import Space
from replicate.splitting.structure import effects, loops, order
from replicate.splitting.structure import nodes as references
from replicate.splitting.structure.nodes import Nodes
from replicate.splitting.writing import checks, inputs, leftovers, transport, workers, writer


class Given(NamedTuple):
    """A tensor of the batch, with rows along its first axis.

    Attributes:
        tensor: The whole one, dense or sparse.
    """

    tensor: tf.Tensor | tf.SparseTensor


class Result:
    """What became of a graph.

    Args:
        fetch: What is run in place of each tensor and operation that is kept.
        moved: What operations that were written anew make, by the tensors that they stand for.
        analysis: The states of the graph's tensors.
        written: Its writer.
        made: The new operations by their names.
        copies: See `mirroring.mirror`.
    """

    def __init__(
        self, fetch: list, moved: dict, analysis: Any, written: Any, made: dict, copies: dict
    ):
        self.fetch = fetch
        self._moved = moved
        self._analysis = analysis
        self._writer = written
        self._made = made
        self.copies = copies

    def how(self, op: tf.Operation) -> str:
        """Returns whether an operation is `"split"`, `"whole"` or makes a `"size"`."""
        if op.outputs and op.outputs[0].ref() in self._moved:
            op = self._moved[op.outputs[0].ref()].op
        found = self._analysis.how.get(op)
        if found is states.SIZE:
            return "size"
        return "whole" if found is None else "split"

    def why(self, op: tf.Operation) -> str:
        """Returns why an operation is whole; empty where nothing speaks against it."""
        return self._analysis.why.get(op, "")

    def shape(self, tensor: tf.Tensor) -> Any:
        """Returns the extents of a tensor as a sequence; None: its rank is not known."""
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
        return self._writer.run_whole

    @property
    def made(self) -> dict[str, tf.Operation]:
        """The new operations by their names."""
        return self._made


def split_graph(
    given: Sequence[Given],
    devices: Sequence[str],
    keep: Sequence[Any],
    *,
    home: str,
    random_numbers: str = "one_device",
    static_rows: int | None = None,
    cluster: workers.Workers | None = None,
    mirrored: Sequence[tf.Variable] = (),
) -> Result:
    """Splits the current graph over K devices, in place.

    Args:
        given: The tensors of the batch.
        devices: The K devices.
        keep: What will be run: tensors and operations, and lists of those that are run together.
        home: The device of joined values and of small whole numbers.
        random_numbers: `"one_device"`: what is drawn is what one device draws; `"per_device"`:
            each device draws its own.
        static_rows: B, where the batch is of a static size; None: it is known in a run.
        cluster: The workers, where there are several: the batch is all workers'.
        mirrored: The variables, on the first device, of which each device gets a copy.
    """
    leaves = [each.tensor for each in given] if static_rows != 1 else []  # one row is whole
    plan = _Plan(leaves, tuple(devices), home, static_rows)
    plan.look(cluster, random_numbers)
    keep = [_each(functools.partial(_moved_to, plan.moved), group) for group in keep]
    written, fetch = plan.write(keep, mirrored)
    copies = mirroring.mirror(written, mirrored, fetch) if mirrored else {}
    transport.pack(written, fetch)
    left = leftovers.joined(written) if cluster is None else []
    made = written.nodes.write()
    if checks.are_wanted():
        checks.check_shapes(written, made)
    _apply(written.changes, made)
    effects.order(written, made)
    if cluster is None:
        leftovers.repoint(left, written, made)
    fetch = [_each(lambda each: references.tensor(each, made), group) for group in fetch]
    plan.place.write(written, made, fetch)
    return Result(fetch, plan.moved, plan.analysis, written, made, copies)


class _Plan:
    """What is known of a graph that is to be split.

    Args:
        leaves: The tensors of the batch, dense and sparse.
        devices: The K devices.
        home: See `split_graph`.
        static_rows: See `split_graph`.

    Attributes:
        moved: What is written anew, by what it stands for.
        place: Which rows are whose: `workers.Alone`, or `workers.Cluster`.
        analysis: The states of the tensors.
    """

    def __init__(self, leaves: list, devices: tuple[str, ...], home: str, static_rows: int | None):
        self._static_rows = static_rows
        self._leaves, self._devices, self._home = leaves, devices, home
        self._graph = tf1.get_default_graph()
        tensors = tf.nest.flatten(leaves, expand_composites=True)
        self.moved = _lowered(self._graph, tensors)
        self._structure = loops.Structure(self._graph, effects.with_behind(self._graph, tensors))
        self._assumptions = loops.Assumptions(self._structure)
        self._ops = _order(tensors, self._structure, self.moved, static_rows)
        effects.keep_whole(self._ops, self._structure, self._assumptions)
        self.place: Any = None
        self.analysis: Any = None

    def look(self, cluster: Any, random_numbers: str) -> None:
        """Finds out what can be known before states are; see `split_graph`."""
        num_devices, static_rows = len(self._devices), self._static_rows
        if cluster is None:
            given = next(iter(self._leaves), None)
            self.place = workers.Alone(given, static_rows, num_devices, self._home)
        else:
            self.place = workers.Cluster(cluster, num_devices, self._home)
        batch = Space("the batch")
        found = inputs.of(batch, self._leaves, self.place.bounds, num_devices, self._home)
        facts = known.Facts(
            self._graph,
            [*found.known, *inputs.picked(self._ops)],
            self._structure,
            self.place.num_devices,
            static_rows,
            found.shapes,
        )
        self.analysis = analyses.Analysis(
            found.given, batch, facts, self._structure, self._assumptions, random_numbers
        )

    def write(self, keep: Sequence[Any], mirrored: Sequence[tf.Variable]) -> tuple[Any, list]:
        """Writes the copies that are wanted; returns the writer, and what is run.

        Where a body turns out to need what devices make together, its loop is whole, and all is
        looked at again.
        """
        with tf1.name_scope("replicate_split/"):
            prefix = self._graph.unique_name("rows")
        while True:
            self.analysis.run(self._ops)
            nodes = Nodes(self._graph, prefix)
            written = writer.Writer(self.analysis, self._devices, self._home, self.place, nodes)
            try:
                fetch = [_each(written.fetch, group) for group in keep]
                written.finish(aside=mirroring.writes(self._graph, self._structure, mirrored))
                return written, fetch
            except loops.LoopWholeError as reason:
                self._assumptions.make_loop_whole(reason.op, str(reason))


def _lowered(graph: tf.Graph, given: Sequence[tf.Tensor]) -> dict:
    """Writes functions and batch statistics as the operations that they are made of."""
    moved = functions.lower(graph, order.behind(given))
    moved |= reads.read_before_loops(graph, order.behind(given))
    behind = order.behind(given)
    ops = [op for op in graph.get_operations() if op in behind]
    return {**moved, **batch_norm.lower(graph, ops)}


def _each(function: Any, group: Any) -> Any:
    """Applies a function to what is run: one thing, or each of a list."""
    return [function(each) for each in group] if isinstance(group, list) else function(group)


def _moved_to(moved: dict, wanted: Any) -> Any:
    while isinstance(wanted, tf.Tensor) and wanted.ref() in moved:
        wanted = moved[wanted.ref()]
    return wanted


def _order(
    given: Sequence[tf.Tensor], structure: loops.Structure, moved: dict, static_rows: int | None
) -> list:
    """Returns all operations behind the batch that are not replaced, each behind what it reads."""
    starts = [*given, *structure.list_starts()]
    ops = order.behind(starts) | {tensor.op for tensor in structure.list_starts()}
    if static_rows and given:
        made = inputs.made(ops, given, static_rows, structure)
        ops |= made | order.behind(tensor for op in made for tensor in op.outputs)
        ops -= {tensor.op for tensor in given}
    ops, more = structure.with_pops(ops)
    return order.ordered(ops - {tensor.deref().op for tensor in moved}, more)


def _apply(changes: writer.Changes, made: dict[str, tf.Operation]) -> None:
    """Lets operations that run once read joined values, and wait for copies."""
    for op, n, reference in changes.inputs:
        op._update_input(n, references.tensor(reference, made))
    for op, controls in changes.controls:
        op._remove_all_control_inputs()
        op._add_control_inputs([made[each] if isinstance(each, str) else each for each in controls])
