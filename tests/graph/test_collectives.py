"""How many transfers a step takes; what workers do together is in `tests/cluster`."""

import types

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives
from replicate.splitting.rules import random
from tests import exactness

LAYERS = 10
_TASKS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


@pytest.fixture
def strategy(monkeypatch):
    """The second of two workers, with two towers and without a server."""
    found = worker_of(2)
    monkeypatch.setattr(found, "start", lambda: "")
    return found


def worker_of(towers):
    """The second of two workers."""
    cluster = {"cluster": _TASKS, "task": {"type": "worker", "index": 1}}
    return replicate.MultiWorkerStrategy(devices=towers, cluster=cluster)


def joined_by(strategy, make_loss, rows=None, mode="train"):
    """Builds a model, and returns what its workers join in a step."""

    def model(features, labels, mode):
        loss = make_loss(features, labels)
        metrics = None
        if mode == "eval":
            metrics = {"label": tf1.metrics.mean(labels), "loss": tf1.metrics.mean(loss)}
        return estimator.EstimatorSpec(
            mode,
            loss=loss,
            train_op=tf.no_op(),
            eval_metric_ops=metrics,
            predictions={"x": features},
        )

    tf1.train.create_global_step()
    x, y = tf.zeros([12, 3]), tf.zeros([12])
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.batch(rows or 4, drop_remainder=rows is not None)
    features, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
    replicated = replicate.replicate_model_fn(
        model, lambda: tf1.train.AdamOptimizer(0.1), strategy=strategy
    )
    replicated(features, labels, mode)
    return strategy._graphs.get().told


def ends_of(rows):
    """Whether there is a batch, how many rows, who leaves; of any rows, for each worker."""
    return "Add of int32 (3,)" if rows else "Add of int32 (2, 3)"


def dense(features, labels):
    hidden = features
    for i in range(LAYERS):
        w = tf1.get_variable(f"w{i}", [3, 3], initializer=exactness.start)
        b = tf1.get_variable(f"b{i}", [3], initializer=exactness.start)
        hidden = tf.tanh(hidden @ w + b)
    loss = tf.reduce_mean(tf.square(hidden[:, 0] - labels)) + 0.1 * tf.nn.l2_loss(w)
    tf1.summary.scalar("shown", tf.reduce_mean(hidden))
    return loss


def embedded(features, labels):
    table = tf1.get_variable("table", [7, 3], initializer=exactness.start)
    places = tf.cast(features[:, 0], tf.int32)
    return dense(features + tf.nn.embedding_lookup(table, places), labels)


def dropped(features, labels):
    w = tf1.get_variable("w", [], initializer=exactness.start)
    return tf.reduce_mean(w * tf.nn.dropout(features, 0.5))


def weighted(features, labels):
    w = tf1.get_variable("w", [3], initializer=exactness.start)
    return tf1.losses.mean_squared_error(labels, tf.reduce_sum(features * w, 1), weights=0.5)


def shown(features, labels):
    tf1.summary.scalar("largest", tf.reduce_max(features))
    tf1.summary.scalar("drawn", tf.random.uniform([]))
    return weighted(features, labels)


def read_in_a_branch(features, labels):
    """A sum behind a write, which waits for a read that a sum of sums decides about."""
    v, c = (tf1.get_variable(n, [], initializer=exactness.start, trainable=n == "v") for n in "vc")
    of_sums = tf.reduce_sum(features * tf.reduce_sum(features))
    read = tf1.cond(of_sums > 0.0, lambda: c + 1.0, lambda: c * 2.0)
    with tf.control_dependencies([c.assign_add(1.0)]):
        behind = tf.reduce_sum(tf.tanh(features))
    return v * (behind + read)


JOINED = {
    # The loss, what the summary shows, and 10 * (9 + 3) numbers of gradients.
    dense: [f"({2 + LAYERS * 12},)"],
    # The loss, and a gradient of three: elements of a constant weight wait for nothing else.
    weighted: ["(4,)"],
    # The loss, a gradient of three, each worker's maximum, and what is drawn.
    shown: ["(7,)"],
    # The sum, that of sums, and the one behind the write; otherwise the first and the last share.
    read_in_a_branch: ["()", "()", "()"],
}


