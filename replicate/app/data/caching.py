"""Rows that are read once: in memory, or in files that later runs read again.

The name of a cache's files comes from all that its rows come from, so that data or keys that
change make another cache, and no run reads what is out of date. TensorFlow writes the files, and
removes them where a run stops before it has read all rows; what a process leaves behind that was
killed meanwhile is removed by the next one. A lock says which processes are at it.
"""

import glob
import hashlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import filelock

from replicate import errors
from replicate.app.config import input_config
from replicate.compat.tensorflow import tf

__all__ = ["place_of", "state_of", "through"]

_LOGGER = logging.getLogger(__name__)
_NOT_OF_ROWS = {"batch_size", "cache", "file", "prefetch", "repeat", "shuffle"}
_held: dict[str, filelock.FileLock] = {}  # by place, until the process ends


def place_of(
    source: input_config.Input,
    key: str,
    paths: Sequence[str] = (),
    fn: Callable[..., Any] | None = None,
    offered: Mapping[str, Any] | None = None,
    worker: str = "chief",
) -> str | None:
    """Returns where the rows of an input are cached.

    Args:
        source: The input as the config has it.
        key: Its key in the config, e.g. train.input.
        paths: The files that are read.
        fn: The function that makes the dataset.
        offered: What that is offered.
        worker: Which worker of a cluster reads them; others have files of their own.

    Returns:
        The beginning of the files' names; empty: in memory; None: not at all.

    Raises:
        RunError: If files cannot be written there.
    """
    wanted = getattr(source, "cache", False)
    if not isinstance(wanted, str):
        return "" if wanted else None
    about = [source.model_dump(mode="json", exclude=_NOT_OF_ROWS), [_state(p) for p in paths]]
    about.append(bool(source.shuffle) and len(paths) > 1)  # shuffles the files
    if fn is not None:
        about += [state_of(fn), {**(offered or {})}]
    if worker != "chief":
        about.append(worker)
    text = json.dumps(about, sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    place = os.path.join(wanted, f"{key.partition('.')[0]}-{digest}")
    if "://" in place:
        return place
    return _taken(place, wanted, key)


def through(dataset: tf.data.Dataset, place: str | None) -> tf.data.Dataset:
    """Returns a dataset that keeps what it has read; unchanged where nothing is cached."""
    return dataset if place is None else dataset.cache(place)


def _state(path: str) -> list[Any]:
    """Returns what changes when a file is written again."""
    try:
        known = os.stat(path)
    except OSError:  # as of gs://...
        return [path]
    return [os.path.abspath(path), known.st_size, known.st_mtime_ns]


def state_of(fn: Callable[..., Any]) -> list[Any]:
    """Returns what changes when the file that a function stands in is written again."""
    return _state(_file_of(fn))


def _file_of(fn: Callable[..., Any]) -> str:
    try:
        return inspect.getsourcefile(inspect.unwrap(fn)) or ""
    except TypeError:  # a callable object, a partial
        return inspect.getsourcefile(type(fn)) or ""


def _taken(place: str, folder: str, key: str) -> str | None:
    """Returns a place that this process may write to or read from; None where there is none."""
    if os.path.exists(f"{place}.index") or place in _held:
        return place
    lock = filelock.FileLock(f"{place}.lock", timeout=0)
    try:
        os.makedirs(folder, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        _LOGGER.warning("%s.cache: another process is writing %s; reading without it.", key, place)
        return None
    except (OSError, NotImplementedError) as e:
        what = getattr(e, "strerror", None) or e
        raise errors.RunError(
            f"{key}.cache: {folder} must be a directory that can be written and locked: {what}. "
            "Check the path and its permissions, or set cache: true, which is in memory."
        ) from e
    _held[place] = lock
    if not os.path.exists(f"{place}.index"):  # what a killed process had begun
        for path in glob.glob(f"{glob.escape(place)}*"):
            if not path.endswith(".lock"):
                os.remove(path)
    return place
