"""Between the towers' gradients and the update: clipping, accumulation, sparse rows."""

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.training import step
from tests import exactness
from tests.training import models

STRATEGIES = ["round_robin", "mirrored"]  # variables on several devices, and on each


def descend():
    return tf1.train.GradientDescentOptimizer(1.0)


def product_model_fn(features, labels, mode):
    """loss = mean(x . w): the gradient of w is the mean of x."""
    del labels
    w = tf1.get_variable("w", initializer=tf.zeros([2]))
    loss = tf.reduce_mean(features["x"] @ w[:, None])
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())


def weight_after_a_step(x, devices, strategy=None, **options):
    model = models.split(
        product_model_fn, devices, optimizer_fn=descend, strategy=strategy, **options
    )
    return exactness.run(model, [({"x": np.float32(x)}, None)]).variables[0]["w:0"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "reduction",
    # Sum: each tower's gradient is its row; both are (2, 0), of norm 2, and sum to (4, 0).
    # Mean: (2, 0). Clipped to norm 1 the gradient is (1, 0), and w = 0 - 1 * (1, 0). Clipped
    # in each tower and then summed it would be (2, 0). Without towers the mean of both rows is
    # that of one device.
    ["sum", "mean", None],
)
def test_two_towers_clip_what_they_sum_to(strategy, reduction):
    rows = [[2.0, 0.0], [2.0, 0.0]]
    after = weight_after_a_step(rows, 2, strategy, clip_global_norm=1.0, loss_reduction=reduction)
    one = weight_after_a_step(rows, 1, clip_global_norm=1.0, loss_reduction=reduction)
    np.testing.assert_allclose(after, [-1.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(after, one, rtol=1e-6)


@pytest.mark.parametrize("of_rows", [False, True])
def test_a_limit_has_all_digits_of_float64(of_rows):
    # Of norm 5, clipped to 0.05: (0.03, 0.04). In float32 0.05 is 0.0500000007.
    with tf.Graph().as_default(), tf1.Session() as session:
        gradient = tf.constant([[3.0], [4.0]], tf.float64)
        if of_rows:
            gradient = tf.IndexedSlices(gradient, tf.constant([0, 1]))
        (clipped,) = step.clip([gradient], 0.05)
        found = session.run(tf.convert_to_tensor(clipped.values if of_rows else clipped))
    np.testing.assert_allclose(found, [[0.03], [0.04]], rtol=1e-14)


def test_gradients_within_the_limit_are_left_alone():
    # Towers' gradients are (3, 0) and (0, 4); their mean is (1.5, 2), of norm 2.5.
    after = weight_after_a_step([[3.0, 0.0], [0.0, 4.0]], 2, clip_global_norm=2.6)
    np.testing.assert_allclose(after, [-1.5, -2.0])


def test_norm_counts_rows_of_one_index_together():
    # Rows 3 and 1 of index 0 are one row 4; with row 3 of index 1 the norm is 5, not
    # sqrt(9 + 1 + 9). Clipped to 1: 0.8 and 0.6.
    with tf.Graph().as_default(), tf1.Session() as session:
        slices = tf.IndexedSlices(tf.constant([[3.0], [1.0], [3.0]]), tf.constant([0, 0, 1]))
        (clipped,) = step.clip([slices], 1.0)
        values, indices = session.run([clipped.values, clipped.indices])
    np.testing.assert_allclose(values[np.argsort(indices)], [[0.8], [0.6]], rtol=1e-6)


@pytest.mark.parametrize("bad", [0, -1, True, "2", 1.5])
def test_accumulate_steps_must_be_a_positive_whole_number(bad):
    with pytest.raises(ValueError, match="accumulate_steps must be a positive number; got"):
        step.GradientStep(accumulate_steps=bad)


@pytest.mark.parametrize("bad", [0, -1.0, False, "1"])
def test_clip_global_norm_must_be_a_positive_number(bad):
    with pytest.raises(ValueError, match="clip_global_norm must be a positive number; got"):
        step.GradientStep(clip_global_norm=bad)


# Accumulation.

WHOLE = [models.batch(32) for _ in range(2)]
QUARTERS = [
    tf.nest.map_structure(lambda array, i=i: array[i : i + 8], batch)
    for batch in WHOLE
    for i in range(0, 32, 8)
]


def momentum():
    return tf1.train.MomentumOptimizer(0.01, 0.9)


def accumulated(reduce, devices, **options):
    model = models.trains_with(
        lambda loss: tf1.no_op(), lambda *given: reduce(models.squares(*given))
    )
    return models.split(model, devices, **{"optimizer_fn": momentum, **options})


def quarter(errors):
    return tf.reduce_sum(errors) / 4.0


@pytest.mark.thorough("mean-2-*")
@pytest.mark.parametrize(
    ("devices", "strategy"), [(1, None), *((2, strategy) for strategy in STRATEGIES)]
)
@pytest.mark.parametrize(
    ("reduce", "options", "of_32"),
    # The mean of the 4 means of 8 rows is the mean of all 32. Sums are added to their sum where
    # that is said, else their mean is taken.
    [
        (tf.reduce_mean, {}, tf.reduce_mean),
        (tf.reduce_sum, {}, quarter),
        (tf.reduce_mean, {"loss_reduction": "mean"}, tf.reduce_mean),
        (tf.reduce_sum, {"loss_reduction": "sum"}, tf.reduce_sum),
    ],
    ids=["mean", "sum", "mean of towers", "sum of towers"],
)
def test_four_batches_of_8_equal_one_of_32(reduce, options, of_32, strategy, devices):
    whole = exactness.run(accumulated(of_32, 1), WHOLE).variables
    options = {"strategy": strategy, "accumulate_steps": 4, **options}
    parts = exactness.run(accumulated(reduce, devices, **options), QUARTERS).variables
    assert [after.pop("global_step:0") for after in parts] == list(range(1, 9))
    for after in whole:
        del after["global_step:0"]
    for n in range(3):  # nothing moves before the fourth batch
        np.testing.assert_allclose(parts[n]["w:0"], [[0.3], [-0.2], [0.1]])
    exactness.compare([parts[3], parts[7]], whole, 1e-5, 1e-6)


def test_accumulators_are_local_variables(fresh_graph):
    options = {"strategy": "mirrored", "accumulate_steps": 4}
    tf1.train.create_global_step()
    given = tf.nest.map_structure(tf.constant, QUARTERS[0])
    accumulated(tf.reduce_mean, 2, **options)(*given, "train")
    assert not [v.name for v in tf1.global_variables() if "accumulate" in v.name]
    names = {v.name for v in tf1.local_variables()}
    assert {"accumulate/batches:0", "accumulate/w/gradient:0", "accumulate/e/rows:0"} <= names


def test_sync_replicas_and_accumulation_are_refused():
    sync = tf1.train.SyncReplicasOptimizer(descend(), 1)
    model = accumulated(tf.reduce_mean, 2, optimizer_fn=lambda: sync, accumulate_steps=2)
    with pytest.raises(ValueError, match="accumulate_steps and SyncReplicasOptimizer"):
        exactness.run(model, QUARTERS)


# Rows of an embedding.

VOCABULARY, WIDTH = 1_000_000, 64


def embedding_model_fn(features, labels, mode):
    del labels
    e = tf1.get_variable("e", [VOCABULARY, WIDTH], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(e, features["ids"]) - 1.0))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())


