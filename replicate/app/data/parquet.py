"""Parquet as arrays, for `data.csv`: read by pyarrow, which is an extra."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy.typing as npt

from replicate import errors
from replicate.app.config import cell_values, input_config, types

_PIECE = 4096  # rows at a time


def of_file(
    path: str,
    source: input_config.Parquet,
    key: str,
    is_wanted: Callable[[Iterable[str]], bool] | None,
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yields some rows of a file at a time.

    Args:
        path: The file.
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        is_wanted: Tells by the texts of all cells of a row whether it is; None: all are.

    Raises:
        RunError: If pyarrow is not installed, or the file or a column of it is bad.
    """
    with _opened(path, key) as file:
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
            if is_wanted:
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                batch = batch.filter([is_wanted(map(repr, row)) for row in rows])
            if batch.num_rows:
                yield {name: _array(batch.column(name), name, source) for name in source.columns}


def names_in(path: str, key: str) -> set[str]:
    """Returns the columns of a file; see `of_file`."""
    with _opened(path, key) as file:
        return set(file.schema_arrow.names)


def shapes_in(path: str, names: Iterable[str], key: str) -> dict[str, list[int | None]]:
    """Returns the shape of a row in columns of a file, as of its first rows; none without rows.

    No value is converted. A size is None where lists differ in length.
    """
    with _opened(path, key) as file:
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
def _opened(path: str, key: str) -> Iterator[Any]:
    """Opens a file; while entered, faults are named by it."""
    try:
        from pyarrow import parquet
    except ImportError as e:
        raise errors.RunError(
            f"{key}: kind: parquet needs pyarrow. Run pip install 'replicate-model-fn[parquet]'."
        ) from e
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
