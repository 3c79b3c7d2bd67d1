"""The law of exactness, loss by loss: nobody says whether it is a mean or a sum.

Each loss meets every way of taking gradients, static and dynamic batches and both strategies;
`LAW_FULL=1 pytest tests/law/test_losses.py` takes the whole product.
"""

import itertools
import logging
import os
from typing import NamedTuple

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, table

STRATEGIES = ("parameter_server", "mirrored")
TOWERS = (2, 3, 4)
SIZES = (7, 5, 2, 1)
CASES = table.CASES
# NOTE: reassociation alone. TensorFlow computes some losses in float32, whatever it is given.
TOLERANCES = {np.float64: (1e-9, 1e-11), np.float32: (1e-5, 1e-6)}


def adam():
    return tf1.train.AdamOptimizer(0.05, epsilon=0.01)


def minimize(loss):
    step = tf1.train.get_global_step()
    return tf1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, step)


def clip(loss):
    """As BERT's code does; the norm is below that of every gradient, so that it binds."""
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1e-3)
    pairs = zip(gradients, trained, strict=True)
    return adam().apply_gradients(pairs, tf1.train.get_global_step())


def with_keras(loss):
    optimizer = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.5)
    optimizer.iterations = tf1.train.get_global_step()
    return tf1.group(optimizer.get_updates(loss, tf1.trainable_variables()))


def with_adam(loss):
    return adam().minimize(loss, tf1.train.get_global_step())


WAYS = {"optimizer_fn": with_adam, "minimize": minimize, "clip": clip, "keras": with_keras}


class Cell(NamedTuple):
    """One run of the table.

    Attributes:
        name: Which loss.
        way: How its gradients are taken.
        num_towers: K.
        sizes: The rows of each batch.
        is_static: Whether the graph knows how many rows there are.
        strategy: Its name.
    """

    name: str
    way: str
    num_towers: int
    sizes: tuple
    is_static: bool
    strategy: str

    def __str__(self):
        kind = "static" if self.is_static else "dynamic"
        rows = ",".join(map(str, self.sizes))
        return f"{self.name}-{self.way}-K{self.num_towers}-B{rows}-{kind}-{self.strategy}"


def all_cells():
    """Returns every loss with a selection of the rest, or with everything."""
    if os.environ.get("LAW_FULL"):
        factors = itertools.product(CASES, WAYS, TOWERS, SIZES, (True, False), STRATEGIES)
        found = [
            Cell(name, way, num_towers, sizes(first, is_static), is_static, strategy)
            for name, way, num_towers, first, is_static, strategy in factors
        ]
        return [cell for cell in found if cell.is_static in CASES[cell.name].statics]
    return [cell_of(name, way, i, j) for i, name in enumerate(CASES) for j, way in enumerate(WAYS)]


def cell_of(name, way, i, j):
    """Each loss meets each way, and static and dynamic batches with both strategies."""
    statics = CASES[name].statics
    is_static = statics[(i + j) % len(statics)]
    first, num_towers = SIZES[(i + j // 2) % 4], TOWERS[(i + j) % 3]
    if is_static and first == 5 and num_towers == 3:
        first = 9  # a tower's rows are as many as there are columns
    strategy = STRATEGIES[(i // 2 + j // 2) % 2]
    return Cell(name, way, num_towers, sizes(first, is_static), is_static, strategy)


def sizes(first, is_static):
    """The rows of three batches."""
    return (first,) * 3 if is_static else (first, *[rows for rows in SIZES if rows != first][:2])


class Recorded(dict):
    """Features or labels that know which of them a loss has read."""

    def __init__(self, given, read):
        super().__init__(given)
        self.read = read

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def model_of(loss, step, read):
    """A model_fn of a loss, whose step is made inside, or by an optimizer_fn (None)."""

    def model(features, labels, mode):
        given = Recorded(features, read), Recorded(labels, read)
        found = loss(*given, losses.Weights())
        return exactness.spec_of(mode, found, train_op=tf1.no_op() if step is None else step(found))

    return model


def batches(cell):
    """Dynamic batches are padded to lengths of their own."""
    lengths = (4, 4, 4) if cell.is_static else (3, 5, 4)
    given = zip(cell.sizes, lengths, strict=True)
    return [losses.batch(rows, i, length) for i, (rows, length) in enumerate(given)]


def only(given, read):
    """Leaves out what the loss does not read: each of it would be split, which takes time."""
    return [
        tuple({key: part[key] for key in part if key in {"x", *read}} for part in pair)
        for pair in given
    ]


@pytest.mark.parametrize("cell", all_cells(), ids=str)
def test_a_loss_needs_no_declaration(cell, caplog):
    case, step, read = CASES[cell.name], WAYS[cell.way], set()
    is_given = cell.way == "optimizer_fn"
    single = model_of(case.loss, step, read)
    towers = model_fn.replicate_model_fn(
        model_of(case.loss, None, read) if is_given else single,
        adam if is_given else None,
        cell.num_towers,
        strategy=cell.strategy,
    )
    given = batches(cell)
    expected = exactness.run(single, given, is_static=cell.is_static)
    assert np.isfinite([fetched["loss"] for fetched in expected.fetched]).all()
    with caplog.at_level(logging.WARNING, "replicate"):
        found = exactness.run(towers, only(given, read), is_static=cell.is_static)
    exactness.compare(found._asdict(), expected._asdict(), *TOLERANCES[case.dtype])
    assert not [record.getMessage() for record in caplog.records if "replicate" in record.name]
