"""What a template draws from: the values that a model has so far, lengths, axes, words."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class NothingFitsError(Exception):
    """No value so far is what a template asks for."""


class Value(NamedTuple):
    """A value of a model.

    Attributes:
        name: The Python variable that holds it.
        kind: "float", "int", "bool", "text", "sparse" or "ragged".
        known: Its lengths as the graph knows them; None: it does not.
        shapes: Its shapes, one for each batch.
        is_small: Whether it is an id: an integer that may look a row of a table up.
    """

    name: str
    kind: str
    known: tuple[int | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_small: bool = False

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.known)


class Draw:
    """Fills a template; what it draws follows from its random numbers.

    Args:
        random: Random numbers.
        values: What there is so far, oldest first.
        lengths: Lengths that models break on: 1, 2, K, B, and more.
        name: A name for what a step creates.
    """

    def __init__(
        self, random: random.Random, values: Sequence[Value], lengths: Sequence[int], name: str
    ):
        self._random = random
        self._values = values
        self._lengths = lengths
        self.name = repr(name)
        self.last: Value = values[0]

    def one(self, *words: Any) -> str:
        """One of several words."""
        return str(self._random.choice(words))

    def often(self, word: str, share: float = 0.5) -> str:
        """A word, or nothing."""
        return word if self._random.random() < share else ""

    @property
    def n(self) -> str:
        """A small length."""
        return str(self._random.choice(self._lengths))

    def value(self, kind: str, fits: Callable[[Value], bool] = bool) -> str:
        """A value of a kind that fits, rather a late one."""
        found = [value for value in self._values if value.kind == kind and fits(value)]
        if not found:
            raise NothingFitsError(kind)
        self.last = self._random.choices(found, range(2, len(found) + 2))[0]
        return self.last.name

    def f(self, low: int = 0, high: int = 9, fits: Callable[[Value], bool] = bool) -> str:
        """A tensor of numbers, of a rank from `low` to `high`."""
        return self.value("float", lambda v: low <= v.rank <= high and fits(v))

    def wide(self, low: int = 1, high: int = 9) -> str:
        """A tensor of numbers whose last length the graph knows."""
        return self.f(low, high, lambda v: bool(v.known[-1]))

    def like(self, kind: str = "float") -> str:
        """A value of the shape of the last one, which stays the last."""
        last = self.last
        name = self.value(kind, lambda v: v.shapes == last.shapes)
        self.last = last
        return name

    def beside(self, kind: str = "float", low: int = 1) -> str:
        """A value of as many rows as the last one has; that stays the last."""
        last = self.last

        def fits(value: Value) -> bool:
            pairs = zip(value.shapes, last.shapes, strict=True)
            return value.rank >= low and all(a[:1] == b[:1] for a, b in pairs)

        name = self.value(kind, fits)
        self.last = last
        return name

    def axis(self) -> int:
        """An axis of the last value."""
        if not self.last.rank:
            raise NothingFitsError("axis")
        return self._random.randrange(self.last.rank)

    def axes(self) -> str:
        """Some axes of the last value, or all."""
        if not self.last.rank:
            return "None"
        count = self._random.randint(1, self.last.rank)
        return str(sorted(self._random.sample(range(self.last.rank), count)))

    def order(self) -> list[int]:
        """An order of the axes of the last value."""
        return self._random.sample(range(self.last.rank), self.last.rank)

    def length(self, axis: int, of: Value | None = None) -> str:
        """A length of the last value: a number, or read in the graph."""
        value = of or self.last
        number = value.known[axis]
        if number is None or self._random.random() < 0.2:
            return f"tf.shape({value.name})[{axis}]"
        return str(number)

    def plain(self, of: str = "h") -> str:
        """An expression of `h` that keeps its shape."""
        last, other = self.last, self.f()
        self.last = last
        return self.one(
            f"tf.tanh({of})",
            f"0.5 * {of} + 0.1",
            f"{of} * tf.reduce_mean({other})",
            f"{of} - tf.reduce_mean({of})",
            f"tf.nn.softmax({of} + tf.reduce_sum({other}))",
            f"tf.reduce_sum({of}, 0, keepdims=True) * {of}",
        )

    def body(self, of: str = "h", depth: int = 2) -> str:
        """An expression of `h` that keeps its shape; may hold functions, branches, loops."""
        if not depth or self._random.random() < 0.75:
            return self.plain(of)
        body = self.body(of, depth - 1)
        return self.one(
            f"called(lambda {of}: {body}, {of})",
            f"tf.cond(tf.reduce_sum({of}) > 0.0, lambda: {body}, lambda: {of} * 0.5)",
            f"tf.map_fn(lambda {of}: {body}, {of})",
        )
