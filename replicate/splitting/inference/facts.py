"""What is known of a graph for every size of the batch.

If the batch has any number of rows B, lengths are expressions such as 3·B (`extents`), found by
inferring the graph's shapes several times (`probes`). If B is a number that the graph has (a static
batch), lengths are numbers, and an axis whose length is a multiple of B counts as one with rows. If
it has none, cutting it is needless, but not wrong.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replicate.compat import inference
from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting import states
from replicate.splitting.inference import extents, folding, probes, turns
from replicate.splitting.inference.extents import Extent, Number, Sizes, UnknownError
from replicate.splitting.inference.folding import WHOLE_MODE
from replicate.splitting.inference.probes import Known, KnownRows, KnownShape
from replicate.splitting.states import (
    OWN,
    SIZE,
    WHOLE,
    ListOf,
    Local,
    Rows,
    Shape,
    Space,
    State,
    WholeError,
)
from replicate.splitting.structure import kinds, order
from replicate.splitting.structure.loops import Structure

# Which operand tells operations the lengths of what they make.
_TOLD = {"BroadcastTo": 1, "Empty": 0, "Fill": 0, "Reshape": 1, "StridedSliceGrad": 0}


class Facts:
    """What is known of a graph; made once, and asked in each run of the analysis.

    Args:
        graph: The graph.
        given: The tensors of the batch, and those of rows that operations pick.
        structure: How stacks and lists are filled.
        num_devices: K.
        static_rows: How many rows the batch has, if the graph has that number.

    Attributes:
        static_rows: As given.
        is_splittable: Whether the batch can have more than one row.
    """

    def __init__(
        self,
        graph: tf.Graph,
        given: Sequence[Known],
        structure: Structure,
        num_devices: int,
        static_rows: int | None = None,
    ):
        self.static_rows = static_rows
        self.is_splittable = static_rows != 1
        self._literal = static_rows if self.is_splittable else None
        self._given = [each for each in given if isinstance(each, KnownRows)]
        self._axes = {each.tensor.ref(): each for each in self._given}
        straight = self._straightened(graph, given, structure)
        self._probes: Sequence[probes.Probe] = ()
        self._of_one_row: probes.Probe | None = None
        if straight is not None:
            self._probes, self._of_one_row = probes.probed(straight, given, static_rows)
        self._lengths: dict[Hashable, tuple[Number, ...] | None] = {}
        self._extents: dict[Hashable, tuple[Extent, ...] | None] = {}
        self._state: Callable[[tf.Tensor], State] = lambda tensor: WHOLE
        self._own_rows = _own_rows(self._literal, num_devices)
        self._modes = range(1, 1 + len(self._own_rows))
        shapes = [each for each in given if isinstance(each, KnownShape)]
        entries = {each.tensor.ref(): self._entries_of(each) for each in shapes}
        self._folder = folding.Folder(
            self._lengths_in, entries, structure, self._is_size, self._own_element
        )
        self._graphs_own = folding.Folder(self._graphs_lengths, {}, structure)
        if straight is not None and self._probes:
            self._learn([op for op in straight.ops if op.type in _TOLD])

    def begin(self, state_of: Callable[[tf.Tensor], State]) -> None:
        """Begins a run of the analysis, on whose states devices' own sizes depend.

        Args:
            state_of: Returns a tensor's state, as far as the run has come.
        """
        self._state = state_of
        self._folder.begin()

    # What rules ask.

    def shape(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the extents of a tensor, or None if its rank is unknown."""
        key = tensor.ref()
        if key not in self._extents:
            lengths = self._whole_lengths(tensor)
            self._extents[key] = None if lengths is None else self._extents_of(lengths)
        return self._extents[key]

    def value(self, tensor: tf.Tensor) -> npt.NDArray[Any] | None:
        """Returns a small value that is the same for every batch, or None if it is not."""
        if tensor.op.type == "Const":
            number = tensor.shape.num_elements()
            return tf.get_static_value(tensor) if number <= extents.MOST_ENTRIES else None
        whole = self._folder.fold(tensor)
        constant = folding.plain(whole, tensor.dtype)
        return constant if constant is not None and self._is_scaled(tensor) else None

    def shape_entries(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the entries of a tensor that is a shape, or None if they are unknown.

        An entry -1, for what is left over, has the size -1.
        """
        whole = self._folder.fold(tensor)
        return None if whole is None or whole.ndim != 1 else self._extents_of(whole)

    def _extents_of(self, numbers: Iterable[Number]) -> tuple[Extent, ...]:
        return tuple(extents.extent(number, self._literal) for number in numbers)

    def shape_view(self, tensor: tf.Tensor, axis: int, space: Space) -> states.View:
        """Returns the view that gives a device's own shape; raises `WholeError`."""
        if self.is_measured(tensor, axis, space):
            return OWN
        whole = self._folder.fold(tensor)
        if whole is None or whole.ndim != 1 or axis >= len(whole):
            raise WholeError("a shape is not known")
        if whole[axis] == -1:
            return OWN if self._is_size(tensor) and self._is_scaled(tensor) else WHOLE
        if not extents.extent(whole[axis], self._literal).has_rows(space):
            raise WholeError("a shape has no rows there")
        is_own = self._is_size(tensor) and self._is_scaled(tensor, (axis,), space)
        return OWN if is_own else Shape(axis, space)

    def is_measured(self, shape: tf.Tensor, axis: int, space: Space) -> bool:
        """Whether a shape is that of a tensor with rows along an axis."""
        if shape.op.type != "Shape" or self._state(shape) is not SIZE:
            return False
        state = self._state(shape.op.inputs[0])
        return isinstance(state, Rows) and (state.axis, state.space) == (axis, space)

    def is_own_shape(self, shape: tf.Tensor, axis: int, space: Space) -> bool:
        """Whether on each device a shape is the whole one, but for its own rows along an axis."""
        if self.is_measured(shape, axis, space):
            return True
        whole = self._folder.fold(shape)
        if whole is None or whole.ndim != 1:
            return False
        if 0 <= axis < len(whole) and extents.extent(whole[axis], self._literal).has_rows(space):
            return self._is_scaled(shape, (axis,), space)
        return self._is_scaled(shape)

    def number(self, tensor: tf.Tensor) -> Extent | None:
        """Returns a whole number of shape [], or None if it is unknown."""
        whole = self._folder.fold(tensor)
        if whole is None or whole.ndim:
            return None
        return extents.extent(whole.item(), self._literal)

    def number_view(self, tensor: tf.Tensor, space: Space) -> states.View:
        """Returns the view that gives a device's own part of a number that grows with rows."""
        is_own = self._is_size(tensor) and self._is_scaled(tensor, (), space)
        return OWN if is_own else Shape(None, space)

    def is_own(self, tensor: tf.Tensor, space: Space) -> bool:
        """Whether on each device the first entry of a shape is that of its own rows."""
        return self._is_size(tensor) and self._is_scaled(tensor, (0,), space, (0,))

    def literal(self, tensor: tf.Tensor) -> npt.NDArray[Any] | None:
        """Returns the numbers that the graph of a static batch has for the whole batch."""
        if self._literal is None:
            return None
        return folding.plain(self._graphs_own.fold(tensor), tensor.dtype)

    # What the writer asks.

    def constant(self, tensor: tf.Tensor) -> npt.NDArray[Any] | None:
        """Returns a value that is the same for every batch, if it follows from the graph alone."""
        constant = self.value(tensor)
        if constant is None or tensor.op.type == "Const":
            return constant
        return folding.plain(self._graphs_own.fold(tensor), tensor.dtype)

    def multiple(self, tensor: tf.Tensor, axis: int) -> int | None:
        """Returns how many entries a row has along an axis, or None if only a run tells."""
        lengths = self.shape(tensor)
        return None if lengths is None else lengths[axis].multiple or None

    def rank(self, tensor: tf.Tensor) -> int | None:
        """Returns the rank of a tensor, or None if it is unknown."""
        lengths = self._whole_lengths(tensor)
        return None if lengths is None else len(lengths)

    def known_shape(self, tensor: tf.Tensor, axis: int) -> Dims | None:
        """Returns the dimensions that the graph itself knows; None for the axis with rows."""
        dims, rank = probes.static_dims(tensor), self.rank(tensor)
        if dims is None:
            dims = None if rank is None else [None] * rank
        if dims:
            dims[axis] = None
        return dims

    def dims(self, tensor: tf.Tensor, probe: int) -> Dims | None:
        """Returns a tensor's dimensions as one inference found them, for the rows it assumed."""
        return self._probes[probe].dims(tensor)

    # Whole lengths.

    def _straightened(
        self, graph: tf.Graph, given: Sequence[Known], structure: Structure
    ) -> turns.Turns | None:
        """Returns the definition of what is made from the batch; None if the graph knows all."""
        ops = graph.get_operations()
        has_links = any(op.type in kinds.ENTERS or op.type in turns.READS for op in ops)
        if not self.is_splittable:
            return None
        if self.static_rows and not has_links and not probes.is_open(given):
            return None
        tensors = [each.tensor for each in given]
        behind = order.behind([*tensors, *structure.list_starts()])
        needed = operations.executed_by([*tensors, *structure.with_pops(behind)[0]])
        shapes = [each for each in given if isinstance(each, KnownShape)]
        vectors = [(each.tensor, len(each.entries)) for each in shapes]
        return turns.Turns(graph, structure, needed, vectors)

    def _learn(self, ops: Sequence[tf.Operation]) -> None:
        """Infers what follows from lengths that are told as values which no importer knows.

        Args:
            ops: The operations that are told the lengths of what they make.
        """
        learned: dict[Hashable, Sequence[Number]] = {}
        while True:
            lengths_told = {op.outputs[0].ref(): self._told(op) for op in ops}
            more = {
                ref: lengths
                for ref, lengths in lengths_told.items()
                if lengths and ref not in learned
            }
            if not more:
                return
            learned.update(more)
            one = self._of_one_row
            try:
                knowing = [probe.learned(more) for probe in self._probes]
                alone = None if one is None else one.learned(more)
            except inference.UnfitError:
                return  # the graph wants more rows than were assumed: what was inferred stays
            self._probes, self._of_one_row = knowing, alone
            self._lengths.clear()
            self._extents.clear()
            self._folder.forget()
            self._graphs_own.forget()

    def _told(self, op: tf.Operation) -> Sequence[Number]:
        """Returns the lengths that an operation is told, if inference found less."""
        inferred, sizes = self._whole_lengths(op.outputs[0]), self._probes[0].sizes
        missing = [extents.at(length, sizes) is None for length in inferred or ()]
        if inferred is not None and not any(missing):
            return ()
        shape = self._folder.fold(op.inputs[_TOLD[op.type]])
        if shape is None or shape.ndim != 1 or any(_is_open(entry) for entry in shape):
            return ()
        known = [extents.at(length, sizes) is not None for length in shape]
        if inferred is None or len(inferred) != len(known):
            return list(shape) if inferred is None and any(known) else ()
        is_more = any(is_told and is_open for is_told, is_open in zip(known, missing, strict=True))
        return list(shape) if is_more else ()

    def _whole_lengths(self, tensor: tf.Tensor) -> tuple[Number, ...] | None:
        key = tensor.ref()
        if key not in self._lengths:
            self._lengths[key] = self._inferred(tensor)
        return self._lengths[key]

    def _inferred(self, tensor: tf.Tensor) -> tuple[Number, ...] | None:
        own, given = probes.static_dims(tensor), self._axes.get(tensor.ref())
        numbers = tuple(size for size in own or () if size is not None)
        if own is not None and len(numbers) == len(own) and given is None:
            return numbers
        inferences = [probe.dims(tensor) for probe in self._probes]
        ranks = {None if dims is None else len(dims) for dims in inferences}
        if not inferences or ranks == {None} or len(ranks) > 1:
            inferences = [own] * max(len(inferences), 1)
        one = self._of_one_row
        alone = None if one is None else one.dims(tensor)
        dims = inferences[0]
        if dims is None or (alone is not None and len(dims) != len(alone)):
            return None
        sizes = [probe.sizes for probe in self._probes] or [Sizes(1, 1)]
        lengths = [
            extents.inferred(each, sizes, self.static_rows)
            for each in zip(*[each for each in inferences if each is not None], strict=True)
        ]
        for axis, size in enumerate(alone or ()):
            expected = None if one is None else extents.at(lengths[axis], one.sizes)
            if None not in (size, expected) and size != expected:
                lengths[axis] = extents.unknown()
        if given is not None and given.axis < len(lengths):
            rows: Number = extents.rows(extents.PICKED if given.is_picked else extents.BATCH)
            if self.static_rows and not given.is_picked:
                rows = self.static_rows
            lengths[given.axis] = rows + given.more
        return tuple(lengths)

    def _graphs_lengths(self, tensor: tf.Tensor, mode: int) -> Sequence[Number] | None:
        """Returns lengths, unknown where the graph itself does not know a number."""
        lengths, own = self._whole_lengths(tensor), probes.static_dims(tensor)
        if lengths is None:
            return None
        return [
            extents.unknown() if isinstance(length, int) and size is None else length
            for length, size in zip(lengths, own or [None] * len(lengths), strict=True)
        ]

    # Devices' own lengths and values.

    def _lengths_in(self, tensor: tf.Tensor, mode: int) -> Sequence[Number] | None:
        lengths, state = self._whole_lengths(tensor), self._state(tensor)
        if lengths and mode != WHOLE_MODE and isinstance(state, Local):
            return [extents.unknown(), *lengths[1:]]
        if lengths is None or mode == WHOLE_MODE or not isinstance(state, Rows):
            return lengths
        own_lengths = list(lengths)
        try:
            own_lengths[state.axis] = self._own(own_lengths[state.axis], state.space, mode)
        except UnknownError:
            own_lengths[state.axis] = extents.unknown()
        return own_lengths

    def _own(self, number: Number, space: Space, mode: int) -> Number:
        """Returns one device's part of a number that all rows make; raises `UnknownError`."""
        if self._literal is None or space.is_picked:
            return extents.own(number, space)
        if isinstance(number, int) and number % self._literal:
            raise UnknownError("no multiple of rows")
        return number // self._literal * self._own_rows[mode - 1]

    def _own_element(self, held: tf.Tensor, whole: folding.Value, mode: int) -> folding.Value:
        """Returns the shape of the elements of a device's own list, given that of the whole one."""
        state = self._state(held)
        element = state.element if isinstance(state, ListOf) else WHOLE
        if not isinstance(element, Rows) or not whole.ndim or whole[element.axis] == -1:
            return whole
        own_shape = whole.copy()
        own_shape[element.axis] = self._own(whole[element.axis], element.space, mode)
        return own_shape

    def _is_size(self, tensor: tf.Tensor) -> bool:
        return self._state(tensor) is SIZE

    def _is_scaled(
        self,
        tensor: tf.Tensor,
        place: tuple[int, ...] | None = None,
        space: Space | None = None,
        compared: Any = ...,
    ) -> bool:
        """Whether what devices have of their own is the whole value, but for one entry.

        Args:
            tensor: A size.
            place: Where the entry is, which is that of a device's own rows; None: no entry differs.
            space: Whose rows.
            compared: Which entries count.
        """
        whole = self._folder.fold(tensor)
        if whole is None or (place is not None and whole.ndim != len(place)):
            return False
        for mode in self._modes:
            wanted, own = whole.copy(), self._folder.fold(tensor, mode)
            if place is not None and space is not None:
                try:
                    wanted[place] = self._own(whole.item(place), space, mode)
                except UnknownError:
                    return False
            if own is None or not np.array_equal(own[compared], wanted[compared]):
                return False
        return True

    def _entries_of(self, given: KnownShape) -> Callable[[int], Sequence[Number]]:
        """Returns what returns the entries of a given shape in a mode."""
        whole = [probes.entry(entry, self.static_rows) for entry in given.entries]

        def entries(mode: int) -> Sequence[Number]:
            if mode == WHOLE_MODE:
                return whole
            pairs = zip(given.entries, whole, strict=True)
            return [
                self._own(number, self._batch(), mode) if entry == extents.BATCH else number
                for entry, number in pairs
            ]

        return entries

    def _batch(self) -> Space:
        """Returns the space of the batch, which its tensors' states name."""
        for each in self._given:
            state = self._state(each.tensor)
            if isinstance(state, Rows) and not state.space.is_picked:
                return state.space
        return Space("rows of no tensor")


def _is_open(entry: Number) -> bool:
    """Whether an entry of a shape stands for what is left over."""
    return isinstance(entry, int) and entry < 0


def _own_rows(static_rows: int | None, num_devices: int) -> list[int]:
    """Returns the numbers of rows that a device can have; 0 stands for any number.

    A device without rows borrows one.
    """
    if static_rows is None:
        return [0]
    few = static_rows // num_devices
    return sorted({max(few, 1), max(few + bool(static_rows % num_devices), 1)})
