"""Directories that a run writes to: found bad before the work is done, not after."""

import os

from replicate import errors
from replicate.compat.tensorflow import tf

__all__ = ["make"]


def make(path: str, key: str) -> None:
    """Makes a directory where there is none.

    Args:
        path: The directory.
        key: The config's key that names it, for the error text.

    Raises:
        RunError: If it cannot be made, or not be written to.
    """
    try:
        tf.io.gfile.makedirs(path)
        if "://" not in path and not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(0, "it is not")
    except (OSError, ValueError, tf.errors.OpError) as e:
        what = getattr(e, "strerror", None) or getattr(e, "message", None) or e
        raise errors.RunError(
            f"{key}: {path} must be a directory that can be written: {what}. "
            "Check the path and its permissions."
        ) from e
