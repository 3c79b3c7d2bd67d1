"""The checkpoints of a run: which step they are at, and whether they are this model's."""

import contextlib
import errno
import os
from collections.abc import Iterator

from replicate import errors
from replicate.app.console import failures
from replicate.compat.tensorflow import tf, tf1

__all__ = [
    "is_finished",
    "is_trained",
    "naming",
    "naming_full_disk",
    "note_finished",
    "note_newest",
    "note_trained",
    "require",
    "require_shapes",
    "step_in",
    "step_of",
]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_DIFFERENCES = 3
_FINISHED = "finished"  # the file with the step whose evaluation and export are done
_TRAINED = "trained"  # that with the step at which an evaluator's chief has ended


def step_of(model_dir: str) -> int | None:
    """Returns the global step of the newest checkpoint; None where there is none.

    Raises:
        RunError: If it cannot be read.
    """
    path = _newest(model_dir)
    return None if path is None else step_in(path)


def step_in(path: str) -> int | None:
    """Returns the global step in a checkpoint; None where it has none.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        if not reader.has_tensor(tf1.GraphKeys.GLOBAL_STEP):
            return None
        return int(reader.get_tensor(tf1.GraphKeys.GLOBAL_STEP))
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as e:
        raise _unreadable(os.path.dirname(path), path, e) from e


def note_newest(folder: str, name: str) -> None:
    """Writes a checkpoint state by which one checkpoint in a folder is the newest, and all.

    What it names is relative to the folder, so that a run may be moved.
    """
    # NOTE: TensorFlow takes a name beside a relative folder to be relative to where we are.
    shown = name if os.path.isabs(folder) else os.path.join(folder, name)
    tf1.train.update_checkpoint_state(folder, shown, [shown])


def is_finished(model_dir: str, step: int) -> bool:
    """Tells whether what follows training has been done at a step."""
    return _is_noted(os.path.join(model_dir, _FINISHED), str(step))


def note_finished(model_dir: str, step: int | None) -> None:
    """Notes that what follows training has been done at a step; None: that it has not."""
    _note(os.path.join(model_dir, _FINISHED), None if step is None else str(step))


def is_trained(model_dir: str, step: int, until: str) -> bool:
    """Tells an evaluator whether a training has ended at a step.

    Args:
        model_dir: Where the run is.
        step: The step.
        until: What the training was to end with; one that was to end elsewhere is another one.
    """
    return _is_noted(os.path.join(model_dir, _TRAINED), f"{step} of {until}")


def note_trained(model_dir: str, step: int | None, until: str = "") -> None:
    """Notes for an evaluator that training has ended at a step; None: that it has not."""
    _note(os.path.join(model_dir, _TRAINED), None if step is None else f"{step} of {until}")


def _is_noted(path: str, text: str) -> bool:
    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read().strip() == text
    except (tf.errors.OpError, UnicodeDecodeError):
        return False


def _note(path: str, text: str | None) -> None:
    with contextlib.suppress(tf.errors.OpError):  # without the note it would be done again
        if text is not None:
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(f"{text}\n")
        elif tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)


def require(model_dir: str) -> None:
    """Raises a RunError where there is no checkpoint."""
    if _newest(model_dir) is None:
        raise errors.RunError(
            f"model_dir: {model_dir} must hold a checkpoint, there is none. "
            "Run `replicate train` first, or check model_dir; it is looked up from the "
            "working directory."
        )


@contextlib.contextmanager
def naming(model_dir: str, chosen: str | None = None) -> Iterator[None]:
    """Says so where work fails because the checkpoint is torn, or another model's.

    Args:
        model_dir: Where the run is.
        chosen: The path of the checkpoint; None: the newest one.
    """
    try:
        yield
    except (tf.errors.OpError, ValueError) as e:
        error = e
        while isinstance(error, ValueError):  # Estimators export with errors of their own
            error = error.__context__
        is_restoring = isinstance(error, tf.errors.OpError) and (
            "Restoring from checkpoint failed" in str(error)
            or (error.op is not None and error.op.type.startswith("Restore"))
        )
        if not is_restoring:
            raise
        path = chosen or _newest(model_dir)
        missing = _missing(error.op.graph, path) if error.op is not None and path else []
        if not missing:
            raise _unreadable(model_dir, path, error) from e
        raise _of_another_model(path, [f"it has no {name}" for name in missing]) from e


@contextlib.contextmanager
def naming_full_disk(model_dir: str) -> Iterator[None]:
    """Says what is saved, where work fails because the disk is full."""
    try:
        yield
    except (OSError, tf.errors.OpError) as e:
        number = e.errno if isinstance(e, OSError) else None
        text = failures.first_lines(e)
        if number not in _FULL and not any(os.strerror(one) in text for one in _FULL):
            raise
        raise errors.RunError(
            f"model_dir: {model_dir} must have room for checkpoints and summaries, but the disk "
            f"is full: {text.rstrip('.')}. {_saved(model_dir)} Make room, or keep less "
            "(train.keep_checkpoint_max), and give the same command again."
        ) from e


def _saved(model_dir: str) -> str:
    try:
        step = step_of(model_dir)
    except errors.RunError:
        step = None
    return "Nothing is saved yet." if step is None else f"Step {step} is saved."


def require_shapes(model_dir: str, graph: tf.Graph, chosen: str | None = None) -> None:
    """Raises a RunError where a checkpoint's variables do not fit those of a graph.

    TensorFlow itself restores resource variables of any shape.

    Args:
        model_dir: Where the run is.
        graph: The graph.
        chosen: The path of the checkpoint; None: the newest one.
    """
    path = chosen or _newest(model_dir)
    stored = _shapes(path) if path else {}
    wrong = [
        f"{name} has the shape {stored[name]} there, {shape} here"
        for name, shape in _variables(graph)
        if name in stored and not shape.is_compatible_with(stored[name])
    ]
    if wrong:
        raise _of_another_model(path, wrong)


def _of_another_model(path: str, differences: list[str]) -> errors.RunError:
    listed = "; ".join(differences[:_MAX_DIFFERENCES])
    more = len(differences) - _MAX_DIFFERENCES
    return errors.RunError(
        f"model_dir: {path} must be a checkpoint of this model, but is another one's: "
        f"{listed}{f'; and {more} more' if more > 0 else ''}. Choose another model_dir, or "
        "take the model and the optimizer back to what they were."
    )


def _newest(model_dir: str) -> str | None:
    try:
        path = tf.train.latest_checkpoint(model_dir)
    except (tf.errors.OpError, ValueError) as e:
        raise _unreadable(model_dir, model_dir, e) from e
    state = os.path.join(model_dir, "checkpoint")
    if path is None and tf.io.gfile.exists(state):  # a training would begin over them
        raise errors.RunError(
            f"model_dir: {state} must name a checkpoint that is there, but does not. Put back "
            "the files that are missing, or remove it to begin again."
        )
    return path


def _unreadable(model_dir: str, path: str | None, reason: Exception) -> errors.RunError:
    return errors.RunError(
        f"model_dir: {path or model_dir} must be a readable checkpoint: "
        f"{failures.first_lines(reason).rstrip('.')}. Remove what is broken from {model_dir}, "
        "or choose another model_dir."
    )


def _missing(graph: tf.Graph, path: str) -> list[str]:
    stored = _shapes(path)
    return [name for name, _ in _variables(graph) if name not in stored] if stored else []


def _variables(graph: tf.Graph) -> list[tuple[str, tf.TensorShape]]:
    variables = graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    return [(variable.name.partition(":")[0], variable.shape) for variable in variables]


def _shapes(path: str) -> dict[str, list[int]]:
    """Returns the shapes of a checkpoint's variables; none where it cannot be read."""
    try:
        return tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except (tf.errors.OpError, RuntimeError, ValueError):
        return {}
