"""Tries each rule on small graphs: operations on operands of every state, split and not split.

A case is an operation with operands whose shapes say which dimensions have rows:

    case("MatMul", tf.matmul, tensor("B", 3), tensor(3, 4))

Each operand is brought into each state that it can have: rows along each dimension "B", whole
(the same shape, but fed beside the batch), a sum over rows, a size. All cases of a family make
one graph; it is run as it is, and split over K devices, and both must give the same.
"""

import dataclasses
import itertools
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting import alike

MOST_COMBINATIONS = 24  # of states, for one case
# What reassociation may change, by dtype; everything else must be equal.
TOLERANCES = {
    tf.float64: 1e-12,
    tf.complex128: 1e-12,
    tf.float32: 2e-5,
    tf.complex64: 2e-5,
    tf.half: 1e-2,
    tf.bfloat16: 6e-2,
}


# Values


def real(numbers, shape):
    return numbers.uniform(-1.0, 1.0, shape)


def positive(numbers, shape):
    return numbers.uniform(0.1, 2.0, shape)


def unit(numbers, shape):
    return numbers.uniform(0.05, 0.95, shape)


def above_one(numbers, shape):
    return numbers.uniform(1.1, 3.0, shape)


def apart(numbers, shape):
    """Numbers of which no two are alike, none near 0."""
    count = int(np.prod(shape))
    return (numbers.permutation(count) + 1.0).reshape(shape) * 0.37


def some_zero(numbers, shape):
    return numbers.choice([0.0, 0.0, -1.5, 2.0], shape)


def some_nan(numbers, shape):
    return numbers.choice([np.nan, -1.5, 0.25, 2.0], shape)


def between(low, high):
    """Whole numbers from low to high - 1."""
    return lambda numbers, shape: numbers.randint(low, high, shape)


def truths(numbers, shape):
    return numbers.randint(0, 2, shape).astype(bool)


def among(*values):
    return lambda numbers, shape: numbers.choice(list(values), shape)


# Operands