@pytest.mark.parametrize(
    ("make_loss", "rows"),
    [*((each, None) for each in JOINED), *((each, 4) for each in (dense, weighted, shown))],
)
def test_a_step_joins_rows_and_then_sums_together(fresh_graph, strategy, make_loss, rows):
    sums = [f"Add of float32 {shape}" for shape in JOINED[make_loss]]
    assert joined_by(strategy, make_loss, rows) == [ends_of(rows), *sums]


def test_a_table_takes_two_more(fresh_graph, strategy):
    found = joined_by(strategy, embedded)
    assert len(found) == 2 + 2  # the places of slices, and their values


def test_each_device_of_each_worker_draws_from_a_seed_of_its_own(fresh_graph, strategy):
    fresh_graph.seed = 1
    joined_by(strategy, dropped)
    drawn = [op for op in fresh_graph.get_operations() if op.type == "RandomUniform"]
    copies = [op for op in drawn if "tower_" in op.name]
    (whole,) = set(drawn) - set(copies)
    steps = [op.get_attr("seed2") - whole.get_attr("seed2") for op in copies]
    # The first worker's two devices have seeds before those of the second worker's two.
    assert len(steps) == 2
    assert random.seed_of_copy(0, 1) < min(steps) < max(steps)


@pytest.mark.parametrize("mode", ["eval", "infer"])
@pytest.mark.parametrize("towers", [1, 2])
def test_what_a_worker_does_alone_joins_nothing(fresh_graph, monkeypatch, towers, mode):
    alone = worker_of(towers)
    monkeypatch.setattr(alone, "start", lambda: "")
    assert joined_by(alone, dense, mode=mode) == []
    types = {op.type for op in fresh_graph.get_operations()}
    assert not {name for name in types if name.startswith("Collective")}


def test_no_collective_has_a_timeout(fresh_graph):
    """TensorFlow would start a thread for each, in each step: sessions bound their runs."""
    across = collectives.CollectiveWorkers(collectives.Options(2, 0), "/device:CPU:0")
    across.sum([tf.constant(1.0)])
    across.gathered(tf.constant([1.0]), tf.constant(0))
    made = [*across.made, across.meeting()]
    assert [op.get_attr("timeout_seconds") for op in made] == [0, 0, 0]


@pytest.mark.parametrize("start", [-np.inf, np.nan, 3.0])
def test_a_worker_brings_what_it_has_and_nothing_for_the_others(strategy, monkeypatch, start):
    with tf.Graph().as_default(), tf1.Session() as session:
        across = strategy.workers
        monkeypatch.setattr(across, "sum", lambda tensors: tensors)  # the other one has zeros
        found = session.run(across.table(tf.constant([[start, 1.0], [2.0, start]])))
    np.testing.assert_array_equal(found, [[[0, 0], [0, 0]], [[start, 1], [2, start]]])


class WithAnother(collectives.CollectiveWorkers):
    """Stands for two workers, of which the other one has ten times what this one has."""

    def __init__(self):
        super().__init__(collectives.Options(2, 0), "/device:CPU:0")

    def gathered(self, tensor, kind):
        return tf.concat([tensor, tensor * 10], 0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_all_workers_rows_may_be_along_any_axis(session, axis):
    own = np.arange(24).reshape([2, 3, 4])
    lengths = tf.constant([own.shape[axis]] * 2)
    (found,) = WithAnother().rows_of_all([tf.constant(own)], [axis], [lengths])
    np.testing.assert_array_equal(session.run(found), np.concatenate([own, own * 10], axis))


@pytest.mark.parametrize("is_first", [True, False])
def test_what_all_workers_have_counts_once(session, is_first):
    worker = types.SimpleNamespace(is_first=is_first)
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([4, 1, 4]), tf.constant([5, 2]))
    for value in (tf.ones([2, 2]), slices):
        found = collectives.CollectiveWorkers.first_alone(worker, value)
        dense = session.run(tf.convert_to_tensor(found))
        expected = session.run(tf.convert_to_tensor(value)) * is_first
        assert dense.tolist() == expected.tolist()
    if not is_first:
        assert session.run(tf.shape(found.values)).tolist() == [0, 2]
