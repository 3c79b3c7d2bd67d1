"""What a TFRecord file of Examples holds, read without TensorFlow.

A record is its length in 8 bytes, 4 bytes of a checksum, the data and 4 bytes more. An
Example is a protocol buffer: features (1), each an entry (1) of a name (1) and a value (2)
that is a list of bytes (1), of floats (2) or of whole numbers (3), whose values are (1).
"""

import gzip
import itertools
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from replicate import errors
from replicate.app.config import files
from replicate.app.data import samples

__all__ = ["look"]

_DTYPES = {1: "string", 2: "float32", 3: "int64"}
_RECORDS = 100  # are looked at
_MAX_RECORD = 2**28  # bytes
_VARINT, _EIGHT_BYTES, _TEXT, _FOUR_BYTES = 0, 1, 2, 5


def look(path: str, label: str | None) -> samples.Sample:
    """Looks at a file.

    Args:
        path: The file.
        label: The feature that is the label; None: the one that is called so.

    Raises:
        RunError: If it has no Examples.
    """
    compression = _compression(path)
    examples = _examples(path, compression)
    names = sorted({name for example in examples for name in example})
    if not names:
        raise errors.RunError(f"{path}: must hold tf.train.Examples with features, has none.")
    features = {name: _feature(name, examples, path) for name in names}
    keys: dict[str, Any] = {"kind": "tfrecord", "file": path, "features": features}
    if compression != "none":
        keys["compression"] = compression
    other = samples.beside(path)
    return samples.Sample(
        keys,
        names,
        label or samples.label_of(names),
        {"file": other} if other else {},
        {"features": f"as of the first {len(examples)} records"},
    )


def _feature(name: str, examples: list[dict[str, tuple[str, int]]], path: str) -> dict[str, Any]:
    """Returns how a feature is to be read: fixed where all records have as many values."""
    found = [example[name] for example in examples if name in example]
    dtypes = {dtype for dtype, count in found if count} or {dtype for dtype, _ in found}
    if len(dtypes) > 1:
        raise errors.RunError(
            f"{path}: {name} must be of one type, got {' and '.join(sorted(dtypes))}. "
            "Write the records again."
        )
    counts = {count for _, count in found}
    if len(counts) > 1 or len(found) < len(examples):
        return {"dtype": dtypes.pop(), "kind": "sparse"}
    count = counts.pop()
    return {"dtype": dtypes.pop(), "shape": [] if count == 1 else [count]}


def _compression(path: str) -> str:
    kind = files.kind_of(path)
    if kind == "gzip":
        return "GZIP"
    with open(path, "rb") as file:
        return "ZLIB" if kind != "tfrecord" and file.read(1) == b"\x78" else "none"


def _examples(path: str, compression: str) -> list[dict[str, tuple[str, int]]]:
    """Returns for each of the first records: name -> dtype and how many values."""
    found = []
    try:
        with open(path, "rb") as raw:
            file: Any = raw
            if compression == "GZIP":
                file = gzip.open(raw)
            elif compression == "ZLIB":
                file = _Inflated(raw)
            for record in itertools.islice(_records(file), _RECORDS):
                found.append(dict(_features(memoryview(record))))
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as e:
        raise errors.RunError(
            f"{path}: must be a TFRecord file of tf.train.Examples: record {len(found) + 1}: "
            f"{str(e).rstrip('.')}. Check the file."
        ) from e
    return found


class _Inflated:
    """A file that was compressed with zlib, from its start on."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._inflate = zlib.decompressobj()
        self._ready = b""

    def read(self, size: int) -> bytes:
        """Returns so many bytes, or what is left."""
        while len(self._ready) < size:
            given = self._inflate.unconsumed_tail or self._file.read(2**16)
            if not given:
                break
            self._ready += self._inflate.decompress(given, 2**20)
        made, self._ready = self._ready[:size], self._ready[size:]
        return made


def _records(file: Any) -> Iterator[bytes]:
    while head := file.read(12):
        size = int.from_bytes(head[:8], "little")
        if len(head) < 12 or size > _MAX_RECORD:
            raise ValueError(f"its length of {size} bytes cannot be")
        record = file.read(size + 4)
        if len(record) < size + 4:
            raise ValueError("the file ends within it")
        yield record[:size]


def _features(example: memoryview) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yields the name of each feature, its dtype and how many values it has."""
    for features in _parts(example, 1):
        for entry in _parts(features, 1):
            name = "".join(bytes(part).decode() for part in _parts(entry, 1))
            for value in _parts(entry, 2):
                for number, _, values in _fields(value):
                    if number not in _DTYPES:
                        raise ValueError("it is no tf.train.Example")
                    yield name, (_DTYPES[number], _count(values, number))


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, kind, data in _fields(message):
        if number != wanted or kind != _TEXT:
            if kind == _TEXT and number in (1, 2):
                continue
            raise ValueError("it is no tf.train.Example")
        yield data


def _count(values: memoryview, number: int) -> int:
    """Returns how many values a list has; numbers may be packed."""
    count = 0
    for _, kind, data in _fields(values):
        if number == 1 or kind != _TEXT:
            count += 1
        elif number == 2:
            count += len(data) // 4
        else:
            count += sum(byte < 128 for byte in data)  # the last byte of each
    return count


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yields number, kind and data of each field of a message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, start = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        elif kind == _TEXT:
            size, start = _varint(message, at)
            at = start + size
        else:
            raise ValueError("it is no tf.train.Example")
        if at > len(message):
            raise ValueError("it is cut off, or no tf.train.Example")
        yield tag >> 3, kind, message[start:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Returns a whole number of 7 bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("it is no tf.train.Example")
