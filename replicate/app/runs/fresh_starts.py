"""Beginning again: `replicate train --fresh` deletes what runs wrote, and nothing else."""

import os
import re
from collections.abc import Iterable, Iterator

from replicate.app.runs import checkpoints, records
from replicate.compat.tensorflow import tf

_CHECKPOINT = re.compile(r"(model\.ckpt-\d+)\.(index|meta|data-\d{5}-of-\d{5})(\.(tmp|damaged))?")
_EVENTS = r"events\.out\.tfevents\.\d+\..+"
_UNFINISHED = re.compile(r"temp-\d+-[0-9a-f]{8}|\.model\.ckpt-\d+\.\d+\.tmp")  # folders
_FILES = re.compile(  # below model_dir
    rf"((best|averaged)/)?({_CHECKPOINT.pattern}|(checkpoint|graph\.pbtxt)(\.tmp\w+)?|{_EVENTS}"
    rf"|averaged\.json|\.\w[\w.-]*\.\d+\.tmp)|evaluations\.json|eval(_\w+)?/{_EVENTS}"
    r"|logs/(chief|worker|ps)-\d+\.log"
)
_SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")
_RECORDS = (records.CONFIG, records.RUN, records.METRICS)
_STATES = ("checkpoint", records.METRICS)
_MAX_LISTED = 20


def written_in(model_dir: str, exports: str, exporters: Iterable[str]) -> list[str]:
    """Returns what runs have written in a directory, sorted: files, and SavedModels.

    Args:
        model_dir: The directory.
        exports: The directory of the exports; what is outside of model_dir is left alone.
        exporters: The folders of exporters in it.
    """
    names = _names_in(model_dir)
    for folder in [name for name in names if not _UNFINISHED.fullmatch(name)]:
        if _is_folder(path := os.path.join(model_dir, folder)):
            names += [f"{folder}/{name}" for name in _names_in(path)]
    found = [os.path.join(model_dir, name) for name in names if _is_written(model_dir, name)]
    if _is_within(exports, model_dir):
        folders = (exports, *(os.path.join(exports, name) for name in exporters))
        found += [path for folder in folders if _is_folder(folder) for path in _exports_in(folder)]
    return sorted(found)


def _is_written(model_dir: str, name: str) -> bool:
    """Tells whether what has a name below model_dir is a run's."""
    path = os.path.join(model_dir, name)
    if name in _RECORDS:
        return records.is_ours(model_dir, name)
    if tf.io.gfile.isdir(path):
        is_kept = os.path.dirname(name) in ("", checkpoints.BEST, checkpoints.AVERAGED)
        return is_kept and _is_folder(path) and bool(_UNFINISHED.fullmatch(os.path.basename(name)))
    return bool(_FILES.fullmatch(name))


def listed(model_dir: str, found: Iterable[str]) -> list[str]:
    """Returns lines for a person who is asked: a checkpoint's files are one."""
    counts: dict[str, int] = {}
    for path in found:
        folder, name = os.path.split(os.path.relpath(path, model_dir))
        match = _CHECKPOINT.fullmatch(name)
        shown = os.path.join(folder, match[1] if match else name)
        counts[shown] = counts.get(shown, 0) + 1
    lines = [f"  {name}{f' ({n} files)' if n > 1 else ''}" for name, n in counts.items()]
    if len(lines) > _MAX_LISTED:
        more = len(lines) - _MAX_LISTED + 1
        lines = [*lines[: _MAX_LISTED - 1], f"  and {more} more"]
    return lines


def delete(model_dir: str, found: Iterable[str]) -> None:
    """Deletes what `written_in` found, and folders of a run that are empty then.

    What says that there are checkpoints goes first: who is stopped in between begins again.
    """
    found = sorted(found, key=lambda path: (os.path.basename(path) not in _STATES, path))
    for path in found:
        if tf.io.gfile.isdir(path):
            tf.io.gfile.rmtree(path)
        elif tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)
    folders = {os.path.dirname(path) for path in found}
    folders |= {os.path.dirname(folder) for folder in folders}
    for folder in sorted(folders, key=len, reverse=True):
        if _is_within(folder, model_dir) and _is_folder(folder) and not tf.io.gfile.listdir(folder):
            tf.io.gfile.rmtree(folder)


def _is_within(path: str, folder: str) -> bool:
    if "://" not in folder:
        path, folder = os.path.abspath(path), os.path.abspath(folder)
    return path.startswith(f"{folder.rstrip('/')}/")


def _exports_in(folder: str) -> Iterator[str]:
    """Yields the SavedModels in a folder, whole or not."""
    for name in _names_in(folder):
        path = os.path.join(folder, name)
        if not _is_folder(path):
            continue
        is_export = name.isdecimal() and any(
            tf.io.gfile.exists(os.path.join(path, one)) for one in _SAVED_MODELS
        )
        if is_export or _UNFINISHED.fullmatch(name):
            yield path


def _names_in(folder: str) -> list[str]:
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return [name.rstrip("/") for name in names]  # some file systems list directories so


def _is_folder(path: str) -> bool:
    """Tells whether a path is a directory itself: nobody follows a link out of model_dir."""
    return tf.io.gfile.isdir(path) and not os.path.islink(path)
