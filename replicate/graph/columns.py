"""What K towers have in the same place, of which the later ones may be made when asked for."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Column(Sequence):
    """K values, one of each tower; the first is there, the others are made when asked for.

    Args:
        first: The first tower's value.
        number: K.
        later: Makes the others', once: K - 1 values.
    """

    def __init__(self, first: Any, number: int, later: Callable[[], Sequence]):
        self._first = first
        self._number = number
        self._later = later
        self._made: tuple | None = None

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            return self._first
        if index == slice(None, 1):
            return (self._first,)
        return (self._first, *self._others())[index]

    def __iter__(self) -> Iterator:
        yield self._first
        yield from self._others()

    def map(self, fn: Callable) -> "Column":
        """Returns the column of what a function returns of each value, when asked for."""
        return Column(fn(self._first), self._number, lambda: [fn(x) for x in self._others()])

    def _others(self) -> tuple:
        if self._made is None:
            self._made = tuple(self._later())
        return self._made

    def __repr__(self) -> str:
        return f"Column({self._first!r}, number={self._number}, is_made={self._made is not None})"


def of(values: Sequence) -> Sequence:
    """Returns values that stay as they are: a column as it is, anything else as a tuple."""
    return values if isinstance(values, Column) else tuple(values)


def made(values: Sequence) -> Sequence:
    """Returns those values that are there without being asked for."""
    return values[:1] if isinstance(values, Column) else values


def map_all(fn: Callable, values: Sequence) -> Sequence:
    """Returns what a function returns of each value; of a column, when asked for."""
    return values.map(fn) if isinstance(values, Column) else [fn(value) for value in values]
