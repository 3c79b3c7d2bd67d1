"""Predictions are written whole or not at all, in the form of the file's ending."""

import csv
import json

import numpy as np
import pytest

from replicate import errors
from replicate.app.training import predictions
from replicate.console import json_output

ROWS = [
    {"p": np.float32([0.25, 0.75]), "digit": np.int64(1), "name": b"one"},
    {"p": np.float32([0.5, np.nan]), "digit": np.int64(0), "name": "é".encode()},
]


def test_json_lines_have_null_for_nan(tmp_path):
    path = tmp_path / "p.jsonl"
    assert predictions.write(iter(ROWS), str(path)) == 2
    read = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert read == [
        {"p": [0.25, 0.75], "digit": 1, "name": "one"},
        {"p": [0.5, None], "digit": 0, "name": "é"},
    ]


def test_bytes_that_are_no_text_become_base64():
    assert json_output.plain({"b": b"\xff\x00"}) == {"b": {"b64": "/wA="}}


def test_csv_has_a_column_per_number(tmp_path):
    path = tmp_path / "p.csv"
    predictions.write(iter(ROWS), str(path))
    with open(path, encoding="utf-8", newline="") as file:
        read = list(csv.reader(file))
    assert read[0] == ["p_0", "p_1", "digit", "name"]
    assert read[1:] == [["0.25", "0.75", "1", "one"], ["0.5", "nan", "0", "é"]]


def test_npz_has_an_array_per_prediction(tmp_path):
    path = tmp_path / "p.npz"
    predictions.write(iter(ROWS), str(path))
    with np.load(path) as read:
        np.testing.assert_array_equal(read["p"], np.float32([[0.25, 0.75], [0.5, np.nan]]))
        assert read["digit"].tolist() == [1, 0]
        assert read["name"].tolist() == [b"one", "é".encode()]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "npz"])
def test_a_failure_leaves_what_was_there(tmp_path, ending):
    path = tmp_path / f"p.{ending}"
    path.write_text("before")

    def failing():
        yield ROWS[0]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        predictions.write(failing(), str(path))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("ending", "need"), [("csv", "same columns"), ("npz", "one shape")])
def test_rows_of_different_shapes_need_json_lines(tmp_path, ending, need):
    rows = [{"p": np.zeros(2)}, {"p": np.zeros(3)}]
    with pytest.raises(errors.RunError, match=need):
        predictions.write(rows, str(tmp_path / f"p.{ending}"))
    assert list(tmp_path.iterdir()) == []


def test_nested_predictions_have_the_names_of_their_parts(tmp_path):
    path = tmp_path / "p.csv"
    rows = [{"a": {"b": np.float32([0.5, 1]), "c": {"d": b"\xff"}}, "e": "f"}]
    assert predictions.write(rows, str(path)) == 1
    assert path.read_text() == "a_b_0,a_b_1,a_c_d,e\n0.5,1.0,/w==,f\n"


def test_what_the_system_refuses_to_the_input_is_not_the_fault_of_the_output(tmp_path):
    def rows():
        yield ROWS[0]
        raise OSError("no such device")

    with pytest.raises(errors.RunError, match=r"^making predictions failed: no such dev"):
        predictions.write(rows(), str(tmp_path / "p.csv"))


def test_a_bad_place_is_named(tmp_path):
    with pytest.raises(errors.RunError, match=r"none/p.csv: must be a file that can be written"):
        predictions.write(ROWS, str(tmp_path / "none" / "p.csv"))
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(errors.RunError, match="is a directory"):
        predictions.write(ROWS, str(tmp_path / "d.csv"))
