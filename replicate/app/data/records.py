"""The first tf.train.Examples of a TFRecord file."""

import itertools

from google.protobuf import message

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

_RECORDS = 100  # that are looked at
DTYPES = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}


def looked_at(path: str, compression: str, key: str) -> list[dict[str, tuple[str, int]]]:
    """Returns for each feature of the first records its dtype, and how many values it has.

    Args:
        path: The file.
        compression: none, GZIP or ZLIB.
        key: What names the file, for error texts.

    Raises:
        RunError: If one of them is no tf.train.Example, or cannot be read.
    """
    found: list[dict[str, tuple[str, int]]] = []
    options = tf.io.TFRecordOptions("" if compression == "none" else compression)
    try:
        for record in itertools.islice(tf1.io.tf_record_iterator(path, options), _RECORDS):
            features = tf.train.Example.FromString(record).features.feature
            kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
            sizes = {n: len(getattr(features[n], kind).value) for n, kind in kinds.items() if kind}
            found.append({name: (DTYPES[kinds[name]], sizes[name]) for name in sizes})
    except (tf.errors.OpError, message.DecodeError, UnicodeDecodeError) as e:
        reason = "it is no tf.train.Example"
        if isinstance(e, tf.errors.OpError):
            reason = messages.first_lines(e).rstrip(".")
        raise errors.RunError(
            f"{key}: {path}: must be a TFRecord file of tf.train.Examples: record "
            f"{len(found) + 1}: {reason}. Check the file."
        ) from e
    return found
