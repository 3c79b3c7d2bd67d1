"""The input of a section of the config, as an Estimator takes it."""

import json
import zlib
from collections.abc import Collection, Mapping
from typing import Any

from replicate import estimator
from replicate.app.config import config, files, functions, input_config, sections
from replicate.app.data import caching, epochs, inputs, positions
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster as clusters

_MODES = {
    "train": estimator.ModeKeys.TRAIN,
    "eval": estimator.ModeKeys.EVAL,
    "predict": estimator.ModeKeys.PREDICT,
}


def input_fn(
    settings: config.Config,
    section: str,
    cached: bool = True,
    task: clusters.Cluster = clusters.ALONE,
    only: Collection[str] | None = None,
    start: int = 0,
) -> inputs.InputFn:
    """Returns the input_fn of a section: train, eval or predict.

    Args:
        settings: The config.
        section: Its name.
        cached: Whether rows may be kept, where the config says so.
        task: Which worker's part of the rows is wanted.
        only: The features that predictions need; None: all.
        start: The step that a training begins at.
    """
    source = settings.input_of(section)
    source = source if only is None else source.for_predictions(only)
    if not cached and hasattr(source, "cache"):
        source = source.model_copy(update={"cache": False})
    called = source.called(section)
    position = positions.Position(passed_over(settings, start) if start else 0)
    return inputs.input_fn(source, called, _MODES[section], settings.params, task, position)


def passed_over(settings: config.Config, start: int) -> int:
    """Returns how many batches of the training data were read before the run that begins at a step.

    A function whose order may be another one in each run is read from its beginning.
    """
    train = settings.section(sections.Train)
    is_function = isinstance(train.input, input_config.Function)
    is_anew = is_function and settings.seed is None and train.epochs is None
    return 0 if is_anew else start


def alike(make: inputs.InputFn, settings: config.Config, task: clusters.Cluster) -> inputs.InputFn:
    """Returns an input_fn that draws the same random numbers in all workers of a cluster.

    Each worker takes its part of batches that all of them know. A seed in the config does so.
    """
    if task.size == 1 or settings.seed is not None:
        return make

    def made() -> tf.data.Dataset:
        graph = tf1.get_default_graph()
        before, graph.seed = graph.seed, zlib.crc32(repr(task.addresses).encode())
        try:
            return make()
        finally:
            graph.seed = before

    return made


def in_epochs(
    settings: config.Config, number: int, start: int, task: clusters.Cluster = clusters.ALONE
) -> epochs.Epochs:
    """Returns passes over the training data.

    Args:
        settings: The config.
        number: How many.
        start: The step that the run begins at.
        task: Which worker's part of the rows is wanted; the chief alone writes anything down.
    """
    source = settings.section(sections.Train).input
    source = source.model_copy(update={"prefetch": 0})
    # NOTE: with servers the steps of all workers count, and each one takes its turns in the end.
    shared = clusters.ALONE if task.servers else task
    make = inputs.batches(source, "train.input", _MODES["train"], settings.params, shared)
    description = _description(source, settings.params)
    notes = epochs.Notes(settings.model_dir, description, is_written=task.position == 0)
    return epochs.Epochs(number, make, start, settings.seed is not None, notes)


def _description(source: input_config.Input, params: Mapping[str, Any]) -> str:
    """Returns what the number of batches depends on: the config's words, files, a function."""
    named = [name for name in input_config.files_of(source) if "://" not in name]
    sizes: list[Any] = [files.size(path) for path in files.expanded(named, "train.input")]
    if isinstance(source, input_config.Function):
        fn = functions.load(source.function, "train.input.function")
        sizes = [caching.state_of(fn), json.dumps(dict(params), sort_keys=True, default=repr)]
    others = {"shuffle", "prefetch", "repeat", "cache", "parallel_reads"}
    return f"{source.model_dump_json(exclude=others)} {sizes}"
