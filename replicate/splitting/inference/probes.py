"""Lengths of dimensions, found by inferring a graph's shapes for three sizes of the batch.

One inference assumes two rows, another many. A length that is the same in both does not depend on
rows, one that grows like them is a multiple of them, and any other is unknown. Likewise, one
assumes the shortest inner dimensions that the graph allows, the other long ones.

A graph may cut, or take the larger of two numbers. A length then follows one expression up to some
number of rows, and another beyond it. That number is made from numbers in the graph, or is a
product of some; the many rows are far more than these. Fewer than two rows are one row, which the
third inference assumes. Where a branch that only more rows take does not allow one row, that
inference leaves the branch out.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate.compat import inference
from replicate.compat import tensorflow as tfc
from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf
from replicate.splitting.inference import extents, folding
from replicate.splitting.inference.extents import Number, Sizes
from replicate.splitting.inference.turns import MEASURING, Sides, Turns
from replicate.splitting.structure import kinds

# Assumed rows of the batch, and picked rows; the first that the graph allows are used. Some graphs
# want more than two, some whole groups. The many are prime, so that remainders show.
_FEW = ((2, 3), (3, 5), (5, 7), (11, 17), (32, 48), (101, 151), (1021, 1531))
_FEW_IN_GROUPS = ((4, 6), (8, 12), (12, 18), (16, 24), (32, 48), (60, 90), (960, 1440))
_MANY = (
    *((134217757, 200000033), (16777259, 24000001), (1048583, 1500007)),
    *((65537, 98009), (2039, 3067)),
)
_GROUPS = 960
# How many times the graph's largest number, which may be scaled, the many rows are at least.
_FAR = 16
# What makes numbers that are far larger than those it is given.
_GROWING = ("Cumprod", "LeftShift", "Mul", "Pow", "Prod", "Square")
# Assumed inner dimensions, the first that the graph allows: short, so that cuts show; long, prime.
_SHORT = (1, 2, 5, 11)
_LONG = (1009, 499, 61)


class KnownRows(NamedTuple):
    """A tensor that has rows from the start.

    Attributes:
        tensor: The tensor.
        axis: Which dimension has the rows, one entry each.
        is_picked: Whether an operation picked the rows; else they are the batch's.
        more: How many entries there are beside the rows'.
    """

    tensor: tf.Tensor
    axis: int = 0
    is_picked: bool = False
    more: int = 0


_COMPARING = (
    *("Div", "FloorDiv", "FloorMod", "Mod", "Select", "SelectV2", "Sub"),
    *("TruncateDiv", "TruncateMod"),
)


class KnownShape(NamedTuple):
    """A vector that is a shape, as that of a sparse tensor.

    Attributes:
        tensor: The vector.
        entries: Each entry: `extents.BATCH`, a number, or None if it is unknown.
    """

    tensor: tf.Tensor
    entries: Sequence[str | int | None]


Known: TypeAlias = KnownRows | KnownShape


class Probe:
    """One inference.

    Args:
        turns: The graph's definition.
        known: The assumed dimensions of tensors, by `ref()`.
        entries: The assumed entries of vectors, by `ref()`.
        sizes: The assumed numbers of rows.
        sides: Which branches these take; by default whatever is in any of them must fit.

    Raises:
        UnfitError: If the graph does not allow what is assumed.
    """

    def __init__(
        self,
        turns: Turns,
        known: Mapping[Hashable, Dims],
        entries: Mapping[Hashable, Dims],
        sizes: Sizes,
        sides: Sides = MappingProxyType({}),
    ):
        self.sizes = sizes
        self._sides = sides
        self._turns = turns
        self._known, self._entries = dict(known), entries
        self._infer()

    def learned(self, lengths: Mapping[Hashable, Sequence[Number]]) -> "Probe":
        """Returns the inference that knows more lengths of tensors, by `ref()`.

        Raises:
            UnfitError: If the graph does not allow these for so many rows.
        """
        more = {
            ref: [extents.at(number, self.sizes) for number in numbers]
            for ref, numbers in lengths.items()
        }
        known = {**self._known, **more}
        return Probe(self._turns, known, self._entries, self.sizes, self._sides)

    def _infer(self) -> None:
        refuted: dict[str, Dims | None] = {}
        is_settled = False
        while not is_settled:
            before = dict(refuted)
            self._merged: dict[Hashable, Dims | None] = {}
            try:
                written = self._turns.written(self._known, self._entries, refuted, self._sides)
                self._inferred = inference.Inferred(written)
                refuted.update(self._turns.refuted(self.dims))
                is_settled = refuted == before
            except inference.UnfitError:
                refuted.update(dict.fromkeys(self._turns.doubtful))
                if refuted == before:
                    raise

    def dims(self, tensor: tf.Tensor) -> Dims | None:
        """Returns a tensor's dimensions, or None if its rank is unknown."""
        key = tensor.ref()
        if key not in self._merged:
            dims = static_dims(tensor)
            if dims is None or None in dims:
                dims = _merged(dims, self._inferred.dims(tensor))
            self._merged[key] = dims
        return self._merged[key]


