"""`replicate predict CONFIG FILE`: a new file is read as the training's was."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from replicate.app.command import cli
from replicate.app.data import tables
from replicate.compat.tensorflow import tf

MODEL = '''
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def slope(features, labels, mode):
    """y = w x, w = 2 from the first; asks for an id of which nothing is made."""
    w = tf1.get_variable("w", [], initializer=tf1.constant_initializer(2.0))
    y = w * features["x"]
    named = features["id"], tf1.strings.length(features["word"])
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"y": y})
    loss = tf1.reduce_mean(tf1.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())
'''
CONFIG = """
model_fn: predicting_model:slope
optimizer: {name: GradientDescent, learning_rate: 0.0}
devices: [/cpu:0, /cpu:1]
train:
  steps: 1
  input:
    kind: csv
    file: train.csv
    columns: {id: int64, x: float32, word: string, y: float32}
    label: y
    batch_size: 2
    holdout: 0.1
export: {}
"""


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder after a training."""
    folder = tmp_path_factory.mktemp("predicting")
    (folder / "predicting_model.py").write_text(MODEL)
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "train.csv").write_text("id,x,word,y\n" + "".join(f"{i},1,a,2\n" for i in range(40)))
    (folder / "new.csv").write_text(
        "word,x,id,more\n" + "".join(f"b,{i},{i},z\n" for i in range(20))
    )
    assert run(folder, "train") == 0
    return folder


def run(folder, command, *options):
    """Runs a command on the config; returns the exit code."""
    where = ["--model-dir", str(folder / "run"), "--quiet"]
    return cli.main([command, str(folder / "c.yaml"), *map(str, options), *where])


def predicted(folder, capsys, *options):
    """Returns y of each row that `predict` prints."""
    capsys.readouterr()
    assert run(folder, "predict", *options) == 0
    return [json.loads(line)["y"] for line in capsys.readouterr().out.splitlines()]


def test_a_file_without_labels_is_read_as_the_training_input_is(folder, capsys):
    # All rows, in their order, once.
    assert predicted(folder, capsys, folder / "new.csv") == [2.0 * i for i in range(20)]


def test_the_file_may_stand_behind_options_and_replaces_that_of_predict(folder, capsys):
    columns = "{x: float32, id: int64, word: string}"
    own = f"--predict.input={{kind: csv, file: none.csv, columns: {columns}}}"
    found = predicted(folder, capsys, own, "--predict.keys=[y]", folder / "new.csv")
    assert found == [2.0 * i for i in range(20)]


def test_the_input_of_the_files_kind_is_taken(folder, capsys, tmp_path):
    np.savez(tmp_path / "new.npz", x=np.float32([3]), id=np.int64([0]), word=np.array(["a"]))
    evaluated = (
        "--eval.input={kind: npz, file: none.npz, label: y, dtypes: {y: float32}, rows: [9, 10]}"
    )
    assert predicted(folder, capsys, evaluated, tmp_path / "new.npz") == [6.0]
    assert predicted(folder, capsys, evaluated, folder / "new.csv")[1] == 2.0


