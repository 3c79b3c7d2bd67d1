"""Results for people, as tables on stdout."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import console as rich_console
from rich import table as rich_table
from rich import text as rich_text

from replicate.app.inspect import description
from replicate.console import json_output
from replicate.splitting import report as splitting

_MAX_LISTED = 4  # devices
_MAX_WHOLE = 10  # operations that are whole
_WIDE = 1000  # columns, where no terminal says how many there are

_Cell = str | int | None  # None: a number that is not known


def print_metrics(found: Sequence[Mapping[str, object]], title: str, in_rows: bool = False) -> None:
    """Prints metrics as a table, below a title.

    Args:
        found: Those of one checkpoint, or of several.
        title: The title.
        in_rows: Whether each checkpoint has a row; else each metric of the first one.
    """
    names = sorted({name for metrics in found for name in metrics} - {json_output.STEP})
    print(title)
    cells = [[json_output.number(one[n]) if n in one else "" for n in names] for one in found]
    if in_rows:
        steps = [str(metrics.get(json_output.STEP, "")) for metrics in found]
        rows = [[step, *row] for step, row in zip(steps, cells, strict=True)]
        _print_table(("step", *names), rows, range(len(names) + 1))
    else:
        _print_table(("metric", "value"), list(zip(names, cells[0], strict=True)), (1,))


def print_signatures(title: str, signatures: Mapping[str, Mapping[str, Mapping[str, str]]]) -> None:
    """Prints where a SavedModel is, as a title tells, and what goes into it and comes out."""
    print(title)
    for name, signature in signatures.items():
        print(f"  {name}")
        for side in ("inputs", "outputs"):
            for key, described in signature[side].items():
                print(f"    {side[:-1]:6} {key}: {described}")


def print_description(found: description.Description) -> None:
    """Prints a training's variables, devices, what is split and what moves, as tables."""
    towers = sum(device.tower is not None for device in found.devices)
    of_towers = f"{towers} tower{'s' if towers > 1 else ''} ({found.strategy})"
    each = f", in {found.micro_batches} micro-batches each" if found.micro_batches > 1 else ""
    print(f"{found.name}: {of_towers}{each}, batches of {found.batch_size} rows")
    variables = [
        (one.name, one.kind, _shape(one.shape), one.dtype, one.bytes, _places(one))
        for one in found.variables
    ]
    _print_table(("variable", "kind", "shape", "dtype", "bytes", "device"), variables)
    columns = ["device", "tower", "variables", "bytes", "operations of a step"]
    columns += ["of them split by rows"] * (found.split is not None)
    rows: list[Sequence[_Cell]] = [
        (
            description.short(one.name),
            "" if one.tower is None else one.tower,
            *(one.variables, one.bytes, one.operations, one.of_tower),
        )
        for one in found.devices
    ]
    _print_table(columns, [row[: len(columns)] for row in rows])
    if found.split is not None:
        _print_split(found.split)
    if found.bound is not None or any(device.step for device in found.devices):
        _print_bytes(found)


def _print_bytes(found: description.Description) -> None:
    """Prints the bytes that devices hold and move, beside an even share and an all-reduce."""
    rest = f"; {found.unsized:,} tensors whose sizes only a run can tell" if found.unsized else ""
    print(f"bytes of weights and slots, and of a step{rest}:")
    rows: list[tuple[Any, ...]] = [
        (description.short(d.name), d.held, d.step, d.sent, d.received) for d in found.devices
    ]
    if found.bound is not None:
        rows.append(("bound", found.bound.held, "", found.bound.moved, found.bound.moved))
    _print_table(("device", "held", "a step's tensors", "sent", "received"), rows)


def _print_split(found: splitting.Report) -> None:
    """Prints how many operations are split by rows, and which ones with rows run once, and why."""
    count, whole = len(found.whole), found.whole[:_MAX_WHOLE]
    largest = ", the largest:" if count > len(whole) else ":" if whole else ""
    print(
        f"one device's graph, split by rows: {found.split:,} operations on each of "
        f"{found.devices} devices; {count:,} with rows run once{largest}"
    )
    if whole:
        rows = [(one.name, one.type, one.bytes, one.reason) for one in whole]
        _print_table(("operation", "kind", "bytes", "runs once because"), rows)


def _print_table(
    columns: Sequence[str], rows: Sequence[Sequence[_Cell]], numbers: Iterable[int] = ()
) -> None:
    """Prints a table, as wide as it is; a terminal folds what is too long for it.

    Args:
        columns: Their names; those with numbers are set to the right.
        rows: A cell for each column.
        numbers: Which columns have numbers that are written already.
    """
    table, written = rich_table.Table(), set(numbers)
    for index, name in enumerate(columns):
        is_right = index in written or any(isinstance(row[index], int) for row in rows)
        table.add_column(
            rich_text.Text(name), justify="right" if is_right else "left", overflow="fold"
        )
    for row in rows:
        cells = ("?" if one is None else f"{one:,}" if isinstance(one, int) else one for one in row)
        table.add_row(*map(rich_text.Text, cells))
    _Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


class _Console(rich_console.Console):
    """Leaves it to the command line that nobody reads on; rich would end the process."""

    def on_broken_pipe(self) -> None:
        """See base class."""
        raise BrokenPipeError


def _shape(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "?"
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"


def _places(variable: description.Variable) -> str:
    names = [description.short(name) for name in variable.devices]
    if len(names) == 1:
        return names[0]
    if len(names) > _MAX_LISTED:
        names = [*names[:2], "...", names[-1]]
    return f"{len(variable.devices)} copies: {', '.join(names)}"
