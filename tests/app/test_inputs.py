"""Inputs of every kind become datasets of batches."""

import pathlib
import re
import sys
import types

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import inputs, tables
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster

TASK = {"type": "worker", "index": 0}


def batches_of(source, mode="eval", params=None):
    """Returns what an input yields, all of it."""
    make = inputs.input_fn(source, "eval.input", mode, params or {})
    with tf.Graph().as_default(), tf1.Session() as session:
        element = tf1.data.make_one_shot_iterator(make()).get_next()
        found = []
        while True:
            try:
                found.append(session.run(element))
            except tf.errors.OutOfRangeError:
                return found


@pytest.fixture(name="archive")
def make_archive(tmp_path):
    """Returns the path of an npz file with x [5, 2], label [5], word [5]."""
    path = tmp_path / "d.npz"
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.savez(path, x=x, label=np.arange(5), word=np.array(list("abcde")))
    return str(path)


def test_npz_is_batched_and_keeps_the_last_rows(archive):
    source = input_config.Npz(file=archive, label="label", batch_size=2)
    found = batches_of(source)
    assert [len(labels) for _, labels in found] == [2, 2, 1]
    np.testing.assert_array_equal(found[2][0]["x"], [[8, 9]])
    assert found[1][0]["word"].tolist() == [b"c", b"d"]


def numpy_dtypes():
    """Returns every dtype of NumPy's own, in both byte orders; of text and bytes, of four."""
    own = {np.dtype(one) for one in np.sctypeDict.values() if one.__module__ == "numpy"}
    sized = {np.dtype(f"{one.char}4") if one.char in "SUV" else one for one in own}
    orders = {one.newbyteorder(order) for one in sized for order in "<>"}
    return sorted(orders, key=str)


@pytest.mark.parametrize("dtype", numpy_dtypes(), ids=str)
def test_an_array_of_any_dtype_is_read_as_it_is_or_refused(tmp_path, dtype):
    array = np.array([[1, 0], [1, 1], [0, 1]]).astype(dtype, order="F")
    np.savez(tmp_path / "d.npz", x=array)
    source = input_config.Npz(file=str(tmp_path / "d.npz"), features="x", batch_size=3)
    if dtype.kind in "VOmM" or dtype.type in (np.longdouble, np.clongdouble):
        with pytest.raises(errors.RunError, match=r"d\.npz"):
            batches_of(source)
    else:
        (batch,) = batches_of(source)
        np.testing.assert_array_equal(batch.astype(dtype), array)


def test_npz_shapes_are_known_but_for_the_batch(archive):
    source = input_config.Npz(file=archive, features=("x",), label="label")
    features, labels = inputs.element_of(inputs.input_fn(source, "k", "train", {}))
    assert features["x"].shape.as_list() == [None, 2]
    assert labels.shape.as_list() == [None]
    assert (features["x"].dtype, labels.dtype) == (tf.float32, tf.int64)


def test_shuffled_rows_stay_together(archive):
    source = input_config.Npz(
        file=archive, features="x", label="label", shuffle=True, repeat=3, batch_size=4
    )
    found = batches_of(source)
    labels = np.concatenate([labels for _, labels in found])
    rows = np.concatenate([x for x, _ in found])
    assert sorted(labels) == sorted([0, 1, 2, 3, 4] * 3)
    np.testing.assert_array_equal(rows[:, 0], 2 * labels)  # row i starts with 2 i


def test_the_data_are_not_in_the_graph(archive):
    source = input_config.Npz(file=archive, features=("word",))
    with tf.Graph().as_default() as graph:
        inputs.input_fn(source, "k", "train", {})()
        assert b"abcde" not in graph.as_graph_def().SerializeToString()
        sizes = [
            op.get_attr("value").ByteSize() for op in graph.get_operations() if op.type == "Const"
        ]
    assert max(sizes) < 100


def test_csv_that_does_not_fit_in_memory_is_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", 10)
    path = tmp_path / "d.csv"
    path.write_text("x,s,y\n1,a,0\n2,b,1\n3,c,0\n")
    source = input_config.Csv(
        file=(str(path),),
        columns={"x": "float32", "s": "string", "y": "int32"},
        label="y",
        batch_size=2,
        repeat=2,
    )
    found = batches_of(source)
    assert [labels.tolist() for _, labels in found] == [[0, 1], [0, 0], [1, 0]]
    assert found[1][0]["s"].tolist() == [b"c", b"a"]
    shuffled = batches_of(source.model_copy(update={"shuffle": True, "repeat": False}))
    rows = sorted((x, y) for one, labels in shuffled for x, y in zip(one["x"], labels, strict=True))
    assert rows == [(1, 0), (2, 1), (3, 0)]


