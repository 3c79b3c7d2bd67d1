"""Several workers: each splits the same graph over its own devices.

Worker w has the w-th part of the batch, and its devices have runs of that. A whole value is made of
what all workers have, and is the same in each, since each runs the same whole operations. Only the
batch's own tensors are the worker's. So each join has a second stage, over workers: this worker's
value goes through an operation that `levels` lets read what all workers have made. What is random,
or comes from outside, is the first worker's.
"""

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, operations, packing, reductions
from replicate.graph import rows as counted
from replicate.splitting.states import COPIED, SIZE, WHOLE, Partial, Rows, Space, State
from replicate.splitting.structure import conditions, effects, kinds, loops, runs
from replicate.splitting.structure.nodes import Made, Nodes, Reference
from replicate.splitting.structure.runs import Runs
from replicate.splitting.writing import joins, levels
from replicate.splitting.writing import writer as writers

_SHARED = ("Print", "TensorArray", "Stack", "Collective", "Placeholder")
_OUTSIDE = ("Iterator", "Queue", "Optional", "Unstage", "MapUnstage")
_ARRAY_READS = ("TensorArrayGatherV3", "TensorArrayReadV3", "TensorArrayConcatV3")
_LIST_READS = ("TensorListStack", "TensorListGetItem", "TensorListConcatV2")
# What each worker makes itself of all workers' numbers of rows.
_MADE_OF_SIZES = frozenset(
    """
    Add AddV2 BroadcastTo Cast DivNoNan Equal ExpandDims Fill Identity Mul NotEqual RealDiv Reshape
    Select SelectV2 Squeeze Sub Sum
    """.split()
)
_MOST_ENTRIES = 256  # for each row, since there are all workers' rows


class WorkerBatch(NamedTuple):
    """What one of several workers has of a batch.

    Attributes:
        workers: All of them, and how their values are combined.
        rows: How many rows this worker has: an int in a static batch, the same in all workers;
            else int32, of shape [], and 0 if the only row is a borrowed one.
        own: The worker's own rows of each tensor of the batch, by the `ref()` of that.
        lone: The tensors of the batch without rows, of which the first worker's count.
        begin: The number of the graph's first operation that is made from these tensors. Earlier
            ones belong to the input, and stay as they are.
        checks: What must have run before anything has an effect, since it may end the step.
    """

    workers: collectives.CollectiveWorkers
    rows: counted.Bound
    own: Mapping[Hashable, tf.Tensor]
    lone: Sequence[tf.Tensor] = ()
    begin: int = 0
    checks: Sequence[types.Fetch] = ()


class OneWorker:
    """One worker, which has the whole batch.

    Args:
        leaves: The tensors of the batch.
        static_rows: B if it is static, else None.
        num_devices: K.
        home: Where numbers are.
    """

    first_device = 0

    def __init__(
        self, leaves: Sequence[types.Rows], static_rows: int | None, num_devices: int, home: str
    ):
        self._static_rows = static_rows
        self._home = home
        self.num_devices = num_devices
        if not static_rows:
            with _at(home):
                self._runs = runs.of_dynamic(counted.count(leaves[0]), num_devices)

    def runs(self, nodes: Nodes) -> Runs:
        """See `writer.Place`."""
        if self._static_rows:
            return runs.of_static(self._static_rows, nodes, self.num_devices, self._home)
        return self._runs

    def bounds(self, k: int) -> tuple[Any, Any]:
        """See `writer.Place`."""
        if self._static_rows:
            return runs.static_bounds(self._static_rows, self.num_devices)[k]
        begin: Any = self._runs.begins[k]
        return begin, begin + self._runs.lengths[k]

    def make_joins(self, written: writers.Writer, batch: Runs) -> joins.Joins:
        """See `writer.Place`."""
        return joins.Joins(written, batch)

    def write(self, written: writers.Writer, made: Made, fetch: Sequence[types.Fetch]) -> None:
        """See `writer.Place`."""