def probed(
    turns: Turns, given: Sequence[Known], static_rows: int | None
) -> tuple[Sequence[Probe], Probe | None]:
    """Infers a graph's shapes for several sizes of the batch.

    Args:
        turns: The graph's definition.
        given: What is given.
        static_rows: B, where it is static; else None.

    Returns:
        The inferences for few rows and for many, none if the graph allows none; and that for one
        row, if there can be one.
    """
    has_picked = any(isinstance(each, KnownRows) and each.is_picked for each in given)
    has_inner = any(map(_number_of_inner, given))
    least = _FAR * _largest_number(turns)
    for assumed in _assumed(least, static_rows, has_picked, has_inner):
        inferences = _fitting(turns, given, assumed)
        if inferences and not (inferences[0].sizes.inner and _compares_lengths(turns.ops, given)):
            break
    else:
        return (), None
    if static_rows and not has_picked:
        return inferences, None
    sizes = inferences[0].sizes
    ones = [Sizes(rows, 1, sizes.inner) for rows in (static_rows or 1, sizes.batch)]
    ones = ones[: 1 + has_picked]
    alone = _fitting(turns, given, [ones])
    return inferences, alone[0] if alone else _where_taken(turns, given, ones[0])


def _where_taken(turns: Turns, given: Sequence[Known], sizes: Sizes) -> Probe | None:
    """Returns an inference for which branches that other sizes take need not fit."""
    sides: Sides = {predicate.ref(): None for predicate in turns.predicates}
    probe = _probe(turns, given, sizes, sides) if sides else None
    for _ in turns.predicates:
        if probe is None:
            break
        folder = folding.Folder(_lengths_by(probe.dims), {}, turns.structure)
        values = {each.ref(): folder.fold(each) for each in turns.predicates}
        taken: Sides = {ref: None if v is None else bool(v.item()) for ref, v in values.items()}
        closer = None if taken == sides else _probe(turns, given, sizes, taken)
        if closer is None:
            break
        probe, sides = closer, taken
    return probe


def _lengths_by(
    dims_of: Callable[[tf.Tensor], Dims | None],
) -> Callable[[tf.Tensor, int], Sequence[Number] | None]:
    """Returns what returns the lengths of tensors, from what returns their dimensions."""

    def lengths(tensor: tf.Tensor, mode: int) -> Sequence[Number] | None:
        dims = dims_of(tensor)
        return None if dims is None else [extents.unknown() if n is None else n for n in dims]

    return lengths


def _assumed(
    least: int, static_rows: int | None, has_picked: bool, has_inner: bool
) -> Iterator[list[list[Sizes]]]:
    """Yields what inferences may assume: for each one several sizes, of which one is to fit."""
    has_two = has_picked or not static_rows
    groups = [(_GROUPS * batch, _GROUPS * picked) for batch, picked in _MANY]
    for few, many in ((_FEW[:1], _MANY), (_FEW[1:], _MANY), (_FEW_IN_GROUPS, groups)):
        begin = max((n for n, rows in enumerate(many) if rows[0] > least), default=0)
        pairs = [few, many[begin:]]
        if static_rows:
            pairs = [[(static_rows, picked) for _, picked in rows] for rows in pairs]
        if has_inner:
            yield [
                [Sizes(*rows, length) for rows in assumed for length in lengths]
                for assumed, lengths in zip(pairs, (_SHORT, _LONG), strict=True)
            ]
        yield [[Sizes(*rows) for rows in assumed] for assumed in pairs][: 1 + has_two]
        if not has_two:
            return


def _fitting(
    turns: Turns, given: Sequence[Known], assumed: Sequence[Sequence[Sizes]]
) -> list[Probe]:
    """Returns an inference for each assumption, or nothing if the graph does not allow one."""
    inferences = []
    for sizes in assumed:
        probes = (_probe(turns, given, each) for each in sizes)
        probe = next((each for each in probes if each is not None), None)
        if probe is None:
            return []
        inferences.append(probe)
    return inferences


def _largest_number(turns: Turns) -> int:
    """Returns a graph's largest number that lengths may be made from, or compared with."""
    numbers, sources = {1}, []
    of_lengths = {tf.int32, tf.int64}
    for op in turns.ops:
        if op.type in MEASURING:
            numbers.update(size for each in op.inputs for size in static_dims(each) or () if size)
        elif op.type == "Const" or op.type in _GROWING:
            sources.append(op.outputs[0])
        elif (
            op.type == "Cast" and op.inputs[0].dtype.is_floating and op.outputs[0].dtype.is_integer
        ):
            of_lengths |= {tf.float16, tf.bfloat16, tf.float32, tf.float64}
    folder = folding.Folder(_lengths_by(static_dims), {}, turns.structure)
    for tensor in sources:
        if tensor.dtype in of_lengths:
            numbers.update(_numbers(tensor, folder))
    return max(number for number in numbers if number < _MANY[0][0])


