"""What is known of a graph for every size of the batch.

Where the batch has any number of rows B, lengths are expressions such as 3·B (`extents`), found by
inferring the graph's shapes several times (`probes`). Where B is a number that the graph has
(a static batch), lengths are numbers, and each multiple of B may have rows: along any axis whose
length is a multiple of B a value may be cut into as many runs. If it has no rows, that is a
needless cut, and no wrong one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.inference import extents, folding, loop_shapes, probes
from replicate.splitting.inference.extents import Number, Sizes, UnknownError
from replicate.splitting.inference.folding import WHOLE_MODE, Structure
from replicate.splitting.inference.probes import KnownRows, KnownShape
from replicate.splitting.rules.registry import Extent
from replicate.splitting.states import (
    OWN,
    SIZE,
    WHOLE,
    Local,
    Rows,
    Shape,
    Space,
    State,
    WholeError,
)


class Facts:
    """See the module; made once for a graph, and asked in each run of the analysis.

    Args:
        graph: The graph.
        given: The tensors of the batch, as `KnownRows` or pairs of tensor and axis, with those that
            operations pick rows into.
        structure: Where stacks and lists are filled.
        num_devices: K.
        static_rows: How many rows the batch has, if the graph has that number; else None.
        shapes: For vectors by `ref()` that are shapes, as those of sparse tensors, the entries:
            `extents.BATCH`, a number, or None where one is not known.

    Attributes:
        static_rows: As given.
        is_splittable: Whether the batch can have more than one row.
    """

    def __init__(
        self,
        graph: tf.Graph,
        given: Sequence[KnownRows | tuple],
        structure: Structure,
        num_devices: int,
        static_rows: int | None = None,
        shapes: Mapping[Any, Sequence[Any]] | None = None,
    ):
        self.static_rows = static_rows
        self.is_splittable = static_rows != 1
        self._literal = static_rows if self.is_splittable else None
        self._given = [KnownRows(*each) for each in given]
        self._axes = {each.tensor.ref(): each for each in self._given}
        known = [KnownShape(ref.deref(), entries) for ref, entries in (shapes or {}).items()]
        found = self._probed(graph, [*self._given, *known], structure)
        self._probes, self._of_one_row = found
        self._lengths: dict[Any, tuple[Number, ...] | None] = {}
        self._extents: dict[Any, tuple[Extent, ...] | None] = {}
        self._state: Callable[[tf.Tensor], State] = lambda tensor: WHOLE
        self._own_rows = _own_rows(self._literal, num_devices)
        self._modes = range(1, 1 + len(self._own_rows))
        entries = {each.tensor.ref(): self._entries_of(each) for each in known}
        self._folder = folding.Folder(
            self._lengths_in, entries, structure, self._is_size, self._own_element
        )
        self._graphs_own = folding.Folder(self._graphs_lengths, {}, structure, lambda t: False)

    def begin(self, state_of: Callable[[tf.Tensor], State]) -> None:
        """Begins a run of the analysis, in which devices' own sizes follow from its states.

        Args:
            state_of: Returns the state of a tensor; asked for those that already have one.
        """
        self._state = state_of
        self._folder.begin()

    # What rules ask; see `registry.Facts`.

    def shape(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the extents of a tensor; None: its rank is not known."""
        key = tensor.ref()
        if key not in self._extents:
            lengths = self._whole_lengths(tensor)
            self._extents[key] = None if lengths is None else self._extents_of(lengths)
        return self._extents[key]

    def value(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Returns a small constant that is the same for every batch; None: it is not."""
        if tensor.op.type == "Const":
            number = tensor.shape.num_elements()
            return tf.get_static_value(tensor) if number <= extents.MOST_ENTRIES else None
        whole = self._folder.fold(tensor)
        found = folding.plain(whole, tensor.dtype)
        if found is None or not self._is_same_everywhere(tensor, whole):
            return None
        return found

    def shape_entries(self, tensor: tf.Tensor) -> tuple[Extent, ...] | None:
        """Returns the entries of a tensor that is a shape; None: they are not known."""
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
            is_own = self._state(tensor) is SIZE and self._is_same_everywhere(tensor, whole)
            return OWN if is_own else WHOLE
        if not extents.extent(whole[axis], self._literal).has_rows(space):
            raise WholeError("a shape has no rows there")
        if self._state(tensor) is SIZE and self._is_scaled(tensor, whole, axis, space):
            return OWN
        return Shape(axis, space)

    def is_measured(self, shape: tf.Tensor, axis: int, space: Space) -> bool:
        """Whether a shape is that of a tensor of which devices have rows along an axis."""
        if shape.op.type != "Shape" or self._state(shape) is not SIZE:
            return False
        state = self._state(shape.op.inputs[0])
        return isinstance(state, Rows) and (state.axis, state.space) == (axis, space)

    def is_own_shape(self, shape: tf.Tensor, axis: int, space: Space) -> bool:
        """Whether a shape is, on a device, the whole one but for its rows along an axis, if any."""
        if self.is_measured(shape, axis, space):
            return True
        whole = self._folder.fold(shape)
        if whole is None or whole.ndim != 1:
            return False
        if 0 <= axis < len(whole) and extents.extent(whole[axis], self._literal).has_rows(space):
            return self._is_scaled(shape, whole, axis, space)
        return self._is_same_everywhere(shape, whole)

    def number(self, tensor: tf.Tensor) -> Extent | None:
        """Returns a whole number of shape []; None: it is not known."""
        whole = self._folder.fold(tensor)
        if whole is None or whole.ndim:
            return None
        return extents.extent(whole[()], self._literal)

    def number_view(self, tensor: tf.Tensor, space: Space) -> states.View:
        """Returns the view that gives a device's own part of a number that grows with rows."""
        whole = self._folder.fold(tensor)
        if self._state(tensor) is SIZE and self._is_own(tensor, whole, (), space):
            return OWN
        return Shape(None, space)

    def is_own(self, tensor: tf.Tensor, space: Space) -> bool:
        """Whether the first entry of a shape, as devices have it, is that of their rows."""
        whole = self._folder.fold(tensor)
        if self._state(tensor) is not SIZE or whole is None or whole.ndim != 1:
            return False
        return self._is_own(tensor, whole, 0, space)

    def _is_own(self, tensor: tf.Tensor, whole: folding.Value, place: Any, space: Space) -> bool:
        for mode in self._modes:
            found = self._folder.fold(tensor, mode)
            try:
                if found is None or found[place] != self._own(whole[place], space, mode):
                    return False
            except UnknownError:
                return False
        return True

    def literal(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Returns the numbers that the graph of a static batch has for the whole batch."""
        if self._literal is None:
            return None
        return folding.plain(self._graphs_own.fold(tensor), tensor.dtype)

    # What the writer asks.

    def constant(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Returns a value that the graph itself has, for every batch; None: it has none."""
        found = self.value(tensor)
        if found is None or tensor.op.type == "Const":
            return found
        return folding.plain(self._graphs_own.fold(tensor), tensor.dtype)

    def multiple(self, tensor: tf.Tensor, axis: int) -> int | None:
        """Returns how many entries a row has along an axis; None: that is known in a run."""
        found = self.shape(tensor)
        return None if found is None else found[axis].multiple or None

    def rank(self, tensor: tf.Tensor) -> int | None:
        """Returns the rank of a tensor; None: it is not known."""
        lengths = self._whole_lengths(tensor)
        return None if lengths is None else len(lengths)

    def known_shape(self, tensor: tf.Tensor, axis: int) -> Dims | None:
        """Returns the dimensions that the graph itself knows, None at an axis with rows."""
        dims, rank = probes.static_dims(tensor), self.rank(tensor)
        if dims is None:
            dims = None if rank is None else [None] * rank
        if dims:
            dims[axis] = None
        return dims

    def dims(self, tensor: tf.Tensor, probe: int) -> Dims | None:
        """Returns a tensor's dimensions as one inference found them, for assumed rows."""
        return self._probes[probe].dims(tensor)

    # Whole lengths.

    def _probed(
        self, graph: tf.Graph, given: Sequence[KnownRows | KnownShape], structure: Structure
    ) -> probes.Probes:
        ops = graph.get_operations()
        has_loops = loop_shapes.has_loops(ops)
        if not self.is_splittable:
            return probes.Probes()
        if self.static_rows and not has_loops and not probes.is_open(given):
            return probes.Probes()  # the graph has all numbers
        found = probes.probed(graph, given, self.static_rows, has_loops)
        for probe in (*found.found, found.of_one_row) if has_loops else ():
            if probe is not None:
                loop_shapes.learn(probe, ops, structure)
        return found

    def _whole_lengths(self, tensor: tf.Tensor) -> tuple[Number, ...] | None:
        key = tensor.ref()
        if key not in self._lengths:
            self._lengths[key] = self._inferred(tensor)
        return self._lengths[key]

    def _inferred(self, tensor: tf.Tensor) -> tuple[Number, ...] | None:
        own, given = probes.static_dims(tensor), self._axes.get(tensor.ref())
        if own is not None and None not in own and given is None:
            return tuple(own)
        found = [probe.dims(tensor) for probe in self._probes]
        ranks = {None if dims is None else len(dims) for dims in found}
        if not found or ranks == {None} or len(ranks) > 1:
            found = [own] * max(len(found), 1)
        alone = self._of_one_row and self._of_one_row.dims(tensor)
        if None not in (found[0], alone) and len(found[0]) != len(alone):
            return None
        if found[0] is None:
            # NOTE: an importer infers nothing of what goes in and out of loops.
            return self._whole_lengths(tensor.op.inputs[0]) if _is_passed(tensor) else None
        sizes = [probe.sizes for probe in self._probes] or [Sizes(1, 1)]
        lengths = [
            extents.inferred(dims, sizes, self.static_rows) for dims in zip(*found, strict=True)
        ]
        for axis, size in enumerate(alone or ()):
            expected = extents.at(lengths[axis], self._of_one_row.sizes)
            if None not in (size, expected) and size != expected:
                lengths[axis] = extents.unknown()
        if given is not None and given.axis < len(lengths):
            symbol = extents.PICKED if given.is_picked else extents.BATCH
            is_number = self.static_rows and not given.is_picked
            rows = self.static_rows if is_number else extents.rows(symbol)
            lengths[given.axis] = rows + given.more
        return tuple(lengths)

    def _graphs_lengths(self, tensor: tf.Tensor, mode: int) -> Sequence[Number] | None:
        """Returns lengths of which none is a number that the graph itself does not know."""
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
        found = list(lengths)
        try:
            found[state.axis] = self._own(found[state.axis], state.space, mode)
        except UnknownError:
            found[state.axis] = extents.unknown()
        return found

    def _own(self, number: Number, space: Space, mode: int) -> Number:
        """Returns a device's own part of a number that all rows make; raises `UnknownError`."""
        if self._literal is None or space.is_picked:
            return extents.own(number, space)
        if isinstance(number, int) and number % self._literal:
            raise UnknownError("no multiple of rows")
        return number // self._literal * self._own_rows[mode - 1]

    def _own_element(self, held: tf.Tensor, whole: folding.Value, mode: int) -> folding.Value:
        """Returns the shape of the elements of a device's own list, of that of the whole one."""
        element = getattr(self._state(held), "element", None)
        if not isinstance(element, Rows) or not whole.ndim or whole[element.axis] == -1:
            return whole
        found = whole.copy()
        found[element.axis] = self._own(whole[element.axis], element.space, mode)
        return found

    def _is_size(self, tensor: tf.Tensor) -> bool:
        return self._state(tensor) is SIZE

    def _is_same_everywhere(self, tensor: tf.Tensor, whole: folding.Value) -> bool:
        return all(self._is_value(tensor, whole, mode) for mode in self._modes)

    def _is_scaled(self, tensor: tf.Tensor, whole: folding.Value, axis: int, space: Space) -> bool:
        """Whether devices' own shapes are the whole one with one entry scaled."""
        for mode in self._modes:
            wanted = whole.copy()
            wanted[axis] = self._own(whole[axis], space, mode)
            if not self._is_value(tensor, wanted, mode):
                return False
        return True

    def _is_value(self, tensor: tf.Tensor, wanted: folding.Value, mode: int) -> bool:
        found = self._folder.fold(tensor, mode)
        return found is not None and folding.equal(found, wanted)

    def _entries_of(self, given: KnownShape) -> Callable[[int], Sequence[Number]]:
        """Returns, for each mode, the entries of a given shape."""
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
        """Returns the space of the batch, which the states of its tensors name."""
        for each in self._given:
            state = self._state(each.tensor)
            if isinstance(state, Rows) and not state.space.is_picked:
                return state.space
        return Space("rows of no tensor")


def _is_passed(tensor: tf.Tensor) -> bool:
    """Whether a tensor is the first operand of its operation."""
    return tensor.op.type in ("Enter", "Exit", "Identity", "NextIteration", "Switch")


def _own_rows(static_rows: int | None, num_devices: int) -> list[int | None]:
    """Returns how many rows a device can have; None stands for any number.

    A device without rows borrows one.
    """
    if static_rows is None:
        return [None]
    few = static_rows // num_devices
    return sorted({max(few, 1), max(few + bool(static_rows % num_devices), 1)})
