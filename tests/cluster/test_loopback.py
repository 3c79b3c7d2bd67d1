"""A chief and a parameter server in this process; TensorFlow's own function trains."""

import functools
import json

import numpy as np
import pytest

import replicate
from replicate import errors, estimator
from replicate.compat import estimator as estimators
from replicate.compat.tensorflow import tf, tf1
from tests.cluster import servers

DEVICES = ["/cpu:0", "/cpu:9"]  # the latter is one that nobody has made


@pytest.fixture
def start(monkeypatch):
    """Starts a parameter server of a cluster, of which this process is the chief."""

    def started(**jobs):
        addresses = servers.free_addresses({"chief": 1, "ps": 1, **jobs})
        task = {"type": "chief", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": addresses, "task": task}))
        tf.distribute.Server(addresses, job_name="ps", task_index=0)
        return addresses

    monkeypatch.setenv("GRPC_FAIL_FAST", "true")  # is set back
    return started


def descend():
    return tf1.train.GradientDescentOptimizer(0.1)


def model(features, labels, mode):
    w = tf1.get_variable("w", [1, 1])
    loss = tf.reduce_mean(tf.square(features["x"] @ w - 1.0))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def rows():
    return tf.data.Dataset.from_tensors({"x": np.ones([4, 1], np.float32)}).repeat(3)


def train(folder, optimizer, hooks=(), **options):
    """Trains two steps by TensorFlow's function, which starts the chief's server."""
    replicated = replicate.replicate_model_fn(model, optimizer, **options)
    made = estimator.Estimator(replicated, str(folder))
    given = estimator.TrainSpec(rows, max_steps=2, hooks=hooks), estimator.EvalSpec(rows)
    estimators.load_v2().train_and_evaluate(made, *given)


class Placed(tf1.train.SessionRunHook):
    """Where operations of towers are in a step."""

    def __init__(self):
        self.devices = {}

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs([], options=tf1.RunOptions(output_partition_graphs=True))

    def after_run(self, run_context, run_values):
        for graph in run_values.run_metadata.partition_graphs:
            for node in graph.node:
                self.devices.setdefault(node.name.partition("/")[0], set()).add(node.device)


@pytest.mark.parametrize("building", ["split", "call"])
def test_each_tower_has_its_device_on_the_server_that_tensorflow_starts(start, building, tmp_path):
    start()
    placed = Placed()
    train(tmp_path, descend, [placed], devices=DEVICES, tower_building=building)
    own = "/job:chief/replica:0/task:0/device:CPU:"
    assert f"{own}9" in placed.devices["tower_1"]
    assert f"{own}9" not in placed.devices.get("tower_0", ())


def test_who_is_lost_in_synchronous_steps_is_named(start, tmp_path):
    addresses = start(worker=1)  # whom nobody starts
    strategy = replicate.ParameterServerStrategy(DEVICES, timeout=1.0)
    sync = functools.partial(tf1.train.SyncReplicasOptimizer, descend(), 2, 2)
    lost = rf"chief:0 has lost worker:0 \({addresses['worker'][0]}\), where nobody answers"
    with pytest.raises(errors.ClusterError, match=lost):
        train(tmp_path, sync, strategy=strategy)
