"""What an Estimator with a split graph is given, and what hooks and scaffolds see of it."""

import collections
import logging

import numpy as np
import pytest

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


# Hooks.


class Traced(tf1.train.SessionRunHook):
    """Asks for a trace of a step, as ProfilerHook does, and fetches tensors by name."""

    def __init__(self, names):
        self.names, self.devices, self.fetched = names, set(), []

    def before_run(self, run_context):
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        return tf1.train.SessionRunArgs(self.names, options=options)

    def after_run(self, run_context, run_values):
        self.fetched.append(run_values.results)
        found = run_values.run_metadata.step_stats.dev_stats
        self.devices |= {each.device for each in found}


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
    config = {"save_summary_steps": 1}
    for name in ("one", "split"):
        directory = tmp_path / name
        if name == "one":
            made = estimators.one(stepping(sgd, shown), directory, **config)
        else:
            made = estimators.split(shown, directory, sgd, config=config)
        traced = Traced({"logits": "dense_1/BiasAdd:0", "hidden": "hidden:0"})
        counter = tf1.train.StepCounterHook(1, output_dir=str(directory / "steps"))
        caplog.clear()
        with caplog.at_level(logging.INFO, "tensorflow"):
            made.train(estimators.input_fn, hooks=[traced, counter])
        logged = [r.getMessage().split(" (")[0] for r in caplog.records]
        logged = [text for text in logged if text.startswith(("hidden = ", "logits = "))]
        assert len(logged) == 6
        found.append((summaries_in(directory), traced.fetched, logged))
        assert len(traced.devices) >= (3 if name == "split" else 1)
    (expected, values, texts), (summaries, fetched, lines) = found
    estimators.require_same(values, fetched)
    assert lines == texts
    require_summaries(expected, summaries)


def summaries_in(directory):
    """Returns what was written of each step, by tags."""
    found = {}
    for path in sorted(directory.glob("events*")):
        for event in tf1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[event.step, value.tag] = value
    return {key: value for key, value in found.items() if key[1] != "global_step/sec"}


def require_summaries(expected, found):
    """Requires the same bytes, but for means, whose order may show in the last bit."""
    assert set(expected) == set(found)
    assert len({tag for _, tag in expected}) == 6  # one of them an image of each of two rows
    for key, one in expected.items():
        if one.HasField("simple_value"):
            assert found[key].simple_value == pytest.approx(one.simple_value, rel=1e-6, abs=1e-7)
        else:
            assert found[key].SerializeToString() == one.SerializeToString(), key


def test_a_scaffold_of_the_models_own(tmp_path):
    def scaffolded(features, labels, mode):
        spec = model(features, labels, mode)
        table = tf1.get_variable(
            "counted", [], tf.float64, tf1.zeros_initializer(), trainable=False
        )
        local = tf1.get_variable(
            "local",
            [],
            tf.float64,
            tf1.zeros_initializer(),
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )
        fed = tf1.placeholder(tf.float64, [])
        kernel = next(v for v in tf1.trainable_variables() if "dense/kernel" in v.name)
        start = tf.group(table.assign(fed), kernel.assign(kernel * 0 + fed / 10))
        saved = [v for v in tf1.global_variables() if "table" not in v.op.name]
        scaffold = tf1.train.Scaffold(
            init_fn=lambda _, session: session.run(start, {fed: 3.0}),
            saver=tf1.train.Saver(saved, max_to_keep=2),
            local_init_op=tf.group(
                tf1.local_variables_initializer(), tf1.tables_initializer(), local.initializer
            ),
        )
        loss = spec.loss + tf.reduce_mean(features["x"]) * (table + local.assign_add(1.0))
        return spec._replace(loss=loss, scaffold=scaffold)

    found = require_one_device(tmp_path, scaffolded, sgd, modes=("train",))
    assert found["variables"]["counted"] == 3.0
    assert not any("table" in name for name in found["variables"])


SEEN: list = []


