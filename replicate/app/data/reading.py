"""Data that cannot be read while a session runs: which input, file and record it was."""

import contextlib
import re
from collections.abc import Iterator

from replicate import errors
from replicate.app.config import config, input_config
from replicate.app.console import failures
from replicate.app.data import inputs, records
from replicate.app.runs import checkpoints
from replicate.compat.tensorflow import tf

__all__ = ["naming"]

_OURS = re.compile(r"\bRunError: (.*)")
_READING = ("with iterator: Iterator::", "[[IteratorGetNext]]", "{{node IteratorGetNext}}")


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
        if not _is_reading(e):
            raise
        fault = _record_fault(settings, section) or _fault(settings, section, e)
        raise errors.RunError(f"{section}.input: {fault}") from e
    except UnicodeDecodeError as e:  # TensorFlow's text holds a record that is no text
        fault = _record_fault(settings, section)
        if fault is None:
            raise
        raise errors.RunError(f"{section}.input: {fault}") from e


def _is_reading(error: tf.errors.OpError) -> bool:
    """Tells whether an error came out of a dataset.

    Where several devices wait for a batch, several errors come as one that has no operation.
    """
    if error.op is not None:
        return error.op.type.startswith("Iterator") or isinstance(error, tf.errors.DataLossError)
    is_of_dataset = any(words in error.message for words in _READING)
    return is_of_dataset or isinstance(error, tf.errors.DataLossError)


def _record_fault(settings: config.Config, section: str) -> str | None:
    """Returns what is wrong with the first record that does not fit, if there is one."""
    source = getattr(settings, section).input
    if not isinstance(source, input_config.Tfrecord):
        return None
    return records.first_fault(source, inputs.record_files(source, f"{section}.input"))


def _fault(settings: config.Config, section: str, error: tf.errors.OpError) -> str:
    ours = _OURS.search(failures.first_lines(error))
    if ours is not None:  # of a stream of ours, through TensorFlow
        return ours[1].removeprefix(f"{section}.input: ")
    source = getattr(settings, section).input
    is_function = isinstance(source, input_config.Function)
    named = source.function if is_function else ", ".join(input_config.files_of(source))
    return f"{named}: must be readable as the config says: {failures.first_lines(error)}"
