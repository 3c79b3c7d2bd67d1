"""`seed`: what a run draws at random is the same in each run of it."""

import random

import numpy as np
import pytest

from replicate import estimator
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1

# Of Keras 2.15 itself, where it draws a seed.
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")


def model_fn(features, labels, mode):
    x = tf1.layers.dense(features["x"], 5, name="legacy")
    x = tf.keras.layers.Dense(4, name="keras")(x)
    kernel = tf1.get_variable("plain", [4, 1], initializer=tf1.glorot_uniform_initializer())
    drawn = tf1.constant([random.random(), np.random.rand()], tf.float32)
    tf1.get_variable("drawn", initializer=drawn, trainable=False)
    x = tf1.nn.dropout(x, rate=0.5) @ kernel
    return estimator.EstimatorSpec(mode, {"x": x}, tf1.reduce_mean(x), tf1.no_op())


CONFIG = """
model_fn: tests.app.test_seeds:model_fn
optimizer: {name: GradientDescent, learning_rate: 0.1}
devices: {cpu: 2}
train: {steps: 2, input: {kind: npz, file: x.npz, batch_size: 7}}
"""


@pytest.fixture(name="weights", scope="module")
def train_into(tmp_path_factory):
    """Returns what trains two steps by a seed and gives the variables before and after."""
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "c.yaml").write_text(CONFIG)
    np.savez(folder / "x.npz", x=np.arange(60, dtype=np.float32).reshape(20, 3) / 60)
    runs = iter(range(99))

    def train(seed, building):
        out = str(folder / f"run{next(runs)}")
        given = [f"--seed={seed}", f"--tower_building={building}", "--model-dir", out]
        assert cli.main(["train", str(folder / "c.yaml"), "--quiet", *given]) == 0
        readers = [tf.train.load_checkpoint(f"{out}/model.ckpt-{step}") for step in (0, 2)]
        names = readers[0].get_variable_to_shape_map()
        assert {"legacy/kernel", "keras/kernel", "plain", "drawn"} <= set(names)
        return {(name, i): one.get_tensor(name) for i, one in enumerate(readers) for name in names}

    return train


@pytest.mark.thorough("split")
@pytest.mark.parametrize("building", ["call", "split"])
def test_runs_with_one_seed_are_the_same(weights, building):
    first, second = weights(-3, building), weights(-3, building)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=str(name))


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [(1, 2), ("null", "null")])
def test_runs_with_other_seeds_are_others(weights, seeds):
    first, second = (weights(seed, "split") for seed in seeds)
    for name in ("legacy/kernel", "keras/kernel", "plain", "drawn"):
        assert np.abs(first[name, 0] - second[name, 0]).max() > 1e-4, name
