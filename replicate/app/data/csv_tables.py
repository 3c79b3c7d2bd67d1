"""CSV as arrays: fast where it is clean, row by row where it is not, whole or as a stream."""

import codecs
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.config import files, input_config
from replicate.app.data import csv_chunks, csv_rows

__all__ = ["fits_in_memory", "label_of", "pieces", "read_csv"]

_MAX_IN_MEMORY = 2**30  # bytes of all files together
_GZIP_RATIO = 5  # text is about so much longer than what gzip makes of it
_DELIMITERS = ",;|\t:"  # those that the fast reader and the patient one see alike


def fits_in_memory(source: input_config.Csv, key: str) -> bool:
    """Tells whether all of an input's files together are small enough to be kept."""
    total = 0
    for path in files.expanded(source.file, key):
        total += files.size(path) * (_GZIP_RATIO if files.kind_of(path) == "gzip" else 1)
    return total <= _MAX_IN_MEMORY


def read_csv(source: input_config.Csv, key: str) -> tuple[dict[str, np.ndarray], Any]:
    """Reads CSV files whole.

    Returns:
        Features as a dict of arrays of shape [rows], and the label's array or None.

    Raises:
        RunError: If a file or a row of it is bad; names the file and its line.
    """
    found = list(pieces(source, key))
    arrays = {name: np.concatenate([one[name] for one in found]) for name in source.columns}
    return label_of(arrays, source)


def label_of(
    arrays: dict[str, np.ndarray], source: input_config.Csv
) -> tuple[dict[str, np.ndarray], Any]:
    """Parts columns into features and the label, which may be None."""
    return arrays, arrays.pop(source.label) if source.label is not None else None


def pieces(source: input_config.Csv, key: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields column -> array for some rows of the files after the other.

    Raises:
        RunError: If a file or a row of it is bad; names the file and its line.
    """
    has_rows = False
    for path in files.expanded(source.file, key):
        for piece in _of_file(path, source, key):
            has_rows = True
            yield piece
    if not has_rows:
        raise errors.RunError(f"{key}: {', '.join(source.file)}: must have rows, has none.")


def _of_file(path: str, source: input_config.Csv, key: str) -> Iterator[dict[str, np.ndarray]]:
    names = None if source.header else list(source.columns)
    for given in csv_chunks.read(path, key):
        chunk = given
        if names is None and chunk.rest is None:
            names, chunk = csv_rows.header(chunk, path, source, key)
        fast = None
        if chunk.rest is None and names is not None:
            fast = _fast(chunk.data, names, source)
        if fast is None:
            yield from csv_rows.pieces(chunk, names, path, source, key)
        elif len(fast[next(iter(source.columns))]):
            yield fast


def _fast(
    data: bytes, names: Sequence[str], source: input_config.Csv
) -> dict[str, np.ndarray] | None:
    """Returns the columns of clean rows; None where something in them needs a closer look."""
    # NOTE: pandas skips a byte order mark, also of a chunk that does not begin a file.
    if source.delimiter not in _DELIMITERS or data.startswith(codecs.BOM_UTF8):
        return None
    rows = _count_rows(data, source.delimiter, len(names))
    if rows is None:
        return None
    if not rows:
        return {name: csv_rows.array([], dtype) for name, dtype in source.columns.items()}
    places = {names.index(name): name for name in source.columns}
    try:
        frame = _frame(data, len(names), places, source)
        if len(frame) != rows:
            return None
        with np.errstate(over="ignore"):
            return {name: _column(frame[place], name, source) for place, name in places.items()}
    except (errors.RunError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _count_rows(data: bytes, delimiter: str, num_cells: int) -> int | None:
    """Returns how many rows there are, blank lines aside; None where cells are too few or many."""
    text = np.frombuffer(data, np.uint8)
    ends = csv_chunks.outside_quotes(data, np.flatnonzero(text == ord("\n")))
    if len(data) and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    between = csv_chunks.outside_quotes(data, np.flatnonzero(text == ord(delimiter)))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    lengths = ends - starts
    is_blank = lengths == 0
    ones = np.flatnonzero(lengths == 1)
    is_blank[ones] = text[starts[ones]] == ord("\r")
    counts = np.diff(np.searchsorted(between, ends), prepend=0)
    if (counts[~is_blank] != num_cells - 1).any():
        return None
    return int((~is_blank).sum())


def _frame(data: bytes, num_cells: int, places: dict[int, str], source: input_config.Csv) -> Any:
    import pandas as pd  # takes half a second

    # Whole numbers are left to pandas: it makes them int64, and anything else something else;
    # asked for int64 it would take 2.0 for 2.
    dtypes, empty = {}, {}
    for place, name in places.items():
        kind = _kind(source.columns[name])
        if kind == "f":
            if not _has_truths(data):  # asked for floats pandas would take them for 1 and 0
                dtypes[place] = "float64"
            if name in source.defaults:
                empty[place] = [""]
        elif kind == "O" or name in source.defaults:
            dtypes[place] = object
    return pd.read_csv(
        io.BytesIO(data),
        sep=source.delimiter,
        header=None,
        names=range(num_cells),
        usecols=list(places),
        index_col=False,
        dtype=dtypes,
        na_values=empty,
        keep_default_na=False,
        na_filter=bool(empty),
        **_exact(pd),
        low_memory=False,
        engine="c",
    )


def _has_truths(data: bytes) -> bool:
    words = (b"true", b"True", b"TRUE", b"false", b"False", b"FALSE")
    return any(word in data for word in words)


def _exact(pd: Any) -> dict[str, str]:
    """Returns what lets pandas read the nearest number; from version 3 on it does by itself."""
    is_old = int(pd.__version__.partition(".")[0]) < 3
    return {"float_precision": "round_trip"} if is_old else {}


def _kind(dtype: str) -> str:
    """Returns f for floats, i for whole numbers, O for what is read as text."""
    kind = "O" if dtype in ("string", "bool") else np.dtype(dtype).kind
    return "i" if kind == "u" else kind


def _column(column: Any, name: str, source: input_config.Csv) -> np.ndarray:
    """Returns a column as the config wants it; raises where that is not plainly so."""
    dtype = source.columns[name]
    if dtype == "string":
        default = csv_rows.value_of("", name, "", source)
        return csv_rows.array([cell or default for cell in column], dtype)
    if dtype == "bool":
        truth = {text: csv_rows.value_of(text, name, "", source) for text in column.unique()}
        return column.map(truth).to_numpy(bool)
    if _kind(dtype) == "f":
        if column.dtype.kind not in "fiu":
            raise TypeError(name)
        if name in source.defaults and column.hasnans:
            column = column.fillna(csv_rows.value_of("", name, "", source))
        return _floats(column.to_numpy(), dtype)
    if name in source.defaults:
        import pandas as pd

        default = str(csv_rows.value_of("", name, "", source))
        column = pd.to_numeric(column.where(column != "", default))
    values, limits = column.to_numpy(), np.iinfo(dtype)
    if values.dtype.kind not in "iu" or values.min() < limits.min or values.max() > limits.max:
        raise OverflowError(name)
    return values.astype(dtype)


def _floats(values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns numbers as floats; raises where one may be too large to be one."""
    made = values.astype(dtype)
    if np.isinf(made).any():
        raise OverflowError(dtype)
    return made
