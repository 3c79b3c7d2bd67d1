"""The values of small tensors of whole numbers, worked out from the lengths of dimensions.

A value is an array of Python numbers and `extents.Amount`s. In `WHOLE_MODE` it is what one device
would have; in another *mode*, what a device has of its own. A value is unknown if no one expression
holds for every number of rows.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate.compat.tensorflow import tf
from replicate.splitting.inference import extents, turns
from replicate.splitting.inference.extents import Number, UnknownError
from replicate.splitting.structure.loops import Structure

WHOLE_MODE = 0

Value: TypeAlias = npt.NDArray[np.object_]

# Works out an operation's output, or a list of them, of the values of its inputs.
_Fold: TypeAlias = Callable[[tf.Operation, Sequence[Value]], Any]

LEAVES = ("Shape", "ShapeN", "Size", "Rank")


class Folder:
    """Works out values, and keeps them.

    Args:
        lengths: Returns a tensor's lengths in a mode, or None if its rank is unknown.
        given: For tensors by `ref()`, what returns their value in a mode.
        structure: How stacks and lists are filled.
        is_size: Whether a tensor's value differs by device; by default no one's does.
        own_element: Given a list, the shape of its elements and a mode, returns the shape of the
            elements of a device's own list; by default that is the same.
    """

    def __init__(
        self,
        lengths: Callable[[tf.Tensor, int], Sequence[Number] | None],
        given: Mapping[Hashable, Callable[[int], Sequence[Number]]],
        structure: Structure,
        is_size: Callable[[tf.Tensor], bool] = lambda tensor: False,
        own_element: Callable[[tf.Tensor, Value, int], Value] = lambda held, whole, mode: whole,
    ):
        self._lengths = lengths
        self._given = given
        self._structure = structure
        self._is_size = is_size
        self._own_element = own_element
        self._whole: dict[Hashable, Value | None] = {}
        self._own: dict[Hashable, Value | None] = {}

    def begin(self) -> None:
        """Forgets what devices have of their own."""
        self._own = {}

    def forget(self) -> None:
        """Forgets all, since more lengths are known."""
        self._whole, self._own = {}, {}

    def fold(self, tensor: tf.Tensor, mode: int = WHOLE_MODE) -> Value | None:
        """Returns a tensor's value, or None if it is unknown; it must not be changed."""
        if mode != WHOLE_MODE and not self._is_size(tensor):
            mode = WHOLE_MODE
        kept = self._own if mode else self._whole
        key = (tensor.ref(), mode)
        if key not in kept:
            kept[key] = None  # a value made from itself is unknown
            kept[key] = self._folded(tensor, mode)
        return kept[key]

    def _folded(self, tensor: tf.Tensor, mode: int) -> Value | None:
        number = tensor.shape.num_elements()
        if number is not None and number > extents.MOST_ENTRIES:
            return None
        op = tensor.op
        if tensor.ref() in self._given:
            return _array(self._given[tensor.ref()](mode))
        if op.type == "Const":
            return _constant(tensor)
        if not (tensor.dtype.is_integer or tensor.dtype.is_bool):
            return None
        if op.type in LEAVES:
            return self._leaf(tensor, mode)
        if op.type in _LISTS:
            return self._listed(tensor, mode)
        if op.type in SHAPES:
            return self._of_entries(tensor, mode)
        if op.type not in FOLD:
            return None
        folded = [self.fold(each, mode) for each in op.inputs]
        operands = [each for each in folded if each is not None]
        if len(operands) < len(folded):
            return None
        try:
            result = FOLD[op.type](op, operands)
        except (UnknownError, TypeError, ValueError, IndexError, ZeroDivisionError):
            return None
        result = _array(result[tensor.value_index] if isinstance(result, list) else result)
        return result if _fits(result, tensor.dtype) else None

    def _leaf(self, tensor: tf.Tensor, mode: int) -> Value | None:
        op = tensor.op
        lengths = self._lengths(op.inputs[tensor.value_index if op.type == "ShapeN" else 0], mode)
        if lengths is None:
            return None
        if op.type == "Rank":
            return _array(len(lengths))
        if op.type == "Size":
            return _array(np.prod(_array(lengths)) if lengths else 1)
        return _array(lengths)

    def _of_entries(self, tensor: tf.Tensor, mode: int) -> Value | None:
        """Returns the shape of sparse entries that an operation makes."""
        op = tensor.op
        if tensor.value_index != SHAPES[op.type]:
            return None
        if op.type == "SparseReshape":
            old, new = (self.fold(each, mode) for each in op.inputs[1:3])
            try:
                return None if old is None or new is None else _reshaped(old, new)
            except (UnknownError, ZeroDivisionError):
                return None
        number = self._number_of_rows(op, mode)
        return None if number is None else _array([number, extents.unknown()])

    def _number_of_rows(self, op: tf.Operation, mode: int) -> Number | None:
        """Returns how many rows of crossed values, of texts, or of a ragged tensor there are."""
        many = op.get_attr("N") if op.type.startswith("SparseCross") else 0
        if many:
            shape = self.fold(op.inputs[2 * many], mode)
            return None if shape is None else shape[0]
        lengths = self._lengths(op.inputs[0], mode)
        if not lengths:
            return None
        return lengths[0] - 1 if op.type == "RaggedTensorToSparse" else lengths[0]

    def _listed(self, tensor: tf.Tensor, mode: int) -> Value | None:
        """Returns the value that comes from a stack or a list, if that is always the same."""
        op, held = tensor.op, list[tf.Tensor | None]()
        if op.type == "StackPushV2":
            held.append(op.inputs[1])
        elif op.type != "TensorListElementShape":
            for write in turns.writes_to(self._structure, op):
                has_parts = turns.WRITES[write.type][1]
                held.append(None if has_parts else turns.written(write, tensor))
        elif mode != WHOLE_MODE:
            return self._shape_of_own(tensor, mode)
        else:
            for source in self._structure.list_sources(op.inputs[0]):
                held.append(source.inputs[1 if source.type == "TensorListFromTensor" else 0])
        values = [None if each is None else self.fold(each, mode) for each in held]
        first = values[0] if values else None
        if first is None or any(each is None or not equal(first, each) for each in values):
            return None
        return first

    def _shape_of_own(self, tensor: tf.Tensor, mode: int) -> Value | None:
        """Returns the shape of the elements of a device's own list."""
        whole = self.fold(tensor)
        if whole is None:
            return None
        try:
            return self._own_element(tensor.op.inputs[0], whole, mode)
        except UnknownError:
            return None


