"""The model's graph on the whole batch: partners of the first tower's tensors, or none."""

import collections
import contextlib
import logging

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches
from replicate.strategy import default
from replicate.strategy.policies import one_device
from replicate.training import whole_batch
from tests import exactness

ROWS = 7


def built(model, features, labels=None, num_towers=3):
    """Builds a model on the whole batch, then on the first of K towers.

    Returns:
        The whole batch, and what the model makes of the first tower.
    """
    batch = batches.split_batch(features, labels, num_towers)
    names = tf1.get_default_graph()._names_in_use
    first = batch.features[0], batch.labels[0]
    whole = whole_batch.WholeBatch(
        model,
        features,
        labels,
        lambda: one_device.OneDeviceStrategy("/device:CPU:0"),
        num_towers,
        ROWS,
        names,
        first,
    )
    return whole, first, model(*first)


def rows(*inner):
    return tf.zeros([ROWS, *inner])


# Partners.


def test_names_of_the_first_tower_find_partners(fresh_graph):
    def model(features, labels):
        hidden = tf1.layers.dense(features, 4, name="hidden")
        with tf.name_scope("loss"):
            return {"hidden": hidden, "loss": tf.reduce_mean(hidden - labels), "n": tf.ones([3])}

    whole, first, made = built(model, rows(2), rows(4))
    assert [whole(tensor).shape.as_list() for tensor in first] == [[7, 2], [7, 4]]
    assert made["hidden"].shape.as_list() == [3, 4]
    assert whole(made["hidden"]).shape.as_list() == [7, 4]
    for tensor in made.values():
        partner = whole(tensor)
        assert (partner.name, partner.op.type) == (tensor.name, tensor.op.type)
        assert partner.graph is not fresh_graph
        assert partner.graph is whole(first[0]).graph


def test_names_that_were_in_use_are_so_there(fresh_graph):
    """What was made before the model has taken names, of operations and of scopes."""
    tf.constant(1.0, name="taken")
    with tf.name_scope("scope"):
        tf.constant(1.0)

    def model(features, labels):
        with tf.name_scope("scope"):
            return tf.exp(features, name="taken"), tf.reduce_sum(features, name="taken")

    whole, _, made = built(model, rows(2))
    assert [tensor.name for tensor in made] == ["scope_1/taken:0", "scope_1/taken_1:0"]
    assert [whole(tensor).name for tensor in made] == [tensor.name for tensor in made]
    assert whole(made[0]).shape.as_list() == [7, 2]


def test_the_callers_scope_is_the_models(fresh_graph):
    def model(features, labels):
        return tf.exp(features)

    with tf.name_scope("outer"):
        whole, _, made = built(model, rows(2))
    assert made.name == "outer/Exp:0"
    assert whole(made).shape.as_list() == [7, 2]


def test_a_sum_inside_of_a_scope_is_one_devices():
    def model(features, labels, mode):
        w = tf1.get_variable("w", [2], initializer=exactness.start)
        loss = tf.reduce_sum(tf.square(tf.linalg.matvec(features, w)))
        step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=step)

    def scoped(made):
        def model_fn(features, labels, mode):
            with tf.name_scope("outer"):
                return made(features, labels, mode)

        return model_fn

    given = [(np.random.RandomState(3).uniform(-1, 1, [ROWS, 2]).astype(np.float32), None)]
    expected = exactness.run(scoped(model), given, is_static=True)
    towers = model_fn.replicate_model_fn(model, None, 3)
    found = exactness.run(scoped(towers), given, is_static=True)
    exactness.compare(found.variables, expected.variables)


def test_what_the_model_does_not_make_has_no_partner(fresh_graph):
    whole, _, _ = built(lambda features, labels: tf.exp(features), rows(2))
    assert whole(tf.constant(1.0, name="later")) is None
    assert whole(tf.zeros([2], name="Exp_1")) is None


def test_another_operation_of_the_same_name_is_no_partner(fresh_graph):
    def model(features, labels):
        if features.shape[0] == ROWS:
            return tf.exp(features, name="same"), tf.cast(features, tf.float64, name="cast")
        return tf.sqrt(features, name="same"), tf.cast(features, tf.float16, name="cast")

    whole, _, made = built(model, rows(2))
    assert [whole(tensor) for tensor in made] == [None, None]


def test_seeds_and_the_global_step_are_the_graphs(fresh_graph):
    tf1.set_random_seed(5)
    tf1.train.create_global_step()

    def model(features, labels):
        return tf.random.normal([2]), tf1.train.get_global_step().read_value()

    whole, _, made = built(model, rows(2))
    here, there = [tensor.op.inputs[0].op for tensor in (made[0], whole(made[0]))]
    while here.type != "RandomStandardNormal":
        here, there = here.inputs[0].op, there.inputs[0].op
    assert here.get_attr("seed") == there.get_attr("seed") == 5
    assert whole(made[0]).graph.seed == 5


