"""Numbers that may grow with the rows: lengths of dimensions, and entries of shapes.

An `Amount` is a sum of products of symbols, such as 3·B + 2. Symbols are numbers of rows (of the
whole batch, of all picked rows, of one device) and unknown lengths. What follows from amounts holds
for every number of rows and every such length; what would hold for some only raises `UnknownError`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting.states import Space

MOST_ENTRIES = 256  # of a value that may be a length, or several

BATCH = "the batch's rows"
PICKED = "picked rows"  # of any space: not known to be equal to itself


class Extent(NamedTuple):
    """The length of one dimension, or an entry of a shape.

    Attributes:
        size: The length, or None if it is unknown or depends on the batch. In a shape, -1 stands
            for what is left over.
        multiple: How many entries each row has along the dimension: 0 if it has no rows, None if
            only a run tells.
        is_picked: Whether an operation picked the rows; else they are the batch's.
    """

    size: int | None
    multiple: int | None = 0
    is_picked: bool = False

    @property
    def is_one(self) -> bool:
        """Whether the dimension is of length 1, always."""
        return self.size == 1

    @property
    def is_known(self) -> bool:
        """Whether a dimension of an equal extent is as long."""
        return self.size is not None or (bool(self.multiple) and not self.is_picked)

    def has_rows(self, space: Space | None = None) -> bool:
        """Whether the length grows with rows; those of a space like this one, if given."""
        return self.multiple != 0 and (space is None or space.is_picked == self.is_picked)


def num_bytes(shape: Sequence[Extent], dtype: tf.DType, rows: int) -> int:
    """Returns the bytes of a tensor for a number of rows; an unknown length counts as one."""
    if dtype in (tf.string, tf.variant, tf.resource):
        return 0
    lengths = [
        (each.multiple or 1) * rows if each.has_rows() else 1 if each.size is None else each.size
        for each in shape
    ]
    return math.prod(lengths) * dtype.base_dtype.size


class UnknownError(Exception):
    """Nothing is known that holds for every number of rows."""


class Unknown:
    """A symbol for an unknown length: not known to be equal to any other."""


class Inner(Unknown):
    """A symbol for a length that depends on the batch's unknown inner dimensions."""


Symbol: TypeAlias = str | Space | Unknown
"""`BATCH`, `PICKED`, a space for one device's own rows of it, or an unknown length."""

Terms: TypeAlias = Mapping[tuple[Symbol, ...], int]
"""For each product of symbols its coefficient."""


class Sizes(NamedTuple):
    """The numbers that one inference of shapes assumes.

    Attributes:
        batch: Rows of the whole batch.
        picked: Picked rows.
        inner: The length of unknown inner dimensions, or None to leave them open.
    """

    batch: int
    picked: int
    inner: int | None = None


class Amount:
    """A number that grows with rows, or with unknown lengths.

    Args:
        terms: For each product of symbols its coefficient.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: Terms):
        self.terms = dict(terms)

    def __repr__(self) -> str:
        return f"Amount({self.terms})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __add__(self, other: "Number") -> "Number":
        terms = dict(self.terms)
        for symbols, factor in _terms(other).items():
            terms[symbols] = terms.get(symbols, 0) + factor
        return simplest(terms)

    __radd__ = __add__

    def __neg__(self) -> "Number":
        return self * -1

    def __sub__(self, other: "Number") -> "Number":
        return self + other * -1

    def __rsub__(self, other: "Number") -> "Number":
        return self * -1 + other

    def __mul__(self, other: "Number") -> "Number":
        terms: dict[tuple[Symbol, ...], int] = {}
        for left, a in self.terms.items():
            for right, b in _terms(other).items():
                symbols = _product(left, right)
                terms[symbols] = terms.get(symbols, 0) + a * b
        return simplest(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: "Number") -> "Number":
        return _divided(self, other)

    def __rfloordiv__(self, other: "Number") -> "Number":
        return _divided(other, self)

    def __mod__(self, other: "Number") -> int:
        return _left_over(self, other)

    def __rmod__(self, other: "Number") -> int:
        return _left_over(other, self)


Number: TypeAlias = int | Amount


def simplest(terms: Terms) -> Number:
    """Returns a sum as an int if it is one, else as an amount."""
    terms = {symbols: factor for symbols, factor in terms.items() if factor}
    if set(terms) <= {()}:
        return terms.get((), 0)
    return Amount(terms)


def rows(symbol: Symbol, multiple: int = 1) -> Amount:
    """Returns a multiple of a number of rows.

    Args:
        symbol: Whose rows.
        multiple: How many entries each row has.
    """
    return Amount({(symbol,): multiple})


def unknown() -> Amount:
    """Returns a new unknown length."""
    return Amount({(Unknown(),): 1})


def inner(multiple: int = 1) -> Amount:
    """Returns a multiple of a length that depends on unknown inner dimensions."""
    return Amount({(Inner(),): multiple})


def same(a: Number, b: Number) -> bool:
    """Whether two numbers are equal.

    Raises:
        UnknownError: If it depends on what is not known.
    """
    low, high = _bounds(a, b)
    if low == high == 0:
        return True
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise UnknownError("equal for some numbers of rows only")


def less(a: Number, b: Number) -> bool:
    """Whether one number is below another; raises `UnknownError`."""
    low, high = _bounds(a, b)
    if high is not None and high < 0:
        return True
    if low is not None and low >= 0:
        return False
    raise UnknownError("less for some numbers of rows only")


def larger(a: Number, b: Number) -> Number:
    """Returns the larger of two numbers; raises `UnknownError`."""
    for one, other in ((a, b), (b, a)):
        # NOTE: an inner length is at least 1 where anything is computed.
        if _is_inner(one) and isinstance(other, int) and other <= 1:
            return one
    return b if less(a, b) else a


def smaller(a: Number, b: Number) -> Number:
    """Returns the smaller of two numbers; raises `UnknownError`."""
    return a if less(a, b) else b


def inferred(dims: Sequence[int | None], sizes: Sequence[Sizes], static_rows: int | None) -> Number:
    """Returns the number that one inference, or two, found a length to be.

    Args:
        dims: The length in each inference, if it is known there.
        sizes: What each inference assumed.
        static_rows: How many rows the batch has, if that is known.
    """
    a, b = dims[0], dims[-1]
    if a is None or b is None:
        return unknown()
    if a == b:
        return a
    has_inner = sizes[0].inner != sizes[-1].inner
    for symbol, few, many in (
        (BATCH, sizes[0].batch, sizes[-1].batch),
        (PICKED, sizes[0].picked, sizes[-1].picked),
    ):
        if few != many and not (a % few or b % many):
            if a // few == b // many:
                return rows(symbol, a // few)
            return rows(symbol) * inner() if has_inner else unknown()
    if not has_inner:
        return unknown()
    return inner(static_rows if static_rows and not (a % static_rows or b % static_rows) else 1)


def at(number: Number, sizes: Sizes) -> int | None:
    """Returns a number's value for assumed numbers of rows, if it depends on nothing else."""
    total = 0
    for symbols, factor in _terms(number).items():
        for symbol in symbols:
            if symbol not in (BATCH, PICKED):
                return None
            factor *= sizes.batch if symbol == BATCH else sizes.picked
        total += factor
    return total


