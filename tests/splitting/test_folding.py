"""Folded values are those of TensorFlow's kernels: each kind, over small shapes, axes and masks."""

import itertools

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.inference import folding
from replicate.splitting.inference.extents import BATCH, Amount, Sizes, at, rows
from replicate.splitting.structure import loops

NUMBERS = (-3, -2, -1, 0, 1, 2, 3)
ROWS = (rows(BATCH), rows(BATCH, 2), rows(BATCH) + 1, rows(BATCH, 3) - 2, -rows(BATCH))
BATCHES = (1, 2, 3)  # for which a value with rows in it is tried
PASSING = ("Enter", "Exit")  # not in a graph alone
STEP, FEWER = 31, 4  # quick tests, and all others, take one in so many examples


# Operands are arrays of objects; attributes are none.


def array(numbers):
    """An operand: numbers, and numbers of rows."""
    found = np.empty(np.shape(numbers), object)
    found[...] = numbers
    return found


def truths(values):
    return np.array(values, bool)


def shapes_of(most, lengths=(0, 1, 2)):
    """All shapes of up to so many dimensions."""
    return [s for rank in range(most + 1) for s in itertools.product(lengths, repeat=rank)]


def vectors(most, entries):
    return [array(list(each)) for each in shapes_of(most, entries)]


def data(*shapes):
    """Arrays of these shapes, and the same with rows among their numbers."""
    for shape in shapes:
        numbers = array(np.arange(1, 1 + int(np.prod(shape))).reshape(shape))
        yield numbers
        if numbers.size:
            with_rows = numbers.copy()
            with_rows.reshape(-1)[-1] = rows(BATCH)
            yield with_rows


SCALARS = [array(each) for each in (*NUMBERS, *ROWS)]
EMPTY = [(0,), (0, 1), (2, 0)]
SMALL, DATA = (list(data(*EMPTY, *shapes_of(most, (1, 2)))) for most in (2, 3))
FITTING = list(data((), (1,), (2,), (1, 2), (2, 1), (0,)))  # most of them broadcast
TRUTHS = [truths(each) for each in (True, False, [True], [True, False], [[False, True]], [])]
AXES = range(-3, 3)
MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def each(**choices):
    """Operations of all combinations of operands and attributes."""
    for chosen in itertools.product(*choices.values()):
        yield dict(zip(choices, chosen, strict=True))


def of_two(x="x", y="y"):
    yield from each(**{x: SCALARS, y: SCALARS})
    yield from each(**{x: FITTING, y: FITTING})


def broadcasts():
    lengths = vectors(3, (0, 1, 2)), vectors(2, (1, 3, *ROWS[:2]))
    for some in lengths:
        yield from each(s0=some, s1=some)


def selections(condition, x, y):
    yield from each(**{condition: TRUTHS, x: FITTING, y: FITTING})


def slices():
    for value in data((0,), (1,), (3,), (1, 2), (2, 2)):
        begin = [array(list(b)) for b in itertools.product((0, 1, 2), repeat=value.ndim)]
        size = [array(list(s)) for s in itertools.product((-1, 0, 1, 2), repeat=value.ndim)]
        yield from each(input=[value], begin=begin, size=size)


def strided_slices():
    """All ends and strides of one entry, and all masks of up to three."""
    for value in data((3,)):
        yield from each(
            input=[value],
            begin=[array([n]) for n in range(-4, 5)],
            end=[array([n]) for n in range(-4, 5)],
            strides=[array([n]) for n in (-2, -1, 1, 2)],
            begin_mask=(0, 1),
            end_mask=(0, 1),
        )
    wide = [(n, value) for n in range(3) for value in data((3,), (1, 2), (2, 1))]
    for number, value in (*wide, (3, array([[1, 2], [3, 4]]))):
        for begin, end in ((0, 1), (-1, 2)):
            yield from each(
                input=[value],
                begin=[array([begin] * number)],
                end=[array([end] * number)],
                strides=[array([1] * number)],
                end_mask=[begin],
                **dict.fromkeys(MASKS, range(2**number)),
            )


