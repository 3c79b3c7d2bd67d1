"""Which checkpoint a command takes: the newest, or what `--checkpoint` names."""

import os
import re

from replicate import errors
from replicate.compat.tensorflow import tf

__all__ = ["AVERAGED", "BEST", "all_of", "chosen", "path_in"]

BEST, AVERAGED = "best", "averaged"  # folders of model_dir with a checkpoint of their own
_INDEX = re.compile(r"(.+-(\d+))\.index")
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def all_of(folder: str) -> dict[int, str]:
    """Returns step -> path of all checkpoints in a folder, by rising steps."""
    found = {}
    for name in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ():
        match = _INDEX.fullmatch(name)
        if match is not None:
            found[int(match[2])] = os.path.join(folder, match[1])
    return dict(sorted(found.items()))


def path_in(folder: str) -> str | None:
    """Returns the newest checkpoint in a folder; None where there is none."""
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
        path = path_in(os.path.join(model_dir, named))
        if path is None:
            how = "train.keep_best keeps it" if named == BEST else "`replicate average` writes it"
            raise _missing(model_dir, named, f"there is none; {how}")
        return path
    if named.isdecimal():
        return _at_step(model_dir, named)
    if tf.io.gfile.isdir(named):
        path = path_in(named)
        if path is None:
            raise _missing(model_dir, named, "this folder has none")
        return path
    path = _PART.sub("", named)
    if not tf.io.gfile.exists(path + ".index"):
        raise _missing(model_dir, named, f"there is no {path}.index")
    return path


def _at_step(model_dir: str, named: str) -> str:
    known = all_of(model_dir)
    kept = all_of(os.path.join(model_dir, BEST))
    path = known.get(int(named)) or kept.get(int(named))
    if path is None:
        raise _missing(model_dir, named, f"{model_dir} has none at this step")
    return path


def _missing(model_dir: str, named: str, what: str) -> errors.RunError:
    steps = [str(step) for step in all_of(model_dir)]
    listed = ", ".join(steps) if steps else "no checkpoint"
    words = [word for word in (BEST, AVERAGED) if path_in(os.path.join(model_dir, word))]
    return errors.RunError(
        f"--checkpoint {named}: must be a checkpoint, but {what}. Name a step that is there "
        f"({', '.join([listed, *words])}), or a path."
    )
