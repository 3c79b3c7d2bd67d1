"""The checkpoints of a run: which step they are at, and whether they are this model's."""

import contextlib
from collections.abc import Iterator
from typing import Any

from replicate import errors
from replicate.app import failures
from replicate.compat.tensorflow import tf, tf1

__all__ = ["naming", "require", "step_of"]

_MAX_DIFFERENCES = 3


def step_of(model_dir: str) -> int | None:
    """Returns the global step of the newest checkpoint; None where there is none.

    Raises:
        RunError: If it cannot be read.
    """
    path = _newest(model_dir)
    if path is None:
        return None
    try:
        reader = tf.train.load_checkpoint(path)
        if not reader.has_tensor(tf1.GraphKeys.GLOBAL_STEP):
            return None
        return int(reader.get_tensor(tf1.GraphKeys.GLOBAL_STEP))
    except (tf.errors.OpError, RuntimeError, ValueError) as e:
        raise _unreadable(model_dir, path, e) from e


def require(model_dir: str) -> None:
    """Raises a RunError where there is no checkpoint."""
    if _newest(model_dir) is None:
        raise errors.RunError(
            f"model_dir: {model_dir} must hold a checkpoint, there is none. "
            "Run `replicate train` first, or check model_dir; it is looked up from the "
            "working directory."
        )


@contextlib.contextmanager
def naming(model_dir: str) -> Iterator[None]:
    """Says so where work fails because the checkpoint is torn, or another model's."""
    try:
        yield
    except tf.errors.OpError as e:
        is_restoring = e.op is not None and e.op.type.startswith("Restore")
        if not is_restoring and "Restoring from checkpoint failed" not in str(e):
            raise
        path = _newest(model_dir)
        differences = _differences(e.op.graph, path) if e.op is not None and path else []
        if not differences:
            raise _unreadable(model_dir, path, e) from e
        listed = "; ".join(differences[:_MAX_DIFFERENCES])
        more = len(differences) - _MAX_DIFFERENCES
        raise errors.RunError(
            f"model_dir: {path} must be a checkpoint of this model, but is another one's: "
            f"{listed}{f'; and {more} more' if more > 0 else ''}. Choose another model_dir, or "
            "take the model and the optimizer back to what they were."
        ) from e


def _newest(model_dir: str) -> str | None:
    try:
        return tf.train.latest_checkpoint(model_dir)
    except (tf.errors.OpError, ValueError) as e:
        raise _unreadable(model_dir, model_dir, e) from e


def _unreadable(model_dir: str, path: str | None, reason: Exception) -> errors.RunError:
    return errors.RunError(
        f"model_dir: {path or model_dir} must be a readable checkpoint: "
        f"{failures.first_lines(reason)} Remove what is broken from {model_dir}, or choose "
        "another model_dir."
    )


def _differences(graph: Any, path: str) -> list[str]:
    """Returns how a graph's variables differ from those of a checkpoint, in words."""
    try:
        stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except (tf.errors.OpError, RuntimeError, ValueError):
        return []
    found = []
    for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        name, _, _ = variable.name.partition(":")
        if name not in stored:
            found.append(f"it has no {name}")
        elif not variable.shape.is_compatible_with(stored[name]):
            found.append(f"{name} has the shape {stored[name]} there, {variable.shape} here")
    return found
