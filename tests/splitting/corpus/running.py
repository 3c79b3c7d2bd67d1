"""Runs a model of the corpus on one device, and split over K, and compares all that comes out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting import splitter
from replicate.splitting.writing import inputs
from replicate.verification import races
from tests import exactness
from tests.splitting import alike
from tests.splitting.corpus import table
from tests.splitting.corpus.model import Model

STEPS = 3
AFTER = "after "  # begins the names of values that are fetched once a step is over


def first_value(shape: list[int]) -> np.ndarray:
    """Returns a variable's first value, which follows from its shape."""
    return np.random.RandomState(int(np.prod(shape)) + len(shape)).uniform(-0.5, 0.5, shape)


class Setting(NamedTuple):
    """How a model is run.

    Attributes:
        name: Which model.
        sizes: The numbers of rows; one, if the batch is static.
        is_static: Whether the graph knows how many rows there are.
        num_devices: K.
        random_numbers: See `splitter.split_graph`.
    """

    name: str
    sizes: tuple[int, ...]
    is_static: bool = False
    num_devices: int = 1
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
        self.fed = {}

    def __missing__(self, key):
        value = self.arrays[key]
        with tf.control_dependencies(None), tf.name_scope(f"given/{key}"):
            if isinstance(value, tf1.ragged.RaggedTensorValue):
                self.fed[key] = tf1.ragged.placeholder(value.values.dtype, 1, [])
                self[key] = inputs.numbered(self.fed[key])
            else:
                self.fed[key] = self[key] = alike.placeholder(value, self.is_static)
        return self[key]


class Built:
    """A model in a graph of its own, which is one device's until it is split.

    Args:
        model: The model.
        setting: How it is run.
    """

    def __init__(self, model: Model, setting: Setting):
        self.model = model
        self.setting = setting
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.set_random_seed(3)
            step = tf1.train.create_global_step()
            arrays = self.model.batch(setting.sizes[0], 0, setting.is_static)
            self.features, self.labels = (Read(part, setting.is_static) for part in arrays)
            loss, extras, *train_op = self.model.build(self.features, self.labels)
            self.forward = self.graph.get_operations()
            if not train_op:
                train_op = [self.model.optimizer().minimize(loss, step)]
                train_op = [tf1.group(*train_op, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))]
            self.values = {"loss": loss, **extras}
            self.steps = tf.nest.flatten(train_op)
            if not self.features and not self.labels:  # a loss of nothing but weights
                _ = self.features[next(iter(self.features.arrays))]

    def split(self) -> splitter.Result:
        """Splits the graph; returns what `split_graph` does."""
        given = [*self.features.values(), *self.labels.values()]
        keep = [*self.values.values(), *self.steps]
        options = {"static_rows": self.setting.sizes[0] if self.setting.is_static else None}
        options["random_numbers"] = self.setting.random_numbers
        with self.graph.as_default():
            result = alike.split(given, keep, self.setting.num_devices, **options)
        found = list(result.fetch)
        self.values = dict(zip(self.values, found, strict=False))
        self.steps = found[len(self.values) :]
        return result

    def fetched_by_a_step(self) -> list:
        """Returns what is fetched together while a step is taken."""
        values = [value for key, value in self.values.items() if not key.startswith(AFTER)]
        return tf.nest.flatten([*values, self.steps[0]])

    def run(self) -> dict[int, list[dict]]:
        """Runs the steps; returns for each number of rows what each gives: values and variables."""
        with self.graph.as_default(), tf1.Session(config=exactness.session_config()) as session:
            return {rows: self._run(session, rows) for rows in self.setting.sizes}

    def _run(self, session, rows):
        # Nothing is added to the graph: it is not split yet.
        variables = {v.name: v for v in [*tf1.global_variables(), *tf1.local_variables()]}
        tables = tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
        # What begins as another variable is, such as an average, begins behind that one.
        behind = [v for v in variables.values() if _begins_as_another(v)]
        session.run([[v.initializer for v in variables.values()], tables])
        for calls in tf1.get_collection("counted by Python"):
            calls.clear()
        trained = tf1.trainable_variables()
        starts = {v.initializer.inputs[1]: first_value(v.shape.as_list()) for v in trained}
        session.run([v.initializer for v in trained], starts)
        session.run([v.initializer for v in behind if v not in trained])
        now = {key: value for key, value in self.values.items() if not key.startswith(AFTER)}
        after = {key: value for key, value in self.values.items() if key not in now}
        found = []
        for step in range(STEPS):
            feed = self._feed(rows, step)
            given, _ = session.run([now, self.steps[0]], feed, alike.PATIENCE)
            for each in self.steps[1:]:
                session.run(each, feed, alike.PATIENCE)
            given |= session.run(after, feed, alike.PATIENCE)
            found.append({"values": given, "variables": session.run(variables)})
        return found

    def _feed(self, rows, step):
        parts = self.model.batch(rows, step, self.setting.is_static)
        return {
            holder: part[key]
            for holders, part in zip((self.features, self.labels), parts, strict=True)
            for key, holder in holders.fed.items()
        }


def _begins_as_another(variable: tf.Variable) -> bool:
    ran = operations.executed_by([variable.initializer])
    return any(op.type in ("VarIsInitializedOp", "IsVariableInitialized") for op in ran)


def faults(setting: Setting) -> list[str]:
    """Returns in what a model that is split differs from one device; nothing if it does not."""
    built = Built(table.MODELS[setting.name], setting)
    left_open = races.find(built.graph, built.fetched_by_a_step())
    if left_open:
        return [f"one device may do it either way: {race}" for race in left_open]
    wanted = built.run()
    result = built.split()
    found = [] if setting.is_static and min(setting.sizes) < 3 else not_split(built, result)
    return found + [
        line
        for rows, found in built.run().items()
        for line in differences(found, wanted[rows], built.model.tolerance, f"{rows} rows")
    ]


def not_split(built: Built, result: splitter.Result) -> list[str]:
    """Returns a line for each operation that a model wants split, and that is not."""
    kinds = built.model.split
    whole = [op for op in built.forward if op.type in kinds and result.how(op) == "whole"]
    whole = [op for op in whole if "Tensordot/" not in op.name]
    whole = [op for op in whole if not op.name.startswith("given/")]
    kinds = built.model.gradients
    whole += [op for op in result.whole if op.type in kinds and result.why(op)]
    lines = [f"{op.type} {op.name} is whole: {result.why(op)}" for op in whole]
    return lines + [f"no {kind}" for kind in {*kinds} - {op.type for op in result.split}]


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