def factor(size) -> int:
    """How many entries each row has: 1 of "B", 2 of "2B", 0 of a number."""
    if isinstance(size, str):
        return int(size[:-1] or 1)
    return 0


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An operand.

    Attributes:
        dims: Its shape; "B" is the number of rows, "2B" twice as many.
        dtype: Its dtype; None: that of the case.
        values: What makes its values.
        states: Which states are tried; None: all that it can have.
    """

    dims: tuple
    dtype: Any
    values: Callable
    states: Sequence[str] | None

    def shape(self, rows: int) -> list[int]:
        return [factor(size) * rows if isinstance(size, str) else size for size in self.dims]

    def choices(self, dtype) -> list[str]:
        """Returns the states in which it is tried; a whole one last."""
        if self.states is not None:
            return list(self.states)
        found = [f"rows{axis}" for axis, size in enumerate(self.dims) if factor(size)]
        if not found and self.kind(dtype).is_numeric:
            found.append("sum")
        return [*found, "whole"]

    def further(self, dtype) -> list[str]:
        """Returns what else may be joined of rows, to be tried with whole operands only."""
        if self.states is not None or any(factor(size) for size in self.dims):
            return []
        kind = self.kind(dtype)
        if kind.is_floating:
            return ["mean", "max"]
        if kind.is_bool:
            return ["any", "all"]
        return ["max"] if kind.is_integer else []

    def kind(self, dtype):
        return tf.as_dtype(self.dtype or dtype)

    def build(self, world, state, dtype, number):
        """Returns a tensor in a state."""
        return world.tensor(self, state, self.kind(dtype), number)


@dataclasses.dataclass(frozen=True)
class Size:
    """An operand that is a shape or a number of rows.

    Attributes:
        dims: Its entries, "B", "2B", -1 and numbers; of a single number, one.
        is_scalar: Whether it is a number.
        dtype: tf.int32 or tf.int64.
    """

    dims: tuple
    is_scalar: bool
    dtype: Any = tf.int32

    def choices(self, dtype) -> list[str]:
        del dtype
        if not any(factor(size) for size in self.dims):
            return ["whole"]
        by_shape = not self.is_scalar and all(factor(size) or size >= 0 for size in self.dims)
        return ["size", *(["shape"] if by_shape else []), "whole"]

    def further(self, dtype) -> list[str]:
        del dtype
        return []

    def build(self, world, state, dtype, number):
        """Returns the numbers in a state."""
        del dtype
        if state == "whole":
            return world.whole_size(self, number)
        if state == "shape":
            like = tensor(*self.dims)
            axis = next(i for i, size in enumerate(self.dims) if factor(size))
            return tf.shape(like.build(world, f"rows{axis}", tf.float64, 90), out_type=self.dtype)
        rows = tf.shape(world.marker(), out_type=self.dtype)[0]
        entries = [rows * factor(size) if factor(size) else size for size in self.dims]
        return entries[0] if self.is_scalar else tf.stack(entries)


def tensor(*dims, dtype=None, of=real, states=None) -> Tensor:
    """An operand with some rows, or without."""
    return Tensor(dims, dtype, of, states)


def indices(*dims, below=3, dtype=tf.int32, states=None) -> Tensor:
    """An operand of whole numbers from 0 to below - 1."""
    return Tensor(dims, dtype, between(0, below), states)


def shape(*dims, dtype=tf.int32) -> Size:
    """An operand that is a shape, of which some entries are numbers of rows."""
    return Size(dims, False, dtype)


def size(dim="B", dtype=tf.int32) -> Size:
    """An operand that is a number of rows."""
    return Size((dim,), True, dtype)


# Cases


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation on operands.

    Attributes:
        kind: The kind of operation that it is a case of; several, with blanks in between.
        function: Makes the operation, or several: returns a tensor, or a nest of tensors.
        operands: `Tensor`, `Size`, or what the function gets as it is.
        dtype: Of the operands that do not say their own.
        place: File and line.
    """

    kind: str
    function: Callable
    operands: tuple
    dtype: Any
    place: str

    def combinations(self) -> list[tuple]:
        """Returns the states of the operands that are tried."""
        varied = [o for o in self.operands if isinstance(o, Tensor | Size)]
        found = list(itertools.product(*(o.choices(self.dtype) for o in varied)))
        found = [states for states in found if any(state != "whole" for state in states)]
        if len(found) > MOST_COMBINATIONS:
            rest = random.Random(7).sample(found[1:], MOST_COMBINATIONS - 1)
            found = [found[0], *rest]
        for n, operand in enumerate(varied):
            for state in operand.further(self.dtype):
                found.append(tuple(state if m == n else "whole" for m in range(len(varied))))
        if len(varied) > 1:
            for state in ("mean", "max", "any"):
                if all(state in operand.further(self.dtype) for operand in varied):
                    found.append((state,) * len(varied))
        return found

    def tolerance(self) -> float:
        """Returns what rounding may change: that of the coarsest operand."""
        kinds = [o.kind(self.dtype) for o in self.operands if isinstance(o, Tensor)]
        return max((TOLERANCES.get(kind, 0.0) for kind in kinds), default=0.0)

    def build(self, world, states):
        """Builds the operation; returns its results."""
        states, arguments = iter(states), []
        for number, operand in enumerate(self.operands):
            if isinstance(operand, Tensor | Size):
                operand = operand.build(world, next(states), self.dtype, number)
            arguments.append(operand)
        return tf.nest.flatten(self.function(*arguments))