def gathers():
    places = [array(p) for p in (0, 1, 2, -1, [], [1], [1, 0], [[0, 1], [1, 1]])]
    yield from each(params=DATA, indices=places, axis=[array(n) for n in range(-2, 2)])
    yield {"params": DATA[-1], "indices": array([[0], [1]]), "axis": array(1), "batch_dims": 1}


def stitches():
    places = [array(p) for p in (0, 2, [], [0], [1], [1, 0], [0, 0], [2, 1], [[0, 1]], [-1])]
    for pair, inner in itertools.product(itertools.product(places, repeat=2), shapes_of(1)):
        values = [array(list(data((*p.shape, *inner)))[-n] + 10 * n) for n, p in enumerate(pair)]
        yield {"indices": list(pair), "data": values}


def pairs(values, **choices):
    yield from each(values=[list(pair) for pair in itertools.product(values, repeat=2)], **choices)


def offsets():
    """Of shapes that are equal but along the axis, as those of a concatenation are."""
    for shape, axis in itertools.product([*vectors(3, (0, 1, 2)), array([rows(BATCH), 2])], AXES):
        if -shape.size <= axis < shape.size:
            other = shape.copy()
            other[axis] += 3
            yield {"concat_dim": array(axis), "shape": [shape, other, shape]}


def parts():
    for value, axis in itertools.product(DATA, AXES):
        is_there = -value.ndim <= axis < value.ndim
        yield {"value": value, "num": value.shape[axis] if is_there else 1, "axis": axis}


def over_axes():
    axes = [array(places) for places in (0, -1, *map(list, shapes_of(2, AXES)))]
    return each(input=DATA, axis=axes, keep_dims=(False, True))


TWO = (
    *("Add", "AddV2", "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less"),
    *("LessEqual", "Maximum", "Minimum", "Mul", "NotEqual", "Sub"),
)

EXAMPLES = {
    **dict.fromkeys(("Abs", "Neg", "OnesLike", "ZerosLike"), lambda: each(x=[*SCALARS, *SMALL])),
    **dict.fromkeys(("Identity", "StopGradient"), lambda: each(input=[*SCALARS, *SMALL])),
    **dict.fromkeys(TWO, of_two),
    **dict.fromkeys(("LogicalAnd", "LogicalOr"), lambda: each(x=TRUTHS, y=TRUTHS)),
    **dict.fromkeys(("Max", "Prod", "Sum"), over_axes),
    **dict.fromkeys(("BroadcastArgs", "BroadcastGradientArgs"), broadcasts),
    "Cast": lambda: each(
        x=[*SCALARS, *SMALL, *TRUTHS, *map(array, (255, 256, 2**31 - 1))],
        DstT=(tf.int32, tf.int64, tf.bool, tf.uint8),
    ),
    "ConcatOffset": offsets,
    "ConcatV2": lambda: pairs(SMALL, axis=[array(axis) for axis in AXES]),
    "DynamicStitch": stitches,
    "ExpandDims": lambda: each(input=DATA, axis=[array(axis) for axis in range(-4, 4)]),
    "Fill": lambda: each(dims=vectors(2, (-1, 0, 1, 2)), value=SCALARS),
    "GatherV2": gathers,
    "InvertPermutation": lambda: each(x=vectors(3, range(-1, 4))),
    "LogicalNot": lambda: each(x=TRUTHS),
    "Pack": lambda: pairs(SMALL, axis=AXES),
    "Range": lambda: each(start=SCALARS[:7], limit=SCALARS, delta=SCALARS[:7]),
    "Reshape": lambda: each(tensor=DATA, shape=vectors(2, (-1, 0, 1, 2, 4))),
    "Select": lambda: selections("condition", "x", "y"),
    "SelectV2": lambda: selections("condition", "t", "e"),
    "Slice": slices,
    "Squeeze": lambda: each(input=DATA, axis=[list(axes) for axes in shapes_of(2, AXES)]),
    "StridedSlice": strided_slices,
    "Unpack": parts,
}


def test_every_kind_has_examples():
    assert {*EXAMPLES, *PASSING} == set(folding.FOLD)