class SeveralWorkers:
    """Several workers.

    Args:
        given: What this worker has.
        num_devices: K, of this one.
        home: Where numbers are.

    Attributes:
        given: As given.
    """

    def __init__(self, given: WorkerBatch, num_devices: int, home: str):
        self.given = given
        self.num_devices = num_devices * given.workers.size
        self.first_device = num_devices * given.workers.options.position
        self._own_devices = num_devices
        self._home = home
        self._dynamic: WorkerRuns | None = None
        if not isinstance(given.rows, int):
            with _at(home):
                self._dynamic = self._of_dynamic(_counts(given), num_devices)

    @functools.cached_property
    def conditions(self) -> conditions.Conditions:
        """In which branches tensors are."""
        return conditions.Conditions(tf1.get_default_graph())

    def worker_runs(self, nodes: Nodes) -> "WorkerRuns":
        """Returns which rows of the batch are whose."""
        if self._dynamic is not None:
            return self._dynamic
        rows, workers = self.given.rows, self.given.workers

        def number(value: Any) -> Reference:
            return nodes.constant(np.int32(value), self._home)

        first = rows * workers.options.position
        begins = [first + begin for begin, _ in runs.static_bounds(rows, self._own_devices)]
        here = runs.of_static(rows, nodes, self._own_devices, self._home)
        everywhere = here._replace(
            total=number(rows * workers.size),
            begins=[number(begin) for begin in begins],
            sum=None if here.is_exact else number(workers.size * self._own_devices),
        )
        return WorkerRuns(everywhere, here, number([rows] * workers.size))

    def runs(self, nodes: Nodes) -> Runs:
        """See `writer.Place`; all workers' rows."""
        return self.worker_runs(nodes).everywhere

    def bounds(self, k: int) -> tuple[Any, Any]:
        """See `writer.Place`."""
        if self._dynamic is None:
            return runs.static_bounds(self.given.rows, self._own_devices)[k]
        here = self._dynamic.here
        begin: Any = here.begins[k]
        return begin, begin + here.lengths[k]

    def make_joins(self, written: writers.Writer, batch: Runs) -> joins.Joins:
        """See `writer.Place`."""
        return WorkerJoins(written, batch, self)

    def _of_dynamic(self, counts: tf.Tensor, num_devices: int) -> "WorkerRuns":
        position = self.given.workers.options.position
        own, whole = counts[position], tf.reduce_sum(counts)
        here = runs.of_dynamic(own, num_devices)
        first_has_rows = own > 0
        has_rows = [first_has_rows, *here.has_rows[1:]]
        start = tf.reduce_sum(counts[:position])
        begins = tf.stack(here.begins) + start
        # NOTE: behind the worker's rows there may be none, and it has a borrowed one.
        begins = tf.unstack(tf.minimum(begins, tf.maximum(whole - 1, 0)), num_devices)
        lengths = tf.reduce_sum(tf.maximum(counts, num_devices))
        everywhere = Runs(whole, begins, here.lengths, has_rows, lengths)
        return WorkerRuns(everywhere, here._replace(has_rows=has_rows), counts)

    def write(self, written: writers.Writer, made: Made, fetch: Sequence[types.Fetch]) -> None:
        """See `writer.Place`."""
        workers, crossings = self.given.workers, written.joins.crossings
        checks = [getattr(check, "op", check) for check in self.given.checks]
        before = operations.executed_by(checks)
        for op in {*written.run_whole, *made.values()} - before:
            if effects.has_effect(op) and written.structure.is_outermost(op):
                op._add_control_inputs(checks)
        levels.write(crossings.values(), made, fetch, workers, self._home)


class WorkerRuns(NamedTuple):
    """Which rows of a space are whose.

    Attributes:
        everywhere: The runs of this worker's devices among all workers' rows.
        here: Their runs among this worker's rows.
        counts: How many rows each worker has, int32, of shape [W].
    """

    everywhere: Runs
    here: Runs
    counts: Reference


