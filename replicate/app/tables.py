"""Data files that fit in memory: CSV and npz files become arrays, bad rows become texts."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from replicate import errors
from replicate.app import checks, files, input_config

__all__ = ["read_csv", "read_npz"]

_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def read_csv(source: input_config.Csv, key: str) -> tuple[dict[str, np.ndarray], Any]:
    """Reads CSV files.

    Returns:
        Features as a dict of arrays of shape [rows], and the label's array or None.

    Raises:
        RunError: If a file or a row of it is bad; names the file and its line.
    """
    values: dict[str, list[Any]] = {name: [] for name in source.columns}
    for path in files.expanded(source.file, key):
        for place, row in _rows(path, source, key):
            for name, cell in row.items():
                values[name].append(_value_of(cell, name, place, source))
    if not any(values.values()):
        raise errors.RunError(f"{key}: {', '.join(source.file)}: must have rows, has none.")
    arrays = {name: _array(cells, source.columns[name]) for name, cells in values.items()}
    label = arrays.pop(source.label) if source.label is not None else None
    return arrays, label


def read_npz(source: input_config.Npz, key: str) -> tuple[Any, Any]:
    """Reads arrays from an npz file.

    Returns:
        Features, an array or a dict of arrays of shape [rows, ...], and the label's array
        or None.

    Raises:
        RunError: If the file is bad, lacks an array, or arrays differ in their rows.
    """
    stored = _load_npz(source.file, key)
    names = _npz_names(source, stored)
    wanted = {**names, **({} if source.label is None else {source.label: source.label})}
    for array in wanted.values():
        if array not in stored:
            near = checks.nearest(array, stored)
            then = f"Did you mean {near}?" if near else f"It has {', '.join(stored)}."
            raise errors.RunError(f"{key}: {source.file}: has no array {array!r}. {then}")
    _check_rows({array: stored[array] for array in wanted.values()}, source.file, key)
    features = {
        name: _cut(stored[array], source, (name, array), key) for name, array in names.items()
    }
    label = None
    if source.label is not None:
        label = _cut(stored[source.label], source, (source.label,), key)
    return (features[source.features] if isinstance(source.features, str) else features), label


def _npz_names(source: input_config.Npz, stored: Mapping[str, Any]) -> dict[str, str]:
    """Returns feature name -> array name."""
    if isinstance(source.features, dict):
        return source.features
    if source.features is None:
        return {name: name for name in stored if name != source.label}
    listed = (source.features,) if isinstance(source.features, str) else source.features
    return {name: name for name in listed}


def _load_npz(path: str, key: str) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise files.missing(path, key) from None
    except Exception as e:  # of zip, zlib, tokenize, struct ...: damage may raise anything
        if files.kind_of(path) != "text":  # a word about pickles would be in the way
            reason = str(e).rstrip(".") or type(e).__name__
            then = "Write it with numpy.savez."
        else:
            reason, then = "it is text", "Set kind: csv if it is a table."
        raise errors.RunError(
            f"{key}: {path}: must be a readable npz file: {reason}. {then}"
        ) from e


def _check_rows(arrays: Mapping[str, np.ndarray], path: str, key: str) -> None:
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        if array.ndim == 0:
            raise errors.RunError(
                f"{key}: {path}: {name} must have rows along axis 0, got a single value."
            )
        if len(array) != len(first):
            raise errors.RunError(
                f"{key}: {path}: {first_name} has {len(first)} rows, {name} has {len(array)}. "
                "Arrays of one input need the same number of rows."
            )


def _cut(array: np.ndarray, source: input_config.Npz, names: tuple[str, ...], key: str) -> Any:
    """Takes the rows and the dtype that the config says."""
    start, stop = source.rows or (None, None)
    rows = array[start:stop]
    if (stop is not None and stop > len(array)) or not len(rows):
        raise errors.RunError(
            f"{key}.rows: must lie within the {len(array)} rows of {source.file}, "
            f"got {[start, stop]}. Correct rows."
        )
    dtype = next((source.dtypes[name] for name in names if name in source.dtypes), None)
    try:
        return _converted(rows, dtype)
    except (ValueError, TypeError) as e:
        raise errors.RunError(
            f"{key}.dtypes: {source.file}: {names[0]} cannot be converted to {dtype or 'tensors'}: "
            f"{e}. Correct dtypes, or the file."
        ) from e


def _converted(rows: np.ndarray, dtype: str | None) -> np.ndarray:
    """Returns rows of a dtype, None: their own; text as UTF-8, as TensorFlow has it."""
    if dtype == "string" and rows.dtype.kind != "S":
        rows = rows.astype(str)
    elif dtype not in (None, "string"):
        rows = rows.astype(dtype)
    if rows.dtype.kind not in "biufcSU":
        raise TypeError(f"it holds {rows.dtype}, neither numbers nor text")
    return np.char.encode(rows, "utf-8") if rows.dtype.kind == "U" else rows


def _rows(path: str, source: input_config.Csv, key: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields (file and line, column -> cell) for each row of a file."""
    reader = csv.reader(
        io.StringIO(_text(path, key), newline=""), delimiter=source.delimiter, strict=True
    )
    names = None if source.header else list(source.columns)
    line = 1
    while True:
        place = f"{path}:{line}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            raise errors.RunError(f"{key}: {place}: must be CSV: {e}. Correct the row.") from e
        line = reader.line_num + 1
        if not cells:
            continue
        if names is None:
            names = _header(cells, source, f"{key}: {place}")
            continue
        if len(cells) != len(names):
            raise errors.RunError(
                f"{key}: {place}: must have {len(names)} cells like the "
                f"{'header' if source.header else 'columns'}, got {len(cells)}. Correct the row."
            )
        row = dict(zip(names, cells, strict=True))
        yield f"{key}: {place}", {name: row[name] for name in source.columns}


