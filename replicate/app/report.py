"""Results for people, as tables on stdout, and for machines, as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich
from rich import table as rich_table
from rich import text as rich_text

from replicate import verification
from replicate.app import predictions

__all__ = [
    "print_all_metrics",
    "print_all_metrics_json",
    "print_metrics",
    "print_metrics_json",
    "print_signatures",
    "print_verification",
    "print_verification_json",
    "summary_line",
]


_STEP = "global_step"


def print_metrics(metrics: Mapping[str, Any], title: str) -> None:
    """Prints metrics as a table, by name."""
    table = rich_table.Table(title=rich_text.Text(title), title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in sorted(metrics.items()):
        table.add_row(rich_text.Text(name), _number(value))
    rich.print(table)


def print_metrics_json(metrics: Mapping[str, Any]) -> None:
    """Prints metrics as one JSON object in one line."""
    print(predictions.json_line(dict(sorted(metrics.items()))))


def print_all_metrics(found: Sequence[Mapping[str, Any]], title: str) -> None:
    """Prints the metrics of several checkpoints as a table, a row for each."""
    names = sorted({name for metrics in found for name in metrics} - {_STEP})
    table = rich_table.Table(title=rich_text.Text(title), title_justify="left")
    for name in ("step", *names):
        table.add_column(rich_text.Text(name), justify="right")
    for metrics in found:
        cells = [_number(metrics[name]) if name in metrics else "" for name in names]
        table.add_row(str(metrics.get(_STEP, "")), *cells)
    rich.print(table)


def print_all_metrics_json(found: Sequence[Mapping[str, Any]]) -> None:
    """Prints the metrics of several checkpoints as a JSON list of objects in one line."""
    print(predictions.json_line([dict(sorted(metrics.items())) for metrics in found]))


def print_verification(found: verification.Verification) -> None:
    """Prints what was compared as a table."""
    print(found)


def print_verification_json(found: verification.Verification) -> None:
    """Prints what was compared as one JSON object in one line."""
    print(predictions.json_line(found.as_dict()))


def print_signatures(path: str, signatures: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints where a SavedModel is, and what goes into it and comes out."""
    print(path)
    for name, signature in signatures.items():
        print(f"  {name}")
        for side in ("inputs", "outputs"):
            for key, described in sorted(signature[side].items()):
                print(f"    {side[:-1]:6} {key}: {described}")


def summary_line(metrics: Mapping[str, Any]) -> str:
    """Returns metrics in one line of text, without the step."""
    names = [name for name in sorted(metrics) if name != _STEP]
    return "  ".join(f"{name} {_number(metrics[name])}" for name in names)


def _number(value: Any) -> str:
    plain = predictions.plain(value)
    return f"{plain:.6g}" if isinstance(plain, float) else str(plain)
