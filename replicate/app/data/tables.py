"""Tables, CSV and Parquet, as arrays: whole, or some rows at a time. pyarrow reads them.

The cells of CSV are read as text, and become what the config says column by column.

NOTE: on macOS TensorFlow 2.20 and later abort or hang where pyarrow is imported as well
(https://github.com/tensorflow/tensorflow/issues/98563). So this is imported for a table alone.
"""

import contextlib
import csv
import gzip
import hashlib
import math
import os
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from replicate import errors
from replicate.app.config import cell_values, files, input_config, types

Columns: TypeAlias = dict[str, npt.NDArray[Any]]  # each of shape [rows, ...], text as bytes

_MAX_IN_MEMORY = 2**30  # bytes of all files together
_PACKED, _PACKED_RATIO = ("gzip", "parquet"), 5  # what is read is about so much longer
_OPEN_QUOTE = "unexpected end of data"  # how Python's reader tells of it
_BLOCK = 2**21  # bytes of CSV at a time; a row is no longer
_UNREADABLE = (  # what pyarrow and Python's readers raise, or its bases
    *(OSError, EOFError, ValueError, TypeError),
    *(pyarrow.ArrowException, csv.Error, zlib.error),
)


class _Fault(Exception):
    """What is wrong with a file, and in which of its rows, from 1 on, if it is in one."""

    def __init__(self, text: str, row: int | None = None):
        super().__init__(text)
        self.row = row


def fits_in_memory(source: input_config.Table, key: str) -> bool:
    """Tells whether all of an input's files together are small enough to be kept."""
    total = 0
    for path in files.expanded(source.file, key):
        total += os.path.getsize(path) * (_PACKED_RATIO if files.kind_of(path) in _PACKED else 1)
    return total <= _MAX_IN_MEMORY


def read(
    source: input_config.AnyTable, key: str, is_training: bool = False
) -> tuple[Columns, npt.NDArray[Any] | None]:
    """Reads files whole; returns features, and the label if there is one; see `pieces`."""
    found = list(pieces(source, key, is_training))
    return label_of({name: np.concatenate([p[name] for p in found]) for name in found[0]}, source)


def label_of(
    columns: Columns, source: input_config.Table
) -> tuple[Columns, npt.NDArray[Any] | None]:
    """Parts columns into features and the label, which may be None."""
    features = {name: one for name, one in columns.items() if name != source.label}
    return features, None if source.label is None else columns.get(source.label)


def pieces(source: input_config.AnyTable, key: str, is_training: bool = False) -> Iterator[Columns]:
    """Yields some rows at a time, of the files one after the other.

    Args:
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        is_training: Whether rows that are held out are left out; else they alone are there.

    Raises:
        RunError: If a file or a row of it is bad; names the file, and the line of CSV.
    """
    share, has_rows = source.holdout, False
    is_parquet = isinstance(source, input_config.Parquet)
    read_file: Any = _of_parquet if is_parquet else _of_csv
    for path in files.expanded(source.file, key):
        with naming(path, key, getattr(source, "delimiter", None)):
            for columns, rows in read_file(path, source):
                if share is not None:
                    kept = _are_held_out(rows, share, is_parquet) != is_training
                    columns = {name: column[kept] for name, column in columns.items()}
                if len(next(iter(columns.values()))):
                    has_rows = True
                    yield columns
    if not has_rows:
        named, which = ", ".join(source.file), f" for holdout: {share:g}" if share else ""
        raise errors.RunError(f"{key}: {named}: must have rows{which}, has none.")


@contextlib.contextmanager
def naming(path: str, key: str, delimiter: str | None) -> Iterator[None]:
    """While entered, what is wrong with a file is told with its path, and with the line of CSV.

    Args:
        path: The file.
        key: What is told ahead of it.
        delimiter: Of the cells of CSV; None: it is Parquet.
    """
    try:
        yield
    except (_Fault, *_UNREADABLE) as e:
        if delimiter is None or files.kind_of(path) != "gzip":
            files.refuse_other_kind(path, "parquet" if delimiter is None else "text", key)
        found, text = re.search(r"Row #(\d+)", str(e)), str(e)
        row = int(found[1]) if found else None
        if isinstance(e, _Fault):
            row = e.row
        else:
            kind, reason = "Parquet" if delimiter is None else "CSV", text.rstrip(".")
            text = f"must be {kind}, as the config says: {reason}. Correct it, or the config."
        raise errors.RunError(f"{key}: {path}{_line(path, delimiter, row)}: {text}") from e


