"""Tables as arrays, whole or as a stream; CSV by columns, row by row only to name a fault."""

import csv
import gzip
import hashlib
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.config import cell_values, files, input_config, types
from replicate.app.data import parquet

Columns: TypeAlias = dict[str, npt.NDArray[Any]]  # each of shape [rows, ...], text as bytes
Row: TypeAlias = tuple[int, list[str]]  # the line it begins in, its cells

_PIECE = 4096  # rows at a time
_MAX_IN_MEMORY = 2**30  # bytes of all files together
_UNREADABLE = (OSError, EOFError, zlib.error, csv.Error)
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
        RunError: If a file or a row of it is bad; names the file and its line.
    """
    share, has_rows = source.holdout, False
    is_wanted = None if share is None else lambda row: _is_held_out(row, share) != is_training
    for path in files.expanded(source.file, key):
        if isinstance(source, input_config.Parquet):
            found = parquet.of_file(path, source, key, is_wanted)
        else:
            found = _of_file(path, source, key, is_wanted)
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


def _of_file(
    path: str, source: input_config.Csv, key: str, is_wanted: Callable[[Iterable[str]], bool] | None
) -> Iterator[Columns]:
    names = _names(path, source, key)
    try:
        with _opened(path) as file:
            found = filter(None, csv.reader(file, delimiter=source.delimiter, strict=True))
            if source.header:
                next(found, None)
            found = filter(is_wanted, found)
            while piece := list(itertools.islice(found, _PIECE)):
                by_name = dict(zip(names, zip(*piece, strict=True), strict=True))
                yield {name: _column(by_name[name], name, source) for name in source.columns}
    except (*_UNREADABLE, ValueError):
        _refuse_first_bad_row(path, names, source, key)
        raise


def rows(path: str, delimiter: str, key: str) -> Iterator[Row]:
    """Yields the rows of a file that are not blank.

    Args:
        path: The file, UTF-8, which may be compressed with gzip.
        delimiter: What separates the cells.
        key: What names the file, for error texts.

    Raises:
        RunError: If it cannot be read; names the line if it is no CSV there.
    """
    line = 1
    try:
        with _opened(path) as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for cells in reader:
                if cells:
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
        raise errors.RunError(f"{key}: {path}:{line}: must be CSV: {e}. Correct the row.") from e
    except UnicodeDecodeError:
        files.refuse_other_kind(path, "text", key)
        with _opened(path, encoding="latin-1") as file:
            line, byte = next(_bad_bytes(file))
        raise errors.RunError(
            f"{key}: {path}:{line}: must be UTF-8 text, got the byte {byte:#x}. "
            "Save the file as UTF-8."
        ) from None


def _opened(path: str, encoding: str = "utf-8-sig") -> IO[str]:
    opened = gzip.open if files.kind_of(path) == "gzip" else open
    return opened(path, "rt", encoding=encoding, newline="")


def _bad_bytes(file: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yields the lines in which a file that was read as Latin-1 is no UTF-8, and the byte there."""
    for number, line in enumerate(file, start=1):
        try:
            line.encode("latin-1").decode()
        except UnicodeDecodeError as e:
            yield number, e.object[e.start]


def _names(path: str, source: input_config.Csv, key: str) -> list[str]:
    """Returns the names of the columns, as of the first row; none where there is none."""
    for line, cells in rows(path, source.delimiter, key):
        if not source.header:
            return source.names_of(len(cells))
        names = [cell.strip() for cell in cells]
        wrong = [name for name in source.columns if names.count(name) != 1]
        if wrong:
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
    return []


def _column(cells: Sequence[str], name: str, source: input_config.Csv) -> npt.NDArray[Any]:
    """Returns a column as an array.

    Raises:
        ValueError: If a cell cannot be what the config says.
    """
    dtype, absent = source.columns[name], {"", *source.na_values}
    if name in source.defaults:
        default = cell_values.text_of(source.defaults[name], dtype)
        cells = [default if _given(cell, dtype) in absent else cell for cell in cells]
    elif source.na_values and dtype != "string" and not absent.isdisjoint(map(str.strip, cells)):
        raise ValueError(name)
    elif dtype == "string" and name == source.label and not all(map(str.strip, cells)):
        raise ValueError(name)  # a row without a label is not to be trained on as if it had one
    if dtype == "string":
        return np.array([cell.encode() for cell in cells], object)
    if dtype == "bool":
        return np.array([cell_values.value_of(cell.strip(), dtype) for cell in cells], dtype)
    if "_" in "".join(cells):  # Python takes 1_0 for a number
        raise ValueError(name)
    if not dtype.startswith("float"):
        values, (least, most) = list(map(int, cells)), cell_values.limits(dtype)
        if min(values) < least or max(values) > most:
            raise ValueError(name)
        return np.array(values, dtype)
    with np.errstate(over="ignore"):
        made = np.fromiter(map(float, cells), np.float64, len(cells)).astype(dtype)
    for place in np.flatnonzero(np.isinf(made)).tolist():
        cell_values.value_of(cells[place], dtype)
    return made


def _given(cell: str, dtype: str) -> str:
    return cell if dtype == "string" else cell.strip()


def _refuse_first_bad_row(
    path: str, names: Sequence[str], source: input_config.Csv, key: str
) -> None:
    """Raises a RunError that names the first bad row of a file."""
    found = rows(path, source.delimiter, key)
    for line, cells in itertools.islice(found, int(source.header), None):
        place = f"{key}: {path}:{line}"
        if len(cells) != len(names):
            raise errors.RunError(
                f"{place}: must have {len(names)} cells like the "
                f"{'header' if source.header else 'columns'}, got {len(cells)}. Correct the row."
            )
        row = dict(zip(names, cells, strict=True))
        for name, dtype in source.columns.items():
            text = _given(row[name], dtype)
            if dtype == "string":  # which may be empty, if it is not the label
                is_absent = name == source.label and not text.strip()
            else:
                is_absent = not text or text in source.na_values
            if is_absent and name not in source.defaults:
                shown = f"{text!r}, of na_values" if text.strip() else "an empty cell"
                raise errors.RunError(
                    f"{place}: {name} must be {dtype}, got {shown}. "
                    f"Fill it in, or give {name} a value in defaults."
                )
            try:
                _column([text], name, source)
            except ValueError:
                raise errors.RunError(
                    f"{place}: {name} must be {dtype}, got {text!r}. Correct the cell, or columns."
                ) from None
