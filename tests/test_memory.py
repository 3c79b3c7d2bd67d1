"""What a training has made goes with it: graphs, threads, entries of tables.

`scripts/soak.py` does the same 200 times, and counts memory.
"""

import functools
import gc
import sys
import threading
import weakref

import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1


class Graphs(tf1.train.SessionRunHook):
    """Remembers the graphs of trainings, but does not keep them alive."""

    def __init__(self):
        self.made = []

    def begin(self):
        self.made.append(weakref.ref(tf1.get_default_graph()))

    def alive(self):
        return [graph for each in self.made if (graph := each()) is not None]


def model(features, labels, mode):
    x = tf1.layers.dense(tf1.layers.dropout(features, training=True), 4, tf.nn.relu)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, tf1.layers.dense(x, 3))
    step = tf1.train.get_global_step()
    train_op = tf1.train.AdamOptimizer(0.01).minimize(loss, step)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([5, 3]), tf.range(5) % 3)).repeat()


def tables():
    """Returns how many entries each table and each cache of the package's modules has."""
    found = {}
    for name, module in list(sys.modules.items()):
        for key, value in vars(module).items() if name.split(".")[0] == "replicate" else ():
            if isinstance(value, functools._lru_cache_wrapper):
                found[name, key] = value.cache_info().currsize
            elif (
                isinstance(value, (dict, list, set, weakref.WeakKeyDictionary)) and key[:2] != "__"
            ):
                found[name, key] = len(value)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("building", ["split", "call"])
def test_nothing_of_a_training_stays(tmp_path, building):
    graphs, left = Graphs(), []
    for cycle in range(4):
        replicated = model_fn.replicate_model_fn(model, devices=2, tower_building=building)
        config = estimator.RunConfig(model_dir=str(tmp_path / str(cycle)))
        estimator.Estimator(replicated, config=config).train(input_fn, [graphs], steps=2)
        tf1.summary.FileWriterCache.clear()  # TensorFlow's: a thread for each model_dir
        del replicated
        gc.collect()
        left.append((threading.active_count(), tables()))
    assert len(graphs.made) == 4
    assert graphs.alive() == []
    assert left[3] == left[1]
