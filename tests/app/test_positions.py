"""A run that continues reads what one without a stop reads, and ends with the same bits."""

import sys
import types

import numpy as np
import pytest

from replicate import errors, estimator
from replicate.app.command import cli
from replicate.app.config import config, input_config
from replicate.app.data import inputs, positions, section_inputs, tables
from replicate.app.runs import checkpoints
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster

# Of Keras 2.15 itself, where it draws a seed.
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")

ROWS = 23
X = np.random.default_rng(7).normal(size=ROWS).astype(np.float32)
Y = np.sin(X)
CONFIG = """
model_fn: rows_in_order:model_fn
optimizer: {name: Adam, learning_rate: 0.1}
devices: [/cpu:0]
seed: 0
train:
  save_checkpoints_steps: 4
  save_summary_steps: 1000
"""
TABLE = "kind: csv, file: '*.csv', columns: {x: float32, y: float32}"
RECORDS = "kind: tfrecord, file: '*.tfrecord', features: {x: {dtype: float32}, y: {dtype: float32}}"
INPUTS = {
    "csv": TABLE,
    "stream": f"{TABLE}, shuffle: 9",
    "npz": "kind: npz, file: d.npz",
    "npz, in order": "kind: npz, file: d.npz, shuffle: false",
    "tfrecord": f"{RECORDS}, holdout: 0.1",
    "tfrecord, kept": f"{RECORDS}, cache: true, shuffle: 5",
    "dataset": "kind: function, function: 'rows_in_order:dataset'",
    "batches": "kind: function, function: 'rows_in_order:batches', shuffle: 2",
    "generator": "kind: function, function: 'rows_in_order:generator', shuffle: true",
}


def model_fn(features, labels, mode):
    """Fits a layer; the order of the rows is in each weight and slot."""
    x = tf1.layers.dense(tf.stack([features["x"], tf.square(features["x"])], 1), 3, tf.tanh)
    error = tf.reduce_sum(x, 1) - labels
    return estimator.EstimatorSpec(mode, None, tf.reduce_mean(tf.square(error)), tf1.no_op())


def dataset():
    """Returns rows in an order of its own for each pass, and noise."""
    rows = tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).shuffle(ROWS)
    return rows.map(lambda x, y: ({"x": x["x"] + tf.random.uniform([])}, y))


def generator():
    """Returns rows from Python."""
    spec = {"x": tf.TensorSpec([])}, tf.TensorSpec([])
    pairs = [({"x": x}, y) for x, y in zip(X, Y, strict=True)]
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec)


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with the rows in files of each kind, and the config."""
    folder, halves = tmp_path_factory.mktemp("positions"), (slice(0, 14), slice(14, ROWS))
    np.savez(folder / "d.npz", x=X, y=Y)
    for name, half in zip("ab", halves, strict=True):
        pairs = list(zip(X[half].tolist(), Y[half].tolist(), strict=True))
        text = "x,y\n" + "".join(f"{x!r},{y!r}\n" for x, y in pairs)
        (folder / f"{name}.csv").write_text(text)
        with tf.io.TFRecordWriter(str(folder / f"{name}.tfrecord")) as writer:
            for pair in pairs:
                made = tf.train.Example()
                for key, value in zip("xy", pair, strict=True):
                    made.features.feature[key].float_list.value.append(value)
                writer.write(made.SerializeToString())
    (folder / "c.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(name="user_code", autouse=True)
def make_user_code(monkeypatch):
    """Makes the functions above those of a module `rows_in_order`."""
    module = types.ModuleType("rows_in_order")
    module.model_fn, module.dataset, module.generator = model_fn, dataset, generator
    module.batches = lambda: dataset().batch(4)
    monkeypatch.setitem(sys.modules, "rows_in_order", module)


def train(folder, out, given, *options):
    """Trains on; returns the step that it ended at, and each variable."""
    label = "" if "function" in given else ", label: y"
    words = [f"train.input={{{given}{label}, batch_size: 4}}", *options]
    words = [word for one in words for word in ("--set", one)]
    out = str(folder / out)
    command = ["train", str(folder / "c.yaml"), "--quiet", "--model-dir", out, *words]
    assert cli.main(command) == 0
    reader = tf.train.load_checkpoint(out)
    found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return checkpoints.step_of(out), found


# 23 rows are 5.75 batches of 4; a pass that is cut by itself has 6 (fewer where rows are held
# out). So runs are stopped in the second pass, and for streams, which are counted meanwhile, in
# the first one as well.
# What counts steps and epochs is the same for all kinds: each has one of these, and one has both.
CASES = [("csv", "epochs"), *zip(INPUTS, ("steps", "epochs") * len(INPUTS), strict=False)]


@pytest.mark.thorough("tfrecord-steps", "generator-steps", "csv-epochs")
@pytest.mark.parametrize(("kind", "until"), CASES)
def test_a_run_that_continues_ends_with_the_same_bits(folder, monkeypatch, kind, until):
    if kind == "stream":
        monkeypatch.setattr(tables, "_MAX_IN_MEMORY", 10)
    ends = ["train.steps=10"] if until == "steps" else ["train.steps=15", "train.epochs=2"]
    outs = [f"{kind}-{until}-{which}" for which in ("whole", "parts")]
    whole = train(folder, outs[0], INPUTS[kind], *ends)
    for step in (4, 7) if kind in ("stream", "tfrecord", "generator") else (7,):
        first = train(folder, outs[1], INPUTS[kind], *ends, f"train.steps={step}")
        assert first[0] == step
    parts = train(folder, outs[1], INPUTS[kind], *ends)
    assert whole[0] == parts[0] > 7
    assert whole[1].keys() == parts[1].keys()
    for name, value in whole[1].items():
        np.testing.assert_array_equal(parts[1][name], value, err_msg=name)


def read(source, position, count=None, seed=3, task=cluster.ALONE):
    """Returns the batches of an input from a position on, or a worker's part of them."""
    found = []
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = seed
        make = inputs.input_fn(source, "train.input", "train", {}, task)
        element = tf1.data.make_one_shot_iterator(make(position)).get_next()
        while count is None or len(found) < count:
            try:
                found.append(session.run(element["x"]).tolist())
            except tf.errors.OutOfRangeError:
                break
    return found


