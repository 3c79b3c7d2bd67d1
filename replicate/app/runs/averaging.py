"""One checkpoint out of several: the mean of their weights."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.runs import checkpoints
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

_MAX_NAMED = 3


def average(paths: Sequence[str], folder: str) -> str:
    """Writes a checkpoint with the mean of others' variables.

    Variables of floating (and complex) types are added up in double precision, divided, and
    rounded once to their own type; all others, the global step among them, are those of the
    newest checkpoint.

    Args:
        paths: The checkpoints, the newest last.
        folder: Where it is written, as `model.ckpt-<step>` with a checkpoint state.

    Returns:
        The path of the checkpoint.

    Raises:
        RunError: If a checkpoint cannot be read, or they are not of one model.
    """
    readers = {path: _reader(path) for path in paths}
    _need_one_model(readers)
    newest, values = paths[-1], {}
    step = checkpoints.step_in(newest) or 0
    name = f"model.ckpt-{step}"
    for variable in sorted(readers[newest].get_variable_to_shape_map()):
        value = np.asarray(readers[newest].get_tensor(variable))
        dtype = tf.as_dtype(value.dtype)
        if dtype.is_floating or dtype.is_complex:
            wide = np.complex128 if dtype.is_complex else np.float64
            total = sum(
                np.asarray(one.get_tensor(variable)).astype(wide) for one in readers.values()
            )
            value = np.asarray(total / len(readers)).astype(value.dtype)
        values[variable] = value
    with checkpoints.writing(folder, name) as path:
        _save(values, path)
    return os.path.join(folder, name)


def _reader(path: str) -> Any:
    try:
        return tf.train.load_checkpoint(path)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as e:
        raise errors.RunError(
            f"{path} must be a readable checkpoint: {messages.first_lines(e).rstrip('.')}. "
            "Name others."
        ) from e


def _need_one_model(readers: Mapping[str, Any]) -> None:
    """Raises a RunError where checkpoints differ in their variables' names, shapes or types."""
    known = {}
    for path, reader in readers.items():
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        known[path] = {name: (shapes[name], types[name]) for name in shapes}
    first, *others = known
    for other in others:
        names = sorted({*known[first], *known[other]})
        names = [name for name in names if known[first].get(name) != known[other].get(name)]
        if names:
            listed = ", ".join(names[:_MAX_NAMED]) + (" ..." if len(names) > _MAX_NAMED else "")
            raise errors.RunError(
                f"checkpoints must be of one model to be averaged; {other} differs from "
                f"{first} in {listed}. Name checkpoints of one training."
            )


def _save(values: Mapping[str, npt.NDArray[Any]], path: str) -> None:
    on_cpu = tf1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf1.Session(config=on_cpu) as session:
        fed = [tf1.placeholder(tf.as_dtype(value.dtype)) for value in values.values()]
        slices = [""] * len(values)
        save = tf.raw_ops.SaveV2(
            prefix=path, tensor_names=list(values), shape_and_slices=slices, tensors=fed
        )
        session.run(save, dict(zip(fed, values.values(), strict=True)))
