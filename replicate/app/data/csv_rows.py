"""CSV row by row, by Python's own reader: names of columns, and the line of a fault."""

import csv
import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from replicate import errors
from replicate.app.config import cell_values, files, input_config, types

Row: TypeAlias = tuple[int, list[str]]  # the line it begins in, its cells


def rows(path: str, delimiter: str, key: str, is_strict: bool = True) -> Iterator[Row]:
    """Yields the rows of a file that are not blank.

    Args:
        path: The file, UTF-8, which may be compressed with gzip.
        delimiter: What separates the cells.
        key: What names the file, for error texts.
        is_strict: Whether quotes must be as they should; else any are taken, as pyarrow does.

    Raises:
        RunError: If it cannot be read; names the line if it is no CSV there.
    """
    line = 1
    try:
        opened: Any = gzip.open if files.kind_of(path) == "gzip" else open
        options = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": ""}
        with opened(path, "rt", **options) as file:
            reader = csv.reader(file, delimiter=delimiter, strict=is_strict)
            for cells in reader:
                if cells:
                    "".join(cells).encode()
                    yield line, cells
                line = reader.line_num + 1
    except FileNotFoundError:
        raise files.missing(path, key) from None
    except (OSError, EOFError, zlib.error) as e:
        reason = getattr(e, "strerror", None) or str(e).rstrip(".")
        raise errors.RunError(
            f"{key}: {path}: must be a readable file: {reason}. Check the path, and the file."
        ) from e
    except csv.Error as e:
        _refuse_other_kind(path, key)
        raise errors.RunError(f"{key}: {path}:{line}: must be CSV: {e}. Correct the row.") from e
    except UnicodeEncodeError as e:  # of what stands for a byte that is no UTF-8
        _refuse_other_kind(path, key)
        byte = ord(e.object[e.start]) & 0xFF
        raise errors.RunError(
            f"{key}: {path}:{line}: must be UTF-8 text, got the byte {byte:#x}. "
            "Save the file as UTF-8."
        ) from None


def _refuse_other_kind(path: str, key: str) -> None:
    if files.kind_of(path) != "gzip":
        files.refuse_other_kind(path, "text", key)


def names(path: str, source: input_config.Csv, key: str) -> list[str]:
    """Returns the names of a file's columns, as of the first row; none where there is none."""
    line, cells = next(rows(path, source.delimiter, key), (0, []))
    if not cells or not source.header:
        return source.names_of(len(cells)) if cells else []
    names = [cell.strip() for cell in cells]
    wrong = [name for name in source.columns if names.count(name) != 1]
    if wrong:
        _refuse_other_kind(path, key)
        twice = [name for name in wrong if name in names]
        near = " and ".join(filter(None, (types.nearest(name, names) for name in wrong)))
        then = f"Did you mean {near}?" if near else "Correct columns, or set header: false."
        if twice:
            then = f"Rename {' and '.join(twice)} in the header: it must be there once."
        raise errors.RunError(
            f"{key}: {path}:{line}: the header must have the column "
            f"{' and the column '.join(map(repr, wrong))} once, got {', '.join(names)}. {then}"
        )
    return names


def refuse_first_bad(path: str, columns: Sequence[str], source: input_config.Csv, key: str) -> None:
    """Raises a RunError that names the first bad row of a file, or a bad quote, if there is one."""
    found, wrong = rows(path, source.delimiter, key, is_strict=False), None
    for line, cells in itertools.islice(found, int(source.header), None):
        if len(cells) != len(columns):
            wrong = errors.RunError(
                f"{key}: {path}:{line}: must have {len(columns)} cells like the "
                f"{'header' if source.header else 'columns'}, got {len(cells)}. Correct the row."
            )
            if next(found, None) is None:  # perhaps a quote is not closed, which is told first
                break
            raise wrong
        row = dict(zip(columns, cells, strict=True))
        _refuse_bad_cells(row, source, f"{key}: {path}:{line}")
    for _ in rows(path, source.delimiter, key):
        pass
    if wrong:
        raise wrong


def _refuse_bad_cells(row: dict[str, str], source: input_config.Csv, place: str) -> None:
    """Raises a RunError that names the first bad cell of a row."""
    missing = {"", *source.na_values}
    for name, dtype in source.columns.items():
        is_text, has_default = dtype == "string", name in source.defaults
        text = row[name] if is_text else row[name].strip()
        if has_default and text in missing:
            continue
        # Text may be empty, if it is not the label.
        is_absent = name == source.label and not text.strip() if is_text else text in missing
        if is_absent and not has_default:
            shown = f"{text!r}, of na_values" if text.strip() else "an empty cell"
            raise errors.RunError(
                f"{place}: {name} must be {dtype}, got {shown}. "
                f"Fill it in, or give {name} a value in defaults."
            )
        try:
            cell_values.value_of(text, dtype)
        except ValueError:
            raise errors.RunError(
                f"{place}: {name} must be {dtype}, got {text!r}. Correct the cell, or columns."
            ) from None
