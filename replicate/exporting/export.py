"""SavedModels of replicated estimators."""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.strategy import context
from replicate.strategy.cluster import membership

TOWERS = ("one", "merged")


def export_saved_model(
    estimator: Any,
    export_dir_base: str | os.PathLike[str],
    serving_input_receiver_fn: Callable[[], Any],
    *,
    towers: str = "one",
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    checkpoint_path: str | None = None,
    experimental_mode: str = types.PREDICT,
) -> bytes:
    """Exports a model that was trained on K devices, for any machine.

    The SavedModel names no device and holds each variable once, under the name that it
    has on one device. It is written beside its place and moved there when it is whole.

    Args:
        estimator: An Estimator of a `replicate_model_fn`.
        export_dir_base: The directory of all exports; this one gets a number as its name.
        serving_input_receiver_fn: Makes what the model is fed.
        towers: `"one"`: one tower computes. `"merged"`: as many towers as in training
            share a batch of any size B >= 1.
        assets_extra: Path below `assets.extra` -> file to copy there.
        as_text: Whether to write the graph as text.
        checkpoint_path: The checkpoint, if not the last one.
        experimental_mode: Whose graph to export: `"infer"`, `"eval"` or `"train"`.

    Returns:
        The path of the export, as `Estimator.export_saved_model` returns it.

    Raises:
        ValueError: If `towers` has no such value, or there is nothing to export.
        RunError: If this is a worker of a cluster, and not its chief.
    """
    if towers not in TOWERS:
        raise ValueError(
            f"towers is one of {', '.join(map(repr, TOWERS))}; got {towers!r}. Use 'one' for a "
            "model of one tower, 'merged' for all of them."
        )
    options = {
        "assets_extra": assets_extra,
        "as_text": as_text,
        "checkpoint_path": checkpoint_path,
        "experimental_mode": experimental_mode,
    }
    _require_chief(estimator)
    base = os.fsdecode(export_dir_base)
    with _scratch(base) as scratch:
        with context.one_tower() if towers == "one" else contextlib.nullcontext():
            made = estimator.export_saved_model(scratch, serving_input_receiver_fn, **options)
        return os.fsencode(_move(os.fsdecode(made), base))


def _require_chief(estimator: Any) -> None:
    chosen = getattr(getattr(estimator, "_model_fn", None), "strategy", None)
    if not callable(chosen):
        return
    config = estimator.config
    strategy = chosen(types.PREDICT, config)
    if not strategy.is_chief:
        raise membership.export_refusal(strategy.cluster.name)
    if config.num_ps_replicas > 0 and not config.is_chief:
        raise membership.export_refusal(f"{config.task_type}:{config.task_id}")


@contextlib.contextmanager
def _scratch(base: str) -> Iterator[str]:
    """Gives a directory on the same file system, which no server takes for an export."""
    path = os.path.join(base, f"temp-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    tf.io.gfile.makedirs(path)
    try:
        yield path
    finally:
        tf.io.gfile.rmtree(path)


def _move(made: str, base: str) -> str:
    """Moves a whole export to its place, numbered by the time as Estimators number them."""
    numbers = [int(name) for name in map(_plain, tf.io.gfile.listdir(base)) if name.isdecimal()]
    number = max([int(time.time()), *(number + 1 for number in numbers)])
    while True:
        target = os.path.join(base, str(number))
        try:
            tf.io.gfile.rename(made, target)
            return target
        except tf.errors.OpError:
            if not tf.io.gfile.exists(target):
                raise
            number += 1  # another process was faster


def _plain(name: str) -> str:
    return name.rstrip("/")  # some file systems list directories so


def read(saved_model_dir: str) -> Any:
    """Returns the SavedModel proto of a directory.

    Raises:
        ValueError: If it holds none.
    """
    try:
        return tfc.loader_impl.parse_saved_model(saved_model_dir)
    except OSError as reason:
        raise ValueError(
            f"A SavedModel is a directory with saved_model.pb or .pbtxt; {saved_model_dir} has "
            f"{_listed(saved_model_dir)}. Give the directory that export_saved_model returned."
        ) from reason


def _listed(path: str) -> str:
    if not tf.io.gfile.isdir(path):
        return "nothing: it is no directory"
    return ", ".join(sorted(tf.io.gfile.listdir(path))) or "nothing in it"
