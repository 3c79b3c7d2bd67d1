"""The checkpoints of a run: which there are, at which step, and whether they fit the model."""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from replicate import errors
from replicate.app.runs import atomic_files, records
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

BEST, AVERAGED = "best", "averaged"  # folders of model_dir with a checkpoint of their own

_INDEX = re.compile(r"(.+-(\d+))\.index")
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_DIFFERENCES = 3
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError)
_MAY_PASS = (  # says nothing of what is in a file
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
)
_DAMAGED = ".damaged"  # behind the names of files that are put aside
_CHUNK = 2**24  # bytes
_T = TypeVar("_T")


class Unreadable(errors.RunError):
    """A checkpoint cannot be read, or what names the newest one.

    Attributes:
        path: The checkpoint; None: the name of the newest one is missing.
    """

    def __init__(self, text: str, path: str | None):
        super().__init__(text)
        self.path = path


def all_of(folder: str) -> dict[int, str]:
    """Returns step -> path of all checkpoints in a folder, by rising steps."""
    found = {}
    for name in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ():
        match = _INDEX.fullmatch(name)
        if match is not None:
            found[int(match[2])] = os.path.join(folder, match[1])
    return dict(sorted(found.items()))


def path_in(folder: str) -> str | None:
    """Returns the newest checkpoint in a folder; None where there is none that can be read."""
    try:
        return tf.train.latest_checkpoint(folder)
    except (tf.errors.OpError, ValueError):
        return None


def chosen(model_dir: str, named: str) -> str:
    """Returns the path of the checkpoint that somebody names.

    Args:
        model_dir: Where a run keeps its checkpoints.
        named: A step of the run, `best`, `averaged`, the path of a checkpoint (with or
            without the ending of one of its files), or of a folder that has one.

    Raises:
        RunError: If there is no such checkpoint.
    """
    if named in (BEST, AVERAGED):
        path, how = path_in(os.path.join(model_dir, named)), "`replicate average` writes it"
        fault = f"there is none; {'train.keep_best keeps it' if named == BEST else how}"
    elif named.isdecimal():
        known = {**all_of(os.path.join(model_dir, BEST)), **all_of(model_dir)}
        path, fault = known.get(int(named)), f"{model_dir} has none at this step"
    elif tf.io.gfile.isdir(named):
        path, fault = path_in(named), "this folder has none"
    else:
        path = _PART.sub("", named)
        fault = f"there is no {path}.index"
        path = path if tf.io.gfile.exists(path + ".index") else None
    if path is not None:
        return path
    steps = ", ".join(map(str, all_of(model_dir))) or "no checkpoint"
    words = [word for word in (BEST, AVERAGED) if path_in(os.path.join(model_dir, word))]
    raise errors.RunError(
        f"--checkpoint {named}: must be a checkpoint, but {fault}. Name a step that is there "
        f"({', '.join([steps, *words])}), or a path."
    )


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
    except _UNREADABLE as e:
        raise _unreadable(path, e) from e


def newest(model_dir: str) -> str:
    """Returns the path of the newest checkpoint.

    Raises:
        RunError: If there is none, or it cannot be read.
    """
    path = _newest(model_dir)
    if path is None:
        raise errors.RunError(
            f"model_dir: {model_dir} must hold a checkpoint, there is none. "
            "Run `replicate train` first, or check model_dir; it is looked up from the "
            "working directory."
        )
    return path


def retried(model_dir: str, work: Callable[[str | None], _T], renames: bool = False) -> _T:
    """Returns what is made of the newest checkpoint, or where it is damaged of the one before.

    Args:
        model_dir: Where they are.
        work: Is given None, for the newest one, and then the path of the one before.
        renames: Whether a training goes on from the one before: then nobody else may train there,
            and the files of damaged ones are renamed.

    Raises:
        RunError: If there is none that can be read.
    """
    path = None
    while True:
        try:
            return work(path)
        except Unreadable as e:
            left = _before(model_dir, e)
            if not left:
                raise
            then = f"{left[0]} is taken."
            if renames:
                then = f"Training continues from {left[0]}."
                _write_state(model_dir, [os.path.basename(one) for one in reversed(left)])
                files = tf.io.gfile.glob(f"{e.path}.*") if e.path else []
                for file in files:
                    tf.io.gfile.rename(file, file + _DAMAGED, overwrite=True)
                then = f"Its files are renamed to *{_DAMAGED}. {then}" if files else then
            text = str(e).partition(" Remove what")[0].partition(" Put back")[0]
            messages.warn(f"{text} {then}", "stopping.md#faults")
            path = left[0]


def _before(model_dir: str, damaged: Unreadable) -> list[str]:
    """Returns the checkpoints before a damaged one, the newest first; none if it is whole."""
    found = list(all_of(model_dir).values())[::-1]
    if damaged.path is None:
        return found
    real = [os.path.realpath(path) for path in found]
    path = os.path.realpath(damaged.path)
    return found[real.index(path) + 1 :] if path in real and _is_damaged(damaged.path) else []


