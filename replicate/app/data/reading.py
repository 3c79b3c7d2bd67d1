"""Data that cannot be read while a session runs: which input, file and record it was."""

import contextlib
import re
from collections.abc import Iterator

from replicate import errors
from replicate.app.config import config, input_config
from replicate.app.data import records
from replicate.app.runs import checkpoints
from replicate.compat.tensorflow import tf
from replicate.console import messages
from replicate.training import row_counts

_OURS = re.compile(r"\bRunError: (.*)")
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
    except (tf.errors.OpError, UnicodeDecodeError) as e:  # TensorFlow's text may hold a record
        source = settings.input_of(section)
        fault = _fault(source.for_predictions() if section == "predict" else source, section, e)
        if not fault:
            raise
        raise errors.RunError(f"{section}.input: {fault}") from e


def _fault(source: input_config.AnyInput, section: str, error: Exception) -> str:
    """Returns what is wrong with an input; nothing where an error has other reasons."""
    key = f"{section}.input"
    if not isinstance(error, tf.errors.OpError):
        return records.fault(source, key)
    disagreeing = row_counts.told(error)
    if disagreeing or not _is_reading(error):
        return disagreeing
    ours = _OURS.search(messages.first_lines(error))
    if ours is not None:  # of a stream of ours, through TensorFlow
        return ours[1].removeprefix(f"{key}: ")
    named = getattr(source, "function", "") or ", ".join(input_config.files_of(source))
    found = records.fault(source, key)
    return found or f"{named}: must be readable as the config says: {messages.first_lines(error)}"


def without_rows(settings: config.Config, section: str) -> errors.RunError:
    """Returns the fault of an input that came to its end before its first batch."""
    source = settings.input_of(section)
    then = "Check its files."
    if isinstance(source, input_config.Function):
        then = (
            f"Check {source.function}; with drop_remainder a batch_size, here {source.batch_size}, "
            "above the number of rows leaves none."
        )
    return errors.RunError(f"{section}.input: must have rows, has none. {then}")


def _is_reading(error: tf.errors.OpError) -> bool:
    """Tells whether an error came out of a dataset.

    Where several devices wait for a batch, several errors come as one that has no operation.
    """
    if error.op is not None:
        return error.op.type.startswith(_READERS) or isinstance(error, tf.errors.DataLossError)
    is_of_dataset = any(words in error.message for words in _READING)
    return is_of_dataset or isinstance(error, tf.errors.DataLossError)
