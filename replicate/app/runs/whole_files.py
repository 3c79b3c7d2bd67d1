"""Small files of a run: written whole or not at all, on any file system of TensorFlow."""

import json
import os
from typing import Any

from replicate.compat.tensorflow import tf

__all__ = ["read_json", "read_text", "write_json", "write_text"]


def write_text(path: str, text: str) -> None:
    """Writes a file; until all of it is written, what was there before stays."""
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        with tf.io.gfile.GFile(unfinished, "w") as file:
            file.write(text)
        tf.io.gfile.rename(unfinished, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(unfinished):
            tf.io.gfile.remove(unfinished)
        raise


def write_json(path: str, value: Any) -> None:
    """Writes a value as JSON for machines that people can read, too."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_text(path: str) -> str | None:
    """Returns what a file holds; None where there is none, or it is no text."""
    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read()
    except (tf.errors.OpError, UnicodeDecodeError):
        return None


def read_json(path: str) -> dict[str, Any] | None:
    """Returns the JSON object in a file; None where there is none that can be read."""
    text = read_text(path)
    try:
        value = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
