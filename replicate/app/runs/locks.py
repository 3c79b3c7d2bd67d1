"""One training at a time in a model_dir: a lock that dies with its process."""

import contextlib
import datetime
import errno
import json
import logging
import os
import socket
from collections.abc import Iterator

import filelock

from replicate import errors

__all__ = ["launching", "training"]

_LOGGER = logging.getLogger(__name__)


def training(model_dir: str) -> contextlib.AbstractContextManager[None]:
    """While entered, no other process trains in a directory.

    The system takes the lock back when the process ends, however that happens. Where a file
    system has no such locks (`gs://...`, some network ones), nothing is locked.

    Raises:
        RunError: If another process trains there; names it.
    """
    return _held(model_dir, "training", f"model_dir: {model_dir} must have one training at a time")


def launching(logs: str) -> contextlib.AbstractContextManager[None]:
    """While entered, no other launcher writes logs into a directory; see `training`."""
    return _held(logs, "launch", f"{logs} must have one `replicate launch` at a time")


@contextlib.contextmanager
def _held(folder: str, name: str, rule: str) -> Iterator[None]:
    if "://" in folder:
        yield
        return
    lock = filelock.FileLock(os.path.join(folder, f"{name}.lock"), timeout=0)
    # Beside it is who holds it: on some systems a locked file is not read.
    holder = os.path.join(folder, f"{name}.lock.json")
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
        _LOGGER.warning(
            "%s cannot be locked (%s): see to it that one training at a time runs there.",
            folder,
            e,
        )
    try:
        _write(holder)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(holder)
        lock.release()


def _write(path: str) -> None:
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": now}, file)


def _described(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            holder = json.load(file)
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
