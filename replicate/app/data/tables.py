"""Tables, CSV and Parquet, as arrays: whole or as a stream. `arrow` reads them."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.config import files, input_config

Columns: TypeAlias = dict[str, npt.NDArray[Any]]  # each of shape [rows, ...], text as bytes

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
    from replicate.app.data import arrow  # for a table alone: see there

    share, has_rows = source.holdout, False
    is_wanted = None if share is None else lambda row: _is_held_out(row, share) != is_training
    for path in files.expanded(source.file, key):
        if isinstance(source, input_config.Parquet):
            found = arrow.of_parquet(path, source, key, is_wanted)
        else:
            found = arrow.of_csv(path, source, key, is_wanted)
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
