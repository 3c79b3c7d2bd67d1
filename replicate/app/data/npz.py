"""Arrays from npz files: features and a label, checked against what the config says."""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.config import cell_values, files, input_config, types

Features: TypeAlias = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]

_MAX_SIZES = {"f": 8, "c": 16}  # bytes of a number
_OWN = "tensors"  # of whatever dtype the array has


def read(
    source: input_config.Npz, key: str, has_label: bool = True
) -> tuple[Features, npt.NDArray[Any] | None]:
    """Reads features and, if there is one, the label, all of shape [rows, ...].

    Args:
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        has_label: Whether its label is wanted.

    Raises:
        RunError: If the file is bad, lacks an array, or arrays differ in their rows.
    """
    stored = load(source.file, key)
    labels = () if source.label is None else (source.label,)
    wanted = _names(source, stored)
    if not wanted:
        raise errors.RunError(
            f"{key}: {source.file}: must have an array besides the label, has none. Add it."
        )
    wanted += [(label, label) for label in labels if has_label]
    for _, array in wanted:
        if array not in stored:
            then = types.meant(array, stored, "Correct features and label, or the file.")
            raise errors.RunError(
                f"{key}: {source.file}: must have the array {array!r}, got {', '.join(stored)}. "
                f"{then}"
            )
    _need_dtypes_of_arrays(source, {*stored, *labels, *(name for name, _ in wanted)}, key)
    _check_rows({array: stored[array] for _, array in wanted}, source.file, key)
    found = [(name, _cut(stored[array], source, (name, array), key)) for name, array in wanted]
    label = found.pop()[1] if has_label and labels else None
    return (found[0][1] if isinstance(source.features, str) else dict(found)), label


def _need_dtypes_of_arrays(source: input_config.Npz, known: Collection[str], key: str) -> None:
    """Refuses a dtype that nothing would have; an array that this input leaves out may have one."""
    for name in source.dtypes:
        if name not in known:
            then = types.meant(name, sorted(known), f"Known: {', '.join(sorted(known))}.")
            raise errors.RunError(
                f"{key}.dtypes: must be of features and arrays, got {name!r}. {then}"
            )


def _names(source: input_config.Npz, stored: Collection[str]) -> list[tuple[str, str]]:
    """Returns (feature's name, array's name) of each feature."""
    named = source.features
    if isinstance(named, dict):
        return list(named.items())
    if named is None:
        named = tuple(name for name in stored if name != source.label)
    return [(name, name) for name in ((named,) if isinstance(named, str) else named)]


def load(path: str, key: str) -> dict[str, npt.NDArray[Any]]:
    """Returns all arrays of a file, by name, in this machine's byte order.

    Raises:
        RunError: If it cannot be read, without unpickling anything.
    """
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            found = {name: _array(archive, name) for name in archive.files}
            for name, one in found.items():
                if not isinstance(one, np.ndarray):  # but bytes, as it does not begin as one
                    raise ValueError(f"{name} is no array")
            # NOTE: `tf.numpy_function` takes the bytes of any other order for its own.
            return {n: a.astype(a.dtype.newbyteorder("="), copy=False) for n, a in found.items()}
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


def _array(archive: np.lib.npyio.NpzFile, name: str) -> npt.NDArray[Any]:
    """Returns an array; in place of Python objects, which are not unpickled, an empty one."""
    try:
        return archive[name]
    except ValueError as e:
        if "allow_pickle" not in str(e):
            raise
        return np.empty(0, object)


def _check_rows(arrays: Mapping[str, npt.NDArray[Any]], path: str, key: str) -> None:
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise errors.RunError(
                f"{key}: {path}: {name} must hold numbers or text, but holds Python objects, as of "
                "lists of several lengths. Pad them to one length, or take astype(str) of text."
            )
        if array.ndim == 0:
            raise errors.RunError(
                f"{key}: {path}: {name} must have rows along axis 0, got a single value."
            )
        if len(array) != len(first):
            raise errors.RunError(
                f"{key}: {path}: {first_name} has {len(first)} rows, {name} has {len(array)}. "
                "Arrays of one input need the same number of rows."
            )


def _cut(
    array: npt.NDArray[Any], source: input_config.Npz, names: tuple[str, ...], key: str
) -> npt.NDArray[Any]:
    """Takes the rows and the dtype that the config says."""
    start, stop = source.rows or (None, None)
    rows = array[start:stop]
    if not len(array):
        raise errors.RunError(f"{key}: {source.file}: must have rows, has none.")
    if (stop is not None and stop > len(array)) or not len(rows):
        raise errors.RunError(
            f"{key}.rows: must lie within the {len(array)} rows of {source.file}, "
            f"got {[start, stop]}. Correct rows."
        )
    dtype = next((source.dtypes[name] for name in names if name in source.dtypes), _OWN)
    try:
        return _converted(rows, dtype, start or 0)
    except (ValueError, TypeError, SystemError) as e:  # the last of no character's number
        raise errors.RunError(
            f"{key}.dtypes: {source.file}: {names[0]} cannot be converted to {dtype}: "
            f"{e}. Correct dtypes, or the file."
        ) from e


def _converted(rows: npt.NDArray[Any], dtype: str, start: int) -> npt.NDArray[Any]:
    """Returns rows of a dtype, or their own; text as UTF-8, as TensorFlow has it."""
    if dtype == "string" and rows.dtype.kind != "S":
        rows = rows.astype(str)
    elif dtype not in (_OWN, "string"):
        rows = _cast(rows, dtype, start)
    if rows.dtype.kind not in "biufcSU":
        raise TypeError(f"it holds {rows.dtype}, neither numbers nor text")
    if rows.dtype.kind in "fc" and rows.dtype.itemsize > _MAX_SIZES[rows.dtype.kind]:
        raise TypeError(f"it holds {rows.dtype}, which TensorFlow has not")
    return np.char.encode(rows, "utf-8") if rows.dtype.kind == "U" else rows


def _cast(rows: npt.NDArray[Any], dtype: str, start: int) -> npt.NDArray[Any]:
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
        first_bad = int(np.argmax(changed.reshape(len(rows), -1).any(axis=1)))
        raise ValueError(_of_row(rows, first_bad, start))
    return made


def _numbers(rows: npt.NDArray[Any], dtype: str, start: int) -> npt.NDArray[Any]:
    """Returns text as the numbers that it stands for, as of cells of CSV; see `_cast`."""
    made = np.empty(rows.shape, dtype)
    for index in np.ndindex(rows.shape):
        text = rows[index]
        try:
            text = (text.decode() if isinstance(text, bytes) else str(text)).strip()
            made[index] = cell_values.value_of(text, dtype)
        except ValueError:
            raise ValueError(_of_row(rows, index[0], start)) from None
    return made


def _of_row(rows: npt.NDArray[Any], place: int, start: int) -> str:
    """Returns a text on a bad row, which is counted as the key `rows` counts."""
    shown = np.array2string(rows[place], threshold=6, separator=", ").replace("\n", "")
    return f"row {start + place} (the first is 0) is {shown}"