def extent(number: Number, static_rows: int | None) -> Extent:
    """Returns a number as rules see it.

    Args:
        number: A length, or an entry of a shape.
        static_rows: How many rows the batch has, if that is known.
    """
    if not isinstance(number, Amount):
        if static_rows and number > 0 and number % static_rows == 0:
            return Extent(None, number // static_rows)
        return Extent(int(number))
    if min(number.terms.values()) < 0:
        return Extent(None)
    for symbol, other in ((BATCH, PICKED), (PICKED, BATCH)):
        if all(symbol in symbols and other not in symbols for symbols in number.terms):
            return Extent(None, _multiple(number, symbol), symbol == PICKED)
    if static_rows and _is_inner(number) and not next(iter(number.terms.values())) % static_rows:
        return Extent(None, None)
    return Extent(None)


def own(number: Number, space: Space) -> Number:
    """Returns one device's part of a number that is a multiple of all rows.

    Raises:
        UnknownError: If it is no multiple of them.
    """
    symbol = PICKED if space.is_picked else BATCH
    terms = {}
    for symbols, factor in _terms(number).items():
        if symbol not in symbols:
            raise UnknownError("no multiple of rows")
        rest = list(symbols)
        rest.remove(symbol)
        terms[_product(rest, (space.base,))] = factor
    return simplest(terms)


def _terms(number: Number) -> Terms:
    if isinstance(number, Amount):
        return number.terms
    if not isinstance(number, int):
        raise UnknownError("no whole number")
    return {(): int(number)}


def _product(left: Sequence[Symbol], right: Sequence[Symbol]) -> tuple[Symbol, ...]:
    return tuple(sorted([*left, *right], key=lambda symbol: (str(symbol), id(symbol))))


def _multiple(number: Amount, symbol: str) -> int | None:
    return number.terms[(symbol,)] if list(number.terms) == [(symbol,)] else None


def _is_inner(number: Number) -> bool:
    """Whether a number is a multiple of an inner length."""
    if not isinstance(number, Amount) or len(number.terms) > 1:
        return False
    ((symbols, factor),) = number.terms.items()
    return len(symbols) == 1 and isinstance(symbols[0], Inner) and factor > 0


def _least(symbol: Symbol) -> int:
    """Returns a symbol's least value: a device has a row of the batch, perhaps a borrowed one."""
    return int(symbol == BATCH or (isinstance(symbol, Space) and not symbol.is_picked))


def _bounds(a: Number, b: Number) -> tuple[int | None, int | None]:
    """Returns the lower and the upper bound of the difference of two numbers, if there are any."""
    pair = (_terms(a), _terms(b))
    if all(any(PICKED in symbols for symbols in terms) for terms in pair):
        raise UnknownError("picked rows may be others")
    low: int | None = 0
    high: int | None = 0
    for symbols, coefficient in _terms(a - b).items():
        least = coefficient * min((_least(symbol) for symbol in symbols), default=1)
        is_open = bool(symbols)
        low = None if low is None or (is_open and coefficient < 0) else low + least
        high = None if high is None or (is_open and coefficient > 0) else high + least
    return low, high


def _divided(a: Number, b: Number) -> Number:
    """Returns a quotient that is exact for every number of rows."""
    divisor = _terms(b)
    if len(divisor) != 1:
        raise UnknownError("a division by a sum")
    ((symbols, number),) = divisor.items()
    if PICKED in symbols or not number:
        raise UnknownError("a division by what may be zero")
    terms = {}
    for left, factor in _terms(a).items():
        rest = list(left)
        for symbol in symbols if factor else ():
            if symbol not in rest:
                raise UnknownError("a division that is not exact")
            rest.remove(symbol)
        if factor % number:
            raise UnknownError("a division that is not exact")
        terms[tuple(rest)] = factor // number
    return simplest(terms)


def _left_over(a: Number, b: Number) -> int:
    """Returns the remainder of a division that is exact for every number of rows."""
    _divided(a, b)
    return 0
