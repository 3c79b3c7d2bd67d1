"""`replicate init`: what it writes passes `check`, and trains."""

import gzip
import json
import os
import pathlib
import re
import zlib

import numpy as np
import pytest
import yaml
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from replicate import errors
from replicate.app.command import cli
from replicate.app.config import config, schema
from replicate.app.data import tables
from replicate.app.inspect import samples
from replicate.compat.tensorflow import tf

DIGITS = pathlib.Path(__file__).parents[2] / "replicate" / "examples" / "digits.npz"


def init(folder, *arguments):
    """Runs `replicate init` for a config in a folder; returns the config's text."""
    output = folder / "config.yaml"
    assert cli.main(["init", *map(str, arguments), "--output", str(output)]) == 0
    return output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            "age,name,height,ok,label\n1,a,1.5,true,0\n-2,b,2,FALSE,1\n",
            {"columns": ["int64", "string", "float32", "bool", "int64"], "label": "label"},
        ),
        (
            "a;b;Y\n1;,;2\n3;x;4\n",
            {"columns": ["int64", "string", "int64"], "label": "Y", "delimiter": ";"},
        ),
        (
            "a\tb\n1\t1e-3\n\t.5\n",
            {"columns": ["int64", "float32"], "defaults": {"a": 0}, "delimiter": "\t"},
        ),
        ("1|2\n3|4\n", {"columns": ["int64", "int64"], "header": False, "delimiter": "|"}),
        ("a,b\n0x10,0XF\n", {"columns": ["string", "string"]}),
        ('zip,"a ""b"", c"\n01234,1_0\n', {"columns": ["string", "string"]}),
        ("a,b\n9999999999999999999,nan\n", {"columns": ["float32", "string"]}),
        # An int64 ends at 2^63 - 1 = 9223372036854775807; a float32 has 24 bits for all digits.
        ("a,b\n9223372036854775807,-9223372036854775808\n", {"columns": ["int64", "int64"]}),
        ("\ufeffa\r\n1\r\n\r\n2\r\n", {"columns": ["int64"]}),
        ("a,b\n", {"columns": ["string", "string"]}),
        (
            "a,b,c\n1,NA,NA\nNA,True,NL\n?,?,\n",
            {
                "columns": ["int64", "bool", "string"],
                "defaults": {"a": 0, "b": False},
                "na_values": ["?", "NA"],
            },
        ),
        ("a,b\nNA,-\nNA,x\n", {"columns": ["string", "string"]}),
        (  # a missing label has no default: its row is an error
            "a,label\n1,NA\nnan,0\n2,1\n",
            {
                "columns": ["int64", "int64"],
                "defaults": {"a": 0},
                "na_values": ["NA", "nan"],
                "label": "label",
            },
        ),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_csv_is_read_by_its_values(tmp_path, text, keys, compress):
    path = tmp_path / "d.csv"
    path.write_bytes(compress(text.encode()))
    found = samples.look(str(path))
    told = {**found.keys, "columns": list(found.keys["columns"].values())}
    expected = {"kind": "csv", "file": str(path), **keys}
    assert told | ({"label": found.label} if found.label else {}) == expected


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (b"", "must be CSV, npz, Parquet or TFRecord with rows"),
        (b"a,b\n1\n", ":2: must be CSV, as the config says: CSV parse error"),
        (b"a,a\n1,2\n", "besides the label; a: left out, as 2 columns are called so; to"),
        (b"y\n1\n", "must have a column with a name besides the label. Correct"),
        (b'a,b\n"1,2\n', "d.csv:2: must be CSV"),
        (b"a,b\n\xff,2\n", "d.csv:2: must be CSV, .* invalid UTF8"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:30], "must be CSV"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, written, fault):
    path = tmp_path / "d.csv"
    path.write_bytes(written)
    with pytest.raises(errors.RunError, match=fault):
        samples.look(str(path))


