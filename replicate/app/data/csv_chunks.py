"""CSV files in chunks that end where a row ends, so that no file need fit in memory."""

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from replicate import errors
from replicate.app.config import files

__all__ = ["Chunk", "lines", "outside_quotes", "read"]

_SIZE = 16 * 2**20  # bytes
_MAX_ROW = 4 * _SIZE  # a quote that does not end must not take all of a file into memory
_QUOTE, _LINE_FEED, _RETURN = 34, 10, 13
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Chunk(NamedTuple):
    """Some rows of a file.

    Attributes:
        data: Their bytes.
        line: The line of the file that they begin in.
        rest: Where it cannot be told at once in which row quotes are: the rest of the file,
            which comes after `data`; else None.
    """

    data: bytes
    line: int
    rest: BinaryIO | None = None


def read(path: str, key: str) -> Iterator[Chunk]:
    """Yields the chunks of a file; one with a rest is the last.

    Args:
        path: The file, which may be compressed with gzip.
        key: The config's key that names it, for error texts.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        with (gzip.open if files.kind_of(path) == "gzip" else open)(path, "rb") as file:
            yield from _chunks(file)
    except FileNotFoundError:
        raise files.missing(path, key) from None
    except (OSError, EOFError, zlib.error) as e:
        reason = getattr(e, "strerror", None) or str(e).rstrip(".")
        raise errors.RunError(
            f"{key}: {path}: must be a readable file: {reason}. Check the path, and the file."
        ) from e


def outside_quotes(data: bytes, places: np.ndarray) -> np.ndarray:
    """Returns those of some places in clean bytes that are not in quotes."""
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
    return places[np.searchsorted(quotes, places) % 2 == 0] if len(quotes) else places


def _chunks(file: BinaryIO) -> Iterator[Chunk]:
    data, line = file.read(_SIZE).removeprefix(_BYTE_ORDER_MARK), 1
    while data:
        block = file.read(_SIZE)
        cut = _last_end(data) if block else len(data)
        if not _is_clean(data[:cut]) or (not cut and len(data) > _MAX_ROW):
            yield Chunk(data + block, line, file)
            return
        if cut:
            yield Chunk(data[:cut], line)
            line += data.count(b"\n", 0, cut)
        data = data[cut:] + block


def _last_end(data: bytes) -> int:
    """Returns where the last whole row ends, if quotes are where they should be."""
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
    ends = outside_quotes(data, ends)
    return int(ends[-1]) + 1 if len(ends) else 0


def _is_clean(data: bytes) -> bool:
    """Tells whether lines and quotes are where any reader of CSV sees them."""
    if b"\0" in data or data.count(b"\r") != data.count(b"\r\n"):
        return False
    if b'"' not in data:
        return True
    text = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    is_doubled = closing[:-1] + 1 == opening[1:]  # a quote in quotes
    before, after = text[opening - 1], text[closing + 1]
    is_begun = np.concatenate([[False], is_doubled]) | _bounds(before)
    is_ended = np.concatenate([is_doubled, [False]]) | _bounds(after)
    return bool(is_begun.all() and is_ended.all())


def _bounds(around: np.ndarray) -> np.ndarray:
    """Tells which bytes may stand beside a cell: no letter, number or space."""
    is_end = (around == _LINE_FEED) | (around == _RETURN)
    return is_end | np.isin(around, np.frombuffer(b",;|\t:", np.uint8))


def lines(chunk: Chunk) -> Iterator[bytes]:
    """Yields the lines of a chunk and its rest, ends included."""
    for line in io.BytesIO(chunk.data):
        if chunk.rest is not None and not line.endswith(b"\n"):
            line += chunk.rest.readline()
        yield from line.splitlines(keepends=True)
    for line in chunk.rest or ():
        yield from line.splitlines(keepends=True)