def _is_damaged(path: str) -> bool:
    """Tells whether a checkpoint's files can be read, but not what is in them."""
    try:
        for file in tf.io.gfile.glob(f"{path}.*"):
            with tf.io.gfile.GFile(file, "rb") as opened:
                while opened.read(_CHUNK):
                    pass
    except tf.errors.OpError:
        return False
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except _MAY_PASS:
        return False
    except _UNREADABLE:
        return True
    return False


def _write_state(folder: str, names: Sequence[str]) -> None:
    """Lists checkpoints, the newest last; relative to the folder, so that a run may be moved."""
    # NOTE: TensorFlow takes a name beside a relative folder to be relative to where we are.
    shown = [name if os.path.isabs(folder) else os.path.join(folder, name) for name in names]
    state = tf1.train.generate_checkpoint_state_proto(folder, shown[-1], shown)
    atomic_files.write_text(os.path.join(folder, "checkpoint"), str(state))


@contextlib.contextmanager
def writing(folder: str, name: str) -> Iterator[str]:
    """Yields the path to write a checkpoint to, which then becomes the only one of its folder.

    Its files appear when all of them are written. What the folder has changes at once, when its
    state is written: whoever is killed in the midst of it leaves the old one or the new one.
    """
    unfinished = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    tf.io.gfile.makedirs(unfinished)
    try:
        yield os.path.join(unfinished, name)
        # NOTE: the index comes last; a checkpoint is taken for whole as soon as it has one.
        for file in sorted(tf.io.gfile.listdir(unfinished), key=lambda one: one.endswith("index")):
            target = os.path.join(folder, file)
            tf.io.gfile.rename(os.path.join(unfinished, file), target, overwrite=True)
    finally:
        tf.io.gfile.rmtree(unfinished)
    _write_state(folder, [name])
    for other in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, other)
        if other.startswith("model.ckpt-") and not other.startswith(f"{name}."):
            tf.io.gfile.remove(path)
        elif other.rstrip("/").endswith(".tmp"):  # of a run that was killed
            tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)


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
        # NOTE: TensorFlow blames the checkpoint, too, where the graph cannot run at all.
        if not is_restoring or "Graph is invalid" in str(error):
            raise
        path = chosen or _newest(model_dir) or ""
        stored = _shapes(path) if error.op is not None and path else {}
        known = _variables(error.op.graph) if stored else []
        missing = [f"it has no {name}" for name, _ in known if name not in stored]
        if not missing:
            raise _unreadable(path, error) from e
        raise _of_another_model(path, missing, model_dir) from e


@contextlib.contextmanager
def naming_full_disk(model_dir: str) -> Iterator[None]:
    """Says what is saved, where work fails because the disk is full."""
    try:
        yield
    except (OSError, tf.errors.OpError) as e:
        number = e.errno if isinstance(e, OSError) else None
        text = messages.first_lines(e)
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
    path = chosen or _newest(model_dir) or ""
    stored = _shapes(path) if path else {}
    wrong = [
        f"{name} has the shape {stored[name]} there, {shape} here"
        for name, shape in _variables(graph)
        if name in stored and not shape.is_compatible_with(stored[name])
    ]
    if wrong:
        raise _of_another_model(path, wrong, model_dir)


def _of_another_model(path: str, differences: list[str], model_dir: str) -> errors.RunError:
    listed = "; ".join(differences[:_MAX_DIFFERENCES])
    more = len(differences) - _MAX_DIFFERENCES
    has_own = records.is_ours(model_dir, records.CONFIG)
    then = f": give {model_dir} in place of the config" if has_own else ""
    return errors.RunError(
        f"model_dir: {path} must be a checkpoint of this model, but is another one's: "
        f"{listed}{f'; and {more} more' if more > 0 else ''}. Choose another model_dir, or "
        f"take the model and the optimizer back to what they were{then}."
    )


def _newest(model_dir: str) -> str | None:
    path = path_in(model_dir)
    state = os.path.join(model_dir, "checkpoint")
    if path is None and tf.io.gfile.exists(state):  # a training would begin over them
        raise Unreadable(
            f"model_dir: {state} must name a checkpoint that is there, but does not. Put back "
            "the files that are missing, or remove it to begin again.",
            None,
        )
    return path


def _unreadable(path: str, reason: Exception) -> Unreadable:
    return Unreadable(
        f"model_dir: {path} must be a readable checkpoint: "
        f"{messages.first_lines(reason).rstrip('.')}. Remove what is broken from "
        f"{os.path.dirname(path)}, or choose another model_dir.",
        path,
    )


def _variables(graph: tf.Graph) -> list[tuple[str, tf.TensorShape]]:
    variables = graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    return [(variable.name.partition(":")[0], variable.shape) for variable in variables]


def _shapes(path: str) -> dict[str, list[int]]:
    """Returns the shapes of a checkpoint's variables; none where it cannot be read."""
    try:
        return tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except (tf.errors.OpError, RuntimeError, ValueError):
        return {}
