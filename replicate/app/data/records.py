"""Records of TFRecord files: which of them is not what the config says."""

import math
from collections.abc import Iterable, Iterator

from replicate.app.config import input_config
from replicate.app.console import failures
from replicate.compat.tensorflow import tf, tf1

__all__ = ["first_fault"]

_FIELDS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_DTYPES = {field: dtype for dtype, field in _FIELDS.items()}
_MAX_LOOKED_AT = 1_000_000  # records; a few seconds' worth


def first_fault(source: input_config.Tfrecord, paths: Iterable[str]) -> str | None:
    """Returns what is wrong with the first record that does not fit, with its file and number.

    Args:
        source: The input as the config has it.
        paths: Its files.

    Returns:
        A text that begins with the file; None where all records that are looked at fit.
    """
    looked_at = 0
    for path in paths:
        number = 0
        try:
            for number, record in enumerate(_records(path, source), start=1):
                fault = _fault_of(record, source)
                if fault is not None:
                    return f"{path}: record {number}: {fault}"
                looked_at += 1
                if looked_at >= _MAX_LOOKED_AT:
                    return None
        except tf.errors.OpError as e:
            reason = failures.first_lines(e).rstrip(".")
            return (
                f"{path}: must be readable as the config says: record {number + 1}: {reason}. "
                "Write the file again, or correct compression."
            )
    return None


def _records(path: str, source: input_config.Tfrecord) -> Iterator[bytes]:
    compression = "" if source.compression == "none" else source.compression
    return tf1.io.tf_record_iterator(path, tf.io.TFRecordOptions(compression))


def _fault_of(record: bytes, source: input_config.Tfrecord) -> str | None:
    try:
        example = tf.train.Example.FromString(record)
    except Exception:  # noqa: BLE001 - protobuf's own, which its versions keep elsewhere
        return "must be a tf.train.Example, is something else. Write it with SerializeToString."
    for name, wanted in source.features.items():
        fault = _fault_in(example.features.feature, name, wanted)
        if fault is not None:
            return f"{fault} Correct the record, or features.{name}."
    return None


def _fault_in(features: object, name: str, wanted: input_config.Feature) -> str | None:
    """Returns what is wrong with one feature of a record."""
    field = features[name].WhichOneof("kind") if name in features else None
    is_fixed = wanted.kind == "fixed"
    if field is None:
        if not is_fixed or wanted.default is not None:
            return None
        have = ", ".join(sorted(features)) or "nothing"
        return f"must have the feature {name}, which has no default; it has {have}."
    if field != _FIELDS[wanted.dtype]:
        return f"{name} must be {wanted.dtype}, got {_DTYPES[field]}."
    count, size = len(getattr(features[name], field).value), math.prod(wanted.shape)
    if is_fixed and count != size:
        shape = list(wanted.shape)
        return f"{name} must have as many values as its shape {shape} has, {size}, got {count}."
    return None
