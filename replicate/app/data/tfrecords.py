"""TFRecord files and their tf.train.Examples, read without TensorFlow."""

import functools
import zlib
from collections.abc import Iterator
from typing import Any

from replicate.app.config import files

_HEAD = 2**26  # bytes of records that are looked at
# Of a tf.train.Example, the fields by their numbers; a list may have many values.
_MESSAGES: dict[str, list[Any]] = {
    "Example": ["Features"],
    "Features": [["Entry"]],
    "Entry": [bytes, "Feature"],
    "Feature": ["Bytes", "Floats", "Wholes"],
    "Bytes": [[bytes]],
    "Floats": [[float]],
    "Wholes": [[int]],
}
_DTYPES = {1: "string", 2: "float32", 3: "int64"}  # by the fields of a Feature


def head(path: str) -> tuple[bytes, str]:
    """Returns what a file begins with, and how it is compressed."""
    with open(path, "rb") as file:
        data = file.read(_HEAD)
    kind = files.kind_of_head(data[:1024])
    if kind != "gzip" and (kind == "tfrecord" or not data.startswith(b"\x78")):
        return data, "none"
    data = zlib.decompressobj(wbits=47).decompress(data, _HEAD)  # 47: by its header, either
    return data, "GZIP" if kind == "gzip" else "ZLIB"


def records(data: bytes) -> Iterator[bytes]:
    """Yields the records that a file begins with: a length, a checksum, the record, another one."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        begin, at = at, at + 12 + size + 4
        if at <= len(data):
            yield data[begin + 12 : at - 4]
        elif not begin or len(data) < _HEAD:
            raise ValueError(f"the file ends within its {size} bytes")


def example(record: bytes) -> dict[str, tuple[str, int]]:
    """Returns for each feature of an Example its dtype, and how many values it has.

    Raises:
        ValueError: If it is none.
    """
    from google.protobuf import message

    try:
        example = _message_class().FromString(record)
    except message.DecodeError as e:
        raise ValueError("it is no tf.train.Example") from e
    found = {}
    for entry in example.f1.f1:
        for field, values in entry.f2.ListFields():
            found[entry.f1.decode()] = _DTYPES[field.number], len(values.f1)
    return found


@functools.cache
def _message_class() -> Any:
    """Returns the class of an Example, without TensorFlow; field n is called f<n>."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    numbers = {bytes: kinds.TYPE_BYTES, float: kinds.TYPE_FLOAT, int: kinds.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="example", package="sample")
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        for number, kind in enumerate(fields, start=1):
            is_many = isinstance(kind, list)
            (kind,) = kind if is_many else (kind,)
            field = made.field.add(name=f"f{number}", number=number)
            field.label = kinds.LABEL_REPEATED if is_many else kinds.LABEL_OPTIONAL
            field.type = numbers.get(kind, kinds.TYPE_MESSAGE)
            if isinstance(kind, str):
                field.type_name = f".sample.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sample.Example"))
