"""What was found, as rows of a table."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

EQUAL = "equal"
DIFFERS = "differs"
RANDOM = "random"
ORDER = "depends on order"
ROUNDING = "depends on rounding"
NOT_COMPARED = "not compared"

_INDENT = "  "


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found for one kind of value.

    Attributes:
        what: The kind: loss, weights (their changes), slots, other variables, metrics,
            predictions, export outputs.
        verdict: `equal`; `differs`; `random`, all depends on random numbers; `depends on
            order`, the order of rows alone makes differences of this size; `depends on
            rounding`, the last bits of weights alone do; `not compared`.
        difference: The largest one between the towers and one device; None where nothing
            was compared. Infinite where shapes differ, or numbers are not finite.
        noise: What another order of the rows, or weights rounded otherwise, makes on one device
            of the same value; None likewise.
        name: The value that differs most, for its noise.
        place: The batch at which it does.
        detail: The verdict's reason, in words.
        explanations: What is known to make such differences, and is in this model.
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
        rows = [
            {name: _finite(value) for name, value in dataclasses.asdict(row).items()}
            for row in self.rows
        ]
        return {
            "holds": self.holds,
            "devices": list(self.devices),
            "batch_sizes": list(self.batch_sizes),
            "rows": [{**row, "explanations": list(row["explanations"])} for row in rows],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        count = len(self.devices)
        head = f"{count} tower{'' if count == 1 else 's'} ({', '.join(self.devices)})"
        lines = [f"{head} beside one device, on batches of {sizes} rows", ""]
        lines += _table(self.rows)
        remarks = once([*(text for row in self.rows for text in row.explanations), *self.notes])
        lines += ["", *(f"* {text}" for text in remarks)] if remarks else []
        return "\n".join([*lines, "", self._conclusion()])

    def _conclusion(self) -> str:
        if not self.holds:
            differing = [row.what for row in self.rows if row.verdict == DIFFERS]
            return f"The towers do not give what one device gives: {', '.join(differing)}."
        untold = [row.what for row in self.rows if row.verdict in (ORDER, RANDOM, ROUNDING)]
        left_out = f"; of {', '.join(untold)} that cannot be told" if untold else ""
        return f"The towers give what one device gives{left_out}."


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def once(texts: Iterable[str]) -> list[str]:
    """Returns texts in their order, each once."""
    return list(dict.fromkeys(texts))


def _table(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of a table with a head."""
    cells = [("what", "difference", "noise", "verdict")]
    for row in rows:
        verdict = f"{row.verdict}: {row.detail}" if row.detail else row.verdict
        cells.append((row.what, _number(row.difference), _number(row.noise), verdict))
    widths = [max(len(line[i]) for line in cells) for i in range(3)]
    lines = [
        f"{what:<{widths[0]}}{_INDENT}{apart:>{widths[1]}}{_INDENT}{noise:>{widths[2]}}{_INDENT}{verdict}"
        for what, apart, noise, verdict in cells
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
