"""What is copied, and what is not: summaries, random numbers, statistics; giving up."""

import logging

import numpy as np
import pytest

import replicate
from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

WAYS = ("clone", "call")
TOWERS = 3
WIDTH = 4
PREFIXES = ("", "tower_1/", "tower_2/")

both_ways = pytest.mark.parametrize("way", WAYS)
both_strategies = pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])


def batches(*sizes):
    made = []
    for rows in sizes:
        x = np.random.RandomState(rows).uniform(-1, 1, [rows, WIDTH]).astype(np.float32)
        made.append((x, x[:, :1] * 2.0))
    return made


def dense(x, units=1, **options):
    return tf1.layers.dense(x, units, kernel_initializer=exactness.start, **options)


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def stepping(output, labels, mode):
    """A spec whose step the model makes."""
    loss = tf.reduce_mean(tf.square(output - labels))
    step = momentum().minimize(loss, tf1.train.get_global_step())
    return exactness.spec_of(mode, loss, output, train_op=step)


# Summaries.


def summarizing(features, labels, mode):
    hidden = dense(features, 3, activation=tf.nn.tanh, name="hidden")
    spec = stepping(dense(hidden), labels, mode)
    tf1.summary.scalar("error", spec.loss)
    with tf1.name_scope("inner"):
        tf1.summary.scalar("largest", tf.reduce_sum(hidden))
    tf1.summary.histogram("histogram", hidden)
    return spec


def written(model):
    """Returns the tags that one step writes, and the numbers of the scalars."""
    run = exactness.run(model, batches(7), fetch=lambda spec: tf1.summary.merge_all())
    summary = tf1.Summary.FromString(run.fetched[0])
    kinds = [(value.tag, value.WhichOneof("value")) for value in summary.value]
    return sorted(kinds), {
        v.tag: v.simple_value for v in summary.value if v.HasField("histo") is False
    }


@both_strategies
@both_ways
def test_summaries_are_written_once_with_one_devices_tags(way, strategy):
    towers = model_fn.replicate_model_fn(
        summarizing, devices=TOWERS, strategy=strategy, tower_building=way
    )
    tags, numbers = written(towers)
    expected_tags, expected = written(summarizing)
    assert tags == expected_tags
    exactness.compare(numbers, expected)


def telling_shapes(features, labels, mode):
    seen = tf.numpy_function(lambda x: x, [features], tf.float32)
    seen.set_shape([None, WIDTH])
    tf1.summary.scalar("all", tf.reduce_sum(seen, [0, 1]))
    return stepping(dense(features), labels, mode)


@both_ways
def test_a_summary_of_what_has_a_shape_by_word_is_the_whole_batchs(way):
    towers = model_fn.replicate_model_fn(telling_shapes, devices=TOWERS, tower_building=way)
    exactness.compare(written(towers)[1], written(telling_shapes)[1])


# Statistics of batches: with rows of towers normalized apart, towers are no one device.


def normalizing(features, labels, mode):
    hidden = tf1.layers.batch_normalization(features, momentum=0.5, training=True, fused=False)
    output = dense(hidden)
    return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)), output)


@pytest.mark.parametrize("update_ops", ["first", "mean", "all"])
@both_strategies
def test_statistics_of_batches_are_the_same_both_ways(strategy, update_ops):
    found, expected = [
        exactness.run(
            model_fn.replicate_model_fn(
                normalizing,
                momentum,
                TOWERS,
                strategy=strategy,
                update_ops=update_ops,
                tower_building=way,
            ),
            batches(7, 2, 1),
        )
        for way in WAYS
    ]
    exactness.compare(found.variables, expected.variables)
    exactness.compare(found.fetched, expected.fetched)


# What all towers read.


def test_the_variables_of_layers_are_sent_to_each_tower_in_one_transfer(fresh_graph):
    def model(features, labels, mode):
        return stepping(dense(dense(features, 3)), labels, mode)

    build(model, "parameter_server")
    found = [op.type for op in tf1.get_default_graph().get_operations()]
    # two kernels and two biases lie on the first tower's device
    assert found.count("OptionalFromValue") == 1
    assert found.count("OptionalGetValue") == TOWERS - 1


@both_ways
def test_what_the_first_towers_rows_write_no_other_tower_reads(way, fresh_graph):
    def model(features, labels, mode):
        shift = tf1.get_variable("shift", [], trainable=False, initializer=tf1.ones_initializer())
        output = dense(features) + shift
        written = shift.assign_add(features[0, 0])
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, written.op)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)), output)

    with pytest.raises(errors.TowerMismatchError, match="uses shift:0 by itself"):
        build(model, "parameter_server", way)


def build(model, strategy, way="clone"):
    """Builds towers in the current graph."""
    tf1.train.create_global_step()
    towers = model_fn.replicate_model_fn(
        model, momentum, TOWERS, strategy=strategy, tower_building=way
    )
    return towers(*exactness.placeholders(batches(7)[0], False), "train")


