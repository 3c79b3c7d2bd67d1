"""Tables, CSV and Parquet, as arrays: read by pyarrow, whole or as a stream.

The cells of CSV are read as text, and become what the config says column by column. Python's own
reader of CSV looks at a file only to name the line of a fault.
"""

import contextlib
import csv
import gzip
import hashlib
import itertools
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from replicate import errors
from replicate.app.config import cell_values, files, input_config, types

Columns: TypeAlias = dict[str, npt.NDArray[Any]]  # each of shape [rows, ...], text as bytes
Row: TypeAlias = tuple[int, list[str]]  # the line it begins in, its cells
IsWanted: TypeAlias = Callable[[Iterable[str]], bool] | None

_PIECE = 4096  # rows at a time
_BLOCK = 2**21  # bytes of CSV at a time; a row is no longer
_MAX_IN_MEMORY = 2**30  # bytes of all files together
_PACKED, _PACKED_RATIO = ("gzip", "parquet"), 5  # what is read is about so much longer


def fits_in_memory(source: input_config.Table, key: str) -> bool:
    """Tells whether all of an input's files together are small enough to be kept."""
    total = 0
    for path in files.expanded(source.file, key):
        total += files.size(path) * (_PACKED_RATIO if files.kind_of(path) in _PACKED else 1)
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
    is_wanted = None if share is None else lambda row: _is_held_out(row, share) != is_training
    for path in files.expanded(source.file, key):
        if isinstance(source, input_config.Parquet):
            found = _of_parquet(path, source, key, is_wanted)
        else:
            found = _of_csv(path, source, key, is_wanted)
        for piece in found:
            has_rows = True
            yield piece
    if not has_rows:
        named, which = ", ".join(source.file), f" for holdout: {share:g}" if share else ""
        raise errors.RunError(f"{key}: {named}: must have rows{which}, has none.")


def _is_held_out(row: Iterable[str], share: float) -> bool:
    """Tells whether a row is held out: by a hash of its cells, so it is always or never."""
    digest = hashlib.blake2b("\x1f".join(row).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < share * 2**32


def _kept(batch: Any, is_wanted: IsWanted, text_of: Callable[[Any], str]) -> Any:
    """Returns the rows that are wanted, which the texts of all their cells tell."""
    if is_wanted is None:
        return batch
    cells = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    wanted = [is_wanted(map(text_of, row)) for row in cells]
    return batch.filter(pyarrow.array(wanted, pyarrow.bool_()))


def _of_csv(
    path: str, source: input_config.Csv, key: str, is_wanted: IsWanted
) -> Iterator[Columns]:
    names = _names(path, source, key)
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
    except (OSError, EOFError, zlib.error, ValueError) as e:  # the last one is pyarrow's, too
        _refuse_first_bad_row(path, names, source, key)
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
    reader = arrow_csv.open_csv(
        pyarrow.input_stream(path, compression=form),
        arrow_csv.ReadOptions(block_size=_BLOCK, column_names=all_of_them),
        arrow_csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(
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
        for _ in rows(path, source.delimiter, key):
            pass


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


def _names(path: str, source: input_config.Csv, key: str) -> list[str]:
    """Returns the names of the columns, as of the first row; none where there is none."""
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


def _refuse_first_bad_row(
    path: str, names: Sequence[str], source: input_config.Csv, key: str
) -> None:
    """Raises a RunError that names the first bad row of a file, or a bad quote, if there is one."""
    found, wrong = rows(path, source.delimiter, key, is_strict=False), None
    for line, cells in itertools.islice(found, int(source.header), None):
        if len(cells) != len(names):
            wrong = errors.RunError(
                f"{key}: {path}:{line}: must have {len(names)} cells like the "
                f"{'header' if source.header else 'columns'}, got {len(cells)}. Correct the row."
            )
            if next(found, None) is None:  # perhaps a quote is not closed, which is told first
                break
            raise wrong
        row = dict(zip(names, cells, strict=True))
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


def _of_parquet(
    path: str, source: input_config.Parquet, key: str, is_wanted: IsWanted
) -> Iterator[Columns]:
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


def names_in(path: str, key: str) -> set[str]:
    """Returns the columns of a Parquet file.

    Raises:
        RunError: If it is none.
    """
    with _opened_parquet(path, key) as file:
        return set(file.schema_arrow.names)


def shapes_in(path: str, names: Iterable[str], key: str) -> dict[str, list[int | None]]:
    """Returns the shape of a row in columns of a Parquet file, as of its first rows, if any.

    No value is converted. A size is None where lists differ in length.
    """
    with _opened_parquet(path, key) as file:
        for batch in file.iter_batches(_PIECE, columns=list(names)):
            if batch.num_rows:
                known = {name: _flat(batch.column(name))[0] for name in names}
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
