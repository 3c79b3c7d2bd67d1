"""What building the models of tests/models takes: seconds, and memory, beside one device."""

import gc
import multiprocessing
import multiprocessing.pool
import os
import pathlib
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from benchmarking import tables


class Builds(NamedTuple):
    """Builds of one model in one process, after one that is not counted.

    Attributes:
        seconds: The processor's, of each build.
        peak: The most memory that the process had, in MiB.
    """

    seconds: list[float]
    peak: int


def measured(models: Sequence[str], num_devices: int, builds: int) -> str:
    """Builds each model on one device and on several, each in a process of its own.

    Args:
        models: Names of tests/models/every.py.
        num_devices: K.
        builds: How often each is built.

    Returns:
        A table: medians, ratios to one device, and the slowest build over the median.
    """
    rows = [["model", "one s", "K s", "ratio", "slowest", "one MiB", "K MiB", "ratio"]]
    with _pool() as pool:
        for name in models:
            one, split = (pool.apply(_build, (name, k, builds)) for k in (1, num_devices))
            rows.append(_row(name, one, split))
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return tables.aligned(rows)


def names() -> list[str]:
    """Returns the names of tests/models/every.py."""
    with _pool() as pool:
        return pool.apply(_names)


def _pool() -> multiprocessing.pool.Pool:
    """Returns what runs each call in a new process."""
    return multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)


def _row(name: str, one: Builds, split: Builds) -> list[str]:
    base, median = statistics.median(one.seconds), statistics.median(split.seconds)
    numbers = [base, median, median / base, max(split.seconds) / median]
    shown = [tables.shown(number, 2) for number in numbers]
    peaks = [tables.shown(peak, 0) for peak in (one.peak, split.peak)]
    return [name, *shown, *peaks, tables.shown(split.peak / one.peak, 2)]


def _names() -> list[str]:
    return list(_every().MODELS)


def _build(name: str, num_devices: int, builds: int) -> Builds:
    import replicate
    from replicate.compat.tensorflow import tf

    model = _every().MODELS[name]
    replicate.devices.make_logical_cpus(num_devices)
    model_fn = model.model_fn
    if num_devices > 1:
        model_fn = replicate.replicate_model_fn(model_fn, devices=num_devices)
    seconds = []
    for _ in range(builds + 1):
        gc.collect()  # a graph is garbage in circles: what is measured is this build's
        with tf.Graph().as_default():
            begin = time.process_time()
            model.build(model_fn)
            seconds.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Builds(seconds[1:], peak)


def _every():
    """Returns the module of the models, in a process that builds them."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
    from tests.models import every

    return every