def test_tables_functions_of_python_and_prints_happen_once(tmp_path, capfd):
    def effects(features, labels, mode):
        keys = tf.constant(np.arange(estimators.WORDS, dtype=np.int64))
        initializer = tf.lookup.KeyValueTensorInitializer(keys, (keys * 5 + 2) % estimators.WORDS)
        table = tf.lookup.StaticHashTable(initializer, 0)
        ids = table.lookup(features["ids"])

        def seen(x):
            SEEN.append(x.shape)
            return x * 2.0

        x = tf1.py_func(seen, [features["x"]], tf.float64)
        x.set_shape([None, WIDTH])
        with tf1.control_dependencies([tf.print("printed", tf.shape(x)[0])]):
            x = tf.identity(x)
        return model({"x": x, "ids": ids}, labels, mode)

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


def test_a_dataset_inside_the_model(tmp_path):
    def inner(features, labels, mode):
        rows = tf.data.Dataset.range(100).map(lambda n: tf.cast(n, tf.float64) / 100).batch(3)
        iterator = tf1.data.make_initializable_iterator(rows)
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        spec = model(features, labels, mode)
        if mode != "train":
            return spec
        return spec._replace(loss=spec.loss * (1 + tf.reduce_sum(iterator.get_next())))

    require_one_device(tmp_path, inner, sgd, modes=("train",))


# What is given.

Pair = collections.namedtuple("Pair", ["x", "ids"])
RAGGED = tf.RaggedTensorSpec([None, None], tf.float64, 1)
SPARSE = tf.SparseTensorSpec([None, 3], tf.int64)


def given_of(make, spec, sizes=estimators.SIZES):
    """A dataset of batches that a function makes of rows and numbers."""

    def generate():
        for rows in sizes:
            yield make(rows, np.random.RandomState(rows))

    return lambda: tf.data.Dataset.from_generator(generate, output_signature=spec)


def dense_rows(numbers, rows):
    return numbers.uniform(-1, 1, [rows, WIDTH])


X = tf.TensorSpec([None, WIDTH], tf.float64)
Y = tf.TensorSpec([None, 1], tf.float64)


def on(read):
    """Returns a model of what `read` takes from the features: [B, 4], and labels or None."""

    def model_fn(features, labels, mode):
        x, truth = read(features, labels)
        x.set_shape([None, WIDTH])
        logits = estimators.dense(estimators.dense(x, 3, tf.nn.tanh), 1)
        loss = tf.reduce_mean(tf.square(logits - truth)) + tf.reduce_max(logits)
        return exactness.spec_of(mode, loss, {"logits": logits})

    return model_fn


def sum_of(features, labels):
    return features.x + features.ids, labels["deep"]["y"]


def ragged(rows, numbers, longest=4):
    lengths = numbers.randint(0, longest, rows)
    return tf.RaggedTensor.from_row_lengths(numbers.uniform(-1, 1, lengths.sum()), lengths)


def sparse(rows, numbers):
    indices = [[i, i % 3] for i in range(rows)]
    return tf.SparseTensor(indices, numbers.randint(0, 5, rows), [rows, 3])


def of_ragged(value):
    """Sums and counts of each row, and the values themselves by a map: [B, 4]."""
    dense = value.to_tensor(default_value=0.5)[:, :1]
    dense = tf.concat([dense, tf.zeros([value.nrows(), 1], tf.float64)], 1)[:, :1]
    counts = tf.cast(value.row_lengths(), tf.float64)[:, None]
    return tf.concat([tf.reduce_sum(value, 1)[:, None], counts, dense, 0 * counts], 1)


def of_sparse(value):
    return tf.one_hot(tf.sparse.to_dense(value)[:, 1], WIDTH, dtype=tf.float64)