def equal(a: Value, b: Value) -> bool:
    """Whether two values are the same expressions."""
    return a.shape == b.shape and all(x == y for x, y in zip(a.flat, b.flat, strict=True))


def plain(value: Value | None, dtype: tf.DType) -> npt.NDArray[Any] | None:
    """Returns a value as numbers of a dtype, or None if it grows with rows, or does not fit."""
    if value is None or any(isinstance(each, extents.Amount) for each in value.flat):
        return None
    return value.astype(dtype.as_numpy_dtype) if _fits(value, dtype) else None


def _fits(value: Value, dtype: tf.DType) -> bool:
    """Whether a value is small, and its dtype holds all its numbers."""
    if value.size > extents.MOST_ENTRIES or dtype.is_bool:
        return value.size <= extents.MOST_ENTRIES
    numbers = [each for each in value.flat if not isinstance(each, extents.Amount)]
    if len(numbers) < value.size and dtype not in (tf.int32, tf.int64):
        return False
    return all(dtype.min <= each <= dtype.max for each in numbers)


def _constant(tensor: tf.Tensor) -> Value | None:
    number = tensor.shape.num_elements()
    if number is None or not (tensor.dtype.is_integer or tensor.dtype.is_bool):
        return None
    return np.asarray(tf.get_static_value(tensor)).astype(object)


def _array(value: Any) -> Value:
    """Returns an array of objects; numbers in it are Python's."""
    if isinstance(value, np.ndarray):
        return value.astype(object)
    if isinstance(value, list | tuple):
        array: Value = np.empty(len(value), object)
        array[:] = value
        return array
    array = np.empty((), object)
    array[()] = value.item() if isinstance(value, np.generic) else value
    return array


def _numbers(value: Value) -> list[int]:
    """Returns the entries of a value, such as axes and places, that must not grow with rows."""
    flat = list(value.flat)
    if any(isinstance(each, extents.Amount) for each in flat):
        raise UnknownError("a place that depends on rows")
    return [int(each) for each in flat]


def _number(value: Value) -> int:
    return _numbers(value)[0]


def _each(function: Callable[..., object]) -> _Fold:
    """Returns what works out an operation entry by entry."""
    number = function.__code__.co_argcount
    ufunc = np.frompyfunc(function, number, 1)
    return lambda op, v: ufunc(*v)


def _over(function: Callable[..., Any]) -> _Fold:
    """Returns what works out a reduction over axes."""

    def reduce(op: tf.Operation, v: Sequence[Value]) -> Any:
        axes = tuple(_numbers(v[1]))
        return function(v[0], axis=axes, keepdims=op.get_attr("keep_dims")) if axes else v[0]

    return reduce


def _largest(value: Value, axis: tuple[int, ...], keepdims: bool) -> Value:
    if len(axis) != 1 or not value.ndim:
        raise UnknownError("a maximum over several axes, or over none that is there")
    larger: Any = np.frompyfunc(extents.larger, 2, 1)  # in NumPy 1 `reduce` has no type
    return _array(larger.reduce(value, axis=axis[0], keepdims=keepdims))