class Family:
    """Cases of one family of operations.

    Args:
        name: Its name.
        random_numbers: See `splitter.split_graph`.
        most: How many combinations of states are tried of each case, at most.
        together: How many of them are in one graph.
    """

    def __init__(
        self,
        name: str,
        random_numbers: str = "one_device",
        most: int = MOST_COMBINATIONS,
        together: int = 60,
    ):
        self.name = name
        self.random_numbers = random_numbers
        self.most = most
        self.together = together
        self.cases = []

    def __repr__(self) -> str:
        return self.name

    def case(self, kind, function, *operands, dtypes=(tf.float64,)) -> None:
        """Adds a case for each dtype."""
        frame = sys._getframe(1)
        while "case" in frame.f_code.co_name or frame.f_code.co_name == "op":
            frame = frame.f_back
        place = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        for dtype in dtypes:
            self.cases.append(Case(kind, function, operands, dtype, place))

    def op(self, kind, *operands, dtypes=(tf.float64,), **attributes) -> None:
        """Adds cases of one operation, of operands by position and attributes by name."""
        self.case(kind, raw(kind, **attributes), *operands, dtypes=dtypes)


def raw(kind: str, **attributes) -> Callable:
    """Returns the function that makes one operation, of operands by position."""
    function = getattr(tf.raw_ops, kind)
    names = list(function.__signature__.parameters)

    def make(*operands):
        return function(**dict(zip(names, operands, strict=False)), **attributes)

    return make


def listed(kind: str, name: str, **attributes) -> Callable:
    """Returns the function that makes one operation of a list of operands."""
    return lambda *operands: getattr(tf.raw_ops, kind)(**{name: list(operands)}, **attributes)