@pytest.mark.parametrize(
    "options", [{}, {"clip_global_norm": 1.0}, {"accumulate_steps": 2}], ids=str
)
@pytest.mark.parametrize("building", ["split", "call"])
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_embedding_has_no_dense_gradient(strategy, building, options):
    """Only variables' own reads and starting values may have the embedding's shape."""
    graph = tf.Graph()
    with graph.as_default():
        tf1.train.create_global_step()
        model = model_fn.replicate_model_fn(
            embedding_model_fn,
            lambda: tf1.train.AdagradOptimizer(0.1),
            4,
            strategy=strategy,
            tower_building=building,
            **options,
        )
        spec = model({"ids": tf.constant([1, 2, 2, 3, 5, 8, 13, 21])}, None, "train")
        running = operations.executed_by([spec.train_op, spec.loss])
    dense = [
        op.name
        for op in running
        for tensor in op.outputs
        if tensor.shape.rank == 2 and tensor.shape[0] == VOCABULARY
    ]
    assert not dense


@pytest.mark.thorough
def test_accumulated_rows_of_one_index_are_kept_once():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tf1.train.create_global_step()
        model = model_fn.replicate_model_fn(embedding_model_fn, descend, 2, accumulate_steps=3)
        spec = model({"ids": tf.constant([3, 2, 2, 1])}, None, "train")
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(spec.train_op)
        session.run(spec.train_op)
        local = {v.op.name: v for v in graph.get_collection("local_variables")}
        indices = session.run(local["accumulate/e/indices"].read_value())
    assert sorted(indices) == [1, 2, 3]