@pytest.fixture(name="records")
def make_records(tmp_path):
    """Returns the pattern of two TFRecord files, with 2 Examples and 1."""

    def example(number, words):
        feature = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, -number])),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            "words": tf.train.Feature(bytes_list=tf.train.BytesList(value=words)),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    for name, rows in (("a", [(1, [b"p"]), (2, [])]), ("b", [(3, [b"q", b"r"])])):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
            for row in rows:
                writer.write(example(*row))
    return str(tmp_path / "*.tfrecord")


def test_tfrecords_are_parsed_as_the_spec_says(records):
    feature = input_config.Feature
    source = input_config.Tfrecord(
        file=(records,),
        features={
            "x": feature(dtype="float32", shape=(2,)),
            "y": feature(dtype="int64"),
            "words": feature(dtype="string", kind="ragged"),
            "tags": feature(dtype="string", kind="sparse"),
            "more": feature(dtype="int64", default=7),
            "many": feature(dtype="float32", shape=(2, 1), default=1e3),
            "each": feature(dtype="string", shape=(2,), default="λ"),
        },
        label="y",
        batch_size=2,
    )
    (first, first_labels), (_, last_labels) = batches_of(source)
    assert first["x"].tolist() == [[1, -1], [2, -2]]
    assert first["words"].to_list() == [[b"p"], []]
    assert first["tags"].dense_shape.tolist() == [2, 0]
    assert first["more"].tolist() == [7, 7]
    assert first["many"].tolist() == [[[1000.0], [1000.0]]] * 2
    assert first["each"].tolist() == [["λ".encode()] * 2] * 2
    assert (first_labels.tolist(), last_labels.tolist()) == ([1, 2], [3])


def test_tfrecord_files_must_exist(tmp_path):
    source = input_config.Tfrecord(
        file=(str(tmp_path / "*.none"),), features={"x": input_config.Feature(dtype="int64")}
    )
    with pytest.raises(errors.RunError, match=r"eval.input: .*none: a file must exist"):
        inputs.input_fn(source, "eval.input", "eval", {})


@pytest.mark.parametrize(
    ("content", "compression", "fault"),
    [
        (b"\x1f\x8b\x08", "none", "compressed with gzip. Set compression: GZIP."),
        (b"x,y\n", "none", "must be tfrecord, but is text. Set kind: csv if it is a table."),
        (b"PK\x03\x04", "none", "must be tfrecord, but is an npz file. Set kind: npz."),
    ],
)
def test_records_of_another_form_are_named(tmp_path, content, compression, fault):
    (tmp_path / "r").write_bytes(content)
    source = input_config.Tfrecord(
        file=(str(tmp_path / "r"),),
        features={"x": input_config.Feature(dtype="int64")},
        compression=compression,
    )
    with pytest.raises(errors.RunError, match=re.escape(fault)):
        inputs.input_fn(source, "eval.input", "eval", {})


def of_range(n):
    """Returns a dataset of (features [3], label [])."""
    return tf.data.Dataset.range(n).map(lambda i: (tf.fill([3], i), i))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: of_range(9), False),
        (lambda: of_range(9).batch(4), True),
        (lambda: of_range(9).batch(4, drop_remainder=True).map(lambda x, y: x), True),
        (lambda: of_range(9).batch(4).unbatch(), False),
        (lambda: of_range(9).batch(4).repeat().prefetch(1), True),
        (lambda: of_range(9).map(lambda x, y: x), False),
        (lambda: of_range(9).map(lambda x, y: (x, x)), True),  # both have batch_size rows
        (lambda: tf.data.Dataset.zip((of_range(9).batch(2), of_range(9).batch(2))), True),
        (lambda: of_range(9).batch(2).flat_map(lambda x, y: of_range(2)), False),
        (lambda: of_range(9).padded_batch(2, ([3], [])), True),
        (lambda: of_range(9).batch(5).map(lambda x, y: {"x": x, "y": y}), True),
    ],
)
def test_it_is_found_out_whether_a_dataset_is_batched(make, expected):
    with tf.Graph().as_default():
        assert inputs.is_batched(make(), batch_size=3) is expected


@pytest.mark.usefixtures("either_shapes")
def test_a_generator_of_batches_is_seen_by_its_open_dimension():
    def generate():
        yield np.zeros([2, 3]), np.zeros([2])

    shapes = (tf.TensorSpec([None, 3]), tf.TensorSpec([None]))
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_generator(generate, output_signature=shapes)
        assert inputs.is_batched(dataset, batch_size=3)


@pytest.fixture(name="user_code")
def make_user_code(monkeypatch):
    """Returns a module `user_inputs` that is importable."""
    module = types.ModuleType("user_inputs")
    monkeypatch.setitem(sys.modules, "user_inputs", module)
    return module