@pytest.mark.thorough("True-3-5", "False-3-True")
@pytest.mark.parametrize("shuffle", [False, True, 5])
@pytest.mark.parametrize("repeat", [True, 3])
@pytest.mark.parametrize("by_pass", [False, True])
def test_an_order_goes_on_from_each_batch(folder, shuffle, repeat, by_pass):
    source = input_config.Npz(
        file=str(folder / "d.npz"), features=("x",), batch_size=5, shuffle=shuffle, repeat=repeat
    )
    first = positions.Position(by_pass=by_pass)
    whole = read(source, first, 15)
    # Three passes of 23 rows: 69 are 13 batches of 5 and one of 4; by itself each pass has 5.
    assert len(whole) == (15 if repeat is True or by_pass else 14)
    if repeat != 3:
        return
    assert sorted(np.concatenate(whole)) == sorted(np.tile(X, 3).tolist())
    for start in (0, 1, 4, 5, 7, 13, 15, 99):
        for length in (None, 5) if by_pass else (None,):
            position = first._replace(start=start, length=length)
            assert read(source, position) == whole[start:]


@pytest.mark.thorough("None-servers1", "False-servers0")
@pytest.mark.parametrize("servers", [[], ["h:9"]])
@pytest.mark.parametrize("names_context", [None, False, True])
def test_each_worker_goes_on_with_its_part(folder, servers, names_context):
    source = input_config.Npz(
        file=str(folder / "d.npz"), features=("x",), batch_size=4, shuffle=True, repeat=2
    )
    if names_context is not None:
        rows = {
            False: lambda: tf.data.Dataset.from_tensor_slices({"x": X}).shuffle(ROWS),
            True: lambda input_context: tf.data.Dataset.range(
                100 * input_context.input_pipeline_id, 100 * input_context.input_pipeline_id + 9
            ).map(lambda x: {"x": x}),
        }
        sys.modules["rows_in_order"].rows = rows[names_context]
        source = input_config.Function(function="rows_in_order:rows", batch_size=4, repeat=2)
    known = {"chief": ["h:1"], "worker": ["h:2"], **({"ps": servers} if servers else {})}
    for job in ("chief", "worker"):
        task = cluster.of({"cluster": known, "task": {"type": job, "index": 0}})
        first = positions.Position(is_seeded=True)
        whole = read(source, first, task=task)
        # Beside servers four steps are two of each worker.
        assert read(source, first._replace(start=4), task=task) == whole[2 if servers else 4 :]


def test_passes_differ_and_those_of_another_seed_too(folder):
    source = input_config.Npz(
        file=str(folder / "d.npz"), features=("x",), batch_size=ROWS, shuffle=True, repeat=2
    )
    found = [read(source, positions.FIRST, seed=seed) for seed in (3, 4, None, None)]
    passes = [tuple(one) for run in found for one in run]
    assert len(set(passes)) == 8