GIVEN = {
    "tuple": (
        lambda rows, r: ((dense_rows(r, rows), 2.0), dense_rows(r, rows)[:, :1]),
        ((X, tf.TensorSpec([], tf.float64)), Y),
        lambda features, labels: (features[0] * features[1], labels),
    ),
    "namedtuple": (
        lambda rows, r: (
            Pair(dense_rows(r, rows), dense_rows(r, rows)),
            {"deep": {"y": dense_rows(r, rows)[:, :1]}},
        ),
        (Pair(X, X), {"deep": {"y": Y}}),
        sum_of,
    ),
    "no labels": (
        lambda rows, r: {"a": {"b": dense_rows(r, rows)}},
        {"a": {"b": X}},
        lambda features, labels: (features["a"]["b"], 0.5),
    ),
    "sparse": (
        lambda rows, r: ({"s": sparse(rows, r)}, dense_rows(r, rows)[:, :1]),
        ({"s": SPARSE}, Y),
        lambda features, labels: (of_sparse(features["s"]), labels),
    ),
    "ragged": (
        lambda rows, r: ({"r": ragged(rows, r)}, dense_rows(r, rows)[:, :1]),
        ({"r": RAGGED}, Y),
        lambda features, labels: (of_ragged(features["r"]), labels),
    ),
    "ragged alone": (
        lambda rows, r: {"r": ragged(rows, r)},
        {"r": RAGGED},
        lambda features, labels: (of_ragged(features["r"]), 0.5),
    ),
    "sparse alone": (
        lambda rows, r: {"s": sparse(rows, r)},
        {"s": SPARSE},
        lambda features, labels: (of_sparse(features["s"]), 0.5),
    ),
    "unknown rank": (
        lambda rows, r: ({"x": dense_rows(r, rows)}, dense_rows(r, rows)[:, :1]),
        ({"x": tf.TensorSpec(None, tf.float64)}, Y),
        lambda features, labels: (features["x"] + 0.0, labels),
    ),
    "unknown rank alone": (
        lambda rows, r: {"x": dense_rows(r, rows)},
        {"x": tf.TensorSpec(None, tf.float64)},
        lambda features, labels: (features["x"] + 0.0, 0.5),
    ),
}


@pytest.mark.thorough("*alone-3", "namedtuple-3", "no labels-3")
@pytest.mark.parametrize("num_devices", [2, 3])
@pytest.mark.parametrize("name", GIVEN)
def test_nests_of_all_kinds_are_one_devices(tmp_path, name, num_devices):
    make, spec, read = GIVEN[name]
    if num_devices == 2 and "alone" in name:
        return
    given = given_of(make, spec)
    modes = ("train", "eval") if num_devices == 3 else ("train",)
    require_one_device(tmp_path, on(read), sgd, given=given, modes=modes, devices=num_devices)


@pytest.mark.thorough("3")
@pytest.mark.parametrize("rows", [5, 3, 1])
def test_batches_of_a_static_size(tmp_path, rows):
    given = lambda: estimators.static_input_fn(rows)  # noqa: E731
    modes = ("train", "infer")
    require_one_device(tmp_path, model, sgd, given=given, devices=2, modes=modes)


def test_rows_that_disagree_are_named(tmp_path):
    made = estimators.split(model, tmp_path, sgd)
    (features, labels), *_ = estimators.batches()

    def static():
        return tf.data.Dataset.from_tensors(({**features, "x": features["x"][:5]}, labels))

    with pytest.raises(errors.BatchError, match=r'features\["ids"\] has 7 rows, features\["x"\]'):
        made.train(static)

    def dynamic():
        return estimators.input_fn().map(lambda f, y: ({**f, "x": f["x"][:5]}, y))

    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers of rows differ between"):
        made.train(dynamic)


def test_no_rows_at_all_are_refused(tmp_path):
    made = estimators.split(model, tmp_path, sgd)
    with pytest.raises(errors.BatchError, match="no rows, only the scalars"):
        made.train(lambda: tf.data.Dataset.from_tensors(({"x": 1.0}, 2.0)))


# Options.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss_reduction": "mean"}, "got loss_reduction=.* Leave out one of them"),
        ({"update_ops": "first"}, "got update_ops='first' with it. Leave out one of them"),
        ({"update_ops": "mean"}, "got update_ops='mean' with it. Leave out one of them"),
        ({"update_ops": "last"}, "update_ops is one of"),
        (
            {"tower_building": "call", "random_numbers": "one_device"},
            "random_numbers='one_device' with tower_building='call'. Leave out one of them",
        ),
    ],
)
def test_options_of_the_other_way_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        model_fn.replicate_model_fn(model, sgd, 2, **{"tower_building": "split", **options})


def test_what_runs_once_is_said(tmp_path, caplog):
    make, spec, read = GIVEN["unknown rank alone"]
    made = estimators.split(on(read), tmp_path, sgd)
    with caplog.at_level(logging.INFO, "replicate"):
        made.train(given_of(make, spec), steps=1)
    assert [r for r in caplog.records if r.name == "replicate" and r.levelno == logging.INFO]
