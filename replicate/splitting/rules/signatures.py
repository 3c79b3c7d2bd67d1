"""Rules that one line says: which axes of operands and results are the same, and may have rows.

A signature has a term for each operand and each result, and in a term a letter for each axis, as
in Einstein's notation: `"...MN, ...NK -> ...MK"`.

| sign | meaning |
|---|---|
| `n` | a small letter: an axis that may have rows; all terms with this letter have them there |
| `C` | a capital: an axis that each device has whole |
| `...` | any number of axes that may have rows, the same ones in all terms |
| `*` | any number of axes that each device has whole |
| `n|1`, `...|1` | broadcast: an operand may have length 1 there, or lack the axis |
| `[nC]` | an operand that is a shape: that of the first result |
| `=` | a result that is the same on each device |
| `3 nC`, `nC+` | three such operands or results; one or more operands |

Rows along a letter that a result has are rows of the result; of any other each device makes a part,
and the parts are added. Operands that have no term go whole; results without one are like the last.
"""

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

from replicate.splitting import states
from replicate.splitting.rules import registry
from replicate.splitting.rules.registry import Case
from replicate.splitting.states import (
    COPIED,
    FLOW,
    SUM,
    ListOf,
    Partial,
    Rows,
    Split,
    State,
    View,
    WholeError,
)

Axes: TypeAlias = Sequence[str]
"""A name for each axis of an operand or a result; one in small letters may have rows.

Behind the name of an axis that an operand may lack, or have of length 1, is `|1`.
"""

ALL = range(sys.maxsize)  # operands
SHAPE: Axes = ("[]",)
_FRONT, _REST, _SAME, _ONE = "...", "*", "=", "|1"


class Said(NamedTuple):
    """A signature for the ranks of one operation.

    Attributes:
        operands: The axes of each operand; `[]` alone for a shape.
        results: The axes of each result; `=` alone for what is the same on each device.
    """

    operands: Sequence[Axes]
    results: Sequence[Axes]


_Says = TypeVar("_Says", bound=Callable[[Case], Said | str])