@pytest.mark.parametrize(
    ("text", "columns", "told"),
    [
        (
            ",x,y\n0,1.5,a\n1,2.5,b\n",
            {"x": "float32", "y": "string"},
            "a name: left out, as",
        ),
        (
            "x,x,z,y\n1,2,3,4\n5,6,7,8\n",
            {"z": "int64", "y": "int64"},
            "x: left out, as 2 columns are called so",
        ),
    ],
)
def test_columns_without_a_name_of_their_own_are_left_out(tmp_path, capsys, text, columns, told):
    (tmp_path / "d.csv").write_text(text)
    written = yaml.safe_load(init(tmp_path, "m:f", tmp_path / "d.csv"))["train"]["input"]
    assert (written["columns"], written.get("header", True)) == (columns, True)
    assert told in capsys.readouterr().out
    source = config.load(str(tmp_path / "config.yaml")).train.input
    (rows,) = tables.pieces(source, "train.input")
    assert {name: len(cells) for name, cells in rows.items()} == dict.fromkeys(columns, 2)


@pytest.mark.parametrize(
    "text",
    [
        "1,x\n2,y\n",
        "01,5\n2,6\n",
        "NA,1\n3,4\n",
        "x,2019\n3,4\n",
        ",1\n3,4\n5,6\n",
        "5,class\n6,object\n7,class\n",
        "5,y\n6,n\n",
        "0,1\n0.5,2\n",
    ],
)
def test_a_first_row_with_a_number_is_no_header(tmp_path, text):
    (tmp_path / "d.csv").write_text(text)
    assert samples.look(str(tmp_path / "d.csv")).keys["header"] is False


def test_a_pattern_is_taken_for_all_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train-0.csv", "train-1.csv", "test-0.csv"):
        (tmp_path / name).write_text("a,y\n1,2\n3,4\n")
    written = yaml.safe_load(init(tmp_path, "m:f", "train-*.csv"))
    assert (written["train"]["input"]["file"], written["eval"]["input"]["file"]) == (
        "train-*.csv",
        "test-*.csv",
    )
    source = config.load("config.yaml").train.input
    assert [len(piece["a"]) for piece in tables.pieces(source, "train.input")] == [2, 2]


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"x": np.zeros(5), "y": np.zeros(4)}, "x: left out, as it has 5 rows, not 4. Correct"),
        ({"x": np.zeros([0, 2]), "y": np.zeros(0)}, "array of numbers or text, with rows, besides"),
        ({"x": np.array([[1], [1, 2]], object)}, "label; x: left out, as it holds Python obj"),
        (
            {"x": np.array([[1], [1, 2]], object), "y": np.zeros(2)},
            "x: left out, as it holds Python",
        ),
    ],
)
def test_what_is_wrong_with_an_npz_is_named(tmp_path, capsys, arrays, fault):
    np.savez(tmp_path / "d.npz", **arrays)
    assert cli.main(["init", "m:f", str(tmp_path / "d.npz")]) == 1
    shown = capsys.readouterr().err
    assert fault in shown
    assert "savez" not in shown


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("*.csv", r"\*.csv: must be a file of this machine, a pattern of such files, or"),
        ("empty.csv", "empty.csv: must be CSV, npz, Parquet or TFRecord with rows"),
        ("*.npz", "must be one file where it is npz, got a pattern"),
    ],
)
def test_data_that_is_none_is_named(tmp_path, monkeypatch, capsys, name, fault):
    monkeypatch.chdir(tmp_path)
    if "empty" in name:
        (tmp_path / name).write_text("")
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    assert cli.main(["init", "m:f", name]) == 1
    assert re.search(fault, capsys.readouterr().err)


def test_an_npz_is_read_by_its_headers(tmp_path):
    path = str(tmp_path / "d.npz")
    arrays = {"image": np.zeros([20, 2, 3], np.uint8), "word": np.array(["a"] * 20)}
    np.savez(path, scale=1.0, other=np.zeros(3), label=np.zeros(20), **arrays)
    found = samples.look(path)
    # Sixteen of 20 rows are four fifths; what has no rows, or others, is left out.
    assert found.keys == {
        "kind": "npz",
        "file": path,
        "features": ["image", "word"],
        "rows": [0, 16],
    }
    assert (found.label, found.others) == ("label", {"rows": [16, 20]})


