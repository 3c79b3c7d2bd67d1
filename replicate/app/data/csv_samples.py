"""What a CSV file holds: its delimiter, its header, a dtype for each column."""

import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.app.config import files
from replicate.app.data import samples

__all__ = ["look"]

_DELIMITERS = ",;\t|"
_LOOKED_AT = 20  # rows, for the delimiter
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_LEAST, _MOST = -(2**63), 2**63 - 1  # of an int64
_EMPTY = {"int64": 0, "float32": 0.0, "bool": False}


def look(path: str, label: str | None) -> samples.Sample:
    """Looks at a file.

    Args:
        path: The file, which may be compressed with gzip.
        label: The column that is the label; None: the one that is called so.

    Raises:
        RunError: If it is no table.
    """
    delimiter = _delimiter(path)
    rows = list(itertools.islice(_rows(path, delimiter), samples.ROWS))
    if not rows:
        raise errors.RunError(f"{path}: must have rows, has none.")
    has_header = _has_header(rows)
    names = [cell.strip() for cell in rows[0]] if has_header else _numbered(len(rows[0]))
    _refuse_repeated(names, path)
    columns = list(zip(*rows[has_header:], strict=True)) or [()] * len(names)
    dtypes = {name: _dtype(cells) for name, cells in zip(names, columns, strict=True)}
    keys: dict[str, Any] = {"kind": "csv", "file": path, "columns": dtypes}
    empty = {
        name: _EMPTY[dtypes[name]]
        for name, cells in zip(names, columns, strict=True)
        if dtypes[name] in _EMPTY and not all(cell.strip() for cell in cells)
    }
    if empty:
        keys["defaults"] = empty
    if not has_header:
        keys["header"] = False
    if delimiter != ",":
        keys["delimiter"] = delimiter
    other = samples.beside(path)
    return samples.Sample(
        keys,
        names,
        label or samples.label_of(names),
        {"file": other} if other else {},
        {
            "columns": f"dtypes as of the first {len(rows) - has_header} rows",
            "defaults": "change: what stands for an empty cell",
            "header": "change: name the columns above" if not has_header else "",
        },
    )


def _rows(path: str, delimiter: str) -> Iterator[list[str]]:
    """Yields the cells of each row that is not blank, all of the same number."""
    try:
        opened = gzip.open if files.kind_of(path) == "gzip" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            count = None
            for row in filter(None, reader):
                count = len(row) if count is None else count
                if len(row) != count:
                    raise errors.RunError(
                        f"{path}:{reader.line_num}: must have {count} cells like the first row, "
                        f"got {len(row)}. Correct the row."
                    )
                yield row
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as e:
        reason = getattr(e, "strerror", None) or str(e).rstrip(".")
        raise errors.RunError(f"{path}: must be readable as CSV: {reason}. Check the file.") from e


def _delimiter(path: str) -> str:
    """Returns the delimiter that gives the most cells in each of the first rows."""
    counts, shown = {}, []
    for delimiter in _DELIMITERS:
        try:
            rows = list(itertools.islice(_rows(path, delimiter), _LOOKED_AT))
        except errors.RunError:
            continue
        counts[delimiter] = len(rows[0]) if rows else 0
        if counts[delimiter] == 1:
            shown = [one for one in _DELIMITERS if one in rows[0][0]]
    best = max(counts, key=counts.__getitem__, default=",")
    # Where none fits, the one that is there is to be complained about.
    return shown[0] if shown and counts[best] == 1 else best


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    first = [cell.strip() for cell in rows[0]]
    return all(first) and len(set(first)) == len(first) and not any(map(_is_number, first))


def _numbered(count: int) -> list[str]:
    return [f"column_{number}" for number in range(1, count + 1)]


def _refuse_repeated(names: Sequence[str], path: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise errors.RunError(
                f"{path}: columns must have different names, got {name!r} twice. Rename one."
            )


def _dtype(cells: Iterable[str]) -> str:
    """Returns the dtype that all cells have which are not empty."""
    given = {cell.strip() for cell in cells} - {""}
    if not given:
        return "string"
    if all(cell.lower() in ("true", "false") for cell in given):
        return "bool"
    if all(map(_is_whole, given)):
        return "int64"
    has_zeros = any(re.fullmatch(r"0[0-9]+", cell) for cell in given)  # a code, not a number
    return "float32" if all(map(_is_number, given)) and not has_zeros else "string"


def _is_whole(cell: str) -> bool:
    # Python refuses to read thousands of digits.
    is_short = _WHOLE.fullmatch(cell) is not None and len(cell) <= len(str(_LEAST))
    return is_short and _LEAST <= int(cell) <= _MOST


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
