"""Models of the corpus, split by one of several workers; and some that only workers try."""

import functools
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from replicate.splitting.writing import workers
from tests import exactness
from tests.law import table
from tests.splitting.corpus import model as corpus
from tests.splitting.corpus.model import F64, adam, count, hidden

STEPS = 3
MODELS = dict(table.CORPUS)
model = functools.partial(corpus.model, to=MODELS)


@model
def plain(features, labels):
    """A layer, and its error."""
    return tf.reduce_mean(tf.square(hidden(features["x"], 3) - labels["y"])), {}


@model(optimizer=adam)
def clipped_by_the_norm(features, labels):
    """A step that clips by the norm of all gradients."""
    loss = tf.reduce_sum(tf.square(hidden(features["x"])))
    trained = tf1.trainable_variables()
    gradients, norm = tf.clip_by_global_norm(tf1.gradients(loss, trained), 0.1)
    return loss, {"norm": norm}, adam().apply_gradients(zip(gradients, trained, strict=True))


@model
def looked_up(features, labels):
    """Rows of a table, whose gradient is sparse."""
    table = tf1.get_variable("table", [6, 4], F64)
    rows = tf.nn.embedding_lookup(table, features["ids"])
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.reduce_sum(rows, 1)) - hidden(features["x"])))
    return loss, {}, tf1.train.AdagradOptimizer(0.1).minimize(loss)


@model
def rows_read_whole(features, labels):
    """Operations that run once, on all rows: `sort` along them, and its gradient."""
    x = hidden(features["x"])
    return tf.reduce_sum(tf.sort(x, axis=0) * tf.cumsum(x, 0)), {}


@model
def joins_of_all_kinds(features, labels):
    """Everything that is joined, of several dtypes."""
    x, ids = hidden(features["x"]), features["ids"]
    text = tf.strings.join([tf.strings.as_string(ids[:, 0]), "é"])
    return tf.reduce_sum(x * x), {
        "largest": tf.reduce_max(x),
        "smallest": tf.reduce_min(x, 0),
        "all": tf.reduce_all(x > -0.1),
        "any": tf.reduce_any(x > 0.1, 0),
        "product": tf.reduce_prod(x, 0),
        "whole number": tf.reduce_max(ids),
        "sum": tf.reduce_sum(ids),
        "size": tf.size(x),
        "shape": tf.shape(tf.concat([x, x], 1)),
        "rows": x,
        "second axis": tf.transpose(x),
        "twice the rows": tf.reshape(x, [-1, 2]),
        "truths": x > 0.0,
        "few bits": tf.cast(ids, tf.int8),
        "half": tf.cast(x, tf.float16),
        "complex": tf.complex(x, x),
        "text": text,
        "last": tf.argmax(x, 0),
    }


@model
def joins_in_branches(features, labels):
    """Joins and gathers in branches, in branches of branches, and their gradients."""
    x, total = hidden(features["x"]), tf.reduce_sum(features["x"])

    def inner():
        return tf1.cond(
            total > 0.5,
            lambda: tf.reduce_mean(tf.square(x - tf.reduce_mean(x))),
            lambda: tf.reduce_max(tf.nn.softmax(x, 0)),
        )

    loss = tf1.cond(total > 0.0, inner, lambda: tf.reduce_sum(tf.abs(x)) / count(x))
    picked = features["ids"][:, 0] > 2
    kept = tf1.cond(total > 0.0, lambda: tf.boolean_mask(x, picked), lambda: 2.0 * x)
    ordered = tf1.cond(total > 0.0, lambda: x, lambda: tf.sort(x, 0))
    return loss, {"kept": kept, "ordered": ordered, "number": tf.shape(kept)[0]}


@model
def picked_rows(features, labels):
    """Rows that a mask picks, where they are, and what is made of them."""
    x, is_picked = hidden(features["x"]), features["ids"][:, 0] > 2
    kept = tf.boolean_mask(x, is_picked)
    places = tf.where(is_picked)
    back = tf.scatter_nd(places, kept, tf.cast(tf.shape(x), tf.int64))
    loss = tf.reduce_sum(tf.square(kept)) + tf.reduce_sum(back * x) / count(x)
    return loss, {"kept": kept, "places": places, "gathered": tf.gather(x, places[:, 0])}


