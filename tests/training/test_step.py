"""Between the towers' gradients and the update: clipping, accumulation, sparse rows."""

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.training import step
from tests.training import runs

STRATEGIES = ["parameter_server", "round_robin", "mirrored"]


def descend():
    return tf1.train.GradientDescentOptimizer(1.0)


def product_model_fn(features, labels, mode):
    """loss = mean(x . w): the gradient of w is the mean of x."""
    del labels
    w = tf1.get_variable("w", initializer=tf.zeros([2]))
    loss = tf.reduce_mean(features["x"] @ w[:, None])
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())


def weight_after_a_step(x, num_towers, strategy=None, **options):
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        model = model_fn.replicate_model_fn(
            product_model_fn, descend, num_towers, strategy=strategy, **options
        )
        spec = model({"x": tf.constant(x)}, None, "train")
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            session.run(spec.train_op)
            return session.run(runs._plain(tf1.trainable_variables()[0]))


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

_random = np.random.RandomState(3)
WHOLE = [
    {
        "x": _random.randn(32, 3).astype(np.float32),
        "ids": _random.randint(0, 6, 32),
        "y": _random.randn(32, 1).astype(np.float32),
    }
    for _ in range(2)
]
QUARTERS = [
    {key: value[i : i + 8] for key, value in batch.items()}
    for batch in WHOLE
    for i in range(0, 32, 8)
]


def fitted(reduce):
    def fn(features, labels, mode, train_op=None):
        w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
        e = tf1.get_variable("e", initializer=tf.constant([[0.1 * i - 0.2] for i in range(6)]))
        found = features["x"] @ w + tf.nn.embedding_lookup(e, features["ids"])
        loss = reduce(tf.square(found - labels))
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op or tf1.no_op())

    return fn


def accumulated(reduce, num_towers, strategy=None, **options):
    return runs.replicated(
        fitted(reduce),
        num_towers,
        strategy,
        optimizer_fn=lambda: tf1.train.MomentumOptimizer(0.01, 0.9),
        **options,
    )


def quarter(errors):
    return tf.reduce_sum(errors) / 4.0


@pytest.mark.thorough("mean-2-*")
@pytest.mark.parametrize(
    ("num_towers", "strategy"), [(1, None), *((2, strategy) for strategy in STRATEGIES)]
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
def test_four_batches_of_8_equal_one_of_32(reduce, options, of_32, strategy, num_towers):
    whole = runs.train(accumulated(of_32, 1), 2, WHOLE)
    steps = accumulated(reduce, num_towers, strategy, accumulate_steps=4, **options)
    parts = runs.train(steps, 8, QUARTERS)
    assert [step["global_step"] for step in parts.steps] == list(range(1, 9))
    for n in range(3):  # nothing moves before the fourth batch
        np.testing.assert_allclose(parts.steps[n]["w"], [[0.3], [-0.2], [0.1]])
    found = runs.Run([parts.steps[3], parts.steps[7]], [], parts.graph)
    for here, there in zip(found.steps, whole.steps, strict=True):
        here["global_step"] = there["global_step"]
    runs.assert_same(found, whole)


def test_accumulators_are_local_variables():
    run = runs.train(accumulated(tf.reduce_mean, 2, "mirrored", accumulate_steps=4), 1, QUARTERS)
    assert not [name for name in run.last if "accumulate" in name]
    local = run.graph.get_collection("local_variables")
    names = [v.name for v in local]
    assert {"accumulate/batches:0", "accumulate/w/gradient:0", "accumulate/e/rows:0"} <= {*names}


def test_sync_replicas_and_accumulation_are_refused():
    sync = tf1.train.SyncReplicasOptimizer(descend(), 1)
    model = runs.replicated(
        fitted(tf.reduce_mean), 2, optimizer_fn=lambda: sync, accumulate_steps=2
    )
    with pytest.raises(ValueError, match="accumulate_steps and SyncReplicasOptimizer"):
        runs.train(model, 1)


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
        running = _ancestors([spec.train_op, spec.loss.op])
    dense = [
        op.name
        for op in running
        for tensor in op.outputs
        if tensor.shape.rank == 2 and tensor.shape[0] == VOCABULARY
    ]
    assert not dense


def test_accumulated_rows_of_one_index_are_kept_once():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tf1.train.create_global_step()
        model = model_fn.replicate_model_fn(embedding_model_fn, descend, 2, accumulate_steps=3)
        spec = model({"ids": tf.constant([3, 2, 2, 1])}, None, "train")
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(spec.train_op)
        session.run(spec.train_op)
        local = {v.op.name: v for v in graph.get_collection("local_variables")}
        indices = session.run(runs._plain(local["accumulate/e/indices"]))
    assert sorted(indices) == [1, 2, 3]


def _ancestors(ops):
    found, waiting = set(), list(ops)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found