# Every kind of features.


def test_every_leaf_of_a_nest_has_its_partner(fresh_graph):
    features = {
        "dense": rows(2),
        "pair": (tf.zeros([ROWS], tf.int32), [rows(1, 3)]),
        "sparse": tf.SparseTensor([[6, 1]], [1.0], [ROWS, 4]),
        "ragged": tf.ragged.constant([[1], [], [2, 3], [], [], [4], []], dtype=tf.int64),
        "scalar": tf.constant(3.0),
        "number": 0.5,
        "none": None,
    }
    seen = collections.UserList()  # unlike a list, not put back after the call

    def model(features, labels):
        seen.append((features, labels))
        return [
            tf.exp(features["dense"]),
            features["pair"][1][0] + 1.0,
            tf.sparse.to_dense(features["sparse"]),
            tf.strings.length(labels),
        ]

    labels = tf.constant([b"a"] * ROWS)
    whole, first, made = built(model, features, labels)
    (there, labels_there), (here, labels_here) = seen
    tf.nest.assert_same_structure(there, here, expand_composites=True)
    assert there["none"] is here["none"] is None
    assert [whole(tensor).shape.as_list() for tensor in made[:2]] == [[7, 2], [7, 1, 3]]
    assert whole(made[3]).shape.as_list() == [7]
    assert (there["sparse"].shape.as_list(), here["sparse"].shape.as_list()) == ([7, 4], [3, 4])
    assert (there["ragged"].dtype, there["ragged"].ragged_rank) == (tf.int64, 1)
    assert there["scalar"].shape.rank == 0
    assert labels_there.dtype == tf.string
    assert whole(here["dense"]) is there["dense"]
    assert whole(labels_here) is labels_there
    assert whole(here["sparse"].values) is there["sparse"].values
    assert whole(here["ragged"].flat_values) is there["ragged"].flat_values
    assert whole(here["ragged"].row_splits) is there["ragged"].row_splits
    assert len(tf.nest.flatten(first, expand_composites=True)) == 12


@pytest.mark.parametrize("kind", ["ragged", "sparse", "nested"])
def test_static_batches_of_every_kind_are_one_devices(kind):
    numbers = np.random.RandomState(1).uniform(0.5, 1.0, 4).astype(np.float32)
    dense = np.random.RandomState(2).uniform(0.5, 1.0, [ROWS, 4]).astype(np.float32)
    features = {
        "dense": {"x": dense},
        "sparse": {
            "x": dense,
            "other": tf1.SparseTensorValue([[0, 1], [2, 3], [5, 0], [6, 2]], numbers, [ROWS, 4]),
        },
        "ragged": {
            "x": dense,
            "other": tf1.ragged.constant_value(
                [[0.5], [], [1.0, 2.0], [], [], [3.0], []], dtype=np.float32
            ),
        },
        "nested": {"x": dense, "other": (dense[:, :1], [dense[:, 2], None])},
    }[kind]

    def other_of(given):
        if kind == "nested":
            return tf.reduce_sum(given[0]) + tf.reduce_mean(given[1][0])
        if kind == "sparse":
            return tf.sparse.reduce_sum(given)
        return tf.reduce_sum(given.flat_values)

    def model(features, labels, mode):
        w = tf1.get_variable("w", [4], initializer=exactness.start)
        errors = tf.linalg.matvec(features["x"], w)
        loss = tf.reduce_sum(errors) / errors.shape[0] + other_of(features["other"]) * w[0]
        return exactness.spec_of(mode, loss)

    exactness.require_one_device(
        model,
        [(features, None)],
        optimizer_fn=lambda: tf1.train.GradientDescentOptimizer(0.1),
        is_static=True,
        devices=3,
    )


# The model there.


def test_a_model_that_asks_is_told_of_all_towers(fresh_graph):
    found = collections.UserList()

    def model(features, labels):
        tower = default.get_tower_context()
        found.append((tower.num_towers, tower.tower_id, tower.is_of_one_batch, tower.weight))
        found.append((tf.distribute.get_strategy().num_replicas_in_sync, tower.has_rows))
        return tf.exp(features)

    built(model, rows(2), num_towers=4)
    assert found[0] == (4, 0, True, 0.25)
    assert found[1] == (1, True)


def test_a_model_that_fails_on_the_whole_batch_has_no_partners(fresh_graph, caplog):
    def model(features, labels):
        made = tf.exp(features, name="before")
        if features.shape[0] == ROWS:
            raise RuntimeError("only small batches, please")
        return made, tf.sqrt(made, name="after")

    with caplog.at_level(logging.INFO, "replicate"):
        whole, _, made = built(model, rows(2))
    (record,) = [r for r in caplog.records if "whole batch" in r.getMessage()]
    assert record.levelno == logging.INFO
    assert "only small batches, please" in record.getMessage()
    assert whole(made[1]) is None