def _strided_slice(op: tf.Operation, v: Sequence[Value]) -> Value:
    begin, end, strides = (_numbers(each) for each in v[1:])
    masks = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for n in range(len(begin)):
        on = {name for name, mask in masks.items() if mask >> n & 1}
        if "ellipsis" in on:
            index.append(Ellipsis)
        elif "new_axis" in on:
            index.append(None)
        elif "shrink_axis" in on:
            index.append(begin[n])
        else:
            first = None if "begin" in on else begin[n]
            last = None if "end" in on else end[n]
            index.append(slice(first, last, strides[n]))
    return _array(v[0][tuple(index)])


def _slice(op: tf.Operation, v: Sequence[Value]) -> Value:
    begin, size = _numbers(v[1]), _numbers(v[2])
    ends = [n if s < 0 else b + s for n, b, s in zip(v[0].shape, begin, size, strict=True)]
    if not all(b <= end <= n for n, b, end in zip(v[0].shape, begin, ends, strict=True)):
        raise UnknownError("entries that are not there")
    return v[0][tuple(map(slice, begin, ends))]


def _gather(op: tf.Operation, v: Sequence[Value]) -> Value:
    if op.get_attr("batch_dims"):
        raise UnknownError("a gather by batches")
    places = np.reshape(_numbers(v[1]), v[1].shape).astype(int)
    if (places < 0).any():
        raise UnknownError("entries that are not there")
    return np.take(v[0], places, axis=_number(v[2]))


def _inverted(op: tf.Operation, v: Sequence[Value]) -> Value:
    places = _numbers(v[0])
    if sorted(places) != list(range(len(places))):
        raise UnknownError("no permutation")
    return _array(np.argsort(places))


def _stitched(op: tf.Operation, v: Sequence[Value]) -> Value:
    half = len(v) // 2
    places = [_numbers(each) for each in v[:half]]
    if min(map(min, filter(None, places)), default=0) < 0:
        raise UnknownError("entries that are not there")
    inner = v[half].shape[v[0].ndim :]
    length = max((max(each) for each in places if each), default=-1) + 1
    result = np.full((length, *inner), None, object)
    for where, data in zip(places, v[half:], strict=True):
        result[where] = np.reshape(data, (len(where), *inner))
    if any(each is None for each in result.flat):
        raise UnknownError("entries that nothing sets")
    return result


def _range(op: tf.Operation, v: Sequence[Value]) -> Value:
    places = range(*(_number(each) for each in v))
    if len(places) > extents.MOST_ENTRIES or (not places and places.start != places.stop):
        raise UnknownError("too long, or in the other direction")
    return _array(list(places))


def _filled(op: tf.Operation, v: Sequence[Value]) -> Value:
    dims = _numbers(v[0])
    if np.prod(dims) > extents.MOST_ENTRIES:
        raise UnknownError("too long")
    return np.full(dims, v[1][()], object)


def _concat_offset(op: tf.Operation, v: Sequence[Value]) -> list[Value]:
    axis, offset, offsets = _number(v[0]), 0, []
    for shape in v[1:]:
        places = np.full(shape.shape, 0, object)
        places[axis] = offset
        offset = offset + shape[axis]
        offsets.append(places)
    return offsets


def _aligned(v: Sequence[Value]) -> list[list[Number]]:
    rank = max(len(each) for each in v)
    return [[1] * (rank - len(each)) + list(each) for each in v]


def _broadcast_axes(op: tf.Operation, v: Sequence[Value]) -> list[Value]:
    """Returns the axes over which gradients are summed: those where a shape has 1.

    Of equal shapes there are none, though they have 1. A length that grows may be 1, too: then the
    kernel has other axes, which are of length 1, and over which a sum has the same entries.
    """
    summed: list[list[int]] = [[], []]
    if equal(*v):
        return [_array(axes) for axes in summed]
    for axis, (a, b) in enumerate(zip(*_aligned(v), strict=True)):
        for one, each in enumerate((a, b)):
            if _is_one(each):
                summed[one].append(axis)
        if not (a == b or _is_one(a) or _is_one(b)) and not extents.same(a, b):
            raise UnknownError("shapes that do not fit")
    return [_array(axes) for axes in summed]


def _is_one(number: Number) -> bool:
    """Whether a length is 1 for every number of rows."""
    return not isinstance(number, extents.Amount) and number == 1


def _broadcast_shape(op: tf.Operation, v: Sequence[Value]) -> Value:
    shape = []
    for a, b in zip(*_aligned(v), strict=True):
        if not (a == b or _is_one(a) or _is_one(b)):
            raise UnknownError("shapes that may not fit")
        shape.append(b if _is_one(a) else a)
    return _array(shape)