def _line(path: str, delimiter: str | None, row: int | None) -> str:
    """Returns the line that a row of CSV begins in, behind a colon; nothing if it is not known."""
    if delimiter is not None and row is not None:
        with contextlib.suppress(*_UNREADABLE):
            for number, (line, _) in enumerate(texts(path, delimiter), start=1):
                if number == row:
                    return f":{line}"
    return ""


def texts(
    path: str, delimiter: str, is_strict: bool = False
) -> Generator[tuple[int, list[str]], None, None]:
    """Yields for each row of CSV the line that it begins in, and its cells, by Python's reader.

    Args:
        path: The file.
        delimiter: What separates the cells.
        is_strict: Whether a quote that is open where the file ends is a `csv.Error`. Rows in which
            other characters follow a quote that is closed are left out then.
    """
    opened: Any = gzip.open if files.kind_of(path) == "gzip" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
        reader, line = csv.reader(file, delimiter=delimiter, strict=is_strict), 1
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as e:
                if not is_strict or _OPEN_QUOTE in str(e):
                    raise
                cells = []  # the reader begins anew with the next line
            if cells is None:
                return
            if cells:
                yield line, cells
            line = reader.line_num + 1


def batches(path: str, delimiter: str, names: Sequence[str], skipped: int, **convert: Any) -> Any:
    """Returns a reader of some rows of CSV at a time.

    Args:
        path: The file.
        delimiter: What separates the cells.
        names: What its columns are called.
        skipped: How many rows are left out, as a header is.
        convert: How cells become values, as pyarrow's `ConvertOptions` take it.
    """
    # NOTE: pyarrow reads ahead in a thread of its own, which must not wait for Python: else it
    # hangs, or aborts, where this ends before the file does. So no file of Python's.
    return arrow_csv.open_csv(
        pyarrow.input_stream(path, compression="gzip" if files.kind_of(path) == "gzip" else None),
        arrow_csv.ReadOptions(  # of several threads errors do not name the row
            use_threads=False, block_size=_BLOCK, column_names=names, skip_rows_after_names=skipped
        ),
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(**convert),
    )


def _require_columns(names: Sequence[str], source: input_config.AnyTable, what: str) -> None:
    """Refuses a file that does not have each column once."""
    wrong = [name for name in source.columns if names.count(name) != 1]
    if wrong:
        near = " and ".join(filter(None, (types.nearest(name, names) for name in wrong)))
        then = f"Did you mean {near}?" if near else "Correct columns, or the file."
        if not set(wrong).isdisjoint(names):
            then = "Rename those that are there twice."
        raise _Fault(
            f"{what} must have the column {' and the column '.join(map(repr, wrong))} once, got "
            f"{', '.join(names)}. {then}",
            row=1,
        )


def _of_csv(path: str, source: input_config.Csv) -> Iterator[tuple[Columns, Any]]:
    """Returns the columns of some rows at a time, and all of them of pyarrow's for a holdout."""
    has_rows = True
    with contextlib.closing(texts(path, source.delimiter)) as rows:
        _, first = next(rows, (0, []))
        with contextlib.suppress(csv.Error):  # a cell of more than 128 KiB, which pyarrow reads
            has_rows = not source.header or next(rows, None) is not None
    if not first:
        return
    if "\ufffd" in "".join(first):  # which stands for bytes that are none
        raise _Fault("must be UTF-8 text. Save the file as UTF-8.", row=1)
    names = [cell.strip() for cell in first] if source.header else source.names_of(len(first))
    _require_columns(names, source, "the header")
    if not has_rows:
        return
    numbers, row, last = list(map(str, range(len(names)))), 1 + source.header, ""
    places = {name: numbers[names.index(name)] for name in source.columns}
    wanted = numbers if source.holdout is not None else sorted({*places.values(), numbers[-1]})
    are_texts = dict.fromkeys(numbers, pyarrow.string())
    convert = {"column_types": are_texts, "include_columns": wanted}
    for batch in batches(path, source.delimiter, numbers, int(source.header), **convert):
        cells = {name: batch.column(place) for name, place in places.items()}
        yield {name: _of_text(one, name, source, row) for name, one in cells.items()}, batch
        row += batch.num_rows
        last = batch.column(numbers[-1])[-1].as_py() if batch.num_rows else last
    if "\n" in last or "\r" in last:
        # For pyarrow the file's end closes a quote, which may have swallowed many rows.
        try:
            for _ in texts(path, source.delimiter, is_strict=True):
                pass
        except csv.Error as e:
            raise ValueError(f"Row #{row - 1}: {e}") from e


