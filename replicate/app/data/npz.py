"""Arrays from npz files: features and a label, checked against what the config says."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.config import files, input_config, types

Features: TypeAlias = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]


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
    named = source.features
    if named is None:
        named = tuple(name for name in stored if name != source.label)
    if not isinstance(named, dict):
        named = {name: name for name in ([named] if isinstance(named, str) else named)}
    if not named:
        raise errors.RunError(
            f"{key}: {source.file}: must have an array besides the label, has none. Add it."
        )
    label = [] if source.label is None else [source.label]
    wanted = [*named.items(), *((name, name) for name in label if has_label)]
    for _, array in wanted:
        if array not in stored:
            then = types.meant(array, sorted(stored), "Correct the config, or the file.")
            rule = f"must have the array {array!r}; there is {', '.join(stored)}"
            raise errors.RunError(f"{key}: {source.file}: {rule}. {then}")
    _check_rows({array: stored[array] for _, array in wanted}, source.file, key)
    found = [(name, _cut(stored[array], source, array, key)) for name, array in wanted]
    labels = found.pop()[1] if has_label and label else None
    return (found[0][1] if isinstance(source.features, str) else dict(found)), labels


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
            # NOTE: `tf.numpy_function` takes the bytes of any other order for its own.
            return {n: a.astype(a.dtype.newbyteorder("="), copy=False) for n, a in found.items()}
    except FileNotFoundError:
        raise files.missing(path, key) from None
    except Exception as e:  # of zip, zlib, tokenize, struct ...: damage may raise anything
        if files.kind_of(path) != "npz":  # a word about pickles would be in the way
            files.refuse_other_kind(path, "npz", key)
        raise errors.RunError(
            f"{key}: {path}: must be a readable npz file: {str(e).rstrip('.') or type(e).__name__}."
            " Write it with numpy.savez."
        ) from e


def _array(archive: np.lib.npyio.NpzFile, name: str) -> npt.NDArray[Any]:
    """Returns an array; in place of Python objects, which are not unpickled, an empty one."""
    try:
        found = archive[name]
    except ValueError as e:
        if "allow_pickle" not in str(e):
            raise
        return np.empty(0, object)
    if not isinstance(found, np.ndarray):  # but bytes, as it does not begin as one
        raise ValueError(f"{name} is no array")
    return found


def _check_rows(arrays: Mapping[str, npt.NDArray[Any]], path: str, key: str) -> None:
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        fault = ""
        if array.dtype.hasobject:
            fault = (
                f"{name} must hold numbers or text, but holds Python objects, as of lists of "
                "several lengths. Pad them to one length, or take astype(str) of text."
            )
        elif array.ndim == 0:
            fault = f"{name} must have rows along axis 0, got a single value."
        elif len(array) != len(first):
            fault = (
                f"{first_name} has {len(first)} rows, {name} has {len(array)}. Arrays of one input "
                "need the same number of rows."
            )
        elif not len(array):
            fault = "must have rows, has none."
        if fault:
            raise errors.RunError(f"{key}: {path}: {fault}")


def _cut(
    array: npt.NDArray[Any], source: input_config.Npz, name: str, key: str
) -> npt.NDArray[Any]:
    """Returns the rows that the config says; text as UTF-8, as TensorFlow has it."""
    start, stop = source.rows or (None, None)
    rows = array[start:stop]
    if (stop is not None and stop > len(array)) or not len(rows):
        raise errors.RunError(
            f"{key}.rows: must lie within the {len(array)} rows of {source.file}, "
            f"got {[start, stop]}. Correct rows."
        )
    fault: object = f"it holds {rows.dtype}, which TensorFlow has not"
    if rows.dtype.kind in "biufcS" and rows.dtype.char not in "gG":
        return rows
    if rows.dtype.kind == "U":
        try:
            return np.char.encode(rows, "utf-8")
        except (UnicodeError, SystemError) as e:  # the latter of no character's number
            fault = e
    raise errors.RunError(
        f"{key}: {source.file}: {name} cannot become a tensor: {fault}. Correct the file."
    )
