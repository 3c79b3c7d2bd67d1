"""CSV row by row: slow, and knows the line of whatever is wrong."""

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.config import cell_values, checks, files, input_config
from replicate.app.data import csv_chunks

__all__ = ["array", "header", "pieces", "value_of"]

_PIECE = 50_000  # rows


def pieces(
    chunk: csv_chunks.Chunk,
    names: Sequence[str] | None,
    path: str,
    source: input_config.Csv,
    key: str,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the rows of a chunk, and of what comes after it, some at a time.

    Args:
        chunk: The chunk.
        names: The file's columns in their order; None: they are in the first row.
        path: The file, for error texts.
        source: The input as the config has it.
        key: Its key in the config, for error texts.

    Raises:
        RunError: If a row is bad; names the file and its line.
    """
    values: dict[str, list[Any]] = {name: [] for name in source.columns}
    count = 0
    for count, (place, row) in enumerate(_rows(chunk, names, path, source, key), start=1):
        for name, cell in row.items():
            values[name].append(value_of(cell, name, place, source))
        if count % _PIECE == 0:
            yield {name: array(cells, source.columns[name]) for name, cells in values.items()}
            values = {name: [] for name in source.columns}
    if count % _PIECE:
        yield {name: array(cells, source.columns[name]) for name, cells in values.items()}


def header(
    chunk: csv_chunks.Chunk, path: str, source: input_config.Csv, key: str
) -> tuple[list[str] | None, csv_chunks.Chunk]:
    """Returns the names in the first row of a file, and what comes after that.

    Without rows there are no names.
    """
    reader = _reader(chunk, path, source, key)
    for place, cells in reader:
        if cells:
            names = _names(cells, source, place)
            end = 0
            for _ in range(reader.lines_read):
                end = chunk.data.find(b"\n", end) + 1 or len(chunk.data)
            return names, chunk._replace(data=chunk.data[end:], line=chunk.line + reader.lines_read)
    return None, chunk._replace(data=b"")


class _reader:  # noqa: N801 - an iterator that also counts
    """Yields (key, file and line; cells) for each row of a chunk, blank ones too."""

    def __init__(self, chunk: csv_chunks.Chunk, path: str, source: input_config.Csv, key: str):
        self._chunk = chunk
        self._path = path
        self._key = key
        self._reader = csv.reader(self._texts(), delimiter=source.delimiter, strict=True)

    @property
    def lines_read(self) -> int:
        """How many lines the rows so far have."""
        return self._reader.line_num

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        while True:
            place = f"{self._key}: {self._path}:{self._chunk.line + self._reader.line_num}"
            try:
                cells = next(self._reader)
            except StopIteration:
                return
            except csv.Error as e:
                raise errors.RunError(f"{place}: must be CSV: {e}. Correct the row.") from e
            yield place, cells

    def _texts(self) -> Iterator[str]:
        for number, line in enumerate(csv_chunks.lines(self._chunk), start=self._chunk.line):
            try:
                yield line.decode()
            except UnicodeDecodeError as e:
                files.refuse_other_kind(self._path, "text", self._key)
                raise errors.RunError(
                    f"{self._key}: {self._path}:{number}: must be UTF-8 text, got the byte "
                    f"{line[e.start]:#x}. Save the file as UTF-8."
                ) from e


def _rows(
    chunk: csv_chunks.Chunk,
    names: Sequence[str] | None,
    path: str,
    source: input_config.Csv,
    key: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields (key, file and line; column -> cell) for each row."""
    for place, cells in _reader(chunk, path, source, key):
        if not cells:
            continue
        if names is None:
            names = _names(cells, source, place)
            continue
        if len(cells) != len(names):
            raise errors.RunError(
                f"{place}: must have {len(names)} cells like the "
                f"{'header' if source.header else 'columns'}, got {len(cells)}. Correct the row."
            )
        row = dict(zip(names, cells, strict=True))
        yield place, {name: row[name] for name in source.columns}


def _names(cells: list[str], source: input_config.Csv, place: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in source.columns:
        if names.count(name) != 1:
            near = checks.nearest(name, names)
            then = f"Did you mean {near}?" if near else "Correct columns, or set header: false."
            raise errors.RunError(
                f"{place}: the header must have the column {name!r} once, "
                f"got {', '.join(names)}. {then}"
            )
    return names


def value_of(cell: str, name: str, place: str, source: input_config.Csv) -> Any:
    """Returns what a cell holds, or its column's default.

    Raises:
        RunError: If it cannot be what the config says; begins with the place.
    """
    dtype = source.columns[name]
    text = cell if dtype == "string" else cell.strip()
    if not text and name in source.defaults:
        text = cell_values.text_of(source.defaults[name], dtype)
    elif not text and dtype != "string":
        raise errors.RunError(
            f"{place}: {name} must be {dtype}, got an empty cell. "
            f"Fill it in, or give {name} a value in defaults."
        )
    try:
        return cell_values.convert(text, dtype)
    except (ValueError, KeyError, OverflowError):
        raise errors.RunError(
            f"{place}: {name} must be {dtype}, got {text!r}. Correct the cell, or columns."
        ) from None


def array(cells: list[Any], dtype: str) -> np.ndarray:
    """Returns a column as an array; text as bytes."""
    if dtype == "string":
        return np.array([cell.encode() for cell in cells], dtype=object)
    return np.array(cells, dtype=dtype)
