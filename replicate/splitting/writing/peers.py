"""What this worker makes becomes what all workers make, by joins of one part.

The strategy makes these by level: it adds what workers bring, or puts rows end to end. Outside of
branches a sum of several devices needs none: the call that adds their parts adds all workers'.

All workers run the same whole operations, on the same values. So whatever differs is joined first:
sums, rows, and the batch's own tensors. What is random, or comes from outside, is the first
worker's. No join over workers is in a branch: a value that is made in one leaves it first (as
nothing, if the branch is not taken), and what all workers have made comes back.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.graph import packing
from replicate.splitting.states import COPIED, SIZE, WHOLE, Partial, Rows, State
from replicate.splitting.structure import kinds, loops
from replicate.splitting.structure.nodes import Join, Reference
from replicate.splitting.structure.runs import Runs
from replicate.splitting.writing import workers

if TYPE_CHECKING:
    from replicate.splitting.writing import joins
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


class Peers:
    """Writes what goes over workers, for a `Joins`; nothing, if a worker is alone.

    Args:
        writer: The writer.
        devices: What joins this worker's devices.

    Attributes:
        is_alone: Whether there is one worker.
    """

    def __init__(self, writer: "writers.Writer", devices: "joins.Joins"):
        self._writer = writer
        self._nodes = writer.nodes
        self._analysis = writer.analysis
        self._home = writer.home
        self._devices = devices
        self._place = place = writer.place
        self._batch = place.batch
        self._size, self._position = place.workers.size, place.workers.position
        self.is_alone = place.workers.is_alone
        self._lone = {tensor.ref() for tensor in place.batch.lone}
        self._sizes: dict[Hashable, bool] = {}
        self._outside: dict[Reference, str] = {}  # joined values, in no branch

    # What is joined.

    def total(
        self, value: Reference, tensor: tf.Tensor, spec: tf.TensorSpec | None = None
    ) -> Reference:
        """Returns the sum of all workers' values.

        Args:
            value: What this worker's devices have made.
            tensor: What it is made for: it is in the same branches.
            spec: Its dtype, and what is known of its shape; None: as of the tensor.
        """
        spec = spec or tf.TensorSpec(tensor.shape, tensor.dtype)
        return value if self.is_alone else self._joined(value, tensor, spec)

    def table(self, value: Reference, tensor: tf.Tensor) -> Reference:
        """Returns all workers' values, of shape [W, ...]; see `total`."""
        zeros = self._nodes.add("ZerosLike", [value], self._home, T=tensor.dtype)
        rows = [value if n == self._position else zeros for n in range(self._size)]
        attributes = {"T": tensor.dtype, "N": self._size, "axis": 0}
        own = self._nodes.add("Pack", rows, self._home, **attributes)
        return self._joined(own, tensor, tf.TensorSpec([self._size, *tensor.shape], tensor.dtype))

    def rows(self, found: Reference, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns all workers' rows of a tensor, given this worker's; steps are apart."""
        counts = self._devices.worker_runs(state.space).counts
        if counts is None:
            return found
        rank, axis, multiple = self._devices.steps.layout(tensor, state)
        if multiple is None:
            length = self._devices.entry(found, tensor.dtype, axis, self._home)
            counts, multiple = self._counts(length, tensor), 1
        lengths = self._outside.get(counts, counts) if isinstance(counts, str) else counts
        if multiple != 1:
            scale = self._writer.constant(np.int32(multiple), None)
            lengths = self._nodes.add("Mul", [lengths, scale], self._home, T=tf.int32)
        shape = [None] * rank if tensor.shape.rank is None else tensor.shape.as_list()
        if len(shape) < rank:
            shape.insert(state.axis, None)
        shape[axis] = None
        return self._joined(found, tensor, tf.TensorSpec(shape, tensor.dtype), axis, lengths)

    def _joined(
        self,
        value: Reference,
        tensor: tf.Tensor,
        spec: tf.TensorSpec,
        axis: int | None = None,
        *lengths: Reference,
    ) -> Reference:
        """Has the strategy join what this worker brings; see `Join`."""
        ways = self.branches(tensor)
        branches = [(self._writer.whole(predicate), side) for predicate, side in ways]
        # NOTE: what is made of sizes alone has a value though its branch is not taken. What comes
        # back has none, and must not travel with what has one.
        value = self._left(self._entered(value, branches, spec), branches, spec)
        if axis is not None and tensor.shape.rank is not None:
            # NOTE: all workers have more rows than this one: the shape must not tell how many.
            kinds_ = {"dtype": spec.dtype, "shape": spec.shape}
            value = self._nodes.add("PlaceholderWithDefault", [value], self._home, **kinds_)
        name = self._devices.join([value, *lengths], spec.dtype, Join(1, axis))
        if axis is None:
            self._nodes.know(name, spec.shape)
        back = self._entered(name, branches, spec)
        self._outside[back] = name
        return back

    def branches(self, tensor: tf.Tensor) -> list[tuple[tf.Tensor, bool]]:
        """Returns the branches that a tensor is in: predicates, innermost first, and sides."""
        return self._place.conditions.of(tensor)

    def _entered(
        self, value: Reference, branches: Sequence[tuple[Reference, bool]], spec: tf.TensorSpec
    ) -> Reference:
        """Returns a value as it is in branches, of which the innermost is the first."""
        for predicate, side in reversed(branches):
            gate = self._nodes.add("Switch", [value, predicate], self._home, T=spec.dtype)
            self._nodes.by_name[gate].shapes = (spec.shape, spec.shape)
            value = f"{gate}:1" if side else gate
        return value

    def _left(
        self, value: Reference, branches: Sequence[tuple[Reference, bool]], spec: tf.TensorSpec
    ) -> Reference:
        """Returns a value of branches as it is outside; nothing, if they are not taken."""
        shape, dtype = spec.shape, spec.dtype
        for n, (predicate, side) in enumerate(branches):
            lengths = shape.as_list() if shape.is_fully_defined() else [0] * (shape.rank or 0)
            kind = "S1" if dtype == tf.string else dtype.as_numpy_dtype
            nothing: Reference = self._writer.constant(np.zeros(lengths, kind), None)
            others = [(predicate, not side), *branches[n + 1 :]]
            nothing = self._entered(nothing, others, tf.TensorSpec(lengths, dtype))
            value = self._nodes.add("Merge", [value, nothing], self._home, T=dtype, N=2)
            self._nodes.by_name[value].shapes = (shape, tf.TensorShape([]))
        return value

    def _counts(self, own: Reference, tensor: tf.Tensor) -> Reference:
        """Returns all workers' numbers, given this worker's."""
        is_own = np.arange(self._size) == self._position
        place = self._writer.constant(is_own.astype(np.int32), None)
        counts = self._nodes.add("Mul", [place, own], self._home, T=tf.int32)
        return self._joined(counts, tensor, tf.TensorSpec([self._size], tf.int32))

    def picked(self, here: Runs, source: tf.Tensor) -> workers.WorkerRuns:
        """Returns which rows are whose that are picked, given which of this worker's are."""
        if self.is_alone:
            return workers.WorkerRuns(here, here, None)
        counts = self._counts(here.total, source)
        is_before = np.arange(self._size) < self._position
        before: Reference = self._writer.constant(is_before.astype(np.int32), None)
        before = self._nodes.add("Mul", [counts, before], self._home, T=tf.int32)
        total, start = (
            self._devices.reduced(each, "Sum", tf.int32, self._home) for each in (counts, before)
        )
        begins = [
            self._nodes.add("AddV2", [start, begin], self._home, T=tf.int32)
            for begin in here.begins
        ]
        lengths = here.sum
        if lengths is not None:
            lengths = self._joined(lengths, source, tf.TensorSpec([], tf.int32))
        everywhere = here._replace(total=total, begins=begins, sum=lengths)
        return workers.WorkerRuns(everywhere, here, counts)

    # What runs once.

    def run_once(self, tensor: tf.Tensor) -> Reference:
        """Has an operation run once; a value that differs over workers is the first one's."""
        if self.is_alone:
            if self._writer.micro_batches > 1 and self._only_waits(tensor):
                return self._writer.whole(tensor.op.inputs[0])
            self._writer.want_whole(tensor.op)
            return tensor
        given, own = self._analysis.given.get(tensor.ref()), self.own(tensor)
        if given is not None and isinstance(given.state, Rows):
            if own is None:  # of a sparse tensor
                return self._devices.of_rows(tensor, given.state)
            return self.rows(
                self._devices.without_loans(own, tensor, given.state), tensor, given.state
            )
        if given is not None:
            return self._of_shape(tensor)
        is_own = tensor.ref() in self._lone
        if not is_own and tensor.op._id >= self._batch.begin:
            if self._only_waits(tensor):
                return self._writer.whole(tensor.op.inputs[0])
            self._writer.want_whole(tensor.op)
            is_own = self._is_own(tensor)
        return self._of_first(tensor) if is_own and packing.is_sent(tensor) else tensor

    def own(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the worker's own rows of a tensor of the batch; None for any other one."""
        return self._batch.own.get(tensor.ref())

    def _of_first(self, tensor: tf.Tensor) -> Reference:
        """Returns the first worker's value: the others add nothing to it."""
        value: Reference = tensor
        if self._position:
            value = self._nodes.add("ZerosLike", [tensor], self._home, T=tensor.dtype)
        return self.total(value, tensor)

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
        total = self._devices.number_of_rows(self._analysis.batch, None, tensor.dtype)
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
            return _is_own(op)
        return any(structure.root(write) in self._own_loops for write in writes)

    @functools.cached_property
    def _own_loops(self) -> set[loops.Context | None]:
        """The outermost loops that run once, and in which workers' values differ."""
        structure = self._writer.structure
        found: set[loops.Context | None] = set()
        for op in self._nodes.graph.get_operations():
            root = structure.root(op)
            if root is not None and root not in found and _is_own(op):
                found |= structure.loops_sharing_stacks(root)
        return {root for root in found if root in self._analysis.assumptions.whole_loops}

    # What each worker makes itself.

    def is_of_sizes(self, tensor: tf.Tensor) -> bool:
        """Whether a value is made of sizes and whole values alone, as a number of elements is.

        Each of several workers makes it itself.
        """
        if self.is_alone:
            return False
        key = tensor.ref()
        if key not in self._sizes:
            self._sizes[key] = self._find_of_sizes(tensor)
        return self._sizes[key]

    def _find_of_sizes(self, tensor: tf.Tensor) -> bool:
        op, state = tensor.op, self._analysis.state(tensor)
        if state is WHOLE or state is SIZE or self._analysis.is_at_hand(tensor):
            return tensor.ref() not in self._analysis.given
        is_free = self._writer.structure.is_free(op)
        is_made = op.type in _MADE_OF_SIZES and is_free and self._is_short(tensor, state)
        is_bare = is_made and not any(control.inputs for control in op.control_inputs)
        return is_bare and all(self.is_of_sizes(each) for each in op.inputs)

    def _is_short(self, tensor: tf.Tensor, state: State) -> bool:
        """Whether a value has few entries for each row of the batch."""
        if not isinstance(state, Rows):
            return isinstance(state, Partial) or state is COPIED
        shape = self._analysis.facts.known_shape(tensor, state.axis)
        if shape is None or state.space is not self._analysis.batch:
            return False
        shape[state.axis] = self._analysis.facts.multiple(tensor, state.axis)
        known: list[Any] = [length for length in shape if length is not None]
        return len(known) == len(shape) and math.prod(known) <= _MOST_ENTRIES


def _is_own(op: tf.Operation) -> bool:
    """Whether workers' values of an operation differ though its inputs do not.

    Those of reads of variables and tables do not: these are the same in all workers.
    """
    if op.op_def is None or not op.op_def.is_stateful or op.type.startswith(_SHARED):
        return False
    reads = [t for t in op.inputs if t.dtype in kinds.HANDLES or t.dtype._is_ref_dtype]
    return not reads or op.type.startswith(_OUTSIDE)