def _text(path: str, key: str) -> str:
    data = _content(path, key)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        files.refuse_other_kind(path, "text", key)
        line = data[: e.start].count(b"\n") + 1
        raise errors.RunError(
            f"{key}: {path}:{line}: must be UTF-8 text, got the byte {data[e.start]:#x}. "
            "Save the file as UTF-8."
        ) from e


def _content(path: str, key: str) -> bytes:
    """Returns a file's bytes; of one that is compressed with gzip, what is in it."""
    try:
        with (gzip.open if files.kind_of(path) == "gzip" else open)(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise files.missing(path, key) from None
    except (OSError, EOFError, zlib.error) as e:
        reason = getattr(e, "strerror", None) or str(e).rstrip(".")
        raise errors.RunError(
            f"{key}: {path}: must be a readable file: {reason}. Check the path, and the file."
        ) from e


def _header(cells: list[str], source: input_config.Csv, place: str) -> list[str]:
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


def _value_of(cell: str, name: str, place: str, source: input_config.Csv) -> Any:
    dtype = source.columns[name]
    text = cell if dtype == "string" else cell.strip()
    if not text and name in source.defaults:
        text = str(source.defaults[name])
    elif not text and dtype != "string":
        raise errors.RunError(
            f"{place}: {name} must be {dtype}, got an empty cell. "
            f"Fill it in, or give {name} a value in defaults."
        )
    try:
        return _convert(text, dtype)
    except (ValueError, KeyError, OverflowError):
        raise errors.RunError(
            f"{place}: {name} must be {dtype}, got {text!r}. Correct the cell, or columns."
        ) from None


def _convert(text: str, dtype: str) -> Any:
    if dtype == "string":
        return text
    if dtype == "bool":
        return _TRUTH[text.lower()]
    if "_" in text:
        raise ValueError(text)
    if dtype.startswith("float"):
        return float(text)
    value, limits = int(text), np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise OverflowError(text)
    return value


def _array(cells: list[Any], dtype: str) -> np.ndarray:
    if dtype == "string":
        return np.array([cell.encode() for cell in cells], dtype=object)
    return np.array(cells, dtype=dtype)