@pytest.mark.thorough("*-Broadcast*", f"{STEP}-*")
@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("step", [STEP, FEWER])
def test_a_folded_value_is_the_kernels(kind, step):
    operations = Operations(kind)
    has_known = False
    for example in itertools.islice(EXAMPLES[kind](), 0, None, step):
        folded = operations.fold(example)
        if folded is None:
            continue
        has_known = True
        for batch in BATCHES if is_of_rows(example) else BATCHES[:1]:
            wanted = kernels(kind, example, batch)
            found = [numbers(value, batch) for value in folded]
            assert wanted is not None, example
            if kind == "BroadcastGradientArgs" and is_of_rows(example) and batch == 1:
                found, wanted = (sums(axes, example) for axes in (found, wanted))
            assert all(map(np.array_equal, found, wanted)), (example, batch, found, wanted)
    assert has_known


def sums(axes, example):
    """A broadcast gradient of one row, summed over axes to the shapes of two operands."""
    shapes = [tuple(numbers(shape, 1)) for shape in example.values()]
    whole = np.broadcast_shapes(*shapes)
    gradient = np.arange(np.prod(whole, dtype=int)).reshape(whole)
    return [gradient.sum(tuple(a)).reshape(s) for a, s in zip(axes, shapes, strict=True)]


NOTHING = loops.Structure(tf.Graph())


class Operations:
    """Operations of one kind in a graph, one for all examples of the same shapes and attributes."""

    def __init__(self, kind):
        self._kind = kind
        self._graph = tf.Graph()
        self._made = {}

    def fold(self, example):
        """The values of an operation's outputs, or None if they are unknown."""
        key = tuple(
            (name, tuple((o.shape, o.dtype) for o in listed(value)) or str(value))
            for name, value in example.items()
        )
        if key not in self._made:
            self._made[key] = self._make(example)
        outputs = self._made[key]
        if not outputs:
            return None
        operands = zip(outputs[0].op.inputs, operands_of(example), strict=True)
        given = {tensor.ref(): lambda mode, value=value: value for tensor, value in operands}
        folder = folding.Folder(lambda tensor, mode: None, given, NOTHING)
        folded = [folder.fold(tensor) for tensor in outputs]
        return None if any(value is None for value in folded) else folded

    def _make(self, example):
        """The outputs of an operation of placeholders; none if there is no such operation."""
        try:
            with self._graph.as_default():
                made = run(self._kind, example, lambda o: tf1.placeholder(dtype(o), o.shape))
        except ValueError:
            return ()
        return listed(made)


def run(kind, example, tensor_of):
    def made(value):
        if isinstance(value, np.ndarray):
            return tensor_of(value)
        is_list = isinstance(value, list) and value and isinstance(value[0], np.ndarray)
        return [made(each) for each in value] if is_list else value

    kernel = getattr(tf.raw_ops, kind)
    return kernel(**{name: made(value) for name, value in example.items()})


def kernels(kind, example, batch):
    """What TensorFlow's kernel gives, or None if it fails."""
    try:
        made = run(kind, example, lambda o: tf.constant(numbers(o, batch), dtype(o), o.shape))
    except (tf.errors.OpError, ValueError):
        return None
    return [each.numpy() for each in listed(made)]


def listed(value):
    """The operands among an example's values, or an operation's results, as a list."""
    if isinstance(value, (list, tuple)):
        return [each for each in value if isinstance(each, (np.ndarray, tf.Tensor))]
    return [value] if isinstance(value, (np.ndarray, tf.Tensor)) else []


def operands_of(example):
    return [each for value in example.values() for each in listed(value)]


def dtype(operand):
    return tf.bool if operand.dtype == bool else tf.int32


def is_of_rows(example):
    return any(isinstance(n, Amount) for each in operands_of(example) for n in each.flat)


def numbers(operand, batch):
    """An array's numbers for a batch of so many rows."""
    found = [at(n, Sizes(batch, 1)) if isinstance(n, Amount) else n for n in operand.flat]
    return np.array(found, bool if operand.dtype == bool else int).reshape(operand.shape)
