"""What lies between states: parts become a value, rows are gathered and cut, sizes are scaled.

A device without rows computes on a row on loan. What it adds to a sum is left out, what it adds
to gathered rows is cut off, and sizes are never those of rows on loan.
"""

from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.states import Kind, Partial, Rows, Space
from replicate.splitting.structure import runs
from replicate.splitting.structure.nodes import Reference

_REDUCTIONS = {Kind.MAX: "Max", Kind.MIN: "Min", Kind.ALL: "All", Kind.ANY: "Any"}
_REDUCTIONS[Kind.PROD] = "Prod"
_MERGES = {Kind.MAX: "Max", Kind.MIN: "Min", Kind.ALL: "Min", Kind.ANY: "Max", Kind.PROD: "Mul"}


class Joins:
    """Writes joins and cuts for a `Writer`.

    Args:
        writer: The writer.
        batch: The runs of the batch.

    Attributes:
        crossings: What goes over workers, by the names of new operations.
    """

    def __init__(self, writer: Any, batch: runs.Runs):
        self._writer = writer
        self._nodes = writer.nodes
        self._analysis = writer.analysis
        self._devices = writer.devices
        self._home = writer.home
        self.crossings: dict = {}
        self._runs = {writer.analysis.batch: batch}
        self._memo: dict = {}

    # What several workers change.

    def of_all(
        self,
        value: Reference,
        how: str,
        tensor: tf.Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape | None = None,
    ) -> Reference:
        """Returns what all workers' values make; there is one worker.

        Args:
            value: What this worker's devices have made.
            how: `"Add"`, `"Max"`, `"Min"` or `"Mul"`.
            tensor: What it is made for: the value is there where this is.
            dtype: Of the value.
            shape: Of the value; None: that of the tensor.
        """
        del how, tensor, dtype, shape
        return value

    def at_home(self, tensor: tf.Tensor) -> Reference:
        """Returns a value that an operation makes that runs once."""
        self._writer.want_whole(tensor.op)
        return tensor

    def _is_at_home(self, tensor: tf.Tensor) -> bool:
        """Whether the graph itself has a value as one device has it."""
        return self._analysis.is_at_hand(tensor)

    def _runs_here(self, space: Space) -> runs.Runs:
        """Returns the runs of a space's rows in this worker."""
        return self.runs_of(space)

    def static_run(self, k: int) -> tuple[int, int]:
        """Returns the first row of device k, and how many it has, of a static batch."""
        counts = runs.static_counts(self._analysis.facts.static_rows, len(self._devices))
        return sum(counts[:k]) if counts[k] else 0, max(counts[k], 1)

    # Numbers of rows.

    def runs_of(self, space: Space) -> runs.Runs:
        """Returns the runs of a space's rows."""
        if space not in self._runs:
            self._runs[space] = self._picked(space)
        return self._runs[space]

    @property
    def has_rows(self) -> tuple:
        """For each device whether it has rows of the batch: a reference; None: it has."""
        return tuple(self.runs_of(self._analysis.batch).has_rows)

    def total(self, space: Space, dtype: tf.DType) -> Reference:
        """Returns how many rows a space has, as a dtype."""
        return self._cast(self.runs_of(space).total, dtype, self._home)

    def _picked(self, space: Space) -> runs.Runs:
        """Returns how many rows each device picked; of rows on loan the picks are on loan."""
        batch, none = self.runs_of(self._analysis.batch), self._writer.constant(np.int32(0), None)
        begins, lengths, end = [], [], none
        for k, device in enumerate(self._devices):
            part = self._writer.own(space.source, k)
            length = self._entry(part, space.source.dtype, 0, device)
            has_rows = batch.has_rows[k]
            begin, own = end, length
            if has_rows is not None:
                begin, own = (self._or_none(has_rows, each, none) for each in (end, length))
            begins.append(begin)
            lengths.append(length)
            end = self._add([end, own], tf.int32)
        everything = None if batch.is_exact else self._add(lengths, tf.int32)
        return runs.Runs(end, begins, lengths, batch.has_rows, everything)

    def _or_none(self, has_rows: Reference, number: Reference, none: Reference) -> str:
        return self._nodes.add("SelectV2", [has_rows, number, none], self._home, T=tf.int32)

    def _entry(self, value: Reference, dtype: tf.DType, axis: int, device: str) -> str:
        """Returns the length of a dimension, int32."""
        shape = self._shape(value, dtype, tf.int32, device)
        return self._gathered(shape, np.int32(axis), tf.int32, device)

    def _shape(self, value: Reference, dtype: tf.DType, to: tf.DType, device: str) -> str:
        return self._nodes.add("Shape", [value], device, T=dtype, out_type=to)

    def _gathered(self, values: Reference, indices: Any, dtype: tf.DType, device: str) -> str:
        """Returns entries of a vector, by constants that are made behind it."""
        index, zero = (self._nodes.constant(n, device, values) for n in (indices, np.int32(0)))
        kinds = {"Tparams": dtype, "Tindices": tf.int32, "Taxis": tf.int32}
        return self._nodes.add("GatherV2", [values, index, zero], device, **kinds)

    def _add(self, values: list, dtype: tf.DType) -> str:
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
        """Returns of a number that grows with rows on loan, too, what is the rows' own."""
        if found.is_exact:
            return grown
        number = self._at_least_one(found.sum, self._home, None)  # of none that are picked
        number = self._cast(number, dtype, self._home)
        per_row = self._binary("FloorDiv", grown, number, dtype, self._home)
        total = self._cast(found.total, dtype, self._home)
        return self._binary("Mul", per_row, total, dtype, self._home)

    # Parts become a value.

    def of_parts(self, tensor: tf.Tensor, state: Partial) -> Reference:
        """Returns the value that all devices' parts make."""
        parts = [self._writer.own(tensor, k) for k in range(len(self._devices))]
        if state.kind is Kind.SUM:
            return self._sum(parts, tensor)
        if state.kind is Kind.MEAN:
            total = self._sum(parts, tensor)
            return self._divided(total, self._number_of_elements(tensor), tensor.dtype)
        return self._reduced(parts, tensor, state.kind)

    def _sum(self, parts: list, tensor: tf.Tensor) -> str:
        found = self._add(parts, tensor.dtype)
        self._writer.changes.sums[found] = tensor
        return self.of_all(found, "Add", tensor, tensor.dtype)

    def _divided(self, total: Reference, number: Reference, dtype: tf.DType) -> Reference:
        number = self._cast(number, dtype, self._home)
        return self._binary("RealDiv", total, number, dtype, self._home)

    def _number_of_elements(self, mean: tf.Tensor) -> Reference:
        """Returns of how many elements a mean is, int32."""
        tensor, operand = mean.op.inputs[0], mean.op.inputs[1]
        facts, state = self._analysis.facts, self._analysis.state(tensor)
        shape = facts.known_shape(tensor, state.axis)
        rank = facts.rank(tensor)
        axes = sorted({int(axis) % rank for axis in facts.value(operand).reshape(-1)})
        multiple = facts.multiple(tensor, state.axis)
        others = [None if shape is None else shape[axis] for axis in axes if axis != state.axis]
        if multiple is not None and None not in others:
            number = np.int32(multiple * int(np.prod(others, dtype=np.int64)))
            total = self.runs_of(state.space).total
            if number == 1:
                return total
            scale = self._writer.constant(number, None)
            return self._binary("Mul", total, scale, tf.int32, self._home)
        numbers = []
        for k, device in enumerate(self._devices):
            part = self._writer.view(tensor, Rows(state.axis, state.space), k)
            shape = self._shape(part, tensor.dtype, tf.int32, device)
            sizes = self._gathered(shape, np.array(axes, np.int32), tf.int32, device)
            numbers.append(self._reduced_all(sizes, "Prod", tf.int32, device))
        number = self.of_all(
            self._add(numbers, tf.int32), "Add", mean, tf.int32, tf.TensorShape([])
        )
        return self._own_part(number, self.runs_of(state.space), tf.int32)

    def _reduced_all(self, values: Reference, type: str, dtype: tf.DType, device: str) -> str:
        axis = self._nodes.constant(np.int32(0), device, values)
        kinds = {} if type in ("All", "Any") else {"T": dtype}
        return self._nodes.add(
            type, [values, axis], device, Tidx=tf.int32, keep_dims=False, **kinds
        )

    def _reduced(self, parts: list, tensor: tf.Tensor, kind: Kind) -> Reference:
        """Returns the maximum or the like; a device without rows stands back."""
        has_rows, dtype = self.has_rows, tensor.dtype
        neutral = self._writer.constant(_neutral(kind, dtype), None)
        found = []
        for part, has in zip(parts, has_rows, strict=True):
            if has is not None:
                part = self._nodes.add("SelectV2", [has, part, neutral], self._home, T=dtype)
            found.append(part)
        packed = self._nodes.add("Pack", found, self._home, T=dtype, N=len(found), axis=0)
        found = self._reduced_all(packed, _REDUCTIONS[kind], dtype, self._home)
        return self.of_all(found, _MERGES[kind], tensor, dtype)

    # Rows become whole.

    def of_rows(self, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns all devices' rows, those on loan left out."""
        wanted = Rows(state.axis, state.space)
        parts = [self._writer.view(tensor, wanted, k) for k in range(len(self._devices))]
        found = parts[0]
        if len(parts) > 1:
            axis = self._writer.constant(np.int32(state.axis), None)
            kinds = {"T": tensor.dtype, "Tidx": tf.int32, "N": len(parts)}
            found = self._nodes.add("ConcatV2", [*parts, axis], self._home, **kinds)
        return self._without_loans(found, tensor, state)

    def _without_loans(self, found: Reference, tensor: tf.Tensor, state: Rows) -> Reference:
        """Returns of this worker's rows those that are its own."""
        rows = self._runs_here(state.space)
        if rows.is_exact:
            return found
        rank, multiple = self._rank(tensor), self._multiple(tensor, state)
        key = ("all", state.space, rank, state.axis, multiple)
        if multiple is None or key not in self._memo:
            mask = (np.arange(rank) == state.axis).astype(np.int32)
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

    def _rank(self, tensor: tf.Tensor) -> int:
        rank = self._analysis.facts.rank(tensor)
        if rank is None:
            raise ValueError(f"What has rows has a known rank; {tensor.name} has none.")
        return rank

    def _multiple(self, tensor: tf.Tensor, state: Rows) -> int | None:
        return self._analysis.facts.multiple(tensor, state.axis)

    def plain(self, tensor: tf.Tensor, state: Rows, k: int) -> Reference:
        """Returns a device's row numbers as one device counts them."""
        part, device, dtype = self._writer.own(tensor, k), self._devices[k], tensor.dtype
        ids = state.ids
        offset = self._cast(self.runs_of(ids.space).begins[k], dtype, self._home)
        scale = np.array(ids.stride, dtype.as_numpy_dtype)
        if ids.column is not None:
            shape = self._analysis.facts.known_shape(tensor, state.axis)
            columns = np.arange(shape[0 if ids.is_upright else -1]) == ids.column
            scale = columns.astype(dtype.as_numpy_dtype) * scale
            if ids.is_upright:
                scale = scale.reshape([-1] + [1] * (len(shape) - 1))
        by = self._binary("Mul", offset, self._writer.constant(scale, k), dtype, device)
        return self._binary("AddV2", part, by, dtype, device)

    # What is whole is cut.

    def cut(self, tensor: tf.Tensor, want: Rows, k: int) -> Reference:
        """Returns device k's rows of a value that is at hand whole."""
        loop = self._writer.structure.loop(tensor.op)
        key = ("cut", tensor.ref(), want.axis, want.space, k)
        if key in self._memo:
            return self._memo[key]
        facts = self._analysis.facts
        if facts.static_rows and tensor.op.type == "Const" and self._is_free(tensor.op):
            value = facts.constant(tensor)
            if value is not None and not want.space.is_picked:
                self._memo[key] = self._cut_constant(np.asarray(value), tensor, want, k)
                return self._memo[key]
        whole = self._writer.in_loops.whole(tensor, k)
        rows = self.runs_of(want.space)
        self._memo[key] = self._cut_out(tensor, whole, rows, want, k, loop)
        return self._memo[key]

    def _cut_out(
        self, tensor: tf.Tensor, whole: Reference, rows: runs.Runs, want: Rows, k: int, loop: Any
    ) -> str:
        device = self._home if loop is None else self._devices[k]
        begin, length = self._window(tensor, whole, rows, want, k, loop)
        kinds = {"T": tensor.dtype, "Index": tf.int32}
        return self._nodes.add("Slice", [whole, begin, length], device, **kinds)

    def _cut_constant(self, value: np.ndarray, tensor: tf.Tensor, want: Rows, k: int) -> str:
        begin, count = self.static_run(k)
        multiple = value.shape[want.axis] // self._analysis.facts.static_rows
        rows = range(begin * multiple, (begin + count) * multiple)
        value = np.ascontiguousarray(np.take(value, rows, want.axis))
        return self._writer.constant(value.astype(tensor.dtype.as_numpy_dtype), k)

    def _window(
        self, tensor: tf.Tensor, whole: Reference, rows: runs.Runs, want: Rows, k: int, loop: Any
    ) -> tuple:
        """Returns where device k's rows begin, and how many entries they have, as vectors."""
        rank, multiple = self._rank(tensor), self._multiple(tensor, want)
        key = ("window", id(rows), rank, want.axis, multiple, k, self._place(tensor, loop))
        if multiple is not None and key in self._memo:
            return self._memo[key]
        device = self._home if loop is None else self._devices[k]

        def number(value):
            return self._nodes.constant(value, device, whole if loop is not None else None)

        def inside(reference):
            return self._writer.in_loops.entered(reference, tf.int32, loop, k)

        mask = (np.arange(rank) == want.axis).astype(np.int32)
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
            self._memo[key] = begin, length
        return begin, length

    @staticmethod
    def _place(tensor: tf.Tensor, loop: Any) -> Any:
        """Returns what tells where constants that are made behind a tensor may be used."""
        return None if loop is None else tensor.op._get_control_flow_context()

    def _at_least_one(self, total: Reference, device: str, loop: Any) -> str:
        one = self._nodes.constant(np.int32(1), device, total if loop is not None else None)
        return self._binary("Maximum", total, one, tf.int32, device)

    def _is_free(self, op: tf.Operation) -> bool:
        return self._writer.structure.is_free(op)

    # Sizes.

    def whole_size(self, leaf: tf.Tensor) -> Reference:
        """Returns the shape, size or rank of what has rows, as one device has it."""
        op = leaf.op
        tensor = op.inputs[leaf.value_index if op.type == "ShapeN" else 0]
        state = self._analysis.state(tensor)
        if op.type == "Shape" and isinstance(state, states.Local) and state.source is not tensor:
            if isinstance(state.source, tf.Tensor):
                return self._shape_of_different(leaf, tensor, state.source)
        is_here = state is states.WHOLE or state is states.SIZE or isinstance(state, states.Local)
        if is_here or self._is_at_home(tensor):
            if op.type != "ShapeN":
                self._writer.want_whole(op)
                return leaf
            return self._shape(self._writer.whole(tensor), tensor.dtype, leaf.dtype, self._home)
        if op.type == "Rank" or not isinstance(state, Rows):
            return self._writer.own(leaf, 0)  # of a partial value: it is the same everywhere
        if op.type == "Size":
            return self._joined_size(leaf, state)
        return self._whole_shape(leaf, tensor, state)

    def _shape_of_different(self, leaf: tf.Tensor, tensor: tf.Tensor, source: tf.Tensor) -> str:
        """Returns the shape of what there is for each different value, without making it."""
        whole = self._writer.whole(source)
        counted = self._shape(whole, source.dtype, leaf.dtype, self._home)
        mask = self._writer.constant(np.arange(self._rank(tensor)) == 0, None)
        shapes = [mask, counted, self._writer.own(leaf, 0)]
        return self._nodes.add("SelectV2", shapes, self._home, T=leaf.dtype)

    def _joined_size(self, leaf: tf.Tensor, state: Rows) -> Reference:
        sizes = [self._writer.own(leaf, k) for k in range(len(self._devices))]
        size = self.of_all(self._add(sizes, leaf.dtype), "Add", leaf, leaf.dtype)
        return self._own_part(size, self.runs_of(state.space), leaf.dtype)

    def _whole_shape(self, leaf: tf.Tensor, tensor: tf.Tensor, state: Rows) -> Reference:
        facts, dtype = self._analysis.facts, leaf.dtype
        shape, multiple = facts.known_shape(tensor, state.axis), self._multiple(tensor, state)
        rank = self._rank(tensor)
        mask = np.arange(rank) == state.axis
        others = None if shape is None else [n for axis, n in enumerate(shape) if not mask[axis]]
        is_told = others is not None and None not in others and self._is_free(leaf.op)
        if multiple is not None and is_told:
            total = self._cast(self.runs_of(state.space).total, dtype, self._home)
            scale = (mask * multiple).astype(dtype.as_numpy_dtype)
            rest = np.array([0 if mask[n] else shape[n] for n in range(rank)])
            rest = self._writer.constant(rest.astype(dtype.as_numpy_dtype), None)
            scaled = self._binary(
                "Mul", self._writer.constant(scale, None), total, dtype, self._home
            )
            return self._binary("AddV2", scaled, rest, dtype, self._home)
        parts = [self._writer.own(leaf, k) for k in range(len(self._devices))]
        total = self.of_all(self._add(parts, dtype), "Add", leaf, dtype)
        total = self._own_part(total, self.runs_of(state.space), dtype)
        mask = self._writer.constant(mask, None)
        return self._nodes.add("SelectV2", [mask, total, parts[0]], self._home, T=dtype)

    def own_shape(self, tensor: tf.Tensor, want: states.Shape, k: int) -> Reference:
        """Returns a shape whose entry of rows is that of device k."""
        facts, loop = self._analysis.facts, self._writer.structure.loop(tensor.op)
        if facts.static_rows and self._is_free(tensor.op) and not want.space.is_picked:
            value = facts.constant(tensor)
            if value is not None:
                return self._own_constant_shape(np.array(value), tensor, want, k)
        key = ("shape", tensor.ref(), want.axis, want.space, k)
        if key not in self._memo:
            self._memo[key] = self._scaled(tensor, want, k, loop)
        return self._memo[key]

    def _own_constant_shape(self, value, tensor: tf.Tensor, want: states.Shape, k: int) -> str:
        total = self._analysis.facts.static_rows
        place = () if want.axis is None else want.axis
        if value[place] > 0:
            value[place] = value[place] // total * self.static_run(k)[1]
        return self._writer.constant(value.astype(tensor.dtype.as_numpy_dtype), k)

    def _scaled(self, tensor: tf.Tensor, want: states.Shape, k: int, loop: Any) -> str:
        dtype, whole = tensor.dtype, self._writer.in_loops.whole(tensor, k)
        device, rows = self._home if loop is None else self._devices[k], self.runs_of(want.space)
        enter = self._writer.in_loops.entered
        total = enter(self._cast(rows.total, dtype, self._home), dtype, loop, k)
        length = enter(self._cast(rows.lengths[k], dtype, self._home), dtype, loop, k)
        if want.space.is_picked:
            one = np.ones([], dtype.as_numpy_dtype)
            one = self._nodes.constant(one, device, whole if loop is not None else None)
            total = self._binary("Maximum", total, one, dtype, device)
        per_row = self._binary("FloorDiv", whole, total, dtype, device)
        mine = self._binary("Mul", per_row, length, dtype, device)
        if want.axis is None:
            return mine
        mask = np.arange(len(self._analysis.facts.shape_entries(tensor))) == want.axis
        mask = self._nodes.constant(mask, device, whole if loop is not None else None)
        return self._nodes.add("SelectV2", [mask, mine, whole], device, T=dtype)


def _neutral(kind: Kind, dtype: tf.DType) -> np.ndarray:
    """Returns what changes no maximum or the like of a dtype."""
    found = {Kind.PROD: 1, Kind.ALL: True, Kind.ANY: False}.get(kind)
    if found is None and dtype.is_floating:
        found = -np.inf if kind is Kind.MAX else np.inf
    elif found is None:
        found = dtype.min if kind is Kind.MAX else dtype.max
    return np.array(found, dtype.as_numpy_dtype)
