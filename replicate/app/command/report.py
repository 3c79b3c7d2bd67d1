"""Results for people, as tables on stdout."""

import sys
from collections.abc import Iterable, Mapping, Sequence

import rich
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


def print_metrics(metrics: Mapping[str, object], title: str) -> None:
    """Prints metrics as a table, by name, below a title that says the step."""
    print(title)
    table = rich_table.Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name in sorted(metrics.keys() - {json_output.STEP}):
        table.add_row(rich_text.Text(name), json_output.number(metrics[name]))
    rich.print(table)


def print_all_metrics(found: Sequence[Mapping[str, object]], title: str) -> None:
    """Prints the metrics of several checkpoints as a table, a row for each."""
    names = sorted({name for metrics in found for name in metrics} - {json_output.STEP})
    print(title)
    table = rich_table.Table()
    for name in ("step", *names):
        table.add_column(rich_text.Text(name), justify="right")
    for metrics in found:
        cells = [json_output.number(metrics[name]) if name in metrics else "" for name in names]
        table.add_row(str(metrics.get(json_output.STEP, "")), *cells)
    rich.print(table)


def print_signatures(title: str, signatures: Mapping[str, Mapping[str, Mapping[str, str]]]) -> None:
    """Prints where a SavedModel is, as a title tells, and what goes into it and comes out."""
    print(title)
    for name, signature in signatures.items():
        print(f"  {name}")
        for side in ("inputs", "outputs"):
            for key, described in sorted(signature[side].items()):
                print(f"    {side[:-1]:6} {key}: {described}")


def print_description(found: description.Description) -> None:
    """Prints a training's variables, devices, what is split and what travels, as tables."""
    towers = sum(device.tower is not None for device in found.devices)
    of_towers = f"{towers} tower{'s' if towers > 1 else ''} ({found.strategy})"
    print(f"{found.name}: {of_towers}, batches of {found.batch_size} rows")
    _print_table(
        ("variable", "kind", "shape", "dtype", "bytes", "device"),
        (
            (one.name, one.kind, _shape(one.shape), one.dtype, one.bytes, _places(one))
            for one in found.variables
        ),
    )
    columns = ["device", "tower", "variables", "bytes", "operations of a step"]
    if found.split is not None:
        columns.append("of them split by rows")
    rows = (
        (
            description.short(one.name),
            "" if one.tower is None else one.tower,
            *(one.variables, one.bytes, one.operations, one.of_tower),
        )
        for one in found.devices
    )
    _print_table(columns, (row[: len(columns)] for row in rows))
    if found.split is not None:
        _print_split(found.split)
    _print_traffic(found)


def _print_traffic(found: description.Description) -> None:
    """Prints what travels, and what each device holds and moves beside the bound."""
    if found.transfers:
        print("moved between devices in a step:")
        _print_table(
            ("from", "to", "tensors", "bytes", "of unknown size"),
            (
                (*map(description.short, one[:2]), one.tensors, one.bytes, one.unsized)
                for one in found.transfers
            ),
        )
    if found.bound is not None:
        print(
            "bytes of weights and slots, and of a step; bound: an even share, what all-reduce moves"
        )
        rows = [(description.short(d.name), d.held, d.sent, d.received) for d in found.devices]
        rows.append(("bound", found.bound.held, found.bound.moved, found.bound.moved))
        _print_table(("device", "held", "sent", "received"), rows)


def _print_split(found: splitting.Report) -> None:
    """Prints how many operations are split by rows, and which ones with rows run once, and why."""
    count, whole = len(found.whole), found.whole[:_MAX_WHOLE]
    largest = ", the largest:" if count > len(whole) else ":" if whole else ""
    print(
        f"one device's graph, split by rows: {found.split:,} operations on each of "
        f"{found.devices} devices; {count:,} with rows run once{largest}"
    )
    if whole:
        _print_table(
            ("operation", "kind", "bytes", "runs once because"),
            ((one.name, one.type, one.bytes, one.reason) for one in whole),
        )


def _print_table(columns: Iterable[str], rows: Iterable[Sequence[_Cell]]) -> None:
    """Prints a table, as wide as it is; a terminal folds what is too long for it.

    Args:
        columns: Their names; those with numbers are set to the right.
        rows: A cell for each column.
    """
    found = list(rows)
    table = rich_table.Table()
    for index, name in enumerate(columns):
        has_numbers = any(isinstance(row[index], int) for row in found)
        table.add_column(name, justify="right" if has_numbers else "left", overflow="fold")
    for row in found:
        table.add_row(*(rich_text.Text(_written(cell)) for cell in row))
    rich_console.Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def _written(cell: _Cell) -> str:
    if cell is None:
        return "?"
    return f"{cell:,}" if isinstance(cell, int) else cell


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
