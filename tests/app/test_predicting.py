"""`replicate predict CONFIG FILE`: a new file is read as the training's was."""

import json

import numpy as np
import pytest

from replicate import estimator
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1


def slope(features, labels, mode):
    """y = w x, w = 2 from the first."""
    w = tf1.get_variable("w", [], initializer=tf1.constant_initializer(2.0))
    y = w * features["x"]
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"y": y})
    loss = tf1.reduce_mean(tf1.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())


CONFIG = """
model_fn: tests.app.test_predicting:slope
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


def test_the_first_input_that_reads_files_says_how_a_file_is_read(folder, capsys, tmp_path):
    np.savez(tmp_path / "new.npz", x=np.float32([3]), id=np.int64([0]), word=np.array(["a"]))
    evaluated = "--eval.input={kind: npz, file: none.npz, label: y, rows: [9, 10]}"
    assert predicted(folder, capsys, evaluated, tmp_path / "new.npz") == [6.0]
    assert run(folder, "predict", evaluated, folder / "new.csv") == 1
    assert "must be npz, but is text. Set kind: csv" in capsys.readouterr().err


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
        ([], 2, "predict: this section is required. Add it."),
        (["none.csv"], 1, "predict.input: none.csv: the file must exist, but does not. Check the"),
        (["c.bin"], 1, "predict.input: c.bin:1: must be UTF-8 text"),
        (["d.npz"], 1, "predict.input: d.npz: must be text, but is an npz file. Set kind: npz."),
        (["new.csv", "--train.input=a:b"], 2, "of which none reads files. Add predict.input"),
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


def test_a_key_of_predict_does_not_ask_for_an_input_beside_the_file(folder, capsys):
    assert predicted(folder, capsys, "--predict.keys=[y]", folder / "new.csv")[:2] == [0.0, 2.0]
    assert run(folder, "predict", "--predict.keys=[y]") == 2
    assert "predict.input: the key is required here" in capsys.readouterr().err
    assert run(folder, "predict", "--predict.keyz=[y]", folder / "new.csv") == 2
    assert "predict.keyz: unknown key. Did you mean keys?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("word,x\nb,1\n", "the header must have the column 'id' once, got word, x"),
        ("id,x,word\n?,1,a\n", "id must be int64, got '?'"),
    ],
)
def test_a_file_needs_all_columns_but_the_label(folder, capsys, text, fault):
    (folder / "bad.csv").write_text(text)
    assert run(folder, "predict", folder / "bad.csv") == 1
    assert fault in capsys.readouterr().err
