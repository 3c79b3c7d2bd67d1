"""Numbers of which some grow with the rows: lengths of dimensions, and entries of shapes.

An `Amount` is a sum of products, such as 3·B + 2, whose symbols are numbers of rows: of the whole
batch, of all picked rows, of one device's own. What follows from an amount holds for every number
of rows; where something would hold for some only, `UnknownError` is raised.

A coefficient is a pair of numbers, for two guesses of what is unknown of the inner dimensions.
Where the two agree, it does not depend on them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from replicate.splitting.rules.registry import Extent
from replicate.splitting.states import Space

BATCH = "the batch's rows"
PICKED = "picked rows"  # of one space or another: never equal to itself for certain


class UnknownError(Exception):
    """Nothing that holds for every number of rows."""


class Unknown:
    """A symbol for a length of which nothing is known."""


class Sizes(NamedTuple):
    """The numbers that one inference of shapes assumes.

    Attributes:
        batch: Rows of the whole batch.
        picked: Picked rows.
        guess: Which guess of unknown inner dimensions, 0 or 1.
    """

    batch: int
    picked: int
    guess: int = 0


class Amount:
    """A number that grows with rows, or with unknown inner dimensions.

    Args:
        terms: For each product of symbols its coefficient, as a pair.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[tuple, tuple[int, int]]):
        self.terms = dict(terms)

    def __repr__(self) -> str:
        return f"Amount({self.terms})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Amount) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __add__(self, other: Any) -> "Amount | int":
        terms = dict(self.terms)
        for symbols, pair in _terms(other).items():
            old = terms.get(symbols, (0, 0))
            terms[symbols] = (old[0] + pair[0], old[1] + pair[1])
        return simplest(terms)

    __radd__ = __add__

    def __neg__(self) -> "Amount | int":
        return self * -1

    def __sub__(self, other: Any) -> "Amount | int":
        return self + other * -1

    def __rsub__(self, other: Any) -> "Amount | int":
        return self * -1 + other

    def __mul__(self, other: Any) -> "Amount | int":
        terms: dict[tuple, tuple[int, int]] = {}
        for left, a in self.terms.items():
            for right, b in _terms(other).items():
                symbols = _product(left, right)
                old = terms.get(symbols, (0, 0))
                terms[symbols] = (old[0] + a[0] * b[0], old[1] + a[1] * b[1])
        return simplest(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> "Amount | int":
        return _divided(self, other)

    def __rfloordiv__(self, other: Any) -> "Amount | int":
        return _divided(other, self)

    def __mod__(self, other: Any) -> int:
        return _left_over(self, other)

    def __rmod__(self, other: Any) -> int:
        return _left_over(other, self)


Number = int | Amount


def simplest(terms: Mapping[tuple, tuple[int, int]]) -> Number:
    """Returns a sum as a plain number if it is one, else as an amount."""
    terms = {symbols: pair for symbols, pair in terms.items() if pair != (0, 0)}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms and len(set(terms[()])) == 1:
        return terms[()][0]
    return Amount(terms)


def rows(symbol: Any, multiple: int = 1, other: int | None = None) -> Amount:
    """Returns a multiple of a number of rows.

    Args:
        symbol: Whose: `BATCH`, `PICKED`, or a space: one device's own.
        multiple: How many entries each has.
        other: The same for the other guess; None: as many.
    """
    return Amount({(symbol,): (multiple, multiple if other is None else other)})


def unknown() -> Amount:
    """Returns an amount of which nothing is known."""
    return Amount({(Unknown(),): (1, 1)})


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
        # An unknown inner length stays one: it is not below 1 where anything is computed.
        if _is_inner(one) and isinstance(other, int) and other <= 1:
            return one
    return b if less(a, b) else a


def smaller(a: Number, b: Number) -> Number:
    """Returns the smaller of two numbers; raises `UnknownError`."""
    return a if less(a, b) else b


def inferred(dims: list[int | None], sizes: list[Sizes]) -> Number:
    """Returns what a length is, given what several inferences found.

    Args:
        dims: What each found; None: nothing.
        sizes: What each assumed. The first two differ in rows if two do, the last in its guess.
    """
    if None in dims:
        return unknown()
    first, more = sizes[0], next((n for n, each in enumerate(sizes) if _grew(each, sizes)), 0)
    pair = (dims[0], next((d for d, s in zip(dims, sizes, strict=True) if s.guess), dims[0]))
    if dims[more] == dims[0]:
        return simplest({(): pair})
    for symbol, each in ((BATCH, 0), (PICKED, 1)):
        a, b = first[each], sizes[more][each]
        if a != b and dims[more] * a == dims[0] * b and not (pair[0] % a or pair[1] % a):
            return rows(symbol, pair[0] // a, pair[1] // a)
    return unknown()


def at(number: Number, sizes: Sizes) -> int | None:
    """Returns what a number is for assumed numbers of rows; None: that is not known."""
    total = 0
    for symbols, pair in _terms(number).items():
        factor = pair[sizes.guess]
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
    if min(min(pair) for pair in number.terms.values()) < 0:
        return Extent(None)
    for symbol, other in ((BATCH, PICKED), (PICKED, BATCH)):
        if all(symbol in symbols and other not in symbols for symbols in number.terms):
            return Extent(None, _multiple(number.terms.get((symbol,)), number), symbol == PICKED)
    if static_rows and all(a > 0 and not a % static_rows for a in number.terms.get((), (0,))):
        if len(number.terms) == 1:
            return Extent(None, None)
    return Extent(None)


def own(number: Number, space: Space) -> Number:
    """Returns a number that is a multiple of all rows, with one device's rows in their place.

    Raises:
        UnknownError: If it is no multiple of them.
    """
    symbol, terms = PICKED if space.is_picked else BATCH, {}
    for symbols, pair in _terms(number).items():
        if symbol not in symbols:
            raise UnknownError("no multiple of rows")
        rest = list(symbols)
        rest.remove(symbol)
        terms[_product(rest, (space,))] = pair
    return simplest(terms)


def _terms(number: Number) -> Mapping[tuple, tuple[int, int]]:
    if isinstance(number, Amount):
        return number.terms
    if not isinstance(number, int):
        raise UnknownError("no whole number")
    return {(): (int(number), int(number))}


def _product(left: Any, right: Any) -> tuple:
    return tuple(sorted([*left, *right], key=lambda symbol: (str(symbol), id(symbol))))


def _grew(each: Sizes, sizes: list[Sizes]) -> bool:
    return each[:2] != sizes[0][:2]


def _multiple(pair: tuple[int, int] | None, number: Amount) -> int | None:
    if pair is not None and len(number.terms) == 1 and pair[0] == pair[1] and pair[0] > 0:
        return pair[0]
    return None


def _is_inner(number: Number) -> bool:
    """Whether a number depends on unknown inner dimensions alone, and is positive."""
    if not isinstance(number, Amount) or list(number.terms) != [()]:
        return False
    return min(number.terms[()]) > 0


def _least(symbol: Any) -> int:
    """The least value of a symbol: each device has a row of the batch, if only a borrowed one."""
    return int(symbol == BATCH or (isinstance(symbol, Space) and not symbol.is_picked))


def _bounds(a: Number, b: Number) -> tuple[int | None, int | None]:
    """Between what bounds the difference of two numbers is; None: there is no bound."""
    pair = (_terms(a), _terms(b))
    if all(any(PICKED in symbols for symbols in terms) for terms in pair):
        raise UnknownError("picked rows may be others")
    low: int | None = 0
    high: int | None = 0
    for symbols, (coefficient, other) in _terms(a - b).items():
        if coefficient != other:
            raise UnknownError("it depends on inner dimensions")
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
    symbols, (first, second) = next(iter(divisor.items()))
    if PICKED in symbols or not first or not second:
        raise UnknownError("a division by what may be zero")
    terms = {}
    for left, pair in _terms(a).items():
        rest = list(left)
        for symbol in symbols if any(pair) else ():
            if symbol not in rest:
                raise UnknownError("a division that is not exact")
            rest.remove(symbol)
        if pair[0] % first or pair[1] % second:
            raise UnknownError("a division that is not exact")
        terms[tuple(rest)] = (pair[0] // first, pair[1] // second)
    return simplest(terms)


def _left_over(a: Number, b: Number) -> int:
    """Returns the remainder of a division that is exact for every number of rows."""
    for terms in (_terms(a), _terms(b)):
        if any(first != second for first, second in terms.values()):
            raise UnknownError("it depends on inner dimensions")
    _divided(a, b)
    return 0