@model
def random_by_the_first(features, labels):
    """What is random, or made by Python, in the open, in a branch, and in a loop."""
    x = hidden(features["x"])
    noisy = x * tf.random.uniform(tf.shape(x), dtype=F64)
    scale = tf.py_function(lambda: np.random.rand(), [], F64)
    scale.set_shape([])
    chosen = tf1.cond(
        tf.random.uniform([]) > 0.5,
        lambda: tf.reduce_mean(tf.nn.dropout(x, rate=0.3)),
        lambda: tf.reduce_sum(tf.square(noisy)),
    )
    _, walked = tf.while_loop(
        lambda i, a: i < 3,
        lambda i, a: (i + 1, tf.tanh(a - tf.nn.dropout(a, rate=0.3))),
        [0, x],
    )
    return chosen + scale * tf.reduce_mean(tf.square(walked)), {"walked": walked, "noisy": noisy}


def run(kind: str, name: str, strategy: Any, number: int, rows: list[int]) -> list[dict]:
    """Runs a model on this worker's rows, see `Built`; returns what each step gives."""
    rows = [rows[0]] * len(rows) if kind == "static" else rows
    built = Built(kind, name, strategy, rows[number])
    config = tf1.ConfigProto()
    strategy.configure(config)
    found = []
    with tf1.Session(strategy.start(), built.graph, config) as session:
        session.run(built.initializer)
        for step in range(STEPS):
            feed = built.feed(step, sum(rows[:number]), rows[number], sum(rows))
            given = session.run([built.fetch, *built.together], feed)[0]
            values = dict(zip(built.names, given, strict=False))
            found.append({"values": values, "variables": session.run(built.reads)})
    return found


def run_alone(name: str, is_static: bool, rows: int) -> list[dict]:
    """Runs a model on one device; returns what each step gives."""
    model = MODELS[name]
    built = corpus.Built(model)
    batches = [model.batch(rows, step, is_static) for step in range(STEPS)]
    found = exactness.run(built, batches, is_static=is_static, fetch=built.fetched)
    steps = zip(found.fetched, found.variables, strict=True)
    return [{"values": values, "variables": variables} for values, variables in steps]


class Built:
    """A model in a graph of its own, which a worker splits.

    Args:
        kind: `"static"`: the graph knows how many rows there are; `"in_parts"`: each device
            computes its rows in two parts; `"dynamic"`: neither.
        name: The model.
        strategy: Its devices compute.
        own: How many rows the worker has, in each step.
    """

    def __init__(self, kind: str, name: str, strategy: Any, own: int):
        self.model = MODELS[name]
        self._is_static = is_static = kind == "static"
        self._micro_batches = 2 if kind == "in_parts" else 1
        self._own: dict = {}  # placeholders by what the model is given
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.device(strategy.worker_devices[0]):
            tf1.set_random_seed(3 + 10 * strategy.first_tower)
            step = tf1.train.create_global_step()
            self._number = own if is_static else tf1.placeholder(tf.int32, [])
            with strategy.scope():
                across = strategy.workers
            arrays = self.model.batch(max(own, 1), 0, is_static)
            self._parts = [
                {key: self._given(array, across.size) for key, array in part.items()}
                for part in arrays
            ]
            with tf.variable_creator_scope(corpus.begun):
                loss, extras, train_op = self.model.parts(*self._parts)
            self.names = ["loss", *extras]
            if train_op is None:
                train_op = self.model.optimizer().minimize(loss, step)
                train_op = tf1.group(train_op, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
            keep = [loss, *extras.values(), *tf.nest.flatten(train_op)]
            self.fetch = self._split(keep, across, strategy)
            self.together = across.made
            self.reads = {v.name: v.read_value() for v in tf1.global_variables()}
            self.initializer = exactness.initializer_of_all()

    def _given(self, array: Any, size: int) -> tf.Tensor:
        own = exactness.placeholders(array, self._is_static)
        whole = tf.concat([own] * size, 0) if self._is_static else tf.identity(own)
        self._own[whole.ref()] = own
        return whole

    def _split(self, keep: list, across: Any, strategy: Any) -> list:
        given = [ref.deref() for ref in self._own]
        return splitter.split_graph(
            given=given,
            devices=strategy.worker_devices,
            keep=keep,
            home=strategy.home,
            static_rows=self._number * across.size if self._is_static else None,
            cluster=workers.WorkerBatch(across, self._number, self._own),
            micro_batches=self._micro_batches,
        ).fetch

    def feed(self, step: int, start: int, own: int, total: int) -> dict:
        """Returns the worker's rows of a step; where it has none, a row on loan."""
        found = {} if self._is_static else {self._number: own}
        parts = self.model.batch(total, step, self._is_static)
        for tensors, arrays in zip(self._parts, parts, strict=True):
            for key, tensor in tensors.items():
                rows = np.asarray(arrays[key])[start : start + own]
                lent = np.zeros((1, *rows.shape[1:]), rows.dtype)
                if rows.dtype.kind == "O":
                    lent = np.full(lent.shape, "", object)
                found[self._own[tensor.ref()]] = rows if own else lent
        return found
