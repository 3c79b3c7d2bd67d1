"""Trains a model_fn step by step, and compares all its variables with one device's."""

import numpy as np

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1

ROWS = 11  # divides by neither 2 nor 4: shards differ by a row

_random = np.random.RandomState(7)
BATCHES = [
    {
        "x": _random.randn(ROWS, 3).astype(np.float32),
        "ids": _random.randint(0, 6, ROWS),
        "y": _random.randn(ROWS, 1).astype(np.float32),
    }
    for _ in range(3)
]


def replicated(model, num_towers, strategy=None, **options):
    """The model_fn on that many logical CPU devices."""
    return model_fn.replicate_model_fn(model, devices=num_towers, strategy=strategy, **options)


class Run:
    """What a training left behind.

    Attributes:
        steps: For each step the values of all variables by name, after it.
        losses: For each step the loss before it.
        names: What the graph's operations are called.
        types: The operations' types.
    """

    def __init__(self, steps, losses, graph):
        self.steps = steps
        self.losses = losses
        self.names = [op.name for op in graph.get_operations()]
        self.graph = graph

    @property
    def last(self):
        return self.steps[-1]


def train(model, steps=10, batches=BATCHES, save=None, restore=None):
    """Runs a model_fn in mode TRAIN.

    Args:
        model: The model_fn; it gets features x and ids, and labels y.
        steps: How many steps.
        batches: Dicts of x, ids, y; used in turn.
        save: Where to write a checkpoint at the end.
        restore: A checkpoint to begin with.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        fed = {
            key: tf1.placeholder_with_default(value, [None, *value.shape[1:]])
            for key, value in batches[0].items()
        }
        spec = model({"x": fed["x"], "ids": fed["ids"]}, fed["y"], "train")
        found = {v.name.split(":")[0]: v for v in tf1.global_variables()}
        shown = {name: _plain(v) for name, v in found.items()}
        saver = tf1.train.Saver()
        start = tf1.group(tf1.global_variables_initializer(), tf1.local_variables_initializer())
        with tf1.Session() as session:
            session.run(start)
            if restore:
                saver.restore(session, restore)
            values, losses = [], []
            for step in range(steps):
                feed = {fed[key]: value for key, value in batches[step % len(batches)].items()}
                loss, _ = session.run([spec.loss, spec.train_op], feed)
                losses.append(loss)
                values.append(session.run(shown))
            if save:
                saver.save(session, save)
    return Run(values, losses, graph)


def _plain(variable):
    return getattr(variable, "members", (variable,))[0].read_value()


def assert_same(found, expected, only="", relative=1e-5):
    """Fails with the step and the variable where two runs part.

    Args:
        found: A `Run`.
        expected: The one-device `Run`.
        only: Compares only variables whose name contains this.
        relative: Of the largest entry that the variable has had.
    """
    differing = set(found.last) ^ set(expected.last)
    assert not differing, f"only one of the runs has {sorted(differing)}"
    names = [name for name in expected.last if only in name]
    assert names, f"no variable is called {only!r}"
    largest = dict.fromkeys(names, 1e-3)
    for step, (here, there) in enumerate(zip(found.steps, expected.steps, strict=True)):
        for name in names:
            largest[name] = max(largest[name], np.abs(there[name]).max(initial=0.0))
            distance = np.abs(np.asarray(here[name]) - there[name]).max(initial=0.0)
            if not distance <= relative * largest[name]:
                raise AssertionError(
                    f"diverged at step {step + 1}: {name} differs by {distance}, and its largest "
                    f"entry is {largest[name]}"
                )