def test_a_model_that_fails_on_the_whole_batch_is_seen_nowhere(fresh_graph):
    def model(features, labels):
        made = tf.exp(features, name="before")
        if features.shape[0] == ROWS:
            raise RuntimeError("only small batches, please")
        return made

    whole, first, made = built(model, rows(2))
    assert [whole(made), whole(first[0])] == [None, None]


def test_a_model_that_fails_on_the_whole_batch_still_runs_and_says_so(caplog):
    """Its loss is taken for a mean over rows, which it is."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [2], initializer=exactness.start)
        if features.shape[0] == ROWS and failing:
            raise RuntimeError("only small batches, please")
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(tf.linalg.matvec(features, w))))

    def descend():
        return tf1.train.GradientDescentOptimizer(0.1)

    failing = False
    given = [(np.random.RandomState(3).uniform(-1, 1, [ROWS, 2]).astype(np.float32), None)]
    expected = exactness.run(exactness.stepping(model, descend), given, is_static=True)
    failing = True
    towers = model_fn.replicate_model_fn(model, descend, 3)
    with caplog.at_level(logging.INFO, "replicate"):
        found = exactness.run(towers, given, is_static=True)
    exactness.compare(found.variables, expected.variables)
    assert "The model cannot be built on the whole batch" in caplog.text
    assert [r.levelname for r in caplog.records if "taken for a mean" in r.getMessage()] == [
        "WARNING"
    ]


def test_what_a_model_keeps_is_the_towers_in_the_end(fresh_graph):
    """The call on the whole batch comes first, and what it keeps is put back."""
    kept, calls = {}, collections.UserList()

    def model(features, labels, mode):
        calls.append((features.shape[0], features.graph is fresh_graph))
        kept["rows"] = features
        return exactness.spec_of(mode, tf.reduce_sum(features), train_op=tf1.no_op())

    tf1.train.create_global_step()
    model_fn.replicate_model_fn(model, None, 3)(rows(2), None, "train")
    assert calls == [(7, False), (3, True), (2, True), (2, True)]
    assert kept["rows"].graph is fresh_graph


def test_nothing_of_it_is_in_the_models_graph(fresh_graph):
    def model(features, labels):
        tf1.get_variable("w", [2])
        tf1.add_to_collection("mine", tf.exp(features))
        return tf.exp(features)

    built(model, rows(2))
    assert [variable.name for variable in tf1.global_variables()] == ["w:0"]
    assert len(tf1.get_collection("mine")) == 1


def test_the_callers_devices_and_dependencies_are_not_there(fresh_graph):
    devices = collections.UserList()

    def model(features, labels):
        made = tf.constant(1.0)
        devices.append((made.device, made.op.control_inputs))
        return made

    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.device("/device:CPU:3"))
        stack.enter_context(tf1.control_dependencies([tf1.no_op("first")]))
        built(model, rows(2))
    (there, here) = devices
    assert there == ("/device:CPU:0", [])
    assert here[0] == "/device:CPU:3"
    assert len(here[1]) == 1


# What joins towers takes no name of the model's, or partners would be other operations.


def reduced(x, w, b):
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(x * w))


def derived(x, w, b):
    return tf.gradients(tf.reduce_mean(x * w), [w, b, x])[0]


def derived_twice(x, w, b):
    (first,) = tf.gradients(tf.reduce_mean(tf.square(x * w)), [w])
    return tf.gradients(tf.reduce_sum(first * first), [w])[0]


def minimized(x, w, b):
    optimizer = tf1.train.AdamOptimizer(0.1)
    return optimizer.minimize(tf.reduce_mean(x * w), tf1.train.get_global_step())


def written(x, w, b):
    return b.assign_add(tf.reduce_mean(x))


def averaged(x, w, b):
    return tf1.train.ExponentialMovingAverage(0.9).apply([w])


def measured(x, w, b):
    return tf1.metrics.mean(x)[1]


def merged(x, w, b):
    return default.get_tower_context().merge_call(lambda strategy, column: tf.constant(1.0), x)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "join", [reduced, derived, derived_twice, minimized, written, averaged, measured, merged]
)
def test_what_joins_towers_takes_no_name_of_the_models(fresh_graph, join, mode, strategy):
    names = collections.UserList()

    def model(features, labels, mode):
        w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        b = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
        join(features, w, b)
        joined = [tf.constant(1.0), tf.reduce_sum(features), features * w, tf.identity(w)]
        names.append([tensor.op.name for tensor in joined])
        return exactness.spec_of(mode, joined[1] * joined[3], train_op=tf1.no_op())

    tf1.train.create_global_step()
    model_fn.replicate_model_fn(model, None, 2, strategy=strategy)(rows(2), None, mode)
    whole, first, _ = names
    assert first == whole
