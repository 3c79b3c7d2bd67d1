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
import os
from collections.abc import Callable, Sequence
from typing import Any

import filelock

from replicate import errors
from replicate.app.config import files, input_config
from replicate.compat.tensorflow import tf
from replicate.console import messages

_NOT_OF_ROWS = {"batch_size", "cache", "file", "prefetch", "repeat", "shuffle"}
_held: dict[str, filelock.FileLock] = {}  # by place, until the process ends


def through(
    source: input_config.Input,
    key: str,
    paths: Sequence[str] = (),
    made_by: Sequence[Any] = (),
    worker: int = 0,
) -> Callable[[tf.data.Dataset], tf.data.Dataset] | None:
    """Returns what keeps the rows of a dataset as the config wants; None where nothing does.

    Args:
        source: The input as the config has it.
        key: Its key in the config, e.g. train.input.
        paths: The files that are read.
        made_by: The function that makes the dataset, and what it is offered.
        worker: The number of the worker that reads them; others have files of their own.

    Raises:
        RunError: If files cannot be written where the config says.
    """
    folder = getattr(source, "cache", False)
    if folder is True:
        return lambda dataset: dataset.cache()
    place = place_of(source, key, paths, made_by, worker) if folder else ""
    if place and ("://" in place or _take(place, key)):
        return lambda dataset: dataset.cache(files.relative(place))
    return None


def place_of(
    source: input_config.Input,
    key: str,
    paths: Sequence[str] = (),
    made_by: Sequence[Any] = (),
    worker: int = 0,
) -> str:
    """Returns what the names of a cache's files begin with; see `through`."""
    about: list[Any] = [source.model_dump(mode="json", exclude=_NOT_OF_ROWS)]
    about.append([_state(path) for path in paths])
    if isinstance(source, input_config.Table):
        about.append(source.names_of(0) + list(source.columns))  # their order, which JSON sorts
    about.append(bool(source.shuffle) and len(paths) > 1)  # shuffles the files
    if made_by:
        fn, offered = made_by
        about += [state_of(fn), dict(offered)]
    if worker:
        about.append(worker)
    text = json.dumps(about, sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return os.path.join(getattr(source, "cache", ""), f"{key.partition('.')[0]}-{digest}")


def _state(path: str) -> list[Any]:
    """Returns what changes when a file is written again."""
    try:
        known = os.stat(path)
    except OSError:  # as of gs://...
        return [path]
    return [os.path.abspath(path), known.st_size, known.st_mtime_ns]


def state_of(fn: Callable[..., Any]) -> list[Any]:
    """Returns what changes when the file that a function stands in is written again."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(fn))
    except TypeError:  # a callable object, a partial
        file = inspect.getsourcefile(type(fn))
    return _state(file or "")


def _take(place: str, key: str) -> bool:
    """Tells whether this process may read or write a cache's files; others may not meanwhile."""
    if os.path.exists(f"{place}.index") or place in _held:
        return True
    folder, lock = os.path.dirname(place), filelock.FileLock(f"{place}.lock", timeout=0)
    try:
        os.makedirs(folder, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        messages.warn(
            f"{key}.cache: another process is writing {place}; reading without it.",
            "configuration.md#input-tfrecord",
        )
        return False
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
    return True