def _selected(op: tf.Operation, v: Sequence[Value]) -> Value:
    chosen = np.reshape(np.array([bool(each) for each in _numbers(v[0])]), v[0].shape)
    if op.type == "Select" and chosen.ndim == 1:
        chosen = np.reshape(chosen, chosen.shape + (1,) * (v[1].ndim - 1))
    return np.where(chosen, v[1], v[2])


def _cast(op: tf.Operation, v: Sequence[Value]) -> Value:
    dtype = op.outputs[0].dtype
    if dtype.is_bool:
        return np.frompyfunc(lambda a: not extents.same(a, 0), 1, 1)(v[0])
    if not _fits(v[0], dtype):
        raise UnknownError("a number does not fit")
    return np.frompyfunc(lambda a: int(a) if isinstance(a, bool) else a, 1, 1)(v[0])


def _reshaped(old: Value, new: Value) -> Value:
    """Returns the new shape of sparse entries; -1 in it stands for what is left over."""
    left = [n for n, entry in enumerate(new) if isinstance(entry, int) and entry == -1]
    if not left:
        return new
    filled, total, others = new.copy(), 1, 1
    for entry in old:
        total = total * entry
    for n, entry in enumerate(new):
        others = others if n in left else others * entry
    filled[left[0]] = total // others
    return filled


# Which output of an operation on sparse entries is their shape.
SHAPES = {
    "RaggedTensorToSparse": 2,
    "SparseCross": 2,
    "SparseCrossHashed": 2,
    "SparseCrossV2": 2,
    "SparseReshape": 1,
    "StringSplit": 2,
    "StringSplitV2": 2,
}

_LISTS = (
    *("StackPopV2", "StackPushV2", "TensorListElementShape", "TensorListPopBack"),
    "OptionalGetValue",
)

FOLD: dict[str, _Fold] = {
    "Abs": _each(lambda a: extents.larger(a, -a)),
    "Add": _each(lambda a, b: a + b),
    "AddV2": _each(lambda a, b: a + b),
    "BroadcastArgs": _broadcast_shape,
    "BroadcastGradientArgs": _broadcast_axes,
    "Cast": _cast,
    "ConcatOffset": _concat_offset,
    "ConcatV2": lambda op, v: np.concatenate(v[:-1], _number(v[-1])),
    "DynamicStitch": _stitched,
    "Enter": lambda op, v: v[0],
    "Equal": _each(lambda a, b: extents.same(a, b)),
    "Exit": lambda op, v: v[0],
    "ExpandDims": lambda op, v: np.expand_dims(v[0], _number(v[1])),
    "Fill": _filled,
    "FloorDiv": _each(lambda a, b: a // b),
    "FloorMod": _each(lambda a, b: a % b),
    "GatherV2": _gather,
    "Greater": _each(lambda a, b: extents.less(b, a)),
    "GreaterEqual": _each(lambda a, b: not extents.less(a, b)),
    "Identity": lambda op, v: v[0],
    "InvertPermutation": _inverted,
    "Less": _each(lambda a, b: extents.less(a, b)),
    "LessEqual": _each(lambda a, b: not extents.less(b, a)),
    "LogicalAnd": _each(lambda a, b: a and b),
    "LogicalNot": _each(lambda a: not a),
    "LogicalOr": _each(lambda a, b: a or b),
    "Max": _over(_largest),
    "Maximum": _each(lambda a, b: extents.larger(a, b)),
    "Minimum": _each(lambda a, b: extents.smaller(a, b)),
    "Mul": _each(lambda a, b: a * b),
    "Neg": _each(lambda a: -a),
    "NotEqual": _each(lambda a, b: not extents.same(a, b)),
    "OnesLike": lambda op, v: np.full(v[0].shape, 1, object),
    "Pack": lambda op, v: np.stack(v, op.get_attr("axis")),
    "Prod": _over(np.prod),
    "Range": _range,
    "Reshape": lambda op, v: np.reshape(v[0], _numbers(v[1])),
    "Select": _selected,
    "SelectV2": _selected,
    "Slice": _slice,
    "Squeeze": lambda op, v: np.squeeze(v[0], tuple(op.get_attr("squeeze_dims")) or None),
    "StopGradient": lambda op, v: v[0],
    "StridedSlice": _strided_slice,
    "Sub": _each(lambda a, b: a - b),
    "Sum": _over(np.sum),
    "Unpack": lambda op, v: [_array(each) for each in np.moveaxis(v[0], op.get_attr("axis"), 0)],
    "ZerosLike": lambda op, v: np.full(v[0].shape, 0, object),
}
FOLDED = {*FOLD, "StackPushV2"}  # operations whose results are sizes, if all operands are
