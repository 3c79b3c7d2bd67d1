"""The same seed gives the same bits on the same devices, run after run."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1

# Of Keras 2.15 itself, where it draws a seed.
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")

ROWS, STEPS = 7, 4
FEATURES = {
    "x": np.random.RandomState(1).standard_normal((ROWS, 8, 8, 2)).astype(np.float32),
    # Each id comes several times: its gradients are added in the table's row.
    "ids": np.random.RandomState(2).randint(0, 5, (ROWS, 12)),
}
LABELS = np.arange(ROWS) % 3


def convolved(features):
    """A convolution, and statistics of the batch."""
    x = tf1.layers.conv2d(features["x"], 8, 3, activation=tf.nn.relu)
    x = tf1.layers.batch_normalization(x, training=True)
    return tf.reduce_mean(x, [1, 2])


def looked_up(features):
    """An embedding, whose gradients are sparse and repeat rows."""
    return tf.reduce_mean(
        tf.nn.embedding_lookup(tf1.get_variable("table", [9, 6]), features["ids"]), 1
    )


def dense(features):
    """Products, and numbers that are drawn."""
    x = tf1.layers.dense(tf.reshape(features["x"], [-1, 128]), 32, tf.nn.relu)
    return tf1.layers.dropout(x, 0.4, training=True)


def model(features, labels, mode):
    x = tf.concat([network(features) for network in (convolved, looked_up, dense)], 1)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, tf1.layers.dense(x, 3))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())


def built(**options):
    """Builds a training on several devices in the current graph; returns the train_op."""
    tf1.set_random_seed(3)
    tf.keras.utils.set_random_seed(3)  # Keras 2 draws seeds of its layers from a generator
    tf1.train.create_global_step()
    features = {
        key: tf1.placeholder_with_default(x, [None, *x.shape[1:]]) for key, x in FEATURES.items()
    }
    labels = tf1.placeholder_with_default(LABELS, [None])
    replicated = model_fn.replicate_model_fn(
        model, lambda: tf1.train.AdamOptimizer(0.05), **options
    )
    return replicated(features, labels, "train").train_op


def serialized(graph):
    return graph.as_graph_def().SerializeToString(deterministic=True)


def session_config():
    """Several threads in each kernel, and several kernels at a time."""
    return tf1.ConfigProto(
        device_count={"CPU": 8}, intra_op_parallelism_threads=4, inter_op_parallelism_threads=4
    )


def trained(**options):
    """Trains; returns the bits of all variables, and of the graph."""
    with tf.Graph().as_default() as graph:
        train_op = built(**options)
        found = {one.name: one.read_value() for one in tf1.global_variables()}
        initialize = tf1.global_variables_initializer()
        definition = serialized(graph)
        with tf1.Session(config=session_config()) as session:
            session.run(initialize)
            for _ in range(STEPS):
                session.run(train_op)
            return {name: value.tobytes() for name, value in session.run(found).items()}, definition


KINDS = {
    "split": {},
    "mirrored": {"strategy": "mirrored"},
    "one_device": {"random_numbers": "one_device"},
    "call": {"tower_building": "call"},
}


@pytest.mark.thorough("mirrored-3")
@pytest.mark.parametrize(
    ("kind", "devices"),
    [("split", 2), ("split", 3), ("mirrored", 3), ("call", 2), ("call", 3)],
)
def test_two_trainings_in_a_process_give_the_same_bits(kind, devices):
    options = {"devices": devices, **KINDS[kind]}
    first, graph = trained(**options)
    second, same_graph = trained(**options)
    assert graph == same_graph
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


PATIENCE = 300  # runs, until threads have taken turns in another order than before
needs_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="threads take turns")


def descended(optimizer, most, **options):
    """Trains a table whose rows are each looked up 3,200 times in a step, from the same start.

    Returns:
        The bits that it came to, in `most` trainings, or until they were not always the same.
    """

    def model(features, labels, mode):
        table = tf1.get_variable("table", [50, 16], initializer=tf1.ones_initializer())
        x = tf.tanh(tf.reduce_mean(tf.nn.embedding_lookup(table, features), 1))
        loss = tf1.losses.mean_squared_error(labels[:, None] * tf.range(16.0), x)
        applied = optimizer().apply_gradients([(tf1.gradients(loss, table)[0], table)])
        return estimator.EstimatorSpec(mode, loss=loss, train_op=applied)

    ids = np.random.RandomState(2).randint(0, 50, (400, 400))
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        replicated = model_fn.replicate_model_fn(model, devices=2, **options)
        spec = replicated(tf.constant(ids), tf.linspace(0.0, 1.0, 400), "train")
        initialize = tf1.global_variables_initializer()
        (table,) = (one.read_value() for one in tf1.trainable_variables())
        with tf1.Session(config=session_config()) as session:
            found = set()
            for _ in range(most):
                session.run(initialize)
                for _ in range(STEPS):
                    session.run(spec.train_op)
                found.add(session.run(table).tobytes())
                if len(found) > 1:
                    break
            return found


def descent():
    """Adds gradients of one row to it one by one."""
    return tf1.train.GradientDescentOptimizer(0.5)


@needs_cores
@pytest.mark.parametrize("optimizer", [descent, lambda: tf.keras.optimizers.legacy.SGD(0.5)])
def test_plain_gradient_descent_adds_to_a_row_in_any_order(optimizer):
    assert len(descended(optimizer, 200)) > 1


@pytest.mark.thorough("<lambda>1")
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf1.train.AdamOptimizer(0.5),
        lambda: tf1.train.AdagradOptimizer(0.5),
        lambda: tf.keras.optimizers.legacy.SGD(0.5, momentum=0.9),
    ],
)
def test_other_optimizers_add_to_a_row_in_one_order(optimizer):
    assert len(descended(optimizer, 20)) == 1


def drawn_in_a_loop(most, **options):
    """Returns the bits of what a seeded loop draws, in `most` sessions or until they differ."""
    with tf.Graph().as_default():
        tf1.set_random_seed(3)
        # Each turn's numbers have another weight.
        sums = tf.while_loop(
            lambda n, _: n < 20,
            lambda n, x: (n + 1, x / 2.0 + tf.random.normal([4])),
            [0, tf.zeros([4])],
            **options,
        )[1]
        found = set()
        for _ in range(most):
            with tf1.Session(config=session_config()) as session:
                found.add(session.run(sums).tobytes())
            if len(found) > 1:
                break
        return found


@needs_cores
def test_turns_of_a_loop_that_overlap_draw_in_any_order():
    assert len(drawn_in_a_loop(10 * PATIENCE)) > 1  # a busy machine lets one thread run on


def test_turns_of_a_loop_one_at_a_time_draw_in_one_order():
    assert len(drawn_in_a_loop(20, parallel_iterations=1)) == 1


PROGRAM = """
import test_determinism as ours
from replicate.compat.tensorflow import tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.keras.utils.set_random_seed(3)
tf.config.experimental.enable_op_determinism()
for kind, options in ours.KINDS.items():
    first, second = (ours.trained(devices=2, **options) for _ in range(2))
    print(kind, len(ours.descended(ours.descent, 20, **options)), first == second)
"""


def run_alone(program, **environment):
    """Runs a program that imports this module in a process of its own; returns what it prints."""
    here = pathlib.Path(__file__)
    paths = os.pathsep.join(map(str, (here.parent, here.parents[1])))
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_deterministic_operations_train_to_the_same_bits():
    # In a process of its own: what is enabled cannot be taken back.
    assert run_alone(PROGRAM).splitlines() == [f"{kind} 1 True" for kind in KINDS]


IN_A_PROCESS = """
import hashlib
import test_determinism as ours
from replicate.compat.tensorflow import tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
for kind, options in ours.KINDS.items():
    bits, graph = ours.trained(devices=2, **options)
    print(kind, hashlib.sha256(repr((sorted(bits.items()), graph)).encode()).hexdigest())
"""


@pytest.mark.thorough
def test_processes_give_the_same_bits_and_graphs():
    # Python orders sets of text by its own seed in each process, sets of objects by their place.
    told = {run_alone(IN_A_PROCESS, PYTHONHASHSEED=str(seed)) for seed in (1, 2)}
    assert len(told) == 1
    assert len(told.pop().splitlines()) == len(KINDS)
