"""From measures to verdicts, and verdicts as rows of a table."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicate import types
from replicate.verification import measures, races, runs, subjects

EQUAL = "equal"
DIFFERS = "differs"
RANDOM = "random"
ORDER = "depends on order"
ROUNDING = "depends on rounding"
OPEN = "open in the model"
NOT_COMPARED = "not compared"

_OF_SPLIT = (
    "A difference is a fault of replicate, unless the model depends on something outside of its "
    "graph, such as Python functions or the time."
)
_OF_LOSSES: dict[types.Reduction, str] = {
    "mean": (
        "Losses and gradients of towers are averaged by rows: that is one device's if the loss is "
        "a mean over rows."
    ),
    "sum": (
        "Losses and gradients of towers are added: that is one device's if the loss is a sum over "
        "rows. A penalty on weights counts once in each tower."
    ),
}
_OF_ROWS = (
    "A tower sees only its own rows, also in batch normalisation (averaged over all towers with "
    'update_ops="mean"), Python functions and losses over all rows. With tower_building="split" '
    "the model sees all of them."
)
_OF_ORDER = (
    "Values that depend on order change as much on one device if its rows come in another order, "
    "so they cannot be compared."
)
_OF_ROUNDING = (
    "Values that depend on rounding change as much on one device if the last bits of its weights "
    "do, so they cannot be compared."
)

_INDENT = "  "
_SHOWN = 3  # names in one line
_MAX_RULE = 80  # columns


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found for one kind of value.

    Attributes:
        what: The kind: loss, weights (their changes), slots, other variables, metrics,
            predictions, export outputs.
        verdict: `equal`; `differs`; `random`, all depends on random numbers; `open in the
            model`, a step reads and writes a variable, or writes it twice, in no order; `depends
            on order`, the order of rows alone makes differences of this size; `depends on
            rounding`, the last bits of weights alone do; `not compared`.
        difference: The largest one between the towers and one device; None where nothing
            was compared. Infinite where shapes differ, or numbers are not finite.
        noise: What another order of the rows, or weights rounded otherwise, makes on one device
            of the same value; None likewise.
        name: The value that differs most, for its noise.
        place: The batch at which it does.
        detail: The verdict's reason, in words.
        explanations: What is known to make such differences, or what the verdict means.
    """

    what: str
    verdict: str
    difference: float | None = None
    noise: float | None = None
    name: str = ""
    place: str = ""
    detail: str = ""
    explanations: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Verification:
    """K towers beside one device.

    Attributes:
        rows: One for each kind of value.
        devices: The towers' devices.
        batch_sizes: The numbers of rows that were tried.
        notes: What else there is to know: random numbers, what could not run.
    """

    rows: tuple[Row, ...]
    devices: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the towers give what one device gives, in all that could be compared."""
        return all(row.verdict != DIFFERS for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as plain data for JSON; what is infinite becomes a text."""
        plain = dataclasses.asdict(self)
        for row, name in itertools.product(plain["rows"], ("difference", "noise")):
            if row[name] is not None and not math.isfinite(row[name]):
                row[name] = str(row[name])
        return {"holds": self.holds, **plain}

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        count = len(self.devices)
        head = f"{count} tower{'' if count == 1 else 's'} ({', '.join(self.devices)})"
        lines = [f"{head} beside one device, on batches of {sizes} rows", ""]
        lines += _table(self.rows)
        texts = (*(text for row in self.rows for text in row.explanations), *self.notes)
        remarks = dict.fromkeys(texts)
        lines += ["", *(f"* {text}" for text in remarks)] if remarks else []
        return "\n".join([*lines, "", self._conclusion()])

    def _conclusion(self) -> str:
        def listed(*verdicts: str) -> str:
            return ", ".join(row.what for row in self.rows if row.verdict in verdicts)

        if not self.holds:
            return f"The towers do not give what one device gives: {listed(DIFFERS)}."
        untold, left_open = listed(ORDER, RANDOM, ROUNDING), listed(OPEN)
        left_out = f"; {untold} cannot be compared" if untold else ""
        left_out += f"; {left_open}: open in the model" if left_open else ""
        return f"The towers give what one device gives{left_out}."