class WorkerJoins(joins.Joins):
    """Writes joins over devices, and notes what goes over workers.

    Args:
        writer: The writer.
        batch: The runs of the batch.
        cluster: The workers.
    """

    def __init__(self, writer: writers.Writer, batch: Runs, cluster: SeveralWorkers):
        super().__init__(writer, batch)
        self._cluster = cluster
        self._workers = cluster.given.workers
        self._own = cluster.given.own
        self._lone = {tensor.ref() for tensor in cluster.given.lone}
        self._sizes: dict[Hashable, bool] = {}
        found = cluster.worker_runs(writer.nodes)
        self._worker_runs = {writer.analysis.batch: found._replace(everywhere=batch)}

    # What goes over workers.

    def of_all(
        self,
        value: Reference,
        how: str,
        tensor: tf.Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape | None = None,
    ) -> Reference:
        """See base class."""
        shape = tensor.shape if shape is None else shape
        return self._crossing(value, how, tensor, tf.TensorSpec(shape, dtype))

    def _crossing(
        self,
        value: Reference,
        how: str,
        tensor: tf.Tensor,
        spec: tf.TensorSpec,
        **rows: Any,
    ) -> str:
        """Notes that a value goes over workers; `rows` says how ROWS do: see `Crossing`."""
        dtype = spec.dtype
        found = self._cluster.conditions.of(tensor)
        conditions = [(self._writer.whole(predicate), side) for predicate, side in found]
        # NOTE: what is made of sizes alone has a value though its branch is not taken. What comes
        # back has none, and must not travel with what has one.
        for predicate, side in reversed(conditions):
            gate = self._nodes.add("Switch", [value, predicate], self._home, T=dtype)
            value = f"{gate}:1" if side else gate
        if how == levels.ROWS and tensor.shape.rank is not None:
            # NOTE: all workers have more rows than this one: the shape must not tell how many.
            name = self._nodes.add(
                "PlaceholderWithDefault", [value], self._home, dtype=dtype, shape=spec.shape
            )
        else:
            name = self._nodes.add("Identity", [value], self._home, T=dtype)
        self.crossings[name] = levels.Crossing(name, how, spec.shape, conditions, **rows)
        return name

    def _of_all_rows(self, found: Reference, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns all workers' rows, given this worker's; steps are apart."""
        counts = self._runs_of_workers(state.space).counts
        rank, axis, multiple = self._steps.layout(tensor, state)
        if multiple is None:
            length = self._entry(found, tensor.dtype, axis, self._home)
            counts, multiple = self._counts(length, tensor), 1
        shape = [None] * rank if tensor.shape.rank is None else tensor.shape.as_list()
        if len(shape) < rank:
            shape.insert(state.axis, None)
        shape[axis] = None
        rows = {"axis": axis, "rows": counts, "multiple": multiple}
        spec = tf.TensorSpec(shape, tensor.dtype)
        whole = self._crossing(found, levels.ROWS, tensor, spec, **rows)
        return self._steps.together(whole, tensor, state)

    def _counts(self, own: Reference, tensor: tf.Tensor) -> Reference:
        """Returns all workers' numbers, given this worker's."""
        is_own = np.arange(self._workers.size) == self._workers.options.position
        place = self._writer.constant(is_own.astype(np.int32), None)
        counts = self._binary("Mul", place, own, tf.int32, self._home)
        return self._crossing(counts, "Add", tensor, tf.TensorSpec([self._workers.size], tf.int32))

    # Whole values.

    def run_once(self, tensor: tf.Tensor) -> Reference:
        """See base class; a value that differs over workers is joined, or the first one's."""
        key = ("run once", tensor.ref())
        if key not in self._memo:
            self._memo[key] = self._run_once(tensor)
        return self._memo[key]

    def _run_once(self, tensor: tf.Tensor) -> Reference:
        given, own = self._analysis.given.get(tensor.ref()), self._own.get(tensor.ref())
        if given is not None and isinstance(given.state, Rows):
            if own is None:  # of a sparse tensor
                return self.of_rows(tensor, given.state)
            rows = self._without_loans(own, tensor, given.state)
            return self._of_all_rows(rows, tensor, given.state)
        if given is not None:
            return self._of_shape(tensor)
        if tensor.ref() in self._lone:
            found, is_own = tensor, True
        elif tensor.op._id < self._cluster.given.begin:
            found, is_own = tensor, False
        elif self._only_waits(tensor):
            return self._writer.whole(tensor.op.inputs[0])
        else:
            found, is_own = super().run_once(tensor), self._is_own(tensor)
        if not is_own or not packing.is_sent(tensor):
            return found
        return self._crossing(found, levels.FIRST, tensor, _spec_of(tensor))

    def _only_waits(self, tensor: tf.Tensor) -> bool:
        """Whether a whole value is another one that only waits for others, and for no effect.

        So does each gradient of an operation: it need not wait for other workers as others do.
        """
        op = tensor.op
        is_whole = self._analysis.state(tensor) is WHOLE and not tensor.dtype._is_ref_dtype
        waits = op.type == "Identity" and op.control_inputs and not op.inputs[0].dtype._is_ref_dtype
        return is_whole and bool(waits) and self._writer.structure.may_be_passed(op)

    def _of_shape(self, tensor: tf.Tensor) -> Reference:
        """Returns the shape of all workers' rows of a sparse tensor, given the worker's."""
        total = self.total(self._analysis.batch, tensor.dtype)
        is_rows = self._writer.constant(np.arange(tensor.shape.num_elements()) == 0, None)
        return self._nodes.add("SelectV2", [is_rows, total, tensor], self._home, T=tensor.dtype)

    def _is_own(self, tensor: tf.Tensor) -> bool:
        """Whether workers' values differ though what they are made from does not."""
        op, structure = tensor.op, self._writer.structure
        if tensor.dtype in kinds.HANDLES or tensor.dtype._is_ref_dtype:
            return False
        if structure.loop(op) is not None or loops.is_flow(tensor):
            return False
        if op.type in kinds.EXITS:
            return structure.root(op) in self._own_loops
        if op.type in _ARRAY_READS:
            writes = structure.array_writes(loops.handle_of(op.inputs[0]))
        elif op.type in _LIST_READS:
            sources = structure.list_sources(op.inputs[0])
            writes = [write for source in sources for write in structure.list_writes(source)]
        else:
            return is_own(op)
        return any(structure.root(write) in self._own_loops for write in writes)

    @functools.cached_property
    def _own_loops(self) -> set[loops.Context | None]:
        """The outermost loops that run once, and in which workers' values differ."""
        structure = self._writer.structure
        found: set[loops.Context | None] = set()
        for op in self._nodes.graph.get_operations():
            root = structure.root(op)
            if root is not None and root not in found and is_own(op):
                found |= structure.loops_sharing_stacks(root)
        return {root for root in found if self._analysis.assumptions.is_whole(root)}

    def _is_in_graph(self, tensor: tf.Tensor) -> bool:
        return super()._is_in_graph(tensor) and tensor.ref() not in self._analysis.given

    # Rows.

    def of_rows(self, tensor: tf.Tensor, state: Rows) -> Reference:
        """See base class; all workers' rows."""
        if self._is_of_sizes(tensor):
            return super().run_once(tensor)
        return self._of_all_rows(self._rows_here(tensor, state), tensor, state)

    def of_parts(self, tensor: tf.Tensor, state: Partial) -> Reference:
        """See base class; each worker makes itself what is made of numbers of rows."""
        if self._is_of_sizes(tensor):
            return super().run_once(tensor)
        return super().of_parts(tensor, state)

    def _is_of_sizes(self, tensor: tf.Tensor) -> bool:
        """Whether a value is made of sizes and whole values alone, as a number of elements is."""
        key = tensor.ref()
        if key not in self._sizes:
            self._sizes[key] = self._find_of_sizes(tensor)
        return self._sizes[key]

    def _find_of_sizes(self, tensor: tf.Tensor) -> bool:
        op, state = tensor.op, self._analysis.state(tensor)
        if state is WHOLE or state is SIZE or self._analysis.is_at_hand(tensor):
            return tensor.ref() not in self._analysis.given
        is_made = op.type in _MADE_OF_SIZES and self._is_free(op) and self._is_short(tensor, state)
        is_bare = is_made and not any(control.inputs for control in op.control_inputs)
        return is_bare and all(self._is_of_sizes(each) for each in op.inputs)

    def _is_short(self, tensor: tf.Tensor, state: State) -> bool:
        """Whether a value has few entries for each row of the batch."""
        if not isinstance(state, Rows):
            return isinstance(state, Partial) or state is COPIED
        shape = self._analysis.facts.known_shape(tensor, state.axis)
        if shape is None or state.space is not self._analysis.batch:
            return False
        shape[state.axis] = self._multiple(tensor, state)
        known = [length for length in shape if length is not None]
        return len(known) == len(shape) and math.prod(known) <= _MOST_ENTRIES

    def cut(self, tensor: tf.Tensor, want: Rows, k: int) -> Reference:
        """See base class; the batch's own tensors are cut from the worker's rows."""
        own = self._own.get(tensor.ref())
        if own is None or want != self._analysis.given[tensor.ref()].state:
            return super().cut(tensor, want, k)
        key = ("cut here", tensor.ref(), k)
        if key not in self._memo:
            here = self._runs_here(want.space)
            self._memo[key] = self._cut_out(tensor, own, here, want, k)
        return self._memo[key]

    def _runs_of_workers(self, space: Space) -> WorkerRuns:
        self.runs_of(space)
        return self._worker_runs[space.base]

    def _runs_here(self, space: Space) -> Runs:
        return self._runs_of_workers(space).here

    def static_run(self, k: int) -> tuple[int, int]:
        """See base class."""
        rows = self._cluster.given.rows
        begin, end = runs.static_bounds(rows, len(self._devices))[k]
        return rows * self._workers.options.position + begin, end - begin

    def _picked(self, space: Space) -> Runs:
        here = super()._picked(space)
        counts = self._counts(here.total, space.source)
        is_before = np.arange(self._workers.size) < self._workers.options.position
        before = self._writer.constant(is_before.astype(np.int32), None)
        before = self._binary("Mul", counts, before, tf.int32, self._home)
        total, start = (
            self._reduced_all(each, "Sum", tf.int32, self._home) for each in (counts, before)
        )
        begins = [
            self._binary("AddV2", start, begin, tf.int32, self._home) for begin in here.begins
        ]
        lengths = here.sum
        if lengths is not None:
            lengths = self._crossing(lengths, "Add", space.source, tf.TensorSpec([], tf.int32))
        everywhere = here._replace(total=total, begins=begins, sum=lengths)
        self._worker_runs[space] = WorkerRuns(everywhere, here, counts)
        return everywhere


def _spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def is_own(op: tf.Operation) -> bool:
    """Whether workers' values of an operation differ though its inputs do not.

    Those of reads of variables and tables do not: these are the same in all workers.
    """
    if op.op_def is None or not op.op_def.is_stateful or op.type.startswith(_SHARED):
        return False
    reads = [t for t in op.inputs if t.dtype in kinds.HANDLES or t.dtype._is_ref_dtype]
    return not reads or op.type.startswith(_OUTSIDE)


def _counts(given: WorkerBatch) -> tf.Tensor:
    """Returns how many rows each worker has; refuses rows of different shapes."""
    workers = given.workers
    own = given.own.values()
    widths = [tf.shape(t)[1:] for t in own if not t.shape[1:].is_fully_defined()]
    if not widths and workers.counts is not None:
        return workers.counts
    brought = tf.concat([tf.reshape(given.rows, [1]), *widths], 0)
    table = workers.table(brought)
    if not widths:
        return table[:, 0]
    counts, widths = table[:, 0], table[:, 1:]
    has_rows = tf.reshape(counts > 0, [-1, 1])
    widest = tf.reduce_max(tf.where(has_rows, widths, tf.zeros_like(widths)), 0)
    check = tf.debugging.Assert(
        tf.reduce_all(tf.equal(widths, widest) | ~has_rows),
        [
            "Workers' rows are one batch, so they need the same shape; those of a step have "
            "several (a line for each worker, behind its number of rows). Pad all rows to one "
            "length, or drop_remainder, in the input_fn:",
            table,
        ],
        summarize=1000,
    )
    with tf1.control_dependencies([check]):
        return tf.identity(counts)


def _at(home: str) -> AbstractContextManager[None]:
    return reductions.alone_on(home, "replicate_split/")
