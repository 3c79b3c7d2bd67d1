"""The input of a section of the config, as an Estimator takes it."""

import functools
import sys
import zlib

from replicate import estimator
from replicate.app.config import config, input_config, sections
from replicate.app.data import inputs, positions
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
    start: int = 0,
) -> inputs.InputFn:
    """Returns the input_fn of a section: train, eval or predict.

    Args:
        settings: The config.
        section: Its name.
        cached: Whether rows may be kept, where the config says so.
        task: Which worker's part of the rows is wanted.
        start: The step that a training begins at.
    """
    source = settings.input_of(section)
    if not cached and hasattr(source, "cache"):
        source = source.model_copy(update={"cache": False})
    made = inputs.input_fn(source, f"{section}.input", _MODES[section], settings.params, task)
    position = positions.Position(passed_over(settings, start) if start else 0)
    return functools.partial(made, position)


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
) -> positions.Epochs:
    """Returns passes over the training data.

    Where its dataset does not know how many batches a pass has, a run that continues counts them.

    Args:
        settings: The config.
        number: How many.
        start: The step that the run begins at.
        task: Which worker's part of the rows is wanted.

    Raises:
        RunError: If the input never ends.
    """
    source = settings.section(sections.Train).input
    # NOTE: with servers the steps of all workers count, and each one takes its turns in the end.
    shared = clusters.ALONE if task.servers else task
    make = inputs.input_fn(source, "train.input", _MODES["train"], settings.params, shared)
    once = positions.Position(by_pass=True, times=1)
    length = positions.length_of(lambda: make(once), most=sys.maxsize if start else 0)
    times = number if source.repeat is True else min(number, int(source.repeat or 1))
    position = positions.Position(start, settings.seed is not None, True, length, times)
    end = None if length is None else number * length
    return positions.Epochs(end, functools.partial(make, position))
