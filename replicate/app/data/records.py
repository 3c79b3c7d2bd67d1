"""tf.train.Examples from TFRecord files; `tf.data` reads them."""

from typing import Any

import numpy as np

from replicate import errors
from replicate.app.config import files, input_config
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

_MAX_LOOKED_AT = 100_000  # records; half a minute's worth


def files_of(source: input_config.Tfrecord, key: str) -> list[str]:
    """Returns the TFRecord files of an input, patterns made out.

    Raises:
        RunError: If there is none by a name or pattern, or it is of another kind.
    """
    paths: list[str] = []
    for name in source.file:
        found = tf.io.gfile.glob(name) if "://" in name else []
        found = found or files.expanded([name], key)
        for path in found if "://" not in name else ():
            if source.compression == "none" and files.kind_of(path) == "gzip":
                raise errors.RunError(
                    f"{key}: {path}: must be without compression, as {key}.compression says, but "
                    "is compressed with gzip. Set compression: GZIP."
                )
            if source.compression == "none":
                files.refuse_other_kind(path, "tfrecord", key)
        paths += found
    return paths


def dataset(
    source: input_config.Tfrecord, paths: list[str], seed: tf.Tensor | None
) -> tf.data.Dataset:
    """Returns the records of all files, whose order is shuffled where that of rows is."""
    names = tf.data.Dataset.from_tensor_slices([files.relative(path) for path in paths])
    if source.shuffle and len(paths) > 1:
        names = names.shuffle(len(paths), seed)
    at_a_time = source.parallel_reads if source.parallel_reads > 1 else None
    return tf.data.TFRecordDataset(names, source.compression_type, num_parallel_reads=at_a_time)


def parsings(source: input_config.Tfrecord) -> dict[str, Any]:
    """Returns how each feature is parsed, as `tf.io.parse_example` takes it."""
    return {name: _parsing(feature) for name, feature in source.features.items()}


def _parsing(feature: input_config.Feature) -> Any:
    dtype = tf.as_dtype(feature.dtype)
    if feature.kind == "sparse":
        return tf.io.VarLenFeature(dtype)
    if feature.kind == "ragged":
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    default = feature.default
    if default is not None:
        is_text = dtype == tf.string
        default = np.full(feature.shape, default, object if is_text else dtype.as_numpy_dtype)
    return tf.io.FixedLenFeature(list(feature.shape), dtype, default)


def fault(source: input_config.Input, key: str) -> str:
    """Returns what is wrong with the first record that cannot be read, with its file and number.

    Nothing where all records that are looked at can be, or the input has none.
    """
    if not isinstance(source, input_config.Tfrecord):
        return ""
    known = parsings(source)
    for path in files_of(source, key):
        number = 1
        with (
            tf.Graph().as_default(),
            tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session,
        ):
            found = tf.data.TFRecordDataset(path, source.compression_type)
            found = found.map(lambda record: tf.io.parse_example(record[None], known))
            element = tf1.data.make_one_shot_iterator(found).get_next()
            try:
                while number <= _MAX_LOOKED_AT:
                    session.run(element)
                    number += 1
            except tf.errors.OutOfRangeError:
                continue
            except (tf.errors.OpError, UnicodeDecodeError) as e:  # a text that holds the record
                is_text = isinstance(e, tf.errors.OpError)
                reason = (
                    messages.first_lines(e).rstrip(".") if is_text else "must be a tf.train.Example"
                )
                return f"{path}: record {number}: {reason}. Write it again, or correct the config."
    return ""