def test_records_need_no_label_either(folder, capsys, tmp_path):
    path = str(tmp_path / "new.tfrecord")
    with tf.io.TFRecordWriter(path) as file:
        example = tf.train.Example()
        example.features.feature["x"].float_list.value.append(4.0)
        example.features.feature["id"].int64_list.value.append(1)
        example.features.feature["word"].bytes_list.value.append(b"a")
        file.write(example.SerializeToString())
    features = (
        "{x: {dtype: float32}, id: {dtype: int64}, word: {dtype: string}, y: {dtype: float32}}"
    )
    given = f"--eval.input={{kind: tfrecord, file: none, label: y, features: {features}}}"
    assert predicted(folder, capsys, given, path) == [8.0]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ([], 2, "predict: this section is required for `replicate predict`. Add it, or name the"),
        (["none.csv"], 1, "FILE: none.csv: the file must exist, but does not. Check the path.\n"),
        (["c.bin"], 1, "FILE: c.bin:1: must be UTF-8 text"),
        (["d.npz"], 2, "of which csv reads files; it is npz. Add predict.input"),
        (["new.csv", "--train.input=a:b"], 2, "of which none reads files; it is csv"),
        (["new.csv", "more.csv"], 2, "Got unexpected extra argument (more.csv)"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(folder, capsys, options, code, text):
    (folder / "c.bin").write_bytes(b"\xff\x00" * 9)
    np.savez(folder / "d.npz", x=np.zeros(3))
    given = [one if one.startswith("-") else str(folder / one) for one in options]
    assert run(folder, "predict", *given) == code
    assert text in capsys.readouterr().err.replace(f"{folder}/", "")


def test_print_config_shows_how_the_file_is_read(folder, capsys):
    assert run(folder, "predict", folder / "new.csv", "--print-config") == 0
    shown = capsys.readouterr().out
    assert f"file:\n    - {folder / 'new.csv'}" in shown


def write_x(folder):
    """Writes a table with the one column that the predictions are made from."""
    (folder / "x.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(5)))
    return folder / "x.csv"


@pytest.mark.parametrize("limit", [2**30, 10], ids=["memory", "stream"])
def test_columns_that_the_model_does_not_read_need_not_be_there(folder, capsys, monkeypatch, limit):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", limit)
    assert predicted(folder, capsys, write_x(folder)) == [0.0, 2.0, 4.0, 6.0, 8.0]
    (folder / "bad.csv").write_text("id,x,word\n?,1,a\n")
    assert predicted(folder, capsys, folder / "bad.csv") == [2.0]
    (folder / "wrong.csv").write_text("id,z,word\n1,1,a\n")
    assert run(folder, "predict", folder / "wrong.csv") == 1
    assert "the header must have the column 'x' once, got id, z, word" in capsys.readouterr().err


def test_features_of_records_that_the_model_does_not_read_need_not_be_there(
    folder, capsys, tmp_path
):
    path = str(tmp_path / "new.tfrecord")
    with tf.io.TFRecordWriter(path) as file:
        example = tf.train.Example()
        example.features.feature["x"].float_list.value.append(4.0)
        file.write(example.SerializeToString())
    features = "{x: {dtype: float32}, id: {dtype: int64, shape: [2]}, word: {dtype: string}}"
    given = f"--eval.input={{kind: tfrecord, file: none, features: {features}}}"
    assert predicted(folder, capsys, given, path) == [8.0]


@pytest.mark.parametrize("limit", [2**30, 10], ids=["memory", "stream"])
def test_parquet_needs_the_columns_that_the_model_reads(
    folder, capsys, tmp_path, monkeypatch, limit
):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", limit)
    columns = "{id: int64, x: float32, word: string, y: float32}"
    given = f"--eval.input={{kind: parquet, file: none, label: y, columns: {columns}}}"
    path, wrong = str(tmp_path / "x.parquet"), str(tmp_path / "wrong.parquet")
    parquet.write_table(pyarrow.table({"x": [1.0, 4.0]}), path)
    assert predicted(folder, capsys, given, path) == [2.0, 8.0]
    parquet.write_table(pyarrow.table({"id": [[1]], "xx": [4.0]}), wrong)
    assert run(folder, "predict", given, wrong) == 1
    assert "FILE: " in (shown := capsys.readouterr().err)
    assert "the file must have the column 'x' once, got id, xx. Did you mean xx?" in shown


def test_without_a_header_what_the_model_does_not_read_may_be_anything(folder, capsys, tmp_path):
    columns = "{id: int64, x: float32, word: string, y: float32}"
    given = f"--eval.input={{kind: csv, file: none, header: false, label: y, columns: {columns}}}"
    for name, text in (("whole", "?,1,a,?\n,4,b,\n"), ("unlabelled", "?,1,a\n,4,b\n")):
        (tmp_path / name).write_text(text)
        assert predicted(folder, capsys, given, tmp_path / name) == [2.0, 8.0]
    (tmp_path / "short").write_text("1,1\n")
    assert run(folder, "predict", given, tmp_path / "short") == 1
    assert "FILE: " in (shown := capsys.readouterr().err)
    assert "short:1: must be CSV, as the config says: CSV parse error: Row #1: Expected 3" in shown


def test_a_key_of_predict_does_not_ask_for_an_input_beside_the_file(folder, capsys):
    assert predicted(folder, capsys, "--predict.keys=[y]", write_x(folder))[:2] == [0.0, 2.0]
    assert run(folder, "predict", "--predict.keys=[y]") == 2
    assert "predict.input: the key is required here" in capsys.readouterr().err
    assert run(folder, "predict", "--predict.keyz=[y]", write_x(folder)) == 2
    assert "predict.keyz: unknown key. Did you mean keys?" in capsys.readouterr().err


@pytest.mark.parametrize("towers", ["one", "merged"])
def test_an_export_asks_for_what_the_model_reads(folder, capsys, towers):
    assert run(folder, "export", f"--export.towers={towers}") == 0
    path, *lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "  serving_default",
        "    input  x: float32 [None]",
        "    output y: float32 [None]",
    ]
    given = ("--saved-model", path, write_x(folder))
    assert predicted(folder, capsys, *given) == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_inputs_that_the_config_names_are_all_asked_for(folder, capsys):
    named = "{x: {dtype: float32}, id: {dtype: int64}, word: {dtype: string}}"
    assert run(folder, "export", f"--export.inputs={named}") == 0
    assert sum("input " in line for line in capsys.readouterr().out.splitlines()) == 3
