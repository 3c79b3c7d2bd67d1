"""The graph of a worker whose variables are on parameter servers."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations as graph_operations
from replicate.strategy.cluster import synchronous

pytestmark = pytest.mark.filterwarnings("ignore:To construct input pipelines")

JOBS = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["p:3", "q:4"]}
OWN = "/job:worker/task:0"


def model(features, labels, mode):
    table = tf1.get_variable("table", [50, 3])
    w = tf1.get_variable("w", [3, 4])
    b = tf1.get_variable("b", [4])
    x = tf.nn.embedding_lookup(table, features["words"])
    x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: x @ w, lambda: x @ -w)
    loss = tf.reduce_mean(tf.square(x + b - labels)) + 0.1 * tf.nn.l2_loss(w)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def built(building, optimizer=tf1.train.AdamOptimizer, **options):
    """Builds a step in the current graph; returns the spec."""
    task = {"type": "worker", "index": 0}
    strategy = replicate.ParameterServerStrategy(2, {"cluster": JOBS, "task": task})
    with tf.device("/job:ps/task:0"):  # as an Estimator does
        tf1.train.create_global_step()
    words = tf1.placeholder(tf.int64, [None])
    labels = tf1.placeholder(tf.float32, [None, 4])
    replicated = replicate.replicate_model_fn(
        model, optimizer, strategy=strategy, tower_building=building, **options
    )
    return replicated({"words": words}, labels, "train")


def operations():
    return [op for op in tf1.get_default_graph().get_operations() if op.device]


both = pytest.mark.parametrize("building", ["split", "call"])


@both
def test_what_towers_compute_is_on_their_own_worker(building, fresh_graph):
    built(building)
    kinds = {op.type for op in operations() if op.device.startswith(f"{OWN}/device:CPU:1")}
    assert "Square" in kinds
    assert not any(kind.startswith(("Resource", "VarHandle", "Assign")) for kind in kinds)
    jobs = {tf.DeviceSpec.from_string(op.device).job for op in operations()}
    assert jobs <= {"worker", "ps", None}


@both
def test_what_touches_a_variable_is_beside_it(building, fresh_graph):
    built(building)
    seen = set()
    for op in operations():
        for tensor in op.inputs:
            maker = tensor.op
            while maker.type == "Switch":  # a branch is given a variable
                maker = maker.inputs[0].op
            if maker.type == "VarHandleOp" and op.type not in ("If", "StatelessIf", "Switch"):
                assert op.device == maker.device, (op.name, op.type)
                seen.add(op.type)
    assert {"ReadVariableOp", "ResourceGather", "ResourceApplyAdam"} <= seen


@both
def test_a_table_is_neither_read_nor_given_a_dense_gradient(building, fresh_graph):
    spec = built(building, lambda: tf1.train.GradientDescentOptimizer(0.1))
    (table,) = [v for v in tf1.trainable_variables() if v.op.name == "table"]
    steps = {op.type for op in table.handle.consumers()}
    assert {"ResourceGather", "ResourceScatterAdd"} <= steps
    reads = {op for op in table.handle.consumers() if op.type == "ReadVariableOp"}
    assert not reads & graph_operations.executed_by([spec.train_op])


def test_devices_of_a_worker_get_a_variable_over_the_network_once(fresh_graph):
    """One device gets it, and gives it to the others. A branch that reads one gets its own."""
    built("split")
    used = set()
    for variable in tf1.trainable_variables():
        for op in variable.handle.consumers():
            if op.type == "ReadVariableOp":
                there = {user.device for tensor in op.outputs for user in tensor.consumers()}
                there = {device for device in there if device.startswith(OWN)}
                assert len(there) <= 1, op.name
                used |= {variable.op.name} if there else set()
    assert {"b", "w"} <= used


@both
def test_what_is_gathered_is_the_workers_own(building, fresh_graph):
    built(building, accumulate_steps=3)
    gathered = tf1.local_variables()
    assert {v.op.name for v in gathered} >= {"accumulate/batches", "accumulate/w/gradient"}
    for variable in gathered:
        for member in getattr(variable, "members", (variable,)):
            assert member.device.startswith(OWN)


def sync():
    return tf1.train.SyncReplicasOptimizer(tf1.train.AdamOptimizer(), 2, 2)


@both
def test_an_optimizer_fn_brings_its_hook(building, fresh_graph):
    spec = built(building, sync)
    (hook,) = [hook for hook in spec.training_hooks if isinstance(hook, synchronous.Hook)]
    hook.begin()
    local = [v for v in tf1.local_variables() if "sync_rep" in v.op.name]
    assert local
    for member in getattr(local[0], "members", local):
        assert member.device.startswith(OWN)


def test_a_hook_of_tensorflow_is_replaced():
    with tf.Graph().as_default():
        optimizer = sync()
        loss = tf.constant(1.0)
        for own in (
            optimizer.make_session_run_hook(False, 1),
            synchronous.Hook(optimizer, True, 0),
        ):
            spec = estimator.EstimatorSpec(
                "train", loss=loss, train_op=tf.no_op(), training_hooks=[own]
            )
            (hook,) = synchronous.with_hook(spec, optimizer, None).training_hooks
            assert isinstance(hook, synchronous.Hook)


def test_the_last_update_is_waited_for_by_nobody(fresh_graph):
    """One worker alone, whose chief's thread waits for gradients when the session ends."""
    optimizer = tf1.train.SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(0.5), 1, 1)
    step = tf1.train.create_global_step()
    w = tf1.get_variable("w", initializer=3.0)
    train = optimizer.minimize(w * 2.0, step)
    hook = synchronous.Hook(optimizer, True, 0)
    with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:  # waits 120 s for threads
        for _ in range(2):
            session.run(train)
        # 3 - 2 * 0.5 * 2
        np.testing.assert_allclose(session.run(w), 1.0)


ENDING = """
import gc, sys
from replicate.compat.tensorflow import tf1
from replicate.strategy.cluster import sessions

gc.disable()  # what only a collection finds is found when the process ends
server = tf1.train.Server.create_local_server()
for is_closed in (True, False):
    with tf1.Graph().as_default():
        session = tf1.Session(server.target)
        sessions._close_soon(session)
        session.itself = session
        session.run(tf1.constant(1))
    if is_closed:
        session.close()
        session.close()
sys.exit(3)
"""


@pytest.mark.thorough
def test_sessions_that_are_thrown_away_let_a_process_end():
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    command = [sys.executable, "-c", ENDING]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 3, ended.stderr[-2000:]
