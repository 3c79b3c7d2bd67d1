"""The same seed gives the same bits on the same devices, run after run."""

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1

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


def trained(**options):
    """Trains; returns the bits of all variables, and of the graph."""
    # Several threads in each kernel, and several kernels at a time.
    config = tf1.ConfigProto(
        device_count={"CPU": 8}, intra_op_parallelism_threads=4, inter_op_parallelism_threads=4
    )
    with tf.Graph().as_default() as graph:
        train_op = built(**options)
        found = {one.name: one.read_value() for one in tf1.global_variables()}
        initialize = tf1.global_variables_initializer()
        definition = serialized(graph)
        with tf1.Session(config=config) as session:
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


@pytest.mark.thorough("*-3")
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
