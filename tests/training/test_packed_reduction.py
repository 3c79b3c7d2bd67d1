"""Small gradients of a tower travel together; large and sparse ones, and other dtypes, alone."""

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.training import packed_reduction
from tests import exactness

TOWERS = 3
STRATEGIES = ("parameter_server", "round_robin", "mirrored")

both_ways = pytest.mark.parametrize("way", ["clone", "call"])


def batches(*sizes):
    made = []
    for rows in sizes:
        x = np.random.RandomState(rows).uniform(0.1, 1, [rows, 4]).astype(np.float32)
        made.append((x, x[:, :1] * 2.0))
    return made


def descent():
    return tf1.train.GradientDescentOptimizer(0.1)


def variable(name, shape, dtype=tf.float32):
    return tf1.get_variable(name, shape, dtype, exactness.start)


LARGE = packed_reduction.PACK_BYTES // 4 + 1  # numbers of four bytes: one more than go together


def of_all_kinds(features, labels, mode):
    """Small and large variables, of two dtypes, a sparse gradient, and none."""
    variable("unused", [2])
    small = [variable(f"small_{i}", shape) for i, shape in enumerate([[], [4], [1, 4]])]
    double = [variable(f"double_{i}", [4], tf.float64) for i in range(2)]
    large = variable("large", [LARGE])
    table = variable("table", [5, 4])
    picked = tf.nn.embedding_lookup(table, tf.cast(features[:, 0] * 5.0, tf.int32))
    output = small[0] + features * small[1] + features * small[2] + picked
    output += tf.cast(tf.cast(features, tf.float64) * double[0] * double[1], tf.float32)
    output += features[:, :1] * tf.reduce_sum(large) / LARGE
    return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)), output)


@both_ways
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_of_all_kinds_are_one_devices(strategy, way):
    exactness.require_one_device(
        of_all_kinds,
        batches(7, 2, 1),
        optimizer_fn=descent,
        devices=TOWERS,
        strategy=strategy,
        tower_building=way,
    )


def behind(op):
    """Returns all operations that one needs, itself included."""
    seen, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
    return seen


def sent_from(device, num_variables, **options):
    """Returns what a step sends from one device to another, for a model of so many variables."""

    def model(features, labels, mode):
        output = features
        for i in range(num_variables):
            output = tf.tanh(output * variable(f"v_{i}", [4]))
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)), output)

    with tf.Graph().as_default():
        tf1.train.create_global_step()
        features, labels = tf1.placeholder(tf.float32, [None, 4]), tf1.placeholder(tf.float32)
        labels = tf.ensure_shape(labels, [None, 1])
        towers = model_fn.replicate_model_fn(model, descent, TOWERS, **options)
        towers(features, labels, "train")
        updates = [
            op
            for op in tf1.get_default_graph().get_operations()
            if op.type == "ResourceApplyGradientDescent"
        ]
        assert len(updates) >= num_variables
        running = set().union(*map(behind, updates))
        return {
            tensor.name
            for op in running
            for tensor in op.inputs
            if tensor.dtype != tf.resource
            and tensor.device.endswith(device)
            and op.device
            and not op.device.endswith(device)
        }


@both_ways
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_tower_sends_as_much_for_ten_small_variables_as_for_two(strategy, way):
    options = {"strategy": strategy, "tower_building": way}
    for_two = sent_from("CPU:1", 2, **options)
    assert for_two
    assert len(sent_from("CPU:1", 10, **options)) == len(for_two)