# Worlds: whose rows


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where cases are tried.

    Attributes:
        world: "batch": rows are the batch's; "picked": a mask picks them.
        num_devices: K.
        sizes: How many rows; with a static batch one number.
        is_static: Whether the graph knows how many.
        some: How many combinations of states are tried of each case.
        others: If any, so many of those that are left are tried in place of them.
    """

    world: str
    num_devices: int
    sizes: tuple[int, ...]
    is_static: bool = False
    some: int = MOST_COMBINATIONS
    others: int = 0

    def __str__(self) -> str:
        kind = "static" if self.is_static else "dynamic"
        return f"{self.world}-{kind}-{self.num_devices}x{'-'.join(map(str, self.sizes))}"


class World:
    """Makes operands in the current graph, and remembers what to feed them.

    Args:
        setting: Where.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self.given = {}
        self.holders = {}
        self.feeders = {}
        if setting.world == "picked":
            self._placed("mask", [], tf.bool, lambda rows, picked: picked, is_given=True)

    def _placed(self, key, dims, dtype, feeder, is_given, is_batched=True):
        """Returns a placeholder: of the batch with rows first, or beside it."""
        if key not in self.holders:
            rows = [self._length(size) for size in dims]
            rows = [self.setting.sizes[0] if self.setting.is_static else None, *rows]
            with tf.name_scope("operands"), tf.control_dependencies(None):
                self.holders[key] = tf1.placeholder(dtype, rows if is_batched else rows[1:])
            self.feeders[key] = feeder
            if is_given:
                self.given[key] = self.holders[key]
        return self.holders[key]

    def _length(self, size):
        if not isinstance(size, str):
            return size
        return factor(size) * self.setting.sizes[0] if self.setting.is_static else None

    def marker(self):
        """A tensor with one number per row."""
        return self._rows("marker", [], tf.float64, lambda rows: np.arange(float(rows)))

    def _rows(self, key, dims, dtype, values):
        """Returns a tensor with rows along axis 0: those of the batch, or what is picked."""
        if self.setting.world == "batch":
            return self._placed(key, dims, dtype, lambda rows, picked: values(rows), True)

        def spread(rows, picked):
            kept = values(int(picked.sum()))
            array = np.zeros([rows, *kept.shape[1:]], kept.dtype)
            if kept.dtype.kind in "OU":
                array = np.full(array.shape, kept.reshape(-1)[0], kept.dtype)
            array[picked] = kept
            return array

        found = self._placed(key, dims, dtype, spread, True)
        if (key, "picked") not in self.holders:
            with tf.name_scope("operands"), tf.control_dependencies(None):
                self.holders[key, "picked"] = tf.boolean_mask(found, self.holders["mask"])
        return self.holders[key, "picked"]

    def tensor(self, operand, state, dtype, number):
        """Returns an operand in a state."""
        key = (operand.dims, dtype.name, operand.values, number)
        if state == "whole":
            return self._placed(
                (*key, state),
                operand.dims,
                dtype,
                lambda rows, picked: self._values(
                    key, operand.values, operand.shape(int(picked.sum())), dtype
                ),
                is_given=False,
                is_batched=False,
            )
        if state.startswith("rows"):
            return self._with_rows(operand, int(state[4:]), dtype, key)
        return self._joined(operand, state, dtype, key)

    @staticmethod
    def _values(key, values, shape, dtype):
        label = repr((key[0], key[1], values.__qualname__, key[3]))
        numbers = np.random.RandomState(zlib.crc32(label.encode()))
        found = np.asarray(values(numbers, shape))
        if dtype == tf.string:
            return np.char.encode(found, "utf-8").astype(object)
        if dtype.is_complex:
            found = found + 0.5j * found[..., ::-1] if found.ndim else found + 0.25j
        return found.astype(dtype.as_numpy_dtype)

    def _with_rows(self, operand, axis, dtype, key):
        many = factor(operand.dims[axis])
        rest = [*operand.dims[:axis], *operand.dims[axis + 1 :]]
        if any(factor(size) for size in rest):
            return self._crossed(operand, axis, dtype, key)

        def values(rows):
            whole = self._values(key, operand.values, operand.shape(rows), dtype)
            moved = np.moveaxis(whole, axis, 0)
            return moved if many == 1 else moved.reshape([rows, many, *rest])

        dims = rest if many == 1 else [many, *rest]
        found = self._rows((*key, axis), dims, dtype, values)
        if many > 1:
            found = tf.reshape(found, [-1, *rest])
        if axis:
            order = [*range(1, axis + 1), 0, *range(axis + 1, len(operand.dims))]
            found = tf.transpose(found, order)
        return found

    def _crossed(self, operand, axis, dtype, key):
        """Returns a tensor of which two dimensions have rows; it has them along an axis."""
        other = next(i for i, size in enumerate(operand.dims) if factor(size) and i != axis)

        def along(place):
            dims = [size if i == place else 1 for i, size in enumerate(operand.dims)]
            inner = [1 if factor(size) else size for size in operand.dims]
            part = Tensor(tuple(d if i == place else inner[i] for i, d in enumerate(dims)), *rest)
            return self._with_rows(part, place, dtype, (part.dims, *key[1:]))

        rest = (operand.dtype, operand.values, None)
        return along(axis) + along(other)

    def _joined(self, operand, state, dtype, key):
        """Returns a sum, a mean, … over rows."""

        def values(rows):
            found = self._values(
                (*key[:3], (key[3], state)), operand.values, [rows, *operand.dims], dtype
            )
            if state == "sum" and rows:
                if dtype.is_integer:
                    found[:-1] = 0
                else:
                    found = (found / rows).astype(found.dtype)
            return found

        given = self._rows((*key, state), operand.dims, dtype, values)
        return getattr(tf, f"reduce_{state}")(given, 0)

    def whole_size(self, operand, number):
        """Returns numbers of rows that are fed beside the batch."""

        def values(rows, picked):
            del rows
            picked = int(picked.sum())
            found = [factor(size) * picked if factor(size) else size for size in operand.dims]
            return np.array(found[0] if operand.is_scalar else found, operand.dtype.as_numpy_dtype)

        dims = [] if operand.is_scalar else [len(operand.dims)]
        key = ("size", operand, number)
        return self._placed(key, dims, operand.dtype, values, is_given=False, is_batched=False)

    def feed(self, rows: int) -> dict:
        """Returns what is fed for so many rows."""
        picked = np.ones([rows], bool)
        if self.setting.world == "picked":
            picked = np.random.RandomState(rows).uniform(size=rows) < 0.6
            picked[-1] = True
        return {self.holders[key]: feeder(rows, picked) for key, feeder in self.feeders.items()}


