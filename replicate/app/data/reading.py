"""Data that cannot be read while a session runs: which input, file and record it was."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping

from google.protobuf import message

from replicate import errors
from replicate.app.config import config, input_config
from replicate.app.data import inputs, records
from replicate.app.runs import checkpoints
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.training import row_counts

_OURS = re.compile(r"\bRunError: (.*)")
_MAX_LOOKED_AT = 1_000_000  # records; a few seconds' worth
_READERS = ("Iterator", "ReduceDataset")
_READING = (
    *("with iterator: Iterator::", "[[IteratorGetNext]]", "{{node IteratorGetNext}}"),
    "Could not parse example input",  # a byte 0 in what follows ends TensorFlow's text
)


@contextlib.contextmanager
def naming(settings: config.Config, section: str, checkpoint: str | None = None) -> Iterator[None]:
    """Says which input it was, where reading it fails while a session runs.

    Args:
        settings: The config.
        section: Whose input is read: train, eval or predict.
        checkpoint: The path of what is restored; None: the newest checkpoint.
    """
    try:
        with checkpoints.naming(settings.model_dir, checkpoint):
            yield
    except tf.errors.OpError as e:
        told = row_counts.told(e)
        if told:
            raise errors.RunError(f"{settings.input_of(section).called(section)}: {told}") from e
        if not _is_reading(e):
            raise
        fault = _record_fault(settings, section) or _fault(settings, section, e)
        raise errors.RunError(f"{settings.input_of(section).called(section)}: {fault}") from e
    except UnicodeDecodeError as e:  # TensorFlow's text holds a record that is no text
        fault = _record_fault(settings, section)
        if not fault:
            raise
        raise errors.RunError(f"{settings.input_of(section).called(section)}: {fault}") from e


def without_rows(settings: config.Config, section: str) -> errors.RunError:
    """Returns the fault of an input that came to its end before its first batch."""
    source = settings.input_of(section)
    then = "Check its files."
    if isinstance(source, input_config.Function):
        then = (
            f"Check {source.function}; with drop_remainder a batch_size, here {source.batch_size}, "
            "above the number of rows leaves none."
        )
    return errors.RunError(f"{source.called(section)}: must have rows, has none. {then}")


def _is_reading(error: tf.errors.OpError) -> bool:
    """Tells whether an error came out of a dataset.

    Where several devices wait for a batch, several errors come as one that has no operation.
    """
    if error.op is not None:
        return error.op.type.startswith(_READERS) or isinstance(error, tf.errors.DataLossError)
    is_of_dataset = any(words in error.message for words in _READING)
    return is_of_dataset or isinstance(error, tf.errors.DataLossError)


def _fault(settings: config.Config, section: str, error: tf.errors.OpError) -> str:
    ours = _OURS.search(messages.first_lines(error))
    source = settings.input_of(section)
    if ours is not None:  # of a stream of ours, through TensorFlow
        return ours[1].removeprefix(f"{source.called(section)}: ")
    named = getattr(source, "function", "") or ", ".join(input_config.files_of(source))
    return f"{named}: must be readable as the config says: {messages.first_lines(error)}"


def _record_fault(settings: config.Config, section: str) -> str:
    """Returns what is wrong with the first record that does not fit, with its file and number.

    Nothing where all records that are looked at fit, or the input has none.
    """
    source = settings.input_of(section)
    source = source.for_predictions() if section == "predict" else source
    if not isinstance(source, input_config.Tfrecord):
        return ""
    looked_at = 0
    for path in inputs.record_files(source, source.called(section)):
        number = 0
        try:
            options = tf.io.TFRecordOptions(source.compression_type)
            found = tf1.io.tf_record_iterator(path, options)
            for number, record in enumerate(found, start=1):
                fault = _fault_of(record, source)
                if fault:
                    return f"{path}: record {number}: {fault}"
                looked_at += 1
                if looked_at >= _MAX_LOOKED_AT:
                    return ""
        except tf.errors.OpError as e:
            reason = messages.first_lines(e).rstrip(".")
            return (
                f"{path}: must be readable as the config says: record {number + 1}: {reason}. "
                "Write the file again, or correct compression."
            )
    return ""


def _fault_of(record: bytes, source: input_config.Tfrecord) -> str:
    try:
        example = tf.train.Example.FromString(record)
    except message.DecodeError:
        return "must be a tf.train.Example, is something else. Write it with SerializeToString."
    for name, wanted in source.features.items():
        fault = _fault_in(example.features.feature, name, wanted)
        if fault:
            return f"{fault} Correct the record, or features.{name}."
    return ""


def _fault_in(
    features: Mapping[str, tf.train.Feature], name: str, wanted: input_config.Feature
) -> str:
    """Returns what is wrong with one feature of a record, if anything."""
    field = features[name].WhichOneof("kind") if name in features else None
    is_fixed = wanted.kind == "fixed"
    if field is None:
        have = ", ".join(sorted(features)) or "nothing"
        fault = f"must have the feature {name}, which has no default; it has {have}."
        return fault if is_fixed and wanted.default is None else ""
    if records.DTYPES[field] != wanted.dtype:
        return f"{name} must be {wanted.dtype}, got {records.DTYPES[field]}."
    count, size = len(getattr(features[name], field).value), math.prod(wanted.shape)
    if is_fixed and count != size:
        shape = list(wanted.shape)
        return f"{name} must have as many values as its shape {shape} has, {size}, got {count}."
    return ""
