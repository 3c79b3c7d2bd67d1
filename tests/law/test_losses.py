"""The law of exactness, loss by loss: nobody says whether it is a mean or a sum.

`tests/splitting/test_corpus.py` splits the graph of every loss, `test_draws.py` puts them behind
networks. Here are those that ask the strategy in force, and some of each kind.
"""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.law import libraries, losses, penalties, running, table

# NOTE: reassociation alone. TensorFlow computes some losses in float32, whatever it is given.
TOLERANCES = {np.float64: running.TOLERANCE, np.float32: running.SINGLE}


def clip(loss):
    """As BERT's code does; the norm is below that of every gradient, so that it binds."""
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1e-3)
    return running.apply(zip(gradients, trained, strict=True))


def with_keras(loss):
    optimizer = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.5)
    optimizer.iterations = tf1.train.get_global_step()
    return tf1.group(optimizer.get_updates(loss, tf1.trainable_variables()))


WAYS = {
    "optimizer_fn": None,
    "minimize": lambda loss: running.momentum().minimize(loss, tf1.train.get_global_step()),
    "clip": clip,
    "keras": with_keras,
}
OF_EACH_KIND = (
    "sum",
    "sum by params",
    "learned task weights",
    "quotient",
    "mean of kept tokens",
    "perplexity of kept tokens",
    "sparsity",
    "a penalty of all weights of layers",
    "adversarial unit length",
    "two inner steps",
    "gradient penalty of a loop",
    "tf.losses collected",
)
ASKING = (
    *[name for name in table.CASES if name.startswith("Keras ")],
    *[name for name in libraries.COUNTS if "replicas" in name or "average" in name],
    "a scaled penalty",
    *penalties.REDUCED,
)


def cells():
    """Returns parameters: a loss, and the way and the setting whose turn it is."""
    names = [*OF_EACH_KIND, *ASKING]
    ways = [list(WAYS)[(i + i // len(WAYS)) % len(WAYS)] for i in range(len(names))]
    settings = [running.SETTINGS[i % len(running.SETTINGS)] for i in range(len(names))]
    cells = zip(names, ways, settings, strict=True)
    return [cell for cell in cells if cell[2].is_static in table.CASES[cell[0]].statics]


def model_of(loss, way):
    """A model of a loss, whose step is made inside, or by an optimizer_fn (None)."""
    if WAYS[way] is None:
        return table.Model(loss, running.adam)

    def step(f, y, v):
        found = loss(f, y, v)
        return found, WAYS[way](found)

    return table.Model(step)


@pytest.mark.parametrize(("name", "way", "setting"), cells(), ids=str)
def test_a_loss_needs_no_declaration(name, way, setting):
    case = table.CASES[name]
    model = model_of(case.loss, way)._replace(tolerance=TOLERANCES[case.dtype])
    found = model.require_exact(setting)
    assert np.isfinite([fetched["loss"] for fetched in found.fetched]).all()


# A tower for each device, and what is said of their losses.

TOWERS = running.Setting("parameter_server", 3, (7, 7))


def of_parts(reduce, join):
    """What three towers' parts of a batch of seven rows, joined, are on one device."""

    def loss(f, y, v):
        parts = tf.split(losses.cross(f, y, v), [3, 2, 2])
        return join([reduce(part) for part in parts])

    return loss


def weighted(parts):
    return tf.add_n([part * rows / 7.0 for part, rows in zip(parts, (3, 2, 2), strict=True)])


@pytest.mark.parametrize(
    ("loss", "reduction", "expected"),
    [
        (losses.mean, "sum", of_parts(tf.reduce_mean, tf.add_n)),
        (losses.total, "mean", of_parts(tf.reduce_sum, weighted)),
        (losses.total, tf.VariableAggregation.MEAN, of_parts(tf.reduce_sum, weighted)),
    ],
)
def test_towers_are_joined_as_is_said(loss, reduction, expected):
    reference = model_of(expected, "minimize")
    options = {"loss_reduction": reduction, "reference": reference}
    model_of(loss, "minimize")._replace(options=options).require_exact(TOWERS)
