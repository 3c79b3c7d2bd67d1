"""An Estimator whose graph is split leaves what one device's leaves: weights, metrics, events."""

import logging

import numpy as np
import pytest

import replicate
from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting import estimators
from tests.splitting.estimators import WIDTH, model, require_one_device, stepping

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def sgd():
    return tf1.train.GradientDescentOptimizer(0.1)


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


# Models; what optimizers and batch normalisation do is in `tests/law` and `tests/training`.


def of_one_tower(features, labels, mode):
    """A model that asks where it is: to it there is one tower."""
    tower, replica = replicate.get_tower_context(), tf.distribute.get_replica_context()
    assert (tower.tower_id, tower.num_towers) == (0, 1)
    assert replica.num_replicas_in_sync == 1
    assert tf.distribute.has_strategy()
    spec = model(features, labels, mode)
    total = replica.all_reduce("SUM", spec.loss)
    return spec._replace(loss=tower.merge_call(lambda strategy, loss: 2 * loss, total))


def twice(features, labels, mode):
    spec = model(features, labels, mode)
    return spec._replace(loss=2 * spec.loss)


def parted(features, labels, mode):
    with tf1.variable_scope("parted", partitioner=tf1.fixed_size_partitioner(2)):
        return model(features, labels, mode)


@pytest.mark.thorough
def test_to_the_model_there_is_one_tower(tmp_path):
    require_one_device(tmp_path, of_one_tower, sgd, stepping(sgd, twice), modes=["train"])


@pytest.mark.parametrize("num_devices", [1, 3])
def test_names_and_collections_are_one_devices(num_devices):
    def summarized(features, labels, mode):
        spec = model(features, labels, mode)
        tf1.layers.batch_normalization(features["x"], training=True)
        tf1.summary.scalar("loss", spec.loss)
        tf1.losses.add_loss(spec.loss)
        return spec

    def collected(build):
        with tf.Graph().as_default() as graph:
            tf1.train.create_global_step()
            features, labels = next(iter(estimators.batches()))
            build(tf.nest.map_structure(tf.constant, features), tf.constant(labels), "train")
            names = {op.name: op.type for op in graph.get_operations()}
            return names, {
                key: [getattr(item, "name", str(item)) for item in graph.get_collection(key)]
                for key in graph.get_all_collection_keys()
            }

    single = stepping(momentum, summarized)
    names, expected = collected(single)
    more, found = collected(model_fn.replicate_model_fn(single, None, num_devices))
    assert found == expected
    assert names.items() <= more.items()
    own = {name for name in more if not name.startswith(("tower_", "replicate_"))}
    # What is grouped lies on several devices, and has an operation for each.
    assert {name for name in own - set(names) if "group_deps" not in name} == set()
    assert num_devices > 1 or own == set(more)


# Parts of variables, and checkpoints.


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["balanced", "mirrored"])
def test_parts_of_variables_lie_where_the_strategy_puts_them(tmp_path, strategy):
    places: dict = {}

    def noting(features, labels, mode):
        spec = parted(features, labels, mode)
        places.update({v.op.name: v.device for v in tf1.global_variables()})
        return spec

    reference = stepping(momentum, parted)
    found = require_one_device(tmp_path, noting, momentum, reference, strategy=strategy)
    assert "parted/table/Momentum" in found["variables"]
    number = 2 if strategy == "balanced" else 1
    assert len({places[f"parted/table/part_{n}"] for n in range(2)}) == number, places


@pytest.mark.thorough
def test_checkpoints_go_from_any_way_to_any_other(tmp_path):
    def whole(features, labels, mode):
        with tf1.variable_scope("parted"):
            return model(features, labels, mode)

    single = stepping(momentum, whole)
    ways = [
        lambda folder: estimators.split(parted, folder, momentum, strategy="round_robin"),
        lambda folder: estimators.one(single, folder),
        lambda folder: estimators.split(whole, folder, momentum, strategy="mirrored"),
    ]
    alone = estimators.one(single, tmp_path / "one")
    for way in ways:
        several = way(tmp_path / "split")
        estimators.require_same(
            *(estimators.outcomes(e, modes=["train"]) for e in (alone, several))
        )
    towers = estimators.split(whole, tmp_path / "split", momentum, tower_building="call")
    expected, found = (estimators.outcomes(each, modes=["infer"]) for each in (alone, towers))
    estimators.require_same(expected, found)