# Random numbers.


def masks(way, graph_seed=None, seed=None):
    """Returns what three towers draw in a step."""

    def model(features, labels, mode):
        if graph_seed is not None:
            tf1.set_random_seed(graph_seed)
        wide = dense(features, 64)
        kept = tf1.nn.dropout(wide, rate=0.5, noise_shape=[1, 64], seed=seed, name="dropped")
        return stepping(dense(kept, name="last"), labels, mode)

    def drawn(spec):
        graph = tf1.get_default_graph()
        draws = [op for op in graph.get_operations() if op.type == "RandomUniform"]
        assert len(draws) == TOWERS
        by_name = {op.name: op.outputs[0] for op in draws}
        name = min(by_name, key=len)
        return [by_name[prefix + name] for prefix in PREFIXES]

    towers = model_fn.replicate_model_fn(model, devices=TOWERS, tower_building=way)
    return exactness.run(towers, batches(7), fetch=drawn).fetched[0]


@both_ways
@pytest.mark.parametrize("graph_seed", [None, 3])
def test_towers_draw_their_own_numbers(graph_seed, way):
    first, second, third = masks(way, graph_seed)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, third)
    assert not np.array_equal(second, third)


@both_ways
@pytest.mark.parametrize("graph_seed", [None, 3])
def test_a_seed_that_the_model_fixed_is_every_towers(graph_seed, way):
    first, second, third = masks(way, graph_seed, seed=5)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


@both_ways
def test_a_seeded_graph_draws_the_same_numbers_again(way):
    exactness.compare(masks(way, 3), masks(way, 3), 0.0, 0.0)


def test_the_first_tower_draws_what_one_call_for_each_tower_draws():
    np.testing.assert_array_equal(masks("clone", 3)[0], masks("call", 3)[0])


# Models that are called for each tower, because what they do cannot be copied.


def asking_first(features, labels, mode):
    assert replicate.get_tower_context().tower_id < TOWERS
    return stepping(dense(features), labels, mode)


def asking_for_the_device(features, labels, mode):
    assert "CPU" in replicate.get_tower_context().device
    return stepping(dense(features), labels, mode)


def asking_for_the_replica(features, labels, mode):
    context = tf.distribute.get_replica_context()
    factor = tf.cast(tf.convert_to_tensor(context.replica_id_in_sync_group), tf.float32)
    return stepping(dense(features) + 0.0 * factor, labels, mode)


def asking_last(features, labels, mode):
    spec = stepping(dense(features), labels, mode)
    assert replicate.get_tower_context().tower_id < TOWERS
    return spec


def asking_in_between(features, labels, mode):
    """Takes gradients, asks, and has them applied."""
    output = dense(dense(features, 3, activation=tf.nn.tanh))
    loss = tf.reduce_mean(tf.square(output - labels))
    optimizer = momentum()
    pairs = optimizer.compute_gradients(loss)
    assert replicate.get_tower_context().tower_id < TOWERS
    pairs = [(0.5 * gradient, variable) for gradient, variable in pairs]
    step = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
    return exactness.spec_of(mode, loss, output, train_op=step)


def reading_data(features, labels, mode):
    halves = tf.data.Dataset.from_tensors(0.5).repeat()
    half = tf1.data.make_one_shot_iterator(halves).get_next()
    return stepping(dense(features) * half, labels, mode)


def calling_python(features, labels, mode):
    doubled = tf.py_function(lambda hidden: hidden * 2.0, [dense(features, 3)], tf.float32)
    return stepping(dense(tf.ensure_shape(doubled, [None, 3])), labels, mode)


def merging_numbers(features, labels, mode):
    def numbered(strategy):
        return replicate.PerDevice(list(range(1, strategy.num_towers + 1)))

    context = replicate.get_tower_context()
    assert context.num_towers == 1 or context.merge_call(numbered) >= 1
    return stepping(dense(features), labels, mode)


UNCOPIED = {
    asking_first: "asks for the number of its tower",
    asking_for_the_device: "asks for the device of its tower",
    asking_for_the_replica: "asks for the number of its tower",
    asking_last: "asks for the number of its tower",
    asking_in_between: "asks for the number of its tower",
    reading_data: "holds a state",
    calling_python: "(EagerPyFunc) holds a state",
    merging_numbers: "a merge call of its own",
}
uncopied = pytest.mark.parametrize(
    ("model", "reason"), UNCOPIED.items(), ids=[model.__name__ for model in UNCOPIED]
)


def said(caplog):
    """Returns what was said about how often the model is called."""
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    return [message for message in messages if message.startswith("The model is called")]


@both_strategies
@uncopied
def test_what_cannot_be_copied_is_called_for_each_tower(model, reason, strategy, caplog):
    caplog.set_level(logging.INFO, "replicate")
    single = exactness.run(model, batches(7, 2, 1))
    counted = exactness.Counted(model)
    towers = model_fn.replicate_model_fn(counted, devices=TOWERS, strategy=strategy)
    exactness.compare(exactness.run(towers, batches(7, 2, 1)), single)
    assert counted.calls == TOWERS
    line = said(caplog)[-1]
    assert line.startswith("The model is called for each of 3 towers: ")
    assert reason in line


