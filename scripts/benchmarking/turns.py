"""Training steps of several graphs in turns, in one process.

A machine is faster now and slower then, and one process faster than the next of the same program,
by more than most changes are worth. In turns of a tenth of a second all graphs see the same.
"""

import itertools
import json
import pathlib
import random
import time
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1

_TURN_SECONDS = 0.1
_begun: list[Any] = []  # as long as the process lives: closing MirroredStrategy's session may hang
_INPUTS = ("MakeIterator", "MultiDeviceIteratorInit")  # which hooks of an Estimator run otherwise


def write(file: str, fetches: Sequence[tf.Operation | tf.Tensor], config: tf1.ConfigProto) -> None:
    """Writes the current graph, its session's config, and the names of what begins it and steps."""
    graph = tf1.get_default_graph()
    begin = [tf1.global_variables_initializer(), tf1.local_variables_initializer()]
    begin += [tf1.tables_initializer()]
    begin += [op for op in graph.get_operations() if op.type in _INPUTS]
    pathlib.Path(file).write_bytes(graph.as_graph_def(add_shapes=True).SerializeToString())
    pathlib.Path(file + ".config").write_bytes(config.SerializeToString())
    found = [[each.name for each in begin], [each.name for each in fetches]]
    pathlib.Path(file + ".json").write_text(json.dumps(found), encoding="utf-8")


def measure(files: Sequence[str], seconds: float) -> list[list[float]]:
    """Runs the graphs of some files in turns, in another order each time.

    Args:
        files: What `write` wrote.
        seconds: How long each graph runs in all, behind a warm-up.

    Returns:
        For each file the steps per second of each of its turns.
    """
    steps = [_step(file) for file in files]
    _begun.extend(steps)
    for step in steps:
        _turn(step, seconds / 4)
    rates: list[list[float]] = [[] for _ in files]
    order = list(range(len(files)))
    for number in itertools.count():
        if number * _TURN_SECONDS >= seconds:
            return rates
        random.shuffle(order)
        for n in order:
            rates[n].append(_turn(steps[n], _TURN_SECONDS))


def _step(file: str) -> Any:
    """Returns what runs a step of a graph, once that has begun."""
    graph_def = tf1.GraphDef()
    graph_def.ParseFromString(pathlib.Path(file).read_bytes())
    config = tf1.ConfigProto.FromString(pathlib.Path(file + ".config").read_bytes())
    begin, fetches = json.loads(pathlib.Path(file + ".json").read_text(encoding="utf-8"))
    with tf.Graph().as_default() as graph:
        tf1.import_graph_def(graph_def, name="")
        session = tf1.Session(config=config)
        session.run([graph.as_graph_element(name) for name in begin])
        return session.make_callable([graph.as_graph_element(name) for name in fetches])


def _turn(step: Any, seconds: float) -> float:
    """Returns steps per second, of as many as fit; the first one finds the caches of others."""
    step()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        step()
        count += 1
    return count / (time.perf_counter() - begun)
