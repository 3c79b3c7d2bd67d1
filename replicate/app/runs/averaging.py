"""One checkpoint out of several: the mean of their weights."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.runs import atomic_files, checkpoints
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

_RECORD = "averaged.json"  # beside the checkpoint: what it was made of
_MAX_NAMED = 3


class _Checkpoint(NamedTuple):
    """One that is read.

    Attributes:
        path: Where it is.
        tensor: Returns what a variable was.
        types: Variable -> dtype.
        shapes: Variable -> shape.
    """

    path: str
    tensor: Callable[[str], npt.NDArray[Any]]
    types: Mapping[str, tf.DType]
    shapes: Mapping[str, list[int]]

    @property
    def step(self) -> int:
        """The global step; 0 where it has none."""
        name = tf1.GraphKeys.GLOBAL_STEP
        return int(self.tensor(name)) if name in self.types else 0


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
    read = [_read(path) for path in paths]
    _need_one_model(read)
    newest = max(reversed(read), key=lambda one: one.step)
    name = f"model.ckpt-{newest.step}"
    with checkpoints.writing(folder, name) as path:
        _save({variable: _mean(variable, read, newest) for variable in newest.types}, path)
    record = {"step": newest.step, "checkpoints": list(map(str, paths))}
    atomic_files.write_json(os.path.join(folder, _RECORD), record)
    return os.path.join(folder, name)


def _read(path: str) -> _Checkpoint:
    try:
        reader = tf.train.load_checkpoint(path)
        types = reader.get_variable_to_dtype_map()
        return _Checkpoint(path, reader.get_tensor, types, reader.get_variable_to_shape_map())
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as e:
        raise errors.RunError(
            f"{path} must be a readable checkpoint: {messages.first_lines(e).rstrip('.')}. "
            "Name others."
        ) from e


def _need_one_model(read: Sequence[_Checkpoint]) -> None:
    """Raises a RunError where checkpoints differ in their variables' names, shapes or types."""
    first, *others = read
    for one in others:
        names = sorted(
            name
            for name in {*first.types, *one.types}
            if first.types.get(name) != one.types.get(name)
            or first.shapes.get(name) != one.shapes.get(name)
        )
        if names:
            listed = ", ".join(names[:_MAX_NAMED]) + (" ..." if len(names) > _MAX_NAMED else "")
            raise errors.RunError(
                f"checkpoints must be of one model to be averaged; {one.path} differs from "
                f"{first.path} in {listed}. Name checkpoints of one training."
            )


def _mean(name: str, read: Sequence[_Checkpoint], newest: _Checkpoint) -> npt.NDArray[Any]:
    """Returns the mean of one variable; the newest one's where it does not count in fractions."""
    dtype, value = newest.types[name], newest.tensor(name)
    if not (dtype.is_floating or dtype.is_complex):
        return value
    wide = np.complex128 if dtype.is_complex else np.float64
    total: npt.NDArray[Any] = np.zeros(np.shape(value), wide)
    for one in read:
        total += np.asarray(one.tensor(name)).astype(wide)
    return (total / len(read)).astype(dtype.as_numpy_dtype)


def _save(values: Mapping[str, npt.NDArray[Any]], path: str) -> None:
    names = sorted(values)
    on_cpu = tf1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf1.Session(config=on_cpu) as session:
        fed = [tf1.placeholder(tf.as_dtype(values[one].dtype)) for one in names]
        save = tf.raw_ops.SaveV2(
            prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), tensors=fed
        )
        session.run(save, {one: values[name] for one, name in zip(fed, names, strict=True)})