# Running


class Built:
    """A graph of some entries.

    Args:
        setting: Where.
        entries: Pairs of cases and states.
    """

    def __init__(self, setting: Setting, entries: Sequence[tuple[Case, tuple]]):
        self.setting = setting
        self.entries = list(entries)
        self.graph = tf.Graph()
        self.results = []
        self.scopes = []
        with self.graph.as_default():
            tf1.set_random_seed(1)
            self.world = World(setting)
            self.world.marker()
            for n, (case, states) in enumerate(self.entries):
                with tf.name_scope(f"entry{n}"):
                    try:
                        self.results.append(case.build(self.world, states))
                    except Exception as error:
                        raise AssertionError(f"{told((case, states))}: {error}") from error
            self.fetches = self.results
            self.initializer = [tf1.global_variables_initializer(), tf1.tables_initializer()]

    def operations(self) -> dict[int, list]:
        """Returns the operations of each entry, by its number."""
        found = {}
        for op in self.graph.get_operations():
            scope = op.name.partition("/")[0]
            if scope.startswith("entry"):
                found.setdefault(int(scope.removeprefix("entry")), []).append(op)
        return found

    def split(self, random_numbers: str):
        """Splits the graph; returns what `split_graph` does."""
        setting = self.setting
        keep = [tensor for results in self.results for tensor in results]
        options = {"static_rows": setting.sizes[0] if setting.is_static else None}
        options["random_numbers"] = random_numbers
        with self.graph.as_default():
            given = self.world.given.values()
            result = alike.split(given, keep, setting.num_devices, **options)
        fetches = iter(result.fetch)
        self.fetches = [[next(fetches) for _ in results] for results in self.results]
        return result

    def run(self) -> dict[int, list]:
        """Returns for each number of rows each entry's values, or an error."""
        with tf1.Session(graph=self.graph, config=exactness.session_config()) as session:
            session.run(self.initializer)
            return {rows: self._run(session, self.world.feed(rows)) for rows in self.setting.sizes}

    def _run(self, session, feed) -> list:
        try:
            return session.run(self.fetches, feed, alike.PATIENCE)
        except (tf.errors.OpError, TypeError, ValueError):
            return [self._run_one(session, fetches, feed) for fetches in self.fetches]

    @staticmethod
    def _run_one(session, fetches, feed):
        try:
            return session.run(fetches, feed, alike.PATIENCE)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            return ValueError(
                str(getattr(error, "message", error)).partition("Original stack")[0][-400:]
            )


@dataclasses.dataclass
class Outcome:
    """What came of a family.

    Attributes:
        failures: A line for each case and its states that went wrong.
        split: Kinds that were split in one of their cases.
        whole: For kinds that were whole: why.
        missing: Cases that make no operation of their kind.
    """

    failures: list = dataclasses.field(default_factory=list)
    split: set = dataclasses.field(default_factory=set)
    whole: dict = dataclasses.field(default_factory=dict)
    missing: list = dataclasses.field(default_factory=list)


def entries_of(family: Family, setting: Setting) -> list[tuple[Case, tuple]]:
    """Returns what a family tries in a setting."""
    return [(case, states) for case in family.cases for states in states_of(case, family, setting)]


def states_of(case: Case, family: Family, setting: Setting) -> list[tuple]:
    """Returns the combinations of states in which a case is tried."""
    combinations, seed = case.combinations(), str(setting)
    found = some(combinations, min(setting.some, family.most), seed)
    if not setting.others:
        return found
    left = [states for states in combinations if states not in found]
    return some(left, min(setting.others, family.most), seed)


def some(combinations: list, most: int, seed: str) -> list:
    """Returns so many combinations of states, the same ones each time; of several the first."""
    if len(combinations) <= most:
        return combinations
    found = random.Random(seed).sample(combinations, most)
    return found if most == 1 or combinations[0] in found else [combinations[0], *found[1:]]