def test_what_was_read_is_neither_parsed_nor_read_twice(folder, monkeypatch):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", 10)
    looked_at = []

    def pieces(*_):
        for place in range(4):
            looked_at.append(place)
            yield {"x": np.arange(place, place + 1.0)}

    monkeypatch.setattr(tables, "pieces", pieces)
    source = input_config.Csv(
        file=(str(folder / "a.csv"),), columns={"x": "float64"}, batch_size=1, repeat=True
    )
    # 4 rows to a pass: 400,002 batches are 100,000 passes, which are not read, and 2 rows.
    assert read(source, positions.Position(400_002), 3) == [[2.0], [3.0], [0.0]]
    assert len(looked_at) < 20


# Batches of 2, 2 and 1 rows; step 4 is the second one of a pass.
@pytest.mark.parametrize(("is_seeded", "length", "passes"), [(True, 3, 2), (False, 3, 1)])
def test_without_a_seed_passes_of_a_function_are_not_read_again(is_seeded, length, passes):
    began = []

    def numbers():
        began.append(True)
        yield from range(5)

    def rows():
        found = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], "int64"))
        return found.map(lambda x: {"x": x})

    sys.modules["rows_in_order"].rows = rows
    source = input_config.Function(function="rows_in_order:rows", batch_size=2, repeat=True)
    source = source.model_copy(update={"prefetch": 0})
    position = positions.Position(4, is_seeded, True, length)
    assert read(source, position, 1) == [[2, 3]]
    assert len(began) == passes


@pytest.mark.parametrize(("seed", "start"), [("0", 6), ("null", 0)])
def test_without_a_seed_a_function_begins_anew(folder, seed, start):
    words = {"seed": seed, "model_dir": "m", "train.steps": "9", "train.input": "a:b"}
    settings = config.load(str(folder / "c.yaml"), [f"{k}={v}" for k, v in words.items()])
    assert section_inputs.passed_over(settings, 6) == start


def test_an_input_that_is_over_stays_so(folder):
    for _ in range(2):
        assert train(folder, "over", f"{INPUTS['npz']}, repeat: 1", "train.steps=20")[0] == 6
    # 46 rows are 11.5 batches.
    assert train(folder, "over", f"{INPUTS['npz']}, repeat: 2", "train.steps=20")[0] == 12


@pytest.mark.thorough("true-3-stream", "2-2-generator", "false-1-npz")
@pytest.mark.parametrize("kind", ["npz", "stream", "generator"])
@pytest.mark.parametrize(("repeat", "passes"), [("true", 3), ("2", 2), ("false", 1)])
def test_epochs_are_passes_that_are_cut_by_themselves(folder, monkeypatch, kind, repeat, passes):
    if kind == "stream":
        monkeypatch.setattr(tables, "_MAX_IN_MEMORY", 10)
    kinds = {"npz": "kind: npz, file: d.npz", "stream": TABLE, "generator": INPUTS["generator"]}
    keys = f"{kinds[kind]}{', label: y' * (kind != 'generator')}, batch_size: 4, repeat: {repeat}"
    keys = keys.replace(", shuffle: true", "")
    words = ["train.epochs=3", f"train.input={{{keys}, shuffle: false}}"]
    settings = config.load(str(folder / "c.yaml"), [*words, "model_dir=m"])
    # 23 rows are five batches of 4 and one of 3.
    numbers = [X[first : first + 4].tolist() for first in range(0, ROWS, 4)]
    for start in (0, 2, 7):
        made = section_inputs.in_epochs(settings, 3, start)
        # What does not know its length is counted once it was read in part.
        assert made.end == (None if start == 0 and kind != "npz" else 18)
        found = []
        with tf.Graph().as_default(), tf1.Session() as session:
            features, _ = tf1.data.make_one_shot_iterator(made.dataset()).get_next()
            while len(found) < 99:
                try:
                    found.append(session.run(features["x"]).tolist())
                except tf.errors.OutOfRangeError:
                    break
        assert found == (numbers * passes)[start:]


def test_an_input_without_an_end_has_no_epochs():
    with pytest.raises(errors.RunError, match=r"train.input: must come to an end for train.epochs"):
        positions.length_of(lambda: tf.data.Dataset.range(7).repeat(), 0)


def test_an_input_that_waits_for_a_table_is_not_counted():
    def rows():
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["rows"], np.int64([ROWS])), -1
        )
        return tf.data.Dataset.range(table.lookup(tf.constant("rows"))).batch(3)

    assert positions.length_of(rows, 99) is None
