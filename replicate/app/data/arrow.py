"""CSV and Parquet as arrays, by pyarrow: some rows at a time, for `tables`.

The cells of CSV are read as text, and become what the config says column by column.

NOTE: on macOS TensorFlow 2.20 and later abort or hang where pyarrow is imported as well
(https://github.com/tensorflow/tensorflow/issues/98563). So this is imported for a table alone.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import compute, csv, parquet

from replicate import errors
from replicate.app.config import cell_values, files, input_config, types
from replicate.app.data import csv_rows

Columns: TypeAlias = dict[str, npt.NDArray[Any]]  # each of shape [rows, ...], text as bytes
IsWanted: TypeAlias = Callable[[Iterable[str]], bool] | None

_PIECE = 4096  # rows at a time
_BLOCK = 2**21  # bytes of CSV at a time; a row is no longer


def of_csv(path: str, source: input_config.Csv, key: str, is_wanted: IsWanted) -> Iterator[Columns]:
    """Yields some rows of a file at a time.

    Args:
        path: The file.
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        is_wanted: Tells by the texts of all cells of a row whether it is; None: all are.

    Raises:
        RunError: If a row is bad; names its line.
    """
    names = csv_rows.names(path, source, key)
    if not names:
        return
    places = {name: str(names.index(name)) for name in source.columns}
    chosen = None if is_wanted else set(places.values())
    try:
        for batch in _csv_batches(path, source, key, len(names), chosen):
            batch = _kept(batch, is_wanted, str)
            for start in range(0, batch.num_rows, _PIECE):
                piece = batch.slice(start, _PIECE)
                yield {n: _column(piece.column(at), n, source) for n, at in places.items()}
    except (OSError, ValueError) as e:  # bases of pyarrow's
        csv_rows.refuse_first_bad(path, names, source, key)
        raise errors.RunError(
            f"{key}: {path}: must be CSV as the config says: {str(e).rstrip('.')}. Correct it, or "
            "the config."
        ) from e


def _csv_batches(
    path: str,
    source: input_config.Csv,
    key: str,
    width: int,
    places: Collection[str] | None,
) -> Iterator[Any]:
    """Yields the rows behind the header, all cells as text; columns are named by their number.

    Args:
        path: The file.
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        width: How many columns there are.
        places: The columns to read; None: all.
    """
    all_of_them = list(map(str, range(width)))
    # NOTE: pyarrow reads ahead in a thread of its own, which must not wait for Python: else it
    # hangs, or aborts, where this ends before the file does. So no file of Python's.
    form = "gzip" if files.kind_of(path) == "gzip" else None
    reader = csv.open_csv(
        pyarrow.input_stream(path, compression=form),
        csv.ReadOptions(block_size=_BLOCK, column_names=all_of_them),
        csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
        csv.ConvertOptions(
            column_types=dict.fromkeys(all_of_them, pyarrow.string()),
            include_columns=all_of_them if places is None else sorted({*places, all_of_them[-1]}),
        ),
    )
    skipped, last = int(source.header), ""
    for batch in reader:
        if batch.num_rows:
            last = batch.column(all_of_them[-1])[-1].as_py()
            yield batch.slice(skipped)
            skipped = 0
    if "\n" in last or "\r" in last:
        # For pyarrow the file's end closes a quote, which may have swallowed many rows.
        for _ in csv_rows.rows(path, source.delimiter, key):
            pass


def _column(cells: Any, name: str, source: input_config.Csv) -> npt.NDArray[Any]:
    """Returns a column of text as an array.

    Raises:
        ValueError: If a cell cannot be what the config says.
    """
    dtype, is_text = source.columns[name], source.columns[name] == "string"
    trimmed = compute.utf8_trim_whitespace(cells)
    cells = cells if is_text else trimmed
    absent = compute.is_in(cells, value_set=pyarrow.array(sorted({"", *source.na_values})))
    if name in source.defaults:
        default = cell_values.text_of(source.defaults[name], dtype)
        cells = compute.if_else(absent, default, cells)
    elif is_text:
        # A row without a label is not to be trained on as if it had one.
        if name == source.label and compute.any(compute.equal(trimmed, "")).as_py():
            raise ValueError(name)
    elif compute.any(absent).as_py():
        raise ValueError(name)
    if is_text:
        return cells.cast("binary").to_numpy(zero_copy_only=False)
    return _numbers(cells, dtype)


def _numbers(cells: Any, dtype: str) -> npt.NDArray[Any]:
    """Returns text as what it stands for; see `cell_values.value_of`, which is slower."""
    is_float = dtype.startswith("float")
    try:
        if compute.any(compute.match_substring(cells, "x")).as_py():  # 0x1 is a number to pyarrow
            raise ValueError("x")
        made = cells.cast("float64" if is_float else dtype).to_numpy(zero_copy_only=False)
    except ValueError:
        return np.array([cell_values.value_of(cell, dtype) for cell in cells.to_pylist()], dtype)
    if is_float:
        with np.errstate(over="ignore"):
            made = made.astype(dtype)
        for place in np.flatnonzero(np.isinf(made)).tolist():
            cell_values.value_of(cells[place].as_py(), dtype)
    return made


def of_parquet(
    path: str, source: input_config.Parquet, key: str, is_wanted: IsWanted
) -> Iterator[Columns]:
    """Yields some rows of a file at a time; see `of_csv`."""
    with _opened_parquet(path, key) as file:
        known = file.schema_arrow.names
        lacking = [name for name in source.columns if name not in known]
        if lacking:
            near = ", ".join(filter(None, (types.nearest(name, known) for name in lacking)))
            then = f", but has {near}" if near else ""
            raise ValueError(f"it lacks the column {' and the column '.join(lacking)}{then}")
        twice = [name for name in source.columns if known.count(name) > 1]
        if twice:
            raise ValueError(f"it has more than one column {' and '.join(twice)}")
        names = None if is_wanted else list(source.columns)
        for batch in file.iter_batches(_PIECE, columns=names):
            batch = _kept(batch, is_wanted, repr)
            if batch.num_rows:
                yield {name: _array(batch.column(name), name, source) for name in source.columns}


def _kept(batch: Any, is_wanted: IsWanted, text_of: Callable[[Any], str]) -> Any:
    """Returns the rows that are wanted, which the texts of all their cells tell."""
    if is_wanted is None:
        return batch
    cells = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    wanted = [is_wanted(map(text_of, row)) for row in cells]
    return batch.filter(pyarrow.array(wanted, pyarrow.bool_()))


def shapes_in(path: str, names: Iterable[str], key: str) -> dict[str, list[int | None]]:
    """Returns the shape of a row in the columns that a Parquet file has, as of its first rows.

    No value is converted. A size is None where lists differ in length.

    Raises:
        RunError: If it is no such file.
    """
    with _opened_parquet(path, key) as file:
        there = [name for name in names if name in file.schema_arrow.names]
        for batch in file.iter_batches(_PIECE, columns=there):
            if batch.num_rows:
                known = {name: _flat(batch.column(name))[0] for name in there}
                return {
                    name: [one[0] if len(one) == 1 else None for one in levels]
                    for name, levels in known.items()
                }
    return {}


def _flat(column: Any) -> tuple[list[list[int | None]], Any]:
    """Returns which lengths a column's lists have, level by level, and the values in them."""
    levels = []
    while hasattr(column, "value_lengths"):
        levels.append(column.value_lengths().unique().to_pylist())
        column = column.flatten()
    return levels, column


@contextlib.contextmanager
def _opened_parquet(path: str, key: str) -> Iterator[Any]:
    """Opens a file; while entered, faults are named by it."""
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, TypeError, NotImplementedError) as e:  # bases of pyarrow's
        raise errors.RunError(
            f"{key}: {path}: must be Parquet as the config says: {str(e).rstrip('.')}. Correct it, "
            "or the config."
        ) from e


def _array(column: Any, name: str, source: input_config.Parquet) -> npt.NDArray[Any]:
    """Returns a column as an array; lists of one length become its rows."""
    shape: list[int | None] = [len(column)]
    dtype = source.columns[name]
    levels, column = _flat(column)
    for lengths in levels:
        if len(lengths) != 1:
            raise ValueError(f"{name} must have lists of one length, got {lengths}")
        shape += lengths
    column = column.cast("binary" if dtype == "string" else dtype)
    if name in source.defaults:
        default = cell_values.text_of(source.defaults[name], dtype)
        column = column.fill_null(cell_values.value_of(default, dtype))
    if column.null_count:
        raise ValueError(f"{name} has empty cells; give {name} a value in defaults")
    return column.to_numpy(False).reshape(shape)