def test_a_function_gets_what_it_names_and_is_batched(user_code):
    user_code.rows = lambda mode, params: of_range(params["n"] if mode == "eval" else 0)
    source = input_config.Function(function="user_inputs:rows", batch_size=2)
    found = batches_of(source, params={"n": 3})
    assert [labels.tolist() for _, labels in found] == [[0, 1], [2]]


def test_a_function_that_batches_is_left_alone(user_code):
    user_code.rows = lambda batch_size: of_range(3).batch(batch_size - 1)
    source = input_config.Function(function="user_inputs:rows", batch_size=3, repeat=2)
    found = batches_of(source)
    assert [labels.tolist() for _, labels in found] == [[0, 1], [2], [0, 1], [2]]


def test_batched_overrules_what_is_found_out(user_code):
    user_code.rows = lambda: of_range(4).batch(2)
    source = input_config.Function(function="user_inputs:rows", batch_size=2, batched=False)
    assert [labels.tolist() for _, labels in batches_of(source)] == [[[0, 1], [2, 3]]]


@pytest.mark.parametrize("size", [1, 2])
def test_rows_may_lack_labels(user_code, size):
    def rows():
        found = tf.data.Dataset.range(40).map(lambda x: (x, None))
        return found if size == 1 else found.batch(size)

    user_code.rows = rows
    source = input_config.Function(function="user_inputs:rows", batch_size=2, repeat=False)
    make = inputs.input_fn(source, "eval.input", "train", {})
    with tf.Graph().as_default(), tf1.Session() as session:
        x, label = tf1.data.make_one_shot_iterator(make()).get_next()
        assert label is None
        assert x.shape.as_list() == [None]
        assert len(session.run(x)) == 2


@pytest.mark.parametrize("limit", [2**30, 0], ids=["memory", "stream"])
@pytest.mark.parametrize("kind", ["header", "none", "parquet", "tfrecord"])
def test_features_have_the_order_of_the_config(tmp_path, monkeypatch, kind, limit):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", limit)
    path, columns = str(tmp_path / "d"), {"c": "int64", "a": "int64", "y": "int64", "b": "int64"}
    given = {"file": (path,), "label": "y"}
    if kind == "tfrecord":
        example = tf.train.Example()
        for name in "abcy":
            example.features.feature[name].int64_list.value.append(1)
        with tf.io.TFRecordWriter(path) as file:
            file.write(example.SerializeToString())
        features = {name: input_config.Feature(dtype="int64") for name in columns}
        source = input_config.Tfrecord(**given, features=features)
    elif kind == "parquet":
        parquet.write_table(pyarrow.table({name: [1] for name in "abcy"}), path)
        source = input_config.Parquet(**given, columns=columns)
    else:
        pathlib.Path(path).write_text("a,b,c,y\n" * (kind == "header") + "1,1,1,1\n")
        source = input_config.Csv(**given, columns=columns, header=kind == "header")
    for mode in ("train", "infer"):
        element = inputs.element_of(inputs.input_fn(source, "k", mode, {}))
        assert list(element if mode == "infer" else element[0]) == ["c", "a", "b"]


def test_our_own_functions_are_called_as_they_are(tmp_path, archive, user_code):
    # To convert one costs half a second where it leads through many others.
    user_code.rows = lambda: of_range(9).batch(2)
    sources = (
        input_config.Npz(file=archive, label="label", batch_size=2),
        input_config.Function(function="user_inputs:rows", batch_size=2),
    )
    user_code.rows()  # which converts those of the user
    before = {name for name in sys.modules if name.startswith("__autograph_generated")}
    task = cluster.of({"cluster": {"chief": ["a:1"], "worker": ["a:2"]}, "task": TASK})
    for source in sources:
        with tf.Graph().as_default():
            inputs.input_fn(source, "k", "train", {}, task)()
    assert {name for name in sys.modules if name.startswith("__autograph_generated")} == before


def test_a_function_must_return_a_dataset(user_code):
    user_code.rows = lambda: [1, 2]
    source = input_config.Function(function="user_inputs:rows")
    with pytest.raises(errors.RunError, match=r"must return a tf.data.Dataset, got list"):
        batches_of(source)


@pytest.mark.parametrize("cache", [False, True])
def test_a_cache_reads_the_rows_of_a_function_once(user_code, cache):
    read = []

    def generate():
        for number in range(3):
            read.append(number)
            yield number, number

    specs = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))
    user_code.rows = lambda: tf.data.Dataset.from_generator(generate, output_signature=specs)
    source = input_config.Function(function="user_inputs:rows", repeat=4, cache=cache, batch_size=2)
    labels = [label for _, batch in batches_of(source) for label in batch.tolist()]
    assert labels == [0, 1, 2] * 4
    assert len(read) == (3 if cache else 12)
