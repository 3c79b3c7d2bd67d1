"""One checkpoint out of several: the mean of their weights."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.console import failures
from replicate.app.runs import checkpoints, whole_files
from replicate.compat.tensorflow import tf, tf1

__all__ = ["average"]

_STEP = tf1.GraphKeys.GLOBAL_STEP
_RECORD = "averaged.json"  # beside the checkpoint: what it was made of
_MAX_NAMED = 3


def average(paths: Sequence[str], folder: str) -> str:
    """Writes a checkpoint with the mean of others' variables.

    Variables of floating (and complex) types are added up in double precision, divided, and
    rounded once to their own type; all others, the global step among them, are those of the
    newest checkpoint.

    Args:
        paths: The checkpoints; the newest is the one with the highest global step, or the
            last of these.
        folder: Where it is written, as `model.ckpt-<step>` with a checkpoint state.

    Returns:
        The path of the checkpoint.

    Raises:
        RunError: If a checkpoint cannot be read, or they are not of one model.
    """
    readers = {path: _reader(path) for path in paths}
    _need_one_model(readers)
    newest = max(paths, key=lambda path: (_step_of(readers[path]), paths.index(path)))
    mean = {name: _mean(name, readers, newest) for name in _shapes(readers[newest])}
    step = _step_of(readers[newest])
    path = _save(mean, folder, f"model.ckpt-{step}")
    whole_files.write_json(
        os.path.join(folder, _RECORD), {"step": step, "checkpoints": list(map(str, paths))}
    )
    return path


def _reader(path: str) -> Any:
    try:
        return tf.train.load_checkpoint(path)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as e:
        raise errors.RunError(
            f"{path} must be a readable checkpoint: {failures.first_lines(e).rstrip('.')}. "
            "Name others."
        ) from e


def _shapes(reader: Any) -> dict[str, list[int]]:
    return reader.get_variable_to_shape_map()


def _step_of(reader: Any) -> int:
    return int(reader.get_tensor(_STEP)) if reader.has_tensor(_STEP) else 0


def _need_one_model(readers: dict[str, Any]) -> None:
    """Raises a RunError where checkpoints differ in their variables' names, shapes or types."""
    (first, first_reader), *others = readers.items()
    wanted = _described(first_reader)
    for path, reader in others:
        found = _described(reader)
        names = sorted({name for name, _ in wanted.items() ^ found.items()})
        if names:
            listed = ", ".join(names[:_MAX_NAMED]) + (" ..." if len(names) > _MAX_NAMED else "")
            raise errors.RunError(
                f"checkpoints must be of one model to be averaged; {path} differs from {first} "
                f"in {listed}. Name checkpoints of one training."
            )


def _described(reader: Any) -> dict[str, tuple[Any, ...]]:
    types = reader.get_variable_to_dtype_map()
    return {name: (types[name], *shape) for name, shape in _shapes(reader).items()}


def _mean(name: str, readers: dict[str, Any], newest: str) -> np.ndarray:
    """Returns the mean of one variable; the newest one's where it does not count in fractions."""
    dtype = readers[newest].get_variable_to_dtype_map()[name]
    value = readers[newest].get_tensor(name)
    if not (dtype.is_floating or dtype.is_complex):
        return value
    wide = np.complex128 if dtype.is_complex else np.float64
    total = np.zeros(np.shape(value), wide)
    for reader in readers.values():
        total += np.asarray(reader.get_tensor(name)).astype(wide)
    return (total / len(readers)).astype(dtype.as_numpy_dtype)


def _save(values: dict[str, np.ndarray], folder: str, name: str) -> str:
    """Writes a checkpoint; it appears in its place when it is whole."""
    tf.io.gfile.makedirs(folder)
    unfinished = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    tf.io.gfile.makedirs(unfinished)
    try:
        written = os.path.join(unfinished, name)
        names = sorted(values)
        with tf.Graph().as_default(), tf1.Session(config=_on_cpu()) as session:
            fed = [tf1.placeholder(tf.as_dtype(values[one].dtype)) for one in names]
            save = tf.raw_ops.SaveV2(
                prefix=written,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=fed,
            )
            session.run(save, {one: values[key] for one, key in zip(fed, names, strict=True)})
        # The index comes last: a checkpoint is taken for whole as soon as it has one.
        for file in sorted(tf.io.gfile.listdir(unfinished), key=lambda one: one.endswith("index")):
            target = os.path.join(folder, file)
            tf.io.gfile.rename(os.path.join(unfinished, file), target, overwrite=True)
    finally:
        tf.io.gfile.rmtree(unfinished)
    checkpoints.note_newest(folder, name)
    return os.path.join(folder, name)


def _on_cpu() -> tf1.ConfigProto:
    return tf1.ConfigProto(device_count={"GPU": 0})