# Hooks, scaffolds and effects.


class Traced(tf1.train.SessionRunHook):
    """Asks for a trace of a step, as ProfilerHook does, and fetches tensors by name."""

    def __init__(self, names):
        self.names, self.devices, self.fetched = names, set(), []

    def before_run(self, run_context):
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        return tf1.train.SessionRunArgs(self.names, options=options)

    def after_run(self, run_context, run_values):
        self.fetched.append(run_values.results)
        self.devices |= {each.device for each in run_values.run_metadata.step_stats.dev_stats}


def shown(features, labels, mode):
    """A model that writes summaries of all kinds, and logs tensors."""
    spec = model(features, labels, mode)
    logits = spec.predictions["logits"]
    tf1.summary.scalar("mean", tf.reduce_mean(logits))
    # Of rounded numbers: a histogram holds sums, whose last bits depend on their order.
    tf1.summary.histogram("histogram", tf.round(features["x"] * 8) / 8)
    images = tf.reshape(tf.tile(tf.round(features["x"] * 255), [1, 4]), [-1, 4, 4, 1])
    tf1.summary.image("image", tf.cast(images, tf.uint8), 2)
    tf1.summary.text("text", tf.as_string(features["ids"]))
    tf.identity(tf.round(logits * 1e6), name="hidden")
    hooks = [
        tf1.train.LoggingTensorHook({"logits": logits}, every_n_iter=1),
        tf1.train.LoggingTensorHook(["hidden"], every_n_iter=1),
    ]
    return spec._replace(training_hooks=hooks)


def test_hooks_and_summaries_see_one_devices_tensors(tmp_path, caplog):
    found = []
    for num_devices in (1, 3):
        directory, config = tmp_path / str(num_devices), {"save_summary_steps": 1}
        if num_devices == 1:
            made = estimators.one(stepping(sgd, shown), directory, **config)
        else:
            made = estimators.split(shown, directory, sgd, config=config)
        traced = Traced({"logits": "dense_1/BiasAdd:0", "hidden": "hidden:0"})
        counting = tf1.train.StepCounterHook(1, output_dir=str(directory / "steps"))
        caplog.clear()
        with caplog.at_level(logging.INFO, "tensorflow"):
            made.train(estimators.input_fn, hooks=[traced, counting])
        logged = [r.getMessage().split(" (")[0] for r in caplog.records]
        logged = [text for text in logged if text.startswith(("hidden = ", "logits = "))]
        assert len(logged) == 6
        assert len(traced.devices) >= num_devices
        found.append((summaries_in(directory), traced.fetched, logged))
    (expected, values, texts), (summaries, fetched, lines) = found
    estimators.require_same(values, fetched)
    assert lines == texts
    require_summaries(expected, summaries)


def summaries_in(directory):
    """Returns what was written of each step, by tags."""
    return {
        (event.step, value.tag): value
        for path in sorted(directory.glob("events*"))
        for event in tf1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag != "global_step/sec"
    }


def require_summaries(expected, found):
    """Requires the same bytes, but for means, whose order may show in the last bit."""
    assert set(expected) == set(found)
    assert len({tag for _, tag in expected}) == 6  # one of them an image of each of two rows
    for key, one in expected.items():
        if one.HasField("simple_value"):
            assert found[key].simple_value == pytest.approx(one.simple_value, rel=1e-6, abs=1e-7)
        else:
            assert found[key].SerializeToString() == one.SerializeToString(), key


def counter(name, **options):
    return tf1.get_variable(
        name, [], tf.float64, tf1.zeros_initializer(), trainable=False, **options
    )


