"""Brings tensors from state to state: joins parts, gathers rows, cuts values, scales sizes.

A device without rows computes on a borrowed one. What it adds to a sum is left out, what it adds to
gathered rows is cut off, and whole sizes do not count borrowed rows.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.states import Kind, Partial, RowNumbers, Rows, Space
from replicate.splitting.structure import loops, runs
from replicate.splitting.structure.nodes import Join, Reference
from replicate.splitting.writing import different, known_shapes, peers, steps, workers

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers

_REDUCTIONS = {
    Kind.MAX: "Max",
    Kind.MIN: "Min",
    Kind.PROD: "Prod",
    Kind.ALL: "All",
    Kind.ANY: "Any",
}


class Joins:
    """Writes joins and cuts for a `Writer`.

    Args:
        writer: The writer.

    Attributes:
        steps: What writes reshapes of steps.
    """

    def __init__(self, writer: "writers.Writer"):
        self._writer = writer
        self._nodes = writer.nodes
        self._analysis = writer.analysis
        self._structure = writer.structure
        self._devices = writer.devices
        self._home = writer.home
        self.steps = steps.Reshapes(writer, self.rank)
        self._peers = peers.Peers(writer, self)
        self._runs = {writer.analysis.batch: writer.place.runs(writer.nodes)}
        self._memo: dict[tuple[object, ...], Reference] = {}
        self._windows: dict[tuple[object, ...], tuple[str, str]] = {}

    def run_once(self, tensor: tf.Tensor) -> Reference:
        """Has an operation run once; returns its output, the same in all workers."""
        is_whole = self._analysis.state(tensor) is states.WHOLE
        if tensor.op.type == "ShapeN" and is_whole and self._structure.is_free(tensor.op):
            return self.whole_size(tensor)  # its other shapes may be those of rows
        return self._peers.run_once(tensor)

    # Numbers of rows.

    def runs_of(self, space: Space) -> runs.Runs:
        """Returns the runs of a space's rows, of all workers."""
        return self.worker_runs(space).everywhere

    def worker_runs(self, space: Space) -> workers.WorkerRuns:
        """Returns which rows of a space are whose."""
        space = space.base
        if space not in self._runs:
            self._runs[space] = self._picked(space)
        return self._runs[space]

    @property
    def has_rows(self) -> tuple[Reference | None, ...]:
        """For each device whether it has rows of the batch; None if it always has."""
        return tuple(self.runs_of(self._analysis.batch).has_rows)

    def _picked(self, space: Space) -> workers.WorkerRuns:
        """Returns how many rows each device picked; of borrowed rows the picked are borrowed."""
        batch, none = self.runs_of(self._analysis.batch), self._writer.constant(np.int32(0), None)
        begins: list[Reference] = []
        lengths: list[Reference] = []
        end: Reference = none
        for k, device in enumerate(self._devices):
            part = self._writer.own(space.source, k)
            length = self.entry(part, space.source.dtype, 0, device)
            has_rows = batch.has_rows[k]
            begin, own = end, length
            if has_rows is not None:
                begin, own = (
                    self._nodes.add("SelectV2", [has_rows, each, none], self._home, T=tf.int32)
                    for each in (end, length)
                )
            begins.append(begin)
            lengths.append(length)
            end = self._add([end, own], tf.int32)
        everything = None if batch.is_exact else self._add(lengths, tf.int32)
        here = runs.Runs(end, begins, lengths, batch.has_rows, everything)
        return self._peers.picked(here, space.source)

    def entry(self, value: Reference, dtype: tf.DType, axis: int, device: str) -> str:
        """Returns the length of a dimension, int32."""
        shape = self._shape(value, dtype, tf.int32, device)
        return self._gathered(shape, np.int32(axis), tf.int32, device)

    def _shape(self, value: Reference, dtype: tf.DType, to: tf.DType, device: str) -> str:
        return self._nodes.add("Shape", [value], device, T=dtype, out_type=to)

    def _gathered(
        self, values: Reference, indices: np.int32 | npt.NDArray[Any], dtype: tf.DType, device: str
    ) -> str:
        """Returns entries of a vector, in the same loop or branch."""
        index, zero = (self._nodes.constant(n, device, values) for n in (indices, np.int32(0)))
        kinds = {"Tparams": dtype, "Tindices": tf.int32, "Taxis": tf.int32}
        return self._nodes.add("GatherV2", [values, index, zero], device, **kinds)

    def _add(self, values: Sequence[Reference], dtype: tf.DType) -> str:
        return self._nodes.add("AddN", values, self._home, T=dtype, N=len(values))

    def _binary(self, type: str, a: Reference, b: Reference, dtype: tf.DType, device: str) -> str:
        return self._nodes.add(type, [a, b], device, T=dtype)

    def _cast(self, value: Reference, dtype: tf.DType, device: str) -> Reference:
        """Returns an int32 number as another dtype."""
        if dtype == tf.int32:
            return value
        key = ("cast", self._nodes.name(value), dtype, device)
        if key not in self._memo:
            kinds = {"SrcT": tf.int32, "DstT": dtype}
            self._memo[key] = self._nodes.add("Cast", [value], device, **kinds)
        return self._memo[key]

    def _own_part(self, grown: Reference, found: runs.Runs, dtype: tf.DType) -> Reference:
        """Returns a number that grows with all rows without the part of borrowed rows."""
        if found.sum is None:
            return grown
        number: Reference = self._at_least_one(found.sum, self._home, None)  # none may be picked
        number = self._cast(number, dtype, self._home)
        per_row = self._binary("FloorDiv", grown, number, dtype, self._home)
        total = self._cast(found.total, dtype, self._home)
        return self._binary("Mul", per_row, total, dtype, self._home)

    # Parts become a value.

    def of_parts(self, tensor: tf.Tensor, state: Partial) -> Reference:
        """Returns the value that all devices' parts make."""
        if self._peers.is_of_sizes(tensor):
            return self.run_once(tensor)
        parts = [self._writer.own(tensor, k) for k in range(len(self._devices))]
        if state.kind is Kind.SUM:
            return self._sum(parts, tensor)
        if state.kind is Kind.MEAN:
            number = self._cast(self._number_of_elements(tensor), tensor.dtype, self._home)
            total = self._sum(parts, tensor)
            return self._binary("RealDiv", total, number, tensor.dtype, self._home)
        return self._extreme(parts, tensor, state.kind)

    def join(self, inputs: Sequence[Reference], dtype: tf.DType, join: Join) -> str:
        """Has the strategy join parts.

        Args:
            inputs: The parts, and behind those of rows how many each worker has.
            dtype: Their dtype.
            join: How they are joined.
        """
        kind = "AddN" if join.axis is None else "ConcatV2"
        name = self._nodes.add(kind, inputs, self._home, T=dtype)
        self._writer.changes.joins[name] = join
        return name

    def _sum(self, parts: Sequence[Reference], tensor: tf.Tensor) -> Reference:
        """Returns the sum of all devices' parts, which the strategy makes."""
        if self._peers.is_alone or (len(parts) > 1 and not self._peers.branches(tensor)):
            found = self.join(parts, tensor.dtype, Join(len(parts)))
            return self._nodes.know(found, tensor.shape)
        return self._peers.total(self.sum_here(parts, tensor.dtype), tensor)

    def sum_here(self, parts: Sequence[Reference], dtype: tf.DType) -> Reference:
        """Returns the sum of what devices with rows have, made by one operation of the graph."""
        zero = self._writer.constant(np.zeros([], dtype.as_numpy_dtype), None)
        found = self._with_rows(parts, zero, dtype)
        return found[0] if len(found) == 1 else self._add(found, dtype)

    def _with_rows(
        self, parts: Sequence[Reference], neutral: Reference, dtype: tf.DType
    ) -> list[Reference]:
        """Returns parts, in which what is neutral stands for those of devices without rows."""
        found = list(parts)
        for k, has_rows in enumerate(self.has_rows):
            if has_rows is not None:
                chosen = [has_rows, found[k], neutral]
                found[k] = self._nodes.add("SelectV2", chosen, self._home, T=dtype)
        return found

    def _number_of_elements(self, mean: tf.Tensor) -> Reference:
        """Returns how many elements a mean is of, int32."""
        tensor, operand = mean.op.inputs[0], mean.op.inputs[1]
        facts, state = self._analysis.facts, self.rows(tensor)
        shape = facts.known_shape(tensor, state.axis)
        axes = sorted(
            {int(axis) % self.rank(tensor) for axis in np.asarray(facts.value(operand)).reshape(-1)}
        )
        multiple = facts.multiple(tensor, state.axis)
        others = [None if shape is None else shape[axis] for axis in axes if axis != state.axis]
        known = [size for size in others if size is not None]
        if multiple is not None and len(known) == len(others):
            number = np.int32(multiple * math.prod(known))
            total = self.runs_of(state.space).total
            if number == 1:
                return total
            scale = self._writer.constant(number, None)
            return self._binary("Mul", total, scale, tf.int32, self._home)
        numbers = []
        for k, device in enumerate(self._devices):
            part = self._writer.view(tensor, state, k)
            lengths = self._shape(part, tensor.dtype, tf.int32, device)
            sizes = self._gathered(lengths, np.array(axes, np.int32), tf.int32, device)
            numbers.append(self.reduced(sizes, "Prod", tf.int32, device))
        here, spec = self._add(numbers, tf.int32), tf.TensorSpec([], tf.int32)
        everything = self._peers.total(here, mean, spec)
        return self._own_part(everything, self.runs_of(state.space), tf.int32)

    def reduced(self, values: Reference, type: str, dtype: tf.DType, device: str) -> str:
        """Returns the sum, the maximum or the like of a tensor along its first axis."""
        axis = self._nodes.constant(np.int32(0), device, values)
        kinds = {} if type in ("All", "Any") else {"T": dtype}
        return self._nodes.add(
            type, [values, axis], device, Tidx=tf.int32, keep_dims=False, **kinds
        )

    def _extreme(self, parts: Sequence[Reference], tensor: tf.Tensor, kind: Kind) -> Reference:
        """Returns the maximum or the like of the parts of devices with rows."""
        dtype, reduction = tensor.dtype, _REDUCTIONS[kind]
        found = self._with_rows(parts, self._writer.constant(_neutral(kind, dtype), None), dtype)
        packed = self._nodes.add("Pack", found, self._home, T=dtype, N=len(found), axis=0)
        whole = self.reduced(packed, reduction, dtype, self._home)
        if self._peers.is_alone:
            return whole
        return self.reduced(self._peers.table(whole, tensor), reduction, dtype, self._home)

    # Rows become whole.

    def of_rows(self, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns all devices' rows, without borrowed ones."""
        if self._peers.is_of_sizes(tensor):
            return self.run_once(tensor)
        found = self._peers.rows(self._rows_here(tensor, state), tensor, state)
        return self.steps.together(found, tensor, state)

    def _rows_here(self, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns this worker's rows, without borrowed ones, and steps apart."""
        parts: list[Reference] = []
        for k, number in enumerate(self.runs_of(state.space).lengths):
            part = self._writer.view(tensor, state.plain, k)
            parts.append(self.steps.apart(part, number, tensor, state))
        found = parts[0]
        if len(parts) > 1:
            axis = self._writer.constant(np.int32(self.steps.layout(tensor, state)[1]), None)
            kinds = {"T": tensor.dtype, "Tidx": tf.int32, "N": len(parts)}
            found = self._nodes.add("ConcatV2", [*parts, axis], self._home, **kinds)
        rows = self.without_loans(found, tensor, state)
        self._writer.changes.gathered += [each for each in (found, rows) if isinstance(each, str)]
        return rows

    def without_loans(self, found: Reference, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns this worker's rows without borrowed ones."""
        rows = self.worker_runs(state.space).here
        if rows.is_exact:
            return found
        rank, axis, multiple = self.steps.layout(tensor, state)
        key = ("all", state.space.base, rank, axis, multiple)
        if multiple is None or key not in self._memo:
            mask = (np.arange(rank) == axis).astype(np.int32)
            scale = self._writer.constant(mask * (multiple or 1), None)
            if multiple is None:
                shape = self._shape(found, tensor.dtype, tf.int32, self._home)
                length = self._own_part(shape, rows, tf.int32)
            else:
                length = rows.total
            length = self._binary("Mul", scale, length, tf.int32, self._home)
            rest = self._writer.constant(mask - 1, None)
            self._memo[key] = self._add([length, rest], tf.int32)
        begin = self._writer.constant(np.zeros(rank, np.int32), None)
        kinds = {"T": tensor.dtype, "Index": tf.int32}
        return self._nodes.add("Slice", [found, begin, self._memo[key]], self._home, **kinds)

    def rank(self, tensor: tf.Tensor) -> int:
        """Returns the rank of a tensor with rows."""
        rank = self._analysis.facts.rank(tensor)
        if rank is None:
            raise ValueError(f"What has rows has a known rank; {tensor.name} has none.")
        return rank

    def rows(self, tensor: tf.Tensor) -> Rows:
        """Returns the rows of a tensor that has some."""
        state = self._analysis.state(tensor)
        if not isinstance(state, Rows):
            raise ValueError(f"{tensor.name} has no rows: it is {state}.")
        return state.plain

    def plain(self, tensor: tf.Tensor, state: RowNumbers, k: int) -> Reference:
        """Returns a device's numbers of rows as one device counts them."""
        part, device, dtype = self._writer.own(tensor, k), self._devices[k], tensor.dtype
        offset = self._cast(self.runs_of(state.ids.space).begins[k], dtype, self._home)
        by = self._binary("Mul", offset, self._scale(tensor, state, k), dtype, device)
        return self._binary("AddV2", part, by, dtype, device)

    def _scale(self, tensor: tf.Tensor, state: RowNumbers, k: int) -> Reference:
        """Returns the stride; of coordinates where numbers of rows are, and zeros beside it."""
        ids, device, dtype = state.ids, self._devices[k], tensor.dtype
        if ids.column is None:
            return self._writer.constant(np.array(ids.stride, dtype.as_numpy_dtype), k)
        rank, kind = self.rank(tensor), dtype.as_numpy_dtype
        axis = 0 if ids.is_upright else rank - 1
        width = self.entry(self._writer.own(tensor, k), dtype, axis, device)
        given = (np.array(ids.column, np.int32), kind(ids.stride), kind(0), [-1] + [1] * (rank - 1))
        index, on, off, shape = (self._writer.constant(np.array(n), k) for n in given)
        scale = self._nodes.add("OneHot", [index, width, on, off], device, T=dtype, TI=tf.int32)
        kinds = {"T": dtype, "Tshape": tf.int64}
        return self._nodes.add("Reshape", [scale, shape], device, **kinds) if axis == 0 else scale

    # What is whole is cut.

    def cut(self, tensor: tf.Tensor, want: Rows, k: int) -> Reference:
        """Returns device k's rows of a value that is at hand whole."""
        key = ("cut", tensor.ref(), want.axis, want.space, k)
        if key not in self._memo:
            self._memo[key] = self._cut(tensor, want, k)
        return self._memo[key]

    def _cut(self, tensor: tf.Tensor, want: Rows, k: int) -> Reference:
        facts = self._analysis.facts
        if facts.static_rows and tensor.op.type == "Const" and self._structure.is_free(tensor.op):
            value = facts.constant(tensor)
            if value is not None and want.space is self._analysis.batch:
                begin, count = self._writer.place.static_run(k)
                multiple = value.shape[want.axis] // facts.static_rows
                rows = range(begin * multiple, (begin + count) * multiple)
                value = np.ascontiguousarray(np.take(value, rows, want.axis))
                return self._writer.constant(value.astype(tensor.dtype.as_numpy_dtype), k)
        own = self._peers.own(tensor)
        if own is not None and want == self._analysis.given[tensor.ref()].state:
            return self._cut_out(tensor, own, self.worker_runs(want.space).here, want, k)
        whole = self._writer.whole_on(tensor, k)
        return self._cut_out(tensor, whole, self.runs_of(want.space), want, k)

    def _cut_out(
        self, tensor: tf.Tensor, whole: Reference, rows: runs.Runs, want: Rows, k: int
    ) -> Reference:
        is_here = (
            self._analysis.state(tensor) is not states.COPIED
            and self._structure.loop(tensor.op) is None
        )
        device = self._home if is_here else self._devices[k]
        whole = self.steps.apart(whole, rows.total, tensor, want)
        begin, length = self._window(tensor, whole, rows, want, k)
        kinds = {"T": tensor.dtype, "Index": tf.int32}
        found = self._nodes.add("Slice", [whole, begin, length], device, **kinds)
        found = self.steps.together(found, tensor, want)
        return self._nodes.know(found, known_shapes.of_part(self._writer, tensor, want, k))

    def _window(
        self, tensor: tf.Tensor, whole: Reference, rows: runs.Runs, want: Rows, k: int
    ) -> tuple[str, str]:
        """Returns where device k's rows begin, and how many entries they have, as vectors."""
        rank, axis, multiple = self.steps.layout(tensor, want)
        loop = self._structure.loop(tensor.op)
        # What is made behind a tensor of a loop may be used in the same branch of it alone.
        place = None if loop is None else tensor.op._get_control_flow_context()
        key = (id(rows), rank, axis, multiple, k, place)
        if multiple is not None and key in self._windows:
            return self._windows[key]
        device = self._home if loop is None else self._devices[k]

        def number(value: npt.NDArray[np.int32]) -> str:
            return self._nodes.constant(value, device, whole if loop is not None else None)

        def inside(reference: Reference) -> Reference:
            return self._writer.in_loops.entered(reference, tf.int32, loop, k)

        mask = (np.arange(rank) == axis).astype(np.int32)
        if multiple is not None:
            scale = number(mask * multiple)
        else:
            shape = self._shape(whole, tensor.dtype, tf.int32, device)
            total = self._at_least_one(inside(rows.total), device, loop)
            per_row = self._binary("FloorDiv", shape, total, tf.int32, device)
            scale = self._binary("Mul", per_row, number(mask), tf.int32, device)
        begin = self._binary("Mul", scale, inside(rows.begins[k]), tf.int32, device)
        length = self._binary("Mul", scale, inside(rows.lengths[k]), tf.int32, device)
        length = self._binary("AddV2", length, number(mask - 1), tf.int32, device)
        if multiple is not None:
            self._windows[key] = begin, length
        return begin, length

    def _at_least_one(self, total: Reference, device: str, loop: loops.Context | None) -> str:
        one = self._nodes.constant(np.int32(1), device, total if loop is not None else None)
        return self._binary("Maximum", total, one, tf.int32, device)

    # Sizes.

    def whole_size(self, leaf: tf.Tensor) -> Reference:
        """Returns the whole shape, size or rank of what has rows."""
        op = leaf.op
        tensor = self._analysis.measured(leaf)
        state = self._analysis.state(tensor)
        if op.type == "Shape" and isinstance(state, states.Local) and state.source is not tensor:
            if isinstance(state.source, tf.Tensor):
                return different.shape(self._writer, leaf, tensor, state.source)
        is_here = state is states.WHOLE or state is states.SIZE or isinstance(state, states.Local)
        # NOTE: the batch that the graph has is this worker's.
        is_given = not self._peers.is_alone and tensor.ref() in self._analysis.given
        if is_here or (self._analysis.is_at_hand(tensor) and not is_given):
            if op.type != "ShapeN":
                self._writer.want_whole(op)
                return leaf
            return self._shape(self._writer.whole(tensor), tensor.dtype, leaf.dtype, self._home)
        if op.type == "Rank" or not isinstance(state, Rows):
            return self._writer.own(leaf, 0)  # a partial value has the same one everywhere
        found = known_shapes.from_rows(self._writer, leaf, None)
        if found is not None:
            return found
        if op.type == "Size":
            return self._joined_size(leaf, state)
        return self._whole_shape(leaf, tensor, state)

    def number_of_rows(self, space: Space, k: int | None, dtype: tf.DType) -> Reference:
        """Returns how many rows of a space all devices have, or device k, as a dtype."""
        found = self.runs_of(space)
        return self._cast(found.total if k is None else found.lengths[k], dtype, self._home)

    def _joined_size(self, leaf: tf.Tensor, state: Rows) -> Reference:
        sizes = [self._writer.own(leaf, k) for k in range(len(self._devices))]
        size = self._peers.total(self._add(sizes, leaf.dtype), leaf)
        return self._own_part(size, self.runs_of(state.space), leaf.dtype)

    def _whole_shape(self, leaf: tf.Tensor, tensor: tf.Tensor, state: Rows) -> Reference:
        dtype, mask = leaf.dtype, np.arange(self.rank(tensor)) == state.axis
        parts = [self._writer.own(leaf, k) for k in range(len(self._devices))]
        total = self._peers.total(self._add(parts, dtype), leaf)
        total = self._own_part(total, self.runs_of(state.space), dtype)
        is_rows = self._writer.constant(mask, None)
        return self._nodes.add("SelectV2", [is_rows, total, parts[0]], self._home, T=dtype)

    def own_shape(self, tensor: tf.Tensor, want: states.Shape, k: int) -> Reference:
        """Returns a shape in which the entry of rows is device k's own."""
        facts = self._analysis.facts
        if facts.static_rows and self._structure.is_free(tensor.op) and not want.space.is_picked:
            value = facts.constant(tensor)
            if value is not None:
                return self._own_constant_shape(np.array(value), tensor, want, k)
        key = ("shape", tensor.ref(), want.axis, want.space, k)
        if key not in self._memo:
            self._memo[key] = self._scaled(tensor, want, k)
        return self._memo[key]

    def _own_constant_shape(
        self, value: npt.NDArray[Any], tensor: tf.Tensor, want: states.Shape, k: int
    ) -> str:
        place = () if want.axis is None else want.axis
        if value[place] > 0:
            rows = self._analysis.facts.static_rows
            value[place] = value[place] // rows * self._writer.place.static_run(k)[1]
        return self._writer.constant(value.astype(tensor.dtype.as_numpy_dtype), k)

    def _scaled(self, tensor: tf.Tensor, want: states.Shape, k: int) -> str:
        dtype, whole = tensor.dtype, self._writer.whole_on(tensor, k)
        loop = self._structure.loop(tensor.op)
        device, rows = self._home if loop is None else self._devices[k], self.runs_of(want.space)
        enter, after = self._writer.in_loops.entered, None if loop is None else whole
        total = enter(self._cast(rows.total, dtype, self._home), dtype, loop, k)
        length = enter(self._cast(rows.lengths[k], dtype, self._home), dtype, loop, k)
        if want.space.is_picked:
            one = self._nodes.constant(np.ones([], dtype.as_numpy_dtype), device, after)
            total = self._binary("Maximum", total, one, dtype, device)
        per_row = self._binary("FloorDiv", whole, total, dtype, device)
        mine = self._binary("Mul", per_row, length, dtype, device)
        if want.axis is None:
            return mine
        entries = self._analysis.facts.shape_entries(tensor) or ()
        mask = self._nodes.constant(np.arange(len(entries)) == want.axis, device, after)
        return self._nodes.add("SelectV2", [mask, mine, whole], device, T=dtype)


def _neutral(kind: Kind, dtype: tf.DType) -> npt.NDArray[Any]:
    """Returns what does not change a maximum or the like of a dtype."""
    found: Any = {Kind.PROD: 1, Kind.ALL: True, Kind.ANY: False}.get(kind)
    if kind is Kind.MAX:
        found = -np.inf if dtype.is_floating else dtype.min
    if kind is Kind.MIN:
        found = np.inf if dtype.is_floating else dtype.max
    return np.array(found, dtype.as_numpy_dtype)