def _table(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of a table with a head."""
    cells = [("what", "difference", "noise", "verdict")]
    for row in rows:
        verdict = f"{row.verdict}: {row.detail}" if row.detail else row.verdict
        cells.append((row.what, _number(row.difference), _number(row.noise), verdict))
    first, second, third = (max(len(line[i]) for line in cells) for i in range(3))
    lines = [
        _INDENT.join([what.ljust(first), apart.rjust(second), noise.rjust(third), verdict])
        for what, apart, noise, verdict in cells
    ]
    return [lines[0], "-" * min(max(map(len, lines)), _MAX_RULE), *lines[1:]]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


# Verdicts.


def judge(
    found: Sequence[measures.Measure], failed: Mapping[str, Exception], sides: subjects.Sides
) -> tuple[Row, ...]:
    """Returns one row for each kind of value.

    Args:
        found: All measures.
        failed: For a mode that one device cannot run, what it raised.
        sides: What was compared. A graph that is split keeps the order of rows; the calls of a
            model know no order but that of their own rows.
    """
    noises = measures.Noises(found)
    rows = []
    for what in runs.WHATS:
        of_kind = [one for one in found if one.key.what == what]
        if not of_kind:
            rows.append(Row(what, NOT_COMPARED, detail=_why_none(what, failed)))
        elif all(one.is_random for one in of_kind):
            rows.append(Row(what, RANDOM, detail="all of it depends on random numbers"))
        else:
            rows.append(_judge(of_kind, noises, sides))
    return tuple(rows)


def _judge(
    found: Sequence[measures.Measure], noises: measures.Noises, sides: subjects.Sides
) -> Row:
    """Returns the row of a kind of which something was compared."""
    compared = [one for one in found if one.is_compared]
    differing = [one for one in compared if noises.counts(one)]
    wrong = [one for one in differing if sides.is_split or not noises.depends_on_order(one)]
    if wrong:
        worst = max(wrong, key=noises.excess)
        is_explained = not all(one.fault for one in wrong)
        texts = _explanations(worst.key.what, sides) if is_explained else ()
        return _row(DIFFERS, worst, noises, _where(wrong, compared, worst), *texts)
    opened = [one for one in found if one.opened]
    if opened:
        return _open(compared, opened, noises)
    rounded = [one for one in compared if noises.depends_on_rounding(one)]
    for verdict, changed, why in (
        (ORDER, differing, _OF_ORDER),
        (ROUNDING, rounded, _OF_ROUNDING),
    ):
        if changed:
            worst = max(changed, key=lambda one: one.difference)
            names = _some(list(dict.fromkeys(one.key.name for one in changed)))
            return _row(verdict, worst, noises, names, why)
    return _row(EQUAL, max(compared, key=noises.excess), noises, _exceptions(found))


def _open(
    compared: Sequence[measures.Measure],
    opened: Sequence[measures.Measure],
    noises: measures.Noises,
) -> Row:
    """Returns the row of a kind of which a part depends on what the model leaves open."""
    found: dict[str, list[races.Race]] = {}
    for race in dict.fromkeys(race for one in opened for race in one.opened):
        found.setdefault(race.variable.name, []).append(race)
    is_compared = any(one.is_compared for one in opened)
    texts = (_told(*each, is_compared) for each in list(found.items())[:_SHOWN])
    if not compared:
        what = opened[0].key.what
        return Row(what, OPEN, detail=_some(list(found)), explanations=tuple(texts))
    return _row(OPEN, max(compared, key=noises.excess), noises, _some(list(found)), *texts)


def _row(
    verdict: str, worst: measures.Measure, noises: measures.Noises, detail: str, *texts: str
) -> Row:
    what, name = worst.key
    noise = noises.of(worst)
    return Row(what, verdict, worst.difference, noise, name, worst.place, detail, texts)


def _told(name: str, found: Sequence[races.Race], is_compared: bool) -> str:
    """Says what the races of a variable leave open."""
    uses = {use for race in found for use in (race.first, race.second)}
    writes, reads = (
        _some(sorted({use.op.name for use in uses if use.is_write is is_write}))
        for is_write in (True, False)
    )
    used = f"whether {name} is read ({reads}) before it" if reads else f"in which order {name}"
    here = "compared is what comes of reading first" if is_compared else "it is not compared"
    return (
        f"The model leaves open {used} is written ({writes}); {here}. tf.control_dependencies "
        "orders operations."
    )


def _explanations(what: str, sides: subjects.Sides) -> Iterator[str]:
    """Yields what is known to make a kind of value differ."""
    if sides.is_split:
        yield _OF_SPLIT
        return
    if what in (runs.LOSS, runs.WEIGHTS, runs.SLOTS):
        yield _OF_LOSSES[sides.reduction]
    yield _OF_ROWS


def _why_none(what: str, failed: Mapping[str, Exception]) -> str:
    """Says why nothing of a kind was compared."""
    errors = (error for mode, error in failed.items() if what in runs.OF_MODE[mode])
    names = ", ".join(dict.fromkeys(type(error).__name__ for error in errors))
    return f"one device raises {names}" if names else "the model_fn has none"


def _exceptions(found: Sequence[measures.Measure]) -> str:
    """Says what is left out, or what the order of rows matters to."""
    random, ordered = (sum(one.is_random for one in found), sum(one.order > 0 for one in found))
    if random:
        return f"{random} of {len(found)} values depend on random numbers"
    return f"{ordered} of {len(found)} values depend on the order of rows" if ordered else ""


def _where(
    wrong: Sequence[measures.Measure],
    compared: Sequence[measures.Measure],
    worst: measures.Measure,
) -> str:
    """Says which values differ, and where the most."""
    if worst.fault:
        return worst.fault
    count, of = (len({one.key.name for one in measured}) for measured in (wrong, compared))
    most = f"{worst.key.name} ({worst.place})"
    return most if of == 1 else f"{count} of {of}, most in {most}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
