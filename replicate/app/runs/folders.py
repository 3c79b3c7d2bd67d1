"""Directories that a run writes to: found bad before the work is done, and locked."""

import contextlib
import datetime
import errno
import json
import os
import socket
from collections.abc import Iterator

import filelock

from replicate import errors
from replicate.console import messages

_TRAINING, _LAUNCH = "training.lock", "launch.lock"


def make(path: str, key: str) -> None:
    """Makes a directory where there is none; one of this machine without TensorFlow.

    Args:
        path: The directory.
        key: The config's key that names it, for the error text.

    Raises:
        RunError: If it cannot be made, or not be written to.
    """
    try:
        if "://" in path:
            from replicate.compat.tensorflow import tf

            tf.io.gfile.makedirs(path)
        else:
            os.makedirs(path, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(0, "it is not")
    except Exception as e:  # TensorFlow's errors are its own, and it is not loaded here
        what = getattr(e, "strerror", None) or getattr(e, "message", None) or e
        what = "it is a file" if isinstance(e, FileExistsError) else what
        raise errors.RunError(
            f"{key}: {path} must be a directory that can be written: {what}. "
            "Check the path and its permissions."
        ) from e


def training(model_dir: str) -> contextlib.AbstractContextManager[None]:
    """While entered, no other process trains in a directory.

    The system takes the lock back when the process ends, however that happens. Where a file
    system has no such locks (`gs://...`, some network ones), nothing is locked.

    Raises:
        RunError: If another process trains there; names it.
    """
    return _held(model_dir, _TRAINING, f"model_dir: {model_dir} must have one training at a time")


def launching(logs: str) -> contextlib.AbstractContextManager[None]:
    """While entered, no other launcher writes logs into a directory; see `training`."""
    return _held(logs, _LAUNCH, f"{logs} must have one `replicate launch` at a time")


@contextlib.contextmanager
def _held(folder: str, name: str, rule: str) -> Iterator[None]:
    if "://" in folder:
        yield
        return
    lock = filelock.FileLock(os.path.join(folder, name), timeout=0)
    # Beside it is who holds it: on some systems a locked file is not read.
    holder = os.path.join(folder, f"{name}.json")
    try:
        lock.acquire()
    except filelock.Timeout:
        raise errors.RunError(
            f"{rule}; {_described(holder)} is at it. Wait for it, end it, or choose another "
            "--model-dir."
        ) from None
    except (OSError, NotImplementedError) as e:
        if getattr(e, "errno", None) == errno.ENOSPC:
            raise
        messages.warn(
            f"{folder} cannot be locked ({e}): see to it that one training at a time runs there.",
            "commands.md#a-run",
        )
    try:
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        with contextlib.suppress(OSError), open(holder, "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": now}, file)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(holder)
        lock.release()


def _described(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            holder = json.load(file)
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']},"
    except (OSError, RecursionError, ValueError, KeyError, TypeError):
        return "another process"
