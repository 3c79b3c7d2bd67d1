"""Which rows of a batch are whose: this worker's, or one of several workers'.

Several workers split the same graph, each over its own devices. Worker w has the w-th part of the
batch, and its devices have runs of that. A worker that is alone has all of it.
"""

import functools
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, operations, reductions
from replicate.graph import rows as counted
from replicate.splitting.structure import conditions, effects, runs
from replicate.splitting.structure.nodes import Made, Nodes, Reference
from replicate.splitting.structure.runs import Runs

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers


class WorkerBatch(NamedTuple):
    """What a worker has of a batch.

    Attributes:
        workers: All workers, and how their values are joined.
        rows: How many rows this worker has: an int in a static batch, the same in all workers;
            else int32, of shape [], and 0 if the only row is a borrowed one.
        own: The worker's own rows of each tensor of the batch, by the `ref()` of that.
        lone: The tensors of the batch without rows, of which the first worker's count.
        begin: The number of the graph's first operation that is made from these tensors. Earlier
            ones belong to the input, and stay as they are.
        checks: What must have run before anything has an effect, since it may end the step.
    """

    workers: collectives.Workers
    rows: counted.Bound
    own: Mapping[Hashable, tf.Tensor] = MappingProxyType({})
    lone: Sequence[tf.Tensor] = ()
    begin: int = 0
    checks: Sequence[types.Fetch] = ()


class WorkerRuns(NamedTuple):
    """Which rows of a space are whose.

    Attributes:
        everywhere: The runs of this worker's devices among all workers' rows.
        here: Their runs among this worker's rows.
        counts: How many rows each worker has, int32, of shape [W]; None: there is one worker.
    """

    everywhere: Runs
    here: Runs
    counts: Reference | None


def alone(leaves: Sequence[types.Rows], static_rows: int | None, home: str) -> WorkerBatch:
    """Returns the batch of a worker that is alone.

    Args:
        leaves: The tensors of the batch.
        static_rows: B if it is static, else None.
        home: Where numbers are.
    """
    if static_rows:
        return WorkerBatch(collectives.ALONE, static_rows)
    with _at(home):
        return WorkerBatch(collectives.ALONE, counted.count(leaves[0]))


class Place:
    """Which rows of a batch are this worker's devices'.

    Args:
        batch: What this worker has of the batch.
        num_devices: K, of this worker.
        home: Where numbers are.

    Attributes:
        batch: As given.
        workers: All workers.
        num_devices: The number of all workers' devices.
        first_device: The number of this worker's first device among all workers'.
        first_row: The number of this worker's first row in a static batch.
    """

    def __init__(self, batch: WorkerBatch, num_devices: int, home: str):
        self.batch = batch
        self.workers = workers = batch.workers
        self.num_devices = num_devices * workers.size
        self.first_device = num_devices * workers.position
        self._own_devices = num_devices
        self._home = home
        self.first_row = 0
        self._dynamic: WorkerRuns | None = None
        self._static_bounds: list[tuple[int, int]] = []
        if isinstance(batch.rows, int):
            self.first_row = batch.rows * workers.position
            self._static_bounds = runs.static_bounds(batch.rows, num_devices)
        else:
            with _at(home):
                self._dynamic = self._of_dynamic(batch.rows)

    @functools.cached_property
    def conditions(self) -> conditions.Conditions:
        """In which branches tensors are."""
        return conditions.Conditions(tf1.get_default_graph())

    def runs(self, nodes: Nodes) -> WorkerRuns:
        """Returns the runs of the batch."""
        if self._dynamic is not None:
            return self._dynamic
        rows, workers = self.batch.rows, self.workers
        here = runs.of_static(rows, nodes, self._own_devices, self._home)
        if workers.is_alone:
            return WorkerRuns(here, here, None)

        def number(value: Any) -> Reference:
            return nodes.constant(np.int32(value), self._home)

        everywhere = here._replace(
            total=number(rows * workers.size),
            begins=[number(self.first_row + begin) for begin, _ in self._static_bounds],
            sum=None if here.is_exact else number(workers.size * self._own_devices),
        )
        return WorkerRuns(everywhere, here, number([rows] * workers.size))

    def bounds(self, k: int) -> tuple[Any, Any]:
        """Returns the first row of device k in this worker, and the row after its last one."""
        if self._dynamic is None:
            return self._static_bounds[k]
        here = self._dynamic.here
        begin: Any = here.begins[k]
        return begin, begin + here.lengths[k]

    def static_run(self, k: int) -> tuple[int, int]:
        """Returns the first row of device k, and how many it has, of a static batch."""
        begin, end = self.bounds(k)
        return self.first_row + begin, end - begin

    def _of_dynamic(self, rows: tf.Tensor) -> WorkerRuns:
        workers, num_devices = self.workers, self._own_devices
        if not isinstance(workers, collectives.CollectiveWorkers):
            here = runs.of_dynamic(rows, num_devices)
            return WorkerRuns(here, here, None)
        counts = _counts(self.batch, workers)
        own, whole = counts[workers.position], tf.reduce_sum(counts)
        here = runs.of_dynamic(own, num_devices)
        first_has_rows = own > 0
        has_rows = [first_has_rows, *here.has_rows[1:]]
        start = tf.reduce_sum(counts[: workers.position])
        begins = tf.stack(here.begins) + start
        # NOTE: behind the worker's rows there may be none, and it has a borrowed one.
        begins = tf.unstack(tf.minimum(begins, tf.maximum(whole - 1, 0)), num_devices)
        lengths = tf.reduce_sum(tf.maximum(counts, num_devices))
        everywhere = Runs(whole, begins, here.lengths, has_rows, lengths)
        return WorkerRuns(everywhere, here._replace(has_rows=has_rows), counts)

    def check_first(self, written: "writers.Writer", made: Made) -> None:
        """Lets what has an effect wait for what may end the step.

        Args:
            written: The writer.
            made: The new operations by their names.
        """
        checks = [getattr(check, "op", check) for check in self.batch.checks]
        before = operations.executed_by(checks)
        for op in {*written.run_whole, *made.values()} - before if checks else ():
            if effects.has_effect(op) and written.structure.is_outermost(op):
                op._add_control_inputs(checks)


def _counts(given: WorkerBatch, workers: collectives.CollectiveWorkers) -> tf.Tensor:
    """Returns how many rows each worker has; refuses rows of different shapes."""
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