def signature(
    text: str,
    types: str,
    *,
    linear: Sequence[int] = (),
    needs_rows: bool = False,
    unless: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Registers a signature as the rule of kinds of operations.

    Args:
        text: The signature.
        types: The kinds, with blanks in between.
        linear: See `registry.rule`.
        needs_rows: Whether kernels fail on no rows, of which a device may have picked none.
        unless: Attributes with which an operation is whole, and why.
    """

    @by_axes(types, linear=linear, needs_rows=needs_rows)
    def said(case: Case) -> str:
        for name, reason in unless.items():
            if case.attribute(name):
                raise WholeError(reason)
        return text


def by_axes(
    types: str, *, linear: Sequence[int] = (), needs_rows: bool = False
) -> Callable[[_Says], _Says]:
    """Registers a function that returns a signature as the rule of kinds; see `signature`."""

    def register(function: _Says) -> _Says:
        @registry.rule(*types.split(), linear=linear)
        def answer(case: Case) -> Split:
            return split(case, function(case), needs_rows=needs_rows)

        return function

    return register


def along(
    types: str,
    n: int,
    *,
    goes: bool = False,
    linear: Sequence[int] = (),
) -> None:
    """Registers the rule of kinds that work along the axes that operand n names.

    Args:
        types: The kinds, with blanks in between.
        n: Which operand.
        goes: Whether these axes go away, or are kept with length 1 if `keep_dims` says so.
        linear: See `registry.rule`.
    """

    @by_axes(types, linear=linear)
    def said(case: Case) -> Said:
        axes = case.axes(n, case.rank(0))
        x = whole(names(case), axes)
        is_kept = "keep_dims" in case.op.node_def.attr and case.attribute("keep_dims")
        return Said([x], [reduced(x, axes, is_kept) if goes else x])


def names(case: Case, n: int = 0, letter: str = "a") -> list[str]:
    """Returns names for the axes of input n, all of which may have rows."""
    return [f"{letter}{axis}" for axis in range(case.rank(n))]


def whole(axes: Axes, which: Sequence[int]) -> list[str]:
    """Returns axes of which some must be whole."""
    return [name.upper() if axis in which else name for axis, name in enumerate(axes)]


def reduced(axes: Axes, which: Sequence[int], is_kept: bool = False) -> list[str]:
    """Returns axes of which some go away, or are kept with length 1."""
    if is_kept:
        return ["1" if axis in which else name for axis, name in enumerate(axes)]
    return [name for axis, name in enumerate(axes) if axis not in which]


def inserted(axes: Axes, place: int) -> list[str]:
    """Returns axes with a new one at a place, counted from the end if below 0."""
    place %= len(axes) + 1
    return [*axes[:place], "NEW", *axes[place:]]


def split(case: Case, said: Said | str, part: Partial = SUM, *, needs_rows: bool = False) -> Split:
    """Splits an operation along the first axis with rows that may have some.

    Args:
        case: The operation.
        said: Its signature, or the text of one.
        part: What each device has of a result that lacks the axis.
        needs_rows: See `signature`.
    """
    if any(state is FLOW or isinstance(state, ListOf) for state in case.inputs):
        raise WholeError("an operand is a list")
    said = read(case, said) if isinstance(said, str) else said
    axis, rows = _first_rows(case, said)
    if any(axes.count(axis) > 1 for axes in (*said.operands, *said.results)):
        raise WholeError("a diagonal")
    more = len(case.op.outputs) - len(said.results)
    results = [*said.results, *[said.results[-1]] * more][: len(case.op.outputs)]
    gives: list[State] = [
        COPIED if axes == (_SAME,) else rows.at(axes.index(axis)) if axis in axes else part
        for axes in results
    ]
    wants = [_wanted(case, n, said, axis, rows, gives[0]) for n in range(len(case.inputs))]
    return not_none(Split(wants, gives)) if needs_rows else Split(wants, gives)


def not_none(copies: Split) -> Split:
    """Refuses picked rows, of which a device may have none, for a kernel that fails on no rows."""
    if any(states.is_rows(want) and want.space.is_picked for want in copies.wants):
        raise WholeError("a device may have no rows")
    return copies


def _first_rows(case: Case, said: Said) -> tuple[str, Rows]:
    """Returns the axis that is split, and the first rows along it.

    Axes that the result has come first; of those that are broadcast the result's first.
    """
    with_rows = [
        (axes[state.axis], state)
        for axes, state in zip(said.operands, case.inputs, strict=False)
        if states.is_rows(state) and state.axis < len(axes)
    ]
    is_broadcast = any(name.endswith(_ONE) for name, _ in with_rows)
    # NOTE: rows that may be stretched to another operand's length need not be as many.
    fixed = {name for axes in said.operands for name in axes} if is_broadcast else set()
    candidates = [
        (name.removesuffix(_ONE), rows)
        for name, rows in with_rows
        if (name[0].islower() or name[0] == ".")
        and not (name.endswith(_ONE) and name.removesuffix(_ONE) in fixed)
    ]
    if not candidates:
        raise WholeError("it works along rows" if with_rows else "no operand has rows")
    result = said.results[0]
    kept = [each for each in candidates if each[0] in result]
    if kept and is_broadcast and not fixed.intersection(axis for axis, _ in kept):
        return min(kept, key=lambda each: result.index(each[0]))
    return (kept or candidates)[0]


def _wanted(case: Case, n: int, said: Said, axis: str, rows: Rows, result: State) -> View:
    axes = said.operands[n] if n < len(said.operands) else ()
    for name, view in ((axis, case.along), (axis + _ONE, case.along_or_one)):
        if name in axes:
            place = axes.index(name)
            is_as_given = case.inputs[n] is rows and rows.axis == place
            return rows if is_as_given else view(n, rows.at(place))
    if SHAPE[0] in axes and states.is_rows(result):
        return case.shape_view(n, result)
    return case.same(n)


# Reading.


class _Signs(NamedTuple):
    """The signs of a signature, for a number of operands.

    Attributes:
        operands: Those of each operand.
        results: Those of each result.
        ranked: The operands whose ranks say how many axes a sign stands for.
        is_open: Whether only the result's rank says how many `...` stands for.
    """

    operands: Sequence[Axes]
    results: Sequence[Axes]
    ranked: Sequence[int]
    is_open: bool


def read(case: Case, text: str) -> Said:
    """Returns a signature for the ranks of an operation."""
    signs = _parsed(text, len(case.inputs))
    ranks = tuple(case.rank(n) for n in signs.ranked)
    return _of_ranks(text, len(case.inputs), ranks, case.result_rank() if signs.is_open else 0)


@functools.cache
def _of_ranks(text: str, number: int, ranks: Sequence[int], result_rank: int) -> Said:
    """Returns a signature for ranks of the operands that have some, and of an open result."""
    signs = _parsed(text, number)
    front = result_rank - len(signs.results[0]) + 1
    if not signs.is_open:
        front = _number_in_front([signs.operands[n] for n in signs.ranked], ranks)
    of_operands = dict(zip(signs.ranked, ranks, strict=True))
    axes = [_expanded(term, of_operands.get(n), front) for n, term in enumerate(signs.operands)]
    return Said(axes, [_expanded(term, None, front) for term in signs.results])


@functools.cache
def _parsed(text: str, number: int) -> _Signs:
    """Returns the signs of operands and results, of an operation of so many operands."""
    left, right = text.split("->")
    operands = [term for each in left.split(",") for term in _terms(each, number)][:number]
    results = [term for each in right.split(",") for term in _terms(each, number)]
    ranked = [n for n, term in enumerate(operands) if _is_ranked(term)]
    is_open = any(_FRONT in term for term in operands)
    return _Signs(operands, results, ranked, is_open and not any(map(_is_fixed, operands)))


def _terms(text: str, number: int) -> list[Axes]:
    """Returns what stands between two commas: for each operand its signs."""
    term = text.strip()
    if term.startswith("["):
        return [SHAPE]
    times, blank, last = term.rpartition(" ")
    number = number if last.endswith("+") else int(times) if blank else 1
    return [tuple(re.findall(r"(?:\.\.\.|[A-Za-z*=])(?:\|1)?", last))] * number


def _is_ranked(term: Axes) -> bool:
    """Whether an operand's rank says how many axes a sign stands for."""
    return any(sign.startswith(_FRONT) for sign in term) or (_REST in term and len(term) > 1)


def _is_fixed(term: Axes) -> bool:
    """Whether a rank says how many axes `...` stands for."""
    return _FRONT in term and _REST not in term


def _number_in_front(operands: Sequence[Axes], ranks: Sequence[int]) -> int:
    """Returns how many axes `...` stands for."""
    terms = [(term, rank - len(term) + 1) for term, rank in zip(operands, ranks, strict=True)]
    fixed = {number for term, number in terms if _is_fixed(term)}
    if len(fixed) > 1:
        raise WholeError("ranks differ")
    broadcast = [number for term, number in terms if _FRONT + _ONE in term]
    return max([*fixed, *broadcast], default=0)


def _expanded(term: Axes, rank: int | None, front: int) -> Axes:
    """Returns the axes of a term, those that `...` stands for counted from the last one."""
    signs: list[str] = []
    for sign in term:
        if sign == _FRONT:
            signs += [f".{place}" for place in range(-front, 0)]
        elif sign == _FRONT + _ONE and rank is not None:
            signs += [f".{place}{_ONE}" for place in range(len(term) - 1 - rank, 0)]
        else:
            signs.append(sign)
    if rank is not None and _REST in signs and len(signs) > 1:
        at, rest = signs.index(_REST), rank - len(signs) + 1
        if rest < 0:
            raise WholeError("ranks differ")
        signs[at : at + 1] = [_REST] * rest
    return tuple(signs)