def _numbers(tensor: tf.Tensor, folder: folding.Folder) -> list[int]:
    """Returns the sizes of a small tensor's numbers, if constants and static lengths tell them."""
    if (tensor.shape.num_elements() or extents.MOST_ENTRIES + 1) > extents.MOST_ENTRIES:
        return []
    folded = folder.fold(tensor)
    if folded is None:
        value = tfc.smart_cond.smart_constant_value(tensor)
        return [] if value is None else _whole_numbers(value)
    return _whole_numbers([each for each in folded.flat if isinstance(each, int)])


def _whole_numbers(values: npt.ArrayLike) -> list[int]:
    """Returns the sizes of numbers, rounded up."""
    sizes = np.abs(np.asarray(values).astype(np.float64).reshape(-1))
    return [math.ceil(each) for each in sizes[np.isfinite(sizes)]]


def _compares_lengths(ops: Sequence[tf.Operation], given: Sequence[Known]) -> bool:
    """Whether several unknown lengths make a number that may not show that they differ.

    So does `x // y`, and a reshape to lengths of tensors that the value is not made from.
    """
    if sum(map(_number_of_inner, given)) < 2:
        return False
    nothing: frozenset[Hashable] = frozenset()
    lengths: dict[Hashable, frozenset[Hashable]] = {}  # whose lengths small tensors are made of
    origins = {each.tensor.ref(): frozenset([each.tensor.ref()]) for each in given}
    for op in ops:
        before = nothing.union(*(origins.get(each.ref(), nothing) for each in op.inputs))
        for tensor in op.outputs:
            origins.setdefault(tensor.ref(), before)
            if op.type in MEASURING:
                measured = op.inputs[tensor.value_index if op.type == "ShapeN" else 0]
                dims = static_dims(measured)
                is_open = dims is None or None in dims[1:]
                lengths[tensor.ref()] = frozenset([measured.ref()]) if is_open else nothing
            elif tensor.shape.rank in (0, 1) and tensor.dtype not in kinds.HANDLES:
                read = (lengths.get(each.ref(), nothing) for each in op.inputs)
                lengths[tensor.ref()] = nothing.union(*read)
        if _may_hide(op) and len(lengths.get(op.outputs[0].ref(), nothing)) > 1:
            return True
        if op.type == "Reshape":
            own, shape = (each.ref() for each in op.inputs)
            asked = lengths.get(shape, nothing)
            if not all(origins[each] <= origins.get(own, nothing) for each in asked):
                return True
    return False


def _may_hide(op: tf.Operation) -> bool:
    """Whether an operation may make the same whole numbers of different operands."""
    is_cast = op.type == "Cast" and not op.inputs[0].dtype.is_integer
    if not (is_cast or op.type in _COMPARING) or not op.outputs[0].dtype.is_integer:
        return False
    users = op.outputs[0].consumers()  # the divisor of a mean is no length
    return any(user.type != "Cast" or user.outputs[0].dtype.is_integer for user in users)


def static_dims(tensor: tf.Tensor) -> Dims | None:
    """Returns a tensor's dimensions as its own graph knows them."""
    shape = tensor.shape
    return None if shape.rank is None else shape.as_list()


def is_open(given: Sequence[Known]) -> bool:
    """Whether shapes depend on more than on a number of rows of the batch."""
    return any(
        _number_of_inner(each) or isinstance(each, KnownShape) or each.is_picked for each in given
    )


def entry(number: str | int | None, static_rows: int | None) -> Number:
    """Returns an entry of a `KnownShape` as a number."""
    if number == extents.BATCH:
        return static_rows or extents.rows(extents.BATCH)
    return extents.inner() if number is None else int(number)


def _probe(
    turns: Turns, given: Sequence[Known], sizes: Sizes, sides: Sides = MappingProxyType({})
) -> Probe | None:
    """Returns an inference, or None if the graph does not allow what it assumes."""
    known: dict[Hashable, Dims] = {}
    entries: dict[Hashable, Dims] = {}
    for each in given:
        if isinstance(each, KnownShape):
            numbers = [sizes.batch if e == extents.BATCH else e for e in each.entries]
            entries[each.tensor.ref()] = [sizes.inner if n is None else int(n) for n in numbers]
            continue
        dims = static_dims(each.tensor)
        if dims is None or each.axis >= len(dims):
            continue
        if dims[each.axis] is None:
            rows = sizes.picked if each.is_picked else sizes.batch
            dims[each.axis] = rows + each.more
        if not each.is_picked:
            dims = [sizes.inner if size is None else size for size in dims]
        known[each.tensor.ref()] = dims
    try:
        return Probe(turns, known, entries, sizes, sides)
    except inference.UnfitError:
        return None


def _number_of_inner(given: Known) -> int:
    """Returns how many dimensions other than the rows' are unknown."""
    if isinstance(given, KnownShape):
        return list(given.entries).count(None)
    dims = static_dims(given.tensor)
    if dims is None or given.is_picked:
        return 0
    return (dims[: given.axis] + dims[given.axis + 1 :]).count(None)


def _merged(a: Dims | None, b: Dims | None) -> Dims | None:
    """Returns a shape of two descriptions; where they differ, the first one holds."""
    if a is None or b is None or len(a) != len(b):
        return b if a is None else a
    return [y if x is None else x for x, y in zip(a, b, strict=True)]
