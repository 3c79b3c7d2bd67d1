"""Predictions, written into a file of any form."""

import csv
import itertools
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.config import types
from replicate.app.runs import atomic_files
from replicate.console import json_output


def require_keys(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Raises a RunError where `predict.keys` names what is not predicted."""
    for name in wanted:
        if name not in known:
            then = types.meant(name, known, f"Name one of {', '.join(sorted(known))}.")
            raise errors.RunError(
                f"predict.keys: the model must predict what is named, got {name!r}. {then}"
            )


def write(rows: Iterable[Mapping[str, Any]], path: str) -> int:
    """Writes predictions in the form that the file's ending says.

    The file appears when all rows are written; until then, and if that fails, what was
    there before stays.

    Returns:
        How many rows were written.

    Raises:
        RunError: If the file cannot be written, or the rows do not fit the form.
    """
    ending = Path(path).suffix.lower()
    rows = _with_own_errors(rows)
    try:
        with atomic_files.replacing(path) as unfinished:
            if ending == ".npz":
                return _write_npz(rows, unfinished)
            with open(unfinished, "w", encoding="utf-8", newline="") as file:
                return _write_csv(rows, file) if ending == ".csv" else write_lines(rows, file)
    except OSError as e:
        raise errors.RunError(
            f"--output {path}: must be a file that can be written: {e.strerror or e}. "
            "Check that its directory exists and allows it."
        ) from e


def _with_own_errors(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Passes rows on; what the system refuses while they are made is not the output's fault."""
    try:
        yield from rows
    except OSError as e:
        raise errors.RunError(f"making predictions failed: {e}. Check the input.") from e


def write_lines(rows: Iterable[Mapping[str, Any]], file: TextIO) -> int:
    """Writes one JSON object per line; returns how many."""
    count = 0
    for row in rows:
        line = json.dumps(json_output.plain(row), allow_nan=False, ensure_ascii=False)
        file.write(f"{line}\n")
        count += 1
    return count


def _write_csv(rows: Iterable[Mapping[str, Any]], file: TextIO) -> int:
    """Writes a column per number: `p` of shape [3] becomes p_0, p_1, p_2."""
    writer = csv.writer(file, lineterminator="\n")
    names: list[str] = []
    count = 0
    for row in rows:
        cells = dict(itertools.chain.from_iterable(_cells(k, v) for k, v in row.items()))
        if not count:
            names = list(cells)
            writer.writerow(names)
        if list(cells) != names:
            raise errors.RunError(
                f"--output: a CSV file needs the same columns in each row; row {count} has "
                f"{len(cells)}, the first has {len(names)}. Write .jsonl instead."
            )
        writer.writerow(cells.values())
        count += 1
    return count


def _cells(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _cells(f"{name}_{key}", one)
        return
    array = np.asarray(value)
    for index in np.ndindex(array.shape):
        one = array[index]
        one = one.item() if isinstance(one, np.generic) else one
        text = json_output.plain(one) if isinstance(one, bytes) else one
        yield "_".join([name, *map(str, index)]), text["b64"] if isinstance(text, dict) else text


def _write_npz(rows: Iterable[Mapping[str, Any]], path: str) -> int:
    """Writes an array of shape [rows, ...] for each prediction."""
    columns: dict[str, list[npt.NDArray[Any]]] = {}
    count = 0
    for row in rows:
        count += 1
        for name, value in row.items():
            columns.setdefault(name, []).append(np.asarray(value))
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, values in columns.items():
        shapes = {value.shape for value in values}
        if len(shapes) > 1 or len(values) != count:
            raise errors.RunError(
                f"--output: an npz file needs one shape for all rows; {name} has "
                f"{', '.join(map(str, sorted(shapes)))}. Write .jsonl instead."
            )
        stacked = np.stack(values)
        arrays[name] = stacked.astype(bytes) if stacked.dtype == object else stacked
    # NOTE: np.savez_compressed takes no array that is called `file`, and would pickle objects.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return count
