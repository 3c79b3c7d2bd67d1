"""npz files become features and a label."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.config import cell_values, checks, files, input_config

__all__ = ["read_npz"]

_MAX_SIZES = {"f": 8, "c": 16}  # bytes of a number


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
    _need_dtypes_of_arrays(source, {*stored, *wanted}, key)
    _check_rows({array: stored[array] for array in wanted.values()}, source.file, key)
    features = {
        name: _cut(stored[array], source, (name, array), key) for name, array in names.items()
    }
    label = None
    if source.label is not None:
        label = _cut(stored[source.label], source, (source.label,), key)
    return (features[source.features] if isinstance(source.features, str) else features), label


def _need_dtypes_of_arrays(source: input_config.Npz, known: Collection[str], key: str) -> None:
    """Refuses a dtype that nothing would have; an array that this input leaves out may have one."""
    for name in source.dtypes:
        if name not in known:
            near = checks.nearest(name, sorted(known))
            then = f"Did you mean {near}?" if near else f"Known: {', '.join(sorted(known))}."
            raise errors.RunError(
                f"{key}.dtypes: must be of features and arrays, got {name!r}. {then}"
            )


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
        kind = files.kind_of(path)  # a word about pickles would be in the way
        if kind in ("gzip", "tfrecord"):
            files.refuse_other_kind(path, "npz", key)
        reason, then = str(e).rstrip(".") or type(e).__name__, "Write it with numpy.savez."
        if kind == "text":
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
        return _converted(rows, dtype, start or 0)
    except (ValueError, TypeError) as e:
        raise errors.RunError(
            f"{key}.dtypes: {source.file}: {names[0]} cannot be converted to {dtype or 'tensors'}: "
            f"{e}. Correct dtypes, or the file."
        ) from e


def _converted(rows: np.ndarray, dtype: str | None, start: int) -> np.ndarray:
    """Returns rows of a dtype, None: their own; text as UTF-8, as TensorFlow has it."""
    if dtype == "string" and rows.dtype.kind != "S":
        rows = rows.astype(str)
    elif dtype not in (None, "string"):
        rows = _cast(rows, dtype, start)
    if rows.dtype.kind not in "biufcSU":
        raise TypeError(f"it holds {rows.dtype}, neither numbers nor text")
    if rows.dtype.kind in "fc" and rows.dtype.itemsize > _MAX_SIZES[rows.dtype.kind]:
        raise TypeError(f"it holds {rows.dtype}, which TensorFlow has not")
    return np.char.encode(rows, "utf-8") if rows.dtype.kind == "U" else rows


def _cast(rows: np.ndarray, dtype: str, start: int) -> np.ndarray:
    """Returns rows as numbers of a dtype; raises where one is not the same number any more.

    Args:
        rows: [rows, ...], numbers or text.
        dtype: The dtype.
        start: Which row of the file the first one is.
    """
    if rows.dtype.kind in "SU":
        return _numbers(rows, dtype, start)
    with np.errstate(all="ignore"):
        made = rows.astype(dtype)
        if rows.dtype.kind not in "biuf" or made.dtype.kind == "b":
            return made
        is_exact = made.dtype.kind in "iu"
        changed = made != rows if is_exact else np.isfinite(rows) & ~np.isfinite(made)
    if changed.any():
        raise ValueError(_of_row(rows, changed.reshape(len(rows), -1).any(axis=1), start))
    return made


def _numbers(rows: np.ndarray, dtype: str, start: int) -> np.ndarray:
    """Returns text as the numbers that it stands for, as of cells of CSV; see `_cast`."""
    made = np.empty(rows.shape, dtype)
    for index in np.ndindex(rows.shape):
        text = rows[index]
        try:
            text = (text.decode() if isinstance(text, bytes) else str(text)).strip()
            made[index] = cell_values.convert(text, dtype)
        except (KeyError, OverflowError, ValueError):
            is_bad = [row == index[0] for row in range(len(rows))]
            raise ValueError(_of_row(rows, is_bad, start)) from None
    return made


def _of_row(rows: np.ndarray, is_bad: Any, start: int) -> str:
    """Returns a text on the first bad row, which is counted as the key `rows` counts."""
    place = int(np.argmax(is_bad))
    shown = np.array2string(rows[place], threshold=6, separator=", ").replace("\n", "")
    return f"row {start + place} (the first is 0) is {shown}"