def told(entry) -> str:
    """Returns a line for an entry."""
    case, states = entry
    return f"{case.kind} [{tf.as_dtype(case.dtype).name}] ({', '.join(states)}) {case.place}"


def tried(family: Family, setting: Setting) -> Outcome:
    """Tries all cases of a family; returns what came of it."""
    outcome, entries = Outcome(), entries_of(family, setting)
    for start in range(0, len(entries), family.together):
        try_together(family, setting, entries[start : start + family.together], outcome)
    return outcome


def try_together(family, setting, entries, outcome) -> None:
    """Splits entries in one graph, or apart those that cannot be split together."""
    if not entries or len(outcome.failures) > 20:
        return
    built = Built(setting, entries)
    wanted = one_device(built)
    try:
        result = built.split(family.random_numbers)
    except Exception as error:  # noqa: BLE001 - any error is one of the entry
        if len(entries) == 1:
            text = f"{type(error).__name__}: {error}"[:400]
            outcome.failures.append(f"{told(entries[0])}: not split: {text}")
            return
        middle = len(entries) // 2
        for part in (entries[:middle], entries[middle:]):
            try_together(family, setting, part, outcome)
    else:
        look(built, result, outcome)
        require_one_device(family, built, wanted, outcome)


def require_one_device(family, built, wanted, outcome) -> None:
    """Notes the entries that do not give what one device gives."""
    for rows, values in built.run().items():
        for entry, value, other in zip(built.entries, values, wanted[rows], strict=True):
            if family.random_numbers == "per_device":
                fault = difference(shapes(value), shapes(other), 0.0)
            else:
                fault = difference(value, other, entry[0].tolerance())
            if fault:
                outcome.failures.append(f"{told(entry)}: {rows} rows: {fault}")


def one_device(built: Built) -> dict[int, list]:
    """Returns what one device gives: a graph that is not split yet."""
    found = built.run()
    faults = {
        f"{told(entry)}: {rows} rows: {str(value)[-200:]}"
        for rows, values in found.items()
        for entry, value in zip(built.entries, values, strict=True)
        if isinstance(value, Exception)
    }
    if faults:
        raise AssertionError("Not on one device:\n" + "\n".join(sorted(faults)))
    return found


def look(built: Built, result, outcome: Outcome) -> None:
    """Notes which kinds are split, and why others are not."""
    operations = built.operations()
    for number, entry in enumerate(built.entries):
        kinds = entry[0].kind.split()
        found = [op for op in operations.get(number, ()) if op.type in kinds]
        if {op.type for op in found} != set(kinds):
            outcome.missing.append(told(entry))
        for op in found:
            if result.how(op) == "split":
                outcome.split.add(op.type)
            elif result.how(op) == "whole":
                outcome.whole.setdefault(op.type, {})[told(entry)] = result.why(op)


def difference(found, wanted, tolerance: float) -> str:
    """Returns in what two lists of values differ; nothing if they do not."""
    if isinstance(found, Exception):
        return f"{type(found).__name__}: {str(found)[:300]}"
    for n, (one, other) in enumerate(zip(found, wanted, strict=True)):
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"output {n}: {one.dtype}{one.shape}, not {other.dtype}{other.shape}"
        if not is_close(one, other, tolerance):
            return f"output {n}: {one.reshape(-1)[:4]}, not {other.reshape(-1)[:4]}"
    return ""


def shapes(values):
    """Returns what is known of numbers that each device draws by itself."""
    if isinstance(values, Exception):
        return values
    return [f"{np.asarray(value).dtype}{np.shape(value)}" for value in values]


def is_close(one, other, tolerance: float) -> bool:
    """Whether two arrays are equal but for rounding."""
    own = None if other.dtype.kind in "OU" else TOLERANCES.get(tf.as_dtype(other.dtype))
    if own is None:
        return np.array_equal(one, other)
    wide = np.complex128 if other.dtype.kind == "c" else np.float64
    tolerance = max(own, tolerance)
    return np.allclose(one.astype(wide), other.astype(wide), tolerance, tolerance, equal_nan=True)
