"""Runs a model of the corpus on one device, and split over K, and compares all that comes out."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting.corpus import table

STEPS = 3
PATIENCE = tf1.RunOptions(timeout_in_ms=20_000)  # a graph that waits for itself is a failure
DEVICES = [f"/device:CPU:{k}" for k in range(8)]


def first_value(shape: list[int]) -> np.ndarray:
    """Returns a variable's first value, which follows from its shape."""
    return np.random.RandomState(int(np.prod(shape)) + len(shape)).uniform(-0.5, 0.5, shape)


class Setting(NamedTuple):
    """How a model is run.

    Attributes:
        name: Which model.
        sizes: The numbers of rows; one, if the batch is static.
        is_static: Whether the graph knows how many rows there are.
        num_devices: K; 0: one device, not split.
        random_numbers: See `splitter.split_graph`.
    """

    name: str
    sizes: tuple[int, ...]
    is_static: bool = False
    num_devices: int = 0
    random_numbers: str = "one_device"


class Read(dict):
    """Features or labels of which a placeholder is made when a model first reads it.

    Args:
        arrays: Of a batch, by name; or one array.
        is_static: Whether the graph knows how many rows there are.
    """

    def __init__(self, arrays: dict, is_static: bool):
        super().__init__()
        self.arrays = arrays
        self.is_static = is_static

    def __missing__(self, key):
        with tf.control_dependencies(None), tf.name_scope(f"given/{key}"):
            self[key] = exactness.placeholders(self.arrays[key], self.is_static)
        return self[key]


class Built:
    """A model in a graph of its own.

    Args:
        setting: How it is run.
    """

    def __init__(self, setting: Setting):
        self.model = table.MODELS[setting.name]
        self.setting = setting
        self.graph = tf.Graph()
        self.result = None
        with self.graph.as_default():
            tf1.set_random_seed(3)
            step = tf1.train.create_global_step()
            arrays = self.model.batch(setting.sizes[0], 0, setting.is_static)
            self.features, self.labels = (Read(part, setting.is_static) for part in arrays)
            loss, extras, *train_op = self.model.build(self.features, self.labels)
            if not train_op:
                train_op = [self.model.optimizer().minimize(loss, step)]
                train_op = [tf1.group(*train_op, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))]
            self.values = {"loss": loss, **extras}
            self.steps = tf.nest.flatten(train_op)
            if setting.num_devices:
                self._split()
            variables = [*tf1.global_variables(), *tf1.local_variables()]
            self.starts = {v.initializer: v for v in tf1.trainable_variables()}
            self.reads = {v.name: v.read_value() for v in variables}
            self.initializers = [
                tf1.global_variables_initializer(),
                tf1.local_variables_initializer(),
                tf1.tables_initializer(),
            ]

    def _split(self):
        from replicate.splitting import splitter

        if not self.features and not self.labels:  # a loss of nothing but weights
            _ = self.features[next(iter(self.features.arrays))]
        given = [*self.features.values(), *self.labels.values()]
        keep = [*self.values.values(), *self.steps]
        self.result = splitter.split_graph(
            given=given,
            devices=DEVICES[: self.setting.num_devices],
            keep=keep,
            home=DEVICES[0],
            random_numbers=self.setting.random_numbers,
            static_rows=self.setting.sizes[0] if self.setting.is_static else None,
        )
        found = list(self.result.fetch)
        self.values = dict(zip(self.values, found, strict=False))
        self.steps = found[len(self.values) :]

    def run(self, rows: int) -> list[dict]:
        """Runs the steps on so many rows; returns what each gives: values and variables."""
        now = {key: value for key, value in self.values.items() if not key.startswith("after ")}
        after = {key: value for key, value in self.values.items() if key not in now}
        found = []
        with tf1.Session(graph=self.graph, config=exactness.session_config()) as session:
            session.run(self.initializers)
            for initializer, variable in self.starts.items():
                start = first_value(variable.shape.as_list())
                session.run(initializer, {initializer.inputs[1]: start})
            for step in range(STEPS):
                feed = self._feed(rows, step)
                given, _ = session.run([now, self.steps[0]], feed, PATIENCE)
                for each in self.steps[1:]:
                    session.run(each, feed, PATIENCE)
                given |= session.run(after, feed, PATIENCE)
                found.append({"values": given, "variables": session.run(self.reads)})
        return found

    def _feed(self, rows, step):
        parts = self.model.batch(rows, step, self.setting.is_static)
        return {
            holder: part[key]
            for holders, part in zip((self.features, self.labels), parts, strict=True)
            for key, holder in holders.items()
        }


@functools.cache
def expected(setting: Setting) -> dict[int, list]:
    """Returns for each number of rows what one device gives."""
    built = Built(setting._replace(num_devices=0))
    return {rows: built.run(rows) for rows in setting.sizes}


def faults(setting: Setting) -> list[str]:
    """Returns in what a model that is split differs from one device; nothing if it does not."""
    wanted = expected(setting._replace(num_devices=0))
    built = Built(setting)
    found = []
    for rows in setting.sizes:
        found += differences(built.run(rows), wanted[rows], built.model.tolerance, f"{rows} rows")
    return found


def differences(found: Any, wanted: Any, tolerance: Sequence[float], place: str) -> list[str]:
    """Returns a line for each number, or array, that differs."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        pairs = [(key, found[key], wanted[key]) for key in wanted]
    elif isinstance(wanted, (list, tuple)):
        pairs = [(n, *both) for n, both in enumerate(zip(found, wanted, strict=True))]
    else:
        try:
            exactness.compare(found, wanted, *tolerance)
        except AssertionError as error:
            told = " ".join(line for line in str(error).splitlines() if "difference" in line)
            return [f"{place}: {told or str(error)[:300]}"]
        if np.asarray(wanted).dtype.kind in "fc" and not np.isfinite(wanted).all():
            return [f"{place}: not finite on one device"]
        return []
    return [
        line
        for key, one, other in pairs
        for line in differences(one, other, tolerance, f"{place}, {key}")
    ]
