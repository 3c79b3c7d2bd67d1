"""Files that appear whole or not at all: written beside their place, then moved there."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a path to write to, which takes the place of `path` when all went well.

    Until then, and if it fails, what was there before stays. Files of this machine need no
    TensorFlow; a bad place among them is found before anything is written.
    """
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    is_local = "://" not in path
    gfile: Any = None if is_local else _tensorflow().io.gfile
    if is_local and os.path.isdir(path):
        raise IsADirectoryError(0, "it is a directory")
    try:
        if is_local:
            with contextlib.suppress(FileNotFoundError):
                os.remove(unfinished)  # of a process that was killed
            open(unfinished, "xb").close()  # never through a link that somebody has put there
        yield unfinished
        if is_local:
            os.replace(unfinished, path)
        else:
            gfile.rename(unfinished, path, overwrite=True)
    finally:
        if is_local:
            with contextlib.suppress(FileNotFoundError):
                os.remove(unfinished)
        elif gfile.exists(unfinished):
            gfile.remove(unfinished)


def write_text(path: str, text: str) -> None:
    """Writes a file."""
    with replacing(path) as unfinished, _tensorflow().io.gfile.GFile(unfinished, "w") as file:
        file.write(text)


def write_json(path: str, value: Any) -> None:
    """Writes a value as JSON."""
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """Returns a value as JSON for machines that people can read, too."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_text(path: str) -> str | None:
    """Returns what a file holds; None where there is none, or it is no text."""
    tf = _tensorflow()
    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read()
    except (tf.errors.OpError, UnicodeDecodeError):
        return None


def read_json(path: str) -> dict[str, Any]:
    """Returns the JSON object in a file; an empty one where there is none that can be read."""
    try:
        value = json.loads(read_text(path) or "null", parse_int=_whole)
    except (RecursionError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _whole(digits: str) -> int:
    if abs(number := int(digits)) >= 2**63:
        raise ValueError(digits)
    return number


def _tensorflow() -> Any:
    from replicate.compat.tensorflow import tf

    return tf
