"""Parquet files are read as tables are, by pyarrow."""

import numpy as np
import pyarrow
import pytest

from replicate import errors
from replicate.app.command import cli
from replicate.app.config import config, input_config
from replicate.app.data import inputs, tables
from replicate.compat.tensorflow import tf, tf1

COLUMNS = {"x": "float32", "n": "int32", "s": "string", "y": "bool", "e": "float32"}
TABLE = {
    "e": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]],
    "n": [1, None, 3],
    "other": [None, None, None],
    "s": ["a", "λ", None],
    "x": [1.0, 2.5, -3.0],
    "y": [True, False, True],
}
DEFAULTS = {"n": 1e3, "s": "none"}


def write(path, **columns):
    from pyarrow import parquet as files

    files.write_table(pyarrow.table(columns), str(path), row_group_size=2)
    return path


def source(path, **keys):
    """Returns a Parquet input of one file."""
    given = {"columns": COLUMNS, "defaults": DEFAULTS, "label": "y", **keys}
    return input_config.Parquet(file=(str(path),), **given)


def read(path, is_training=False, **keys):
    return tables.read(source(path, **keys), "k", is_training)


def test_columns_have_their_dtypes(tmp_path):
    features, label = read(write(tmp_path / "d.parquet", **TABLE))
    assert {name: str(one.dtype) for name, one in features.items()} == {
        **{name: dtype for name, dtype in COLUMNS.items() if name != "y"},
        "s": "object",
    }
    assert (features["n"].tolist(), label.tolist()) == ([1, 1000, 3], [True, False, True])
    assert features["s"].tolist() == [b"a", "λ".encode(), b"none"]
    np.testing.assert_array_equal(features["e"], TABLE["e"])


def test_init_writes_what_can_be_read(tmp_path, capsys):
    columns = {
        "a": [1.0, None] * 30,
        "b": pyarrow.array([None, 2] * 30, pyarrow.int8()),
        "when": pyarrow.array([1] * 60, pyarrow.timestamp("s")),
        "s": [None, "x"] * 30,
        "h": np.float16([1] * 60),
        "v": [[[1], [2]]] * 60,
        "c": pyarrow.array(["x"] * 60).dictionary_encode(),
        "y": [1] * 60,
    }
    data, output = write(tmp_path / "d.parquet", **columns), str(tmp_path / "c.yaml")
    assert cli.main(["init", "a.b:c", str(data), "--output", output]) == 0
    read = config.load(output).train.input
    dtypes = ["float32", "int8", "string", "float16", "int64", "string", "int64"]
    assert list(read.columns.values()) == dtypes
    assert (read.defaults, read.label) == ({"a": 0, "b": 0, "s": ""}, "y")
    assert "when: left out, as no dtype is timestamp" in capsys.readouterr().out
    assert cli.main(["check", output]) == 0
    # Functions that are not there are the user's.
    assert capsys.readouterr().err == f"{output}: model_fn: warning: there is no module a here\n"


def test_infinity_is_a_number(tmp_path):
    path = write(tmp_path / "d.parquet", x=[float("-inf"), None, 1.0])
    keys = {"columns": {"x": "float32"}, "label": None, "defaults": {"x": 2}}
    assert read(path, **keys)[0]["x"].tolist() == [float("-inf"), 2.0, 1.0]


@pytest.mark.parametrize("limit", [2**30, 1], ids=["memory", "stream"])
def test_batches_are_made_of_rows(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", limit)
    path = write(tmp_path / "d.parquet", **TABLE)
    make = inputs.input_fn(source(path, batch_size=2), "k", "eval", {})
    with tf.Graph().as_default(), tf1.Session() as session:
        element = tf1.data.make_one_shot_iterator(make()).get_next()
        assert element[0]["e"].shape.as_list() == [None, 2]
        found = [session.run(element) for _ in range(2)]
    assert [labels.tolist() for _, labels in found] == [[True, False], [True]]
    np.testing.assert_array_equal(found[1][0]["e"], [[4.0, 5.0]])
    assert found[1][0]["s"].tolist() == [b"none"]


def test_rows_are_held_out_by_all_of_their_cells(tmp_path):
    numbers = {"x": np.arange(1000.0), "s": ["a"] * 1000, "more": [[1, 2]] * 1000}
    path = write(tmp_path / "d.parquet", **numbers)
    keys = {"columns": {"x": "float64"}, "label": None, "defaults": {}, "holdout": 0.1}
    trained, held = (read(path, one, **keys)[0]["x"] for one in (True, False))
    assert sorted([*trained, *held]) == list(range(1000))
    assert abs(len(held) - 100) < 40  # see test_holdout
    keys["columns"]["s"] = "string"
    assert read(path, **keys)[0]["x"].tolist() == held.tolist()


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"columns": {"nn": "int32"}}, "must have the column 'nn' once, got .*Did you mean n?"),
        (
            {"columns": {"zzzz": "int32"}},
            "the column 'zzzz' once, got .* Correct columns",
        ),
        ({"columns": {"twice": "int32"}}, "the column 'twice' once, got .* Rename those"),
        ({"columns": {"n": "int32"}}, "n has empty cells; give n a value in defaults"),
        (
            {"columns": {"x": "int32"}},
            "x must be int32: Float value 2.50* was .* Correct columns, or the file",
        ),
        (
            {"columns": {"s": "float32"}},
            "s must be float32: Failed to parse string: '.' as .* Correct columns",
        ),
        ({"columns": {"f": "float32"}}, r"f must be float32: 1e\+39 is beyond it. Correct columns"),
        (
            {"columns": {"h": "int64"}},
            "h must be int64: '0x10' has hexadecimal digits. Correct",
        ),
        ({"columns": {"x": "string"}}, "x must be string: .*double.* Correct columns"),
        ({"columns": {"uneven": "int64"}}, r"uneven must have lists of one length, got \[1, 2\]"),
    ],
)
def test_columns_that_do_not_fit_are_told(tmp_path, keys, fault):
    from pyarrow import parquet as files

    path = tmp_path / "d.parquet"
    more = {"f": [float("inf"), None, 1e39], "h": ["5", "0x10", "?"]}
    table = pyarrow.table({**TABLE, **more, "uneven": [[1], [1, 2], [3]]})
    for _ in range(2):
        table = table.append_column("twice", pyarrow.array([1, 2, 3]))
    files.write_table(table, str(path))
    with pytest.raises(errors.RunError, match=f"k: {path}: .*{fault}") as caught:
        read(path, **{"label": None, "defaults": {}, **keys})
    assert "must be Parquet" not in str(caught.value)


def test_files_that_are_none_are_told(tmp_path):
    (tmp_path / "d.parquet").write_text("x,y\n1,2\n")
    with pytest.raises(errors.RunError, match=r"d.parquet: must be parquet, but is text"):
        read(tmp_path / "d.parquet")