def test_a_scaffold_of_the_models_own(tmp_path):
    def scaffolded(features, labels, mode):
        spec, counted = model(features, labels, mode), counter("counted")
        local = counter("local", collections=[tf1.GraphKeys.LOCAL_VARIABLES])
        fed = tf1.placeholder(tf.float64, [])
        kernel = next(v for v in tf1.trainable_variables() if "dense/kernel" in v.name)
        start = tf.group(counted.assign(fed), kernel.assign(kernel * 0 + fed / 10))
        saved = [v for v in tf1.global_variables() if "table" not in v.op.name]
        locals_ = (tf1.local_variables_initializer(), tf1.tables_initializer(), local.initializer)
        scaffold = tf1.train.Scaffold(
            init_fn=lambda _, session: session.run(start, {fed: 3.0}),
            saver=tf1.train.Saver(saved, max_to_keep=2),
            local_init_op=tf.group(*locals_),
        )
        loss = spec.loss + tf.reduce_mean(features["x"]) * (counted + local.assign_add(1.0))
        return spec._replace(loss=loss, scaffold=scaffold)

    found = require_one_device(tmp_path, scaffolded, sgd, modes=("train",))
    assert found["variables"]["counted"] == 3.0
    assert not any("table" in name for name in found["variables"])


SEEN: list = []


def effects(features, labels, mode):
    keys = tf.constant(np.arange(estimators.WORDS, dtype=np.int64))
    initializer = tf.lookup.KeyValueTensorInitializer(keys, (keys * 5 + 2) % estimators.WORDS)
    ids = tf.lookup.StaticHashTable(initializer, 0).lookup(features["ids"])

    def seen(x):
        SEEN.append(x.shape)
        return x * 2.0

    x = tf1.py_func(seen, [features["x"]], tf.float64)
    x.set_shape([None, WIDTH])
    with tf1.control_dependencies([tf.print("printed", tf.shape(x)[0])]):
        x = tf.identity(x)
    return model({"x": x, "ids": ids}, labels, mode)


def test_tables_functions_of_python_and_prints_happen_once(tmp_path, capfd):
    single = estimators.one(stepping(sgd, effects), tmp_path / "one")
    several = estimators.split(effects, tmp_path / "split", sgd)
    results, shapes, prints = [], [], []
    for made in (single, several):
        SEEN.clear()
        results.append(estimators.outcomes(made, modes=("train", "infer")))
        shapes.append(list(SEEN))
        prints.append([each for each in capfd.readouterr().err.split("\n") if "printed" in each])
    estimators.require_same(*results)
    assert shapes[0] == shapes[1]
    assert prints[0] == prints[1]
    assert len(prints[0]) >= 3


# What is given.


def test_what_runs_once_is_one_devices_and_is_said(tmp_path, caplog):
    """Of a tensor whose rank is not known nothing can be split."""

    def on_any_rank(features, labels, mode):
        logits = estimators.dense(tf.ensure_shape(features + 0.0, [None, WIDTH]), 1)
        return exactness.spec_of(mode, estimators.loss_of(labels, logits), {"logits": logits})

    def given():
        signature = (tf.TensorSpec(None, tf.float64), tf.TensorSpec([None, 1], tf.bool))
        batches = lambda: ((features["x"], labels) for features, labels in estimators.batches())  # noqa: E731
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    with caplog.at_level(logging.INFO, "replicate"):
        require_one_device(tmp_path, on_any_rank, sgd, given=given, modes=("train", "eval"))
    assert [r for r in caplog.records if r.name == "replicate" and r.levelno == logging.INFO]


def test_rows_that_disagree_or_are_none_are_refused(tmp_path):
    made = estimators.split(model, tmp_path, sgd)
    (features, labels), *_ = estimators.batches()
    static = {**features, "x": features["x"][:5]}
    with pytest.raises(errors.BatchError, match=r'features\["ids"\] has 7 rows, features\["x"\]'):
        made.train(lambda: tf.data.Dataset.from_tensors((static, labels)))
    dynamic = lambda f, y: ({**f, "x": f["x"][:5]}, y)  # noqa: E731
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers of rows differ between"):
        made.train(lambda: estimators.input_fn().map(dynamic))
    with pytest.raises(errors.BatchError, match="no rows, only the scalars"):
        made.train(lambda: tf.data.Dataset.from_tensors(({"x": 1.0}, 2.0)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss_reduction": "mean"}, "got loss_reduction=.* Leave out one of them"),
        ({"update_ops": "first"}, "got update_ops='first' with it. Leave out one of them"),
        (
            {"tower_building": "call", "random_numbers": "one_device"},
            "random_numbers='one_device' with tower_building='call'. Leave out one of them",
        ),
    ],
)
def test_options_of_the_other_way_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        model_fn.replicate_model_fn(model, sgd, 2, **{"tower_building": "split", **options})