@pytest.mark.parametrize("label", ["y_train", None])
def test_arrays_for_evaluation_go_with_those_for_training(tmp_path, label):
    path = str(tmp_path / "d.npz")
    names = ("a_train", "a_test", "b_train", "b_test", *(["y_train", "y_test"] if label else []))
    np.savez(path, **{name: np.zeros(3) for name in names})
    found = samples.look(path, label)
    assert found.keys["features"] == {"a": "a_train", "b": "b_train"}
    others = {"features": {"a": "a_test", "b": "b_test"}}
    assert (found.label, found.others) == (
        label,
        others | ({"label": "y_test"} if label else {}),
    )


def test_damaged_archives_are_named(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(errors.RunError, match="a: left out, as it holds Python objects"):
        samples.look(str(path))
    np.savez(path, a=np.zeros(3))
    whole = path.read_bytes()
    for damaged in (whole[:99], whole.replace(b"descr", b"descx"), b"PK\x03\x04" + bytes(99)):
        path.write_bytes(damaged)
        with pytest.raises(errors.RunError, match="must be a readable npz file"):
            samples.look(str(path))


def example(**values):
    """Returns a serialized Example; bytes, floats or whole numbers by their first value."""
    made = tf.train.Example()
    for name, given in values.items():
        feature = made.features.feature[name]
        lists = {bytes: feature.bytes_list, float: feature.float_list, int: feature.int64_list}
        lists[type(given[0])].value.extend(given)
    return made.SerializeToString()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_records_are_read_however_they_are_compressed(tmp_path, compression):
    path = str(tmp_path / "train.tfrecord")
    rows = [
        example(x=[1.0, 2.0], y=[3], word=[b"a"], many=[1, 300, -1], rare=[b"x"]),
        example(x=[0.5, -2.0], y=[-3], word=[b"bcd"], many=[2**40]),
    ]
    with tf.io.TFRecordWriter(path, compression) as file:
        for row in rows:
            file.write(row)
    (tmp_path / "test.tfrecord").write_bytes(b"")
    found = samples.look(path)
    assert found.keys["features"] == {
        "many": {"dtype": "int64", "kind": "sparse"},
        "rare": {"dtype": "string", "kind": "sparse"},
        "word": {"dtype": "string", "shape": []},
        "x": {"dtype": "float32", "shape": [2]},
        "y": {"dtype": "int64", "shape": []},
    }
    assert found.keys.get("compression", "") == compression
    assert (found.label, found.others) == ("y", {"file": str(tmp_path / "test.tfrecord")})


def test_a_feature_of_two_types_is_named(tmp_path):
    path = str(tmp_path / "d.tfrecord")
    with tf.io.TFRecordWriter(path) as file:
        file.write(example(x=[1.0]))
        file.write(example(x=[1]))
    with pytest.raises(errors.RunError, match="x must be of one type, got float32 and int64"):
        samples.look(path)


def record(data):
    """Returns data as a TFRecord, without its checksums."""
    return len(data).to_bytes(8, "little") + bytes(4) + data + bytes(4)


@pytest.mark.parametrize(
    "written",
    [
        record(b"no example"),
        record(example_bytes := b"\xff" * 99),
        record(example_bytes)[:50],
        (2**60).to_bytes(8, "little") + bytes(99),
        zlib.compress(record(b"text")),
    ],
)
def test_what_is_no_example_is_named(tmp_path, written):
    path = tmp_path / "d.tfrecord"
    path.write_bytes(written)
    with pytest.raises(errors.RunError, match=r"d.tfrecord: must (be|hold)"):
        samples.look(str(path))


@pytest.mark.thorough
def test_the_digits_train_from_what_is_written(tmp_path, capsys):
    model = "replicate.examples.digits:model_fn"
    text = init(tmp_path, model, DIGITS, "--optimizer", "Momentum")
    read = config.load(str(tmp_path / "config.yaml"))
    assert (read.train.input.file, read.train.input.label) == (str(DIGITS), "label")
    assert (read.train.input.rows, read.eval.input.rows) == ((0, 1437), (1437, 1797))
    assert text.startswith("# yaml-language-server: $schema=replicate.schema.json\n")
    assert (tmp_path / "replicate.schema.json").read_text() == schema.text()
    where = [str(tmp_path / "config.yaml"), "--model-dir", str(tmp_path / "run"), "--quiet"]
    assert cli.main(["train", *where, "--train.steps=2", "--devices=[/cpu:0, /cpu:1]"]) == 0
    assert not list(tmp_path.glob("run/export/*"))
    rows = str(tmp_path / "rows.csv")
    assert cli.main(["predict", *where, "--output", rows]) == 0
    with open(rows) as file:
        assert len(list(file)) == 1 + 1797 - 1437  # a header, and what is held out
    assert cli.main(["export", *where]) == 0


def test_a_label_that_two_columns_have_is_told(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("a,y,y\n1,2,3\n")
    assert cli.main(["init", "m:f", str(tmp_path / "d.csv"), "--label", "y"]) == 2
    assert "d.csv. It is left out, as 2 columns are called so; to read" in capsys.readouterr().err


def test_a_table_trains_from_what_is_written(tmp_path, capsys, monkeypatch):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "train.csv").write_text("x,y\n1.0,2\n,4\n3.0,6\n")
    (tmp_path / "below" / "test.csv").write_text("x,y\n1.0,2\n")
    monkeypatch.chdir(tmp_path)
    written = ("tests.app.line:line", "below/train.csv", "--optimizer", "GradientDescent")
    data = yaml.safe_load(init(tmp_path, *written))
    assert data["train"]["input"] == {
        "kind": "csv",
        "file": "below/train.csv",
        "columns": {"x": "float32", "y": "int64"},
        "defaults": {"x": 0.0},
        "label": "y",
        "batch_size": 32,
    }
    assert data["eval"]["input"]["file"] == "below/test.csv"
    where = ["config.yaml", "--model-dir", "run", "--quiet", "--devices=[/cpu:0, /cpu:1]"]
    assert cli.main(["train", *where, "--train.steps", "3"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["global_step"] == 3


def test_a_lone_file_is_divided_by_a_holdout(tmp_path):
    (tmp_path / "d.csv").write_text("x,y\n" + "1,2\n" * 99)
    with tf.io.TFRecordWriter(str(tmp_path / "d.tfrecord")) as file:
        for _ in range(50):
            file.write(example(x=[1.0], y=[3]))
    for name in ("d.csv", "d.tfrecord"):
        assert "holdout: 0.1" in init(tmp_path, "a.b:c", tmp_path / name, "--force")
        read = config.load(str(tmp_path / "config.yaml"))
        assert (read.train.input.holdout, read.eval.input.holdout) == (0.1, 0.1)
    (tmp_path / "train.csv").write_text("x,y\n" + "1,2\n" * 99)
    (tmp_path / "test.csv").write_text("x,y\n1,2\n")
    assert "holdout" not in init(tmp_path, "a.b:c", tmp_path / "train.csv", "--force")


def test_strange_names_are_written_so_that_they_read_back(tmp_path):
    names = ["a: b", "#c", "${X}", "- d", "", "tab\there", "yes", "'", "ü 😀", "\x1bescape"]
    path = tmp_path / "d.csv"
    path.write_text(";".join(names).replace(";;", ";e;") + "\n" + ";".join("0" * 10) + "\n")
    init(tmp_path, "a.b:c", path)
    read = config.load(str(tmp_path / "config.yaml"))
    assert list(read.train.input.columns) == [name or "e" for name in names]
    init(tmp_path, "a.b:c", path, "--force", "--label", "#c", "--optimizer=Adam")
    assert config.load(str(tmp_path / "config.yaml")).train.input.label == "#c"


def test_a_function_is_data_too(tmp_path):
    assert yaml.safe_load(init(tmp_path, "a.b:c", "a.b:rows"))["train"]["input"] == {
        "kind": "function",
        "function": "a.b:rows",
        "batch_size": 32,
    }


@pytest.mark.parametrize(
    ("names", "given", "told"),
    [
        ("x,y", [], ["label: y, by its name; --label takes another one"]),
        ("x,rent", [], ["label: none, as no name says it; --label takes one of x, rent"]),
        ("x,y", ["--label", "x"], []),
    ],
)
def test_the_label_is_told_where_it_is_guessed(tmp_path, capsys, names, given, told):
    (tmp_path / "d.csv").write_text(f"{names}\n" + "1,2\n" * 99)
    written = init(tmp_path, "a.b:c", tmp_path / "d.csv", *given)
    assert capsys.readouterr().out.splitlines()[:-1] == told
    assert "  # change, if it is another one\n" in written


@pytest.mark.parametrize(
    ("names", "cells", "label", "left_out"),
    [
        ("id,x,y", "{0},{1},1", None, ["id"]),
        ("x,PassengerId,user_uuid", "{1},{0},k{0}", None, ["PassengerId", "user_uuid"]),
        ("user_id,paid,x", "{1},{0},1", None, []),  # a few users, and what each one paid
        ("id,y", "{0},1", None, []),  # nothing else is left
        ("id,x", "{0},1", "id", []),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_only_tells_rows_apart_is_no_feature(tmp_path, kind, names, cells, label, left_out):
    path = tmp_path / f"d.{kind}"
    path.write_text("\n".join([names, *(cells.format(i, i % 3) for i in range(9))]) + "\n")
    if kind == "parquet":
        parquet.write_table(arrow_csv.read_csv(path), path)
    found = samples.look(str(path), label)
    assert list(found.keys["columns"]) == [n for n in names.split(",") if n not in left_out]
    assert sorted(found.names) == sorted(names.split(","))
    assert list(found.left_out) == left_out
    assert all("it is another one in each row" in why for why in found.left_out.values())


def test_what_is_written_shows_where_params_go(tmp_path):
    written = init(tmp_path, "a:b", DIGITS)
    given = written.replace("# params: {}", "params: {units: 3}")
    assert "params" not in yaml.safe_load(written)
    assert yaml.safe_load(given)["params"] == {"units": 3}


def test_init_warns_of_functions_that_are_not_there(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def model_fn(features, labels, mode): pass\n")
    init(tmp_path, "mine:modle_fn", "mine:model_fn")
    output = tmp_path / "config.yaml"
    assert capsys.readouterr().err == (
        f"{output}: model_fn: warning: mine has no modle_fn. Did you mean model_fn?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["model", "d.csv"], 2, "MODEL_FN: must be a function's name as package.module:function"),
        (["a:b", "none.csv"], 1, "DATA: none.csv: must be a file of this machine"),
        (["a:b", "."], 1, "DATA: .: must be a file of this machine"),
        (["a:b", "d.bin"], 1, "DATA: d.bin: must be CSV, npz, Parquet or TFRecord"),
        (["a:b", "d.csv", "--label", "z"], 2, "--label z: must be in d.csv. It has x, y."),
        (["a:b", "d.csv", "--label", "yy"], 2, "Did you mean y?"),
        (["a:b", "d.csv", "--optimizer", "Adm"], 2, "got 'Adm'. Did you mean Adam?"),
        (["a:b", "d.csv", "--optimizer", "adam"], 2, "got 'adam'. Did you mean Adam?"),
        (["a:b", "d.csv", "--output", "none/c.yaml"], 2, "none/c.yaml: must be a file that can"),
        (["a:b", "d.csv", "--output", "d.bin"], 2, "d.bin: is there already. Name another file"),
        (["a:b"], 2, "DATA"),
        (["a:b", "d.npz"], 1, "d.npz: must have an array of numbers or text, with rows, besides"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(
    tmp_path, monkeypatch, capsys, arguments, code, text
):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("d.csv").write_text("x,y\n1,2\n")
    pathlib.Path("d.bin").write_bytes(bytes(99))
    np.savez("d.npz", label=np.zeros(3))
    assert cli.main(["init", *arguments]) == code
    assert text in capsys.readouterr().err
    assert sorted(os.listdir()) == ["d.bin", "d.csv", "d.npz"]


def test_a_schema_that_cannot_be_written_is_named_and_no_config_is_left(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("d.csv").write_text("x,y\n1,2\n")
    pathlib.Path("replicate.schema.json").mkdir()
    assert cli.main(["init", "a:b", "d.csv", "--output", "c.yaml"]) == 2
    assert "replicate.schema.json: must be a file that can be written" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["d.csv", "replicate.schema.json"]


def test_init_imports_no_tensorflow(run_python, tmp_path):
    run_python(
        "import sys\n"
        "from replicate.app.command import cli\n"
        f"assert cli.main(['init', 'a:b', {str(DIGITS)!r}, '--output', "
        f"{str(tmp_path / 'c.yaml')!r}]) == 0\n"
        "assert 'tensorflow' not in sys.modules"
    )