@uncopied
def test_one_line_says_how_often_the_model_is_called(model, reason, caplog):
    caplog.set_level(logging.INFO, "replicate")
    towers = model_fn.replicate_model_fn(model, devices=TOWERS)
    exactness.run(towers, batches(7))
    assert len(said(caplog)) == 1


@both_strategies
@uncopied
def test_clone_refuses_what_cannot_be_copied(model, reason, strategy):
    towers = model_fn.replicate_model_fn(
        model, devices=TOWERS, strategy=strategy, tower_building="clone"
    )
    with pytest.raises(errors.TowerMismatchError, match="tower_building='call'") as refused:
        exactness.run(towers, batches(7))
    assert reason in str(refused.value)


def plain(features, labels, mode):
    return stepping(dense(features), labels, mode)


@both_strategies
def test_numbers_of_rows_that_differ_in_static_shapes_are_called_for(strategy, caplog):
    caplog.set_level(logging.INFO, "replicate")
    exactness.require_one_device(
        plain, batches(7, 7), is_static=True, devices=TOWERS, strategy=strategy
    )
    (line,) = said(caplog)
    assert line.startswith("The model is called for each of 3 towers: they have 3, 2, 2 rows")


def test_clone_refuses_numbers_of_rows_that_differ_in_static_shapes():
    towers = model_fn.replicate_model_fn(plain, devices=TOWERS, tower_building="clone")
    with pytest.raises(errors.TowerMismatchError, match=r"rows.*tower_building='call'"):
        exactness.run(towers, batches(7), is_static=True)


@both_strategies
def test_the_same_number_of_rows_in_static_shapes_is_copied(strategy, caplog):
    caplog.set_level(logging.INFO, "replicate")
    exactness.require_one_device(
        plain, batches(6, 6), is_static=True, devices=TOWERS, strategy=strategy
    )
    assert said(caplog) == ["The model is called once, and copied for 2 more towers."]


def merging_tensors(features, labels, mode):
    def doubled(strategy, hidden):
        return replicate.PerDevice([2.0 * part for part in strategy.unwrap(hidden)])

    hidden = dense(features, 3, activation=tf.nn.tanh)
    return stepping(dense(replicate.get_tower_context().merge_call(doubled, hidden)), labels, mode)


def doubling(features, labels, mode):
    """What `merging_tensors` is on one device."""
    return stepping(dense(2.0 * dense(features, 3, activation=tf.nn.tanh)), labels, mode)


@both_strategies
def test_a_model_with_merge_calls_of_its_own_is_called_for_each_tower(strategy, caplog):
    caplog.set_level(logging.INFO, "replicate")
    counted = exactness.Counted(merging_tensors)
    exactness.require_one_device(
        counted, batches(7, 2, 1), reference=doubling, devices=TOWERS, strategy=strategy
    )
    assert counted.calls == 3
    (line,) = said(caplog)
    assert line.endswith("the model makes a merge call of its own.")


def summing(features, labels, mode):
    """A sum over towers that the model derives: 2 w sum(x) where there is one of them."""
    w = tf1.get_variable("w", [WIDTH, 1], initializer=exactness.start)
    hidden = tf.matmul(features, w)
    tower = replicate.get_tower_context()
    total = tf.reduce_sum(hidden)
    if tower.num_towers > 1:
        total = tower.merge_call(lambda strategy, x: strategy.reduce(SUM, x), total)
    return stepping(hidden + 0.1 * total, labels, mode)


SUM = tf.VariableAggregation.SUM


@both_strategies
def test_gradients_through_a_merge_call_of_the_models_own_are_the_same_both_ways(strategy):
    found = [
        exactness.run(
            model_fn.replicate_model_fn(
                summing, devices=TOWERS, strategy=strategy, tower_building=way
            ),
            batches(7, 6),
        )
        for way in ("call", "auto")
    ]
    for name, value in found[0].variables[-1].items():
        np.testing.assert_allclose(value, found[1].variables[-1][name], 1e-5)


@both_strategies
def test_a_tower_that_runs_late_makes_the_variables_that_the_first_one_made(strategy):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [WIDTH, 1], initializer=exactness.start)
        output = tf.matmul(features, w)
        loss = tf.reduce_mean(tf.square(output - labels))
        gradient = tf.gradients(loss, w)[0]
        metrics = {"output": tf1.metrics.mean(output)}
        assert replicate.get_tower_context().tower_id >= 0
        metrics["loss"] = tf1.metrics.mean(loss)
        metrics["norm"] = tf1.metrics.mean(tf.norm(gradient))
        return exactness.spec_of(mode, loss, eval_metric_ops=metrics)

    exactness.require_one_device(model, batches(7, 5), "eval", devices=TOWERS, strategy=strategy)