def _of_text(cells: Any, name: str, source: input_config.Csv, first_row: int) -> npt.NDArray[Any]:
    """Returns a column of text as an array."""
    dtype, is_text = source.columns[name], source.columns[name] == "string"
    trimmed = compute.utf8_trim_whitespace(cells)
    cells = cells if is_text else trimmed
    absent = compute.is_in(cells, value_set=pyarrow.array(["", *source.na_values]))
    if name in source.defaults:
        cells = compute.if_else(absent, cell_values.text_of(source.defaults[name], dtype), cells)
    elif not is_text or name == source.label:
        # Text may be empty; but a row without a label is not to be trained on as if it had one.
        place = compute.index(compute.equal(trimmed, "") if is_text else absent, True).as_py()
        if place >= 0:
            raise _Fault(
                f"{name} must be {dtype}, got {trimmed[place].as_py()!r}. Fill it in, or give "
                f"{name} a value in defaults.",
                first_row + place,
            )
    if is_text:
        return cells.cast("binary").to_numpy(zero_copy_only=False)
    return _numbers(cells, name, dtype, first_row)


def _numbers(cells: Any, name: str, dtype: str, first_row: int) -> npt.NDArray[Any]:
    """Returns text as the numbers that it stands for; see `cell_values.value_of`."""
    is_float = dtype.startswith("float")
    with contextlib.suppress(ValueError), np.errstate(over="ignore"):
        made = _cast(cells, "float64" if is_float else dtype).to_numpy(zero_copy_only=False)
        made = made.astype(dtype)
        if not (is_float and np.isinf(made).any()):  # which a large number may have become
            return made
    found = []
    for row, cell in enumerate(cells.to_pylist(), start=first_row):
        try:
            found.append(cell_values.value_of(cell, dtype))
        except ValueError:
            text = f"{name} must be {dtype}, got {cell!r}. Correct the cell, or columns."
            raise _Fault(text, row) from None
    return np.array(found, dtype)


def _cast(cells: Any, dtype: str) -> Any:
    """Returns cells of pyarrow's as another dtype.

    Raises:
        ValueError: If one of them is none of it.
    """
    # NOTE: for pyarrow the text 0x10 is the integer 16.
    if "int" in dtype and not pyarrow.types.is_primitive(cells.type):
        digits = compute.starts_with(cells.cast("string"), "0x", ignore_case=True)
        if compute.any(digits).as_py():
            cell = cells.filter(digits)[0].as_py()
            raise pyarrow.ArrowInvalid(f"{cell!r} has hexadecimal digits")
    made = cells.cast("binary" if dtype == "string" else dtype)
    if dtype in ("float16", "float32"):  # a number beyond them becomes infinity
        is_infinite = np.isinf(made.to_numpy(zero_copy_only=False))
        given = cells.filter(pyarrow.array(is_infinite)).cast("float64").to_pylist()
        if beyond := [cell for cell in given if math.isfinite(cell)]:
            raise pyarrow.ArrowInvalid(f"{beyond[0]!r} is beyond it")
    return made


def _of_parquet(path: str, source: input_config.Parquet) -> Iterator[tuple[Columns, Any]]:
    """See `_of_csv`."""
    with parquet.ParquetFile(path) as file:
        _require_columns(file.schema_arrow.names, source, "the file")
        names = None if source.holdout is not None else list(source.columns)
        for batch in file.iter_batches(columns=names):
            yield {name: _array(batch.column(name), name, source) for name in source.columns}, batch


def _array(column: Any, name: str, source: input_config.Parquet) -> npt.NDArray[Any]:
    """Returns a column as an array; lists of one length become its rows."""
    dtype, shape = source.columns[name], [len(column)]
    while hasattr(column, "value_lengths"):
        lengths = column.value_lengths().unique().to_pylist()
        if len(lengths) != 1:
            raise _Fault(f"{name} must have lists of one length, got {lengths}. Correct the file.")
        column, shape = column.flatten(), shape + lengths
    try:
        column = _cast(column, dtype)
    except pyarrow.ArrowException as e:  # which names a cell that is none of it
        reason = str(e).rstrip(".")
        raise _Fault(f"{name} must be {dtype}: {reason}. Correct columns, or the file.") from None
    if name in source.defaults:
        default = cell_values.text_of(source.defaults[name], dtype)
        column = column.fill_null(cell_values.value_of(default, dtype))
    if column.null_count:
        raise _Fault(f"{name} has empty cells; give {name} a value in defaults.")
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def _are_held_out(rows: Any, share: float, is_parquet: bool) -> npt.NDArray[np.bool_]:
    """Tells which rows are held out: by a hash of all their cells, so it is always or never."""
    text_of = repr if is_parquet else str
    found = []
    for cells in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        text = "\x1f".join(map(text_of, cells))
        digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
        found.append(int.from_bytes(digest, "big") < share * 2**32)
    return np.array(found, bool)
