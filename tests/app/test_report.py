"""Results for people."""

import io

import numpy as np
import pytest

from replicate.app.command import report
from replicate.app.inspect import description
from replicate.console import json_output
from replicate.splitting import report as splitting

TWO = tuple(f"/device:CPU:{number}" for number in range(2))
SIX = tuple(f"/device:CPU:{number}" for number in range(6))


def printed(capsys):
    """Returns the lines outside of tables, and the cells of each row of tables."""
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line[0] in "│┃"]
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in rows]
    return [line for line in lines if line[0] not in "│┃┏┡└├"], cells


def described(**fields):
    """Returns a description of a training of two towers that has these fields."""
    devices = (
        description.Device(TWO[0], 0, 1, 24, 1234),
        description.Device(TWO[1], 1, 0, 0, 10),
    )
    empty = description.Description("dense", "mirrored", 6, (), devices)
    return empty._replace(**fields)


def test_what_is_no_number_is_called_so():
    metrics = {
        "loss": np.float32("nan"),
        "worst": np.array(-np.inf),
        "rate": 0.125,
        "global_step": 3,
    }
    assert json_output.summary_line(metrics) == "loss nan  rate 0.125  worst -inf"
    several = {"each": np.float32([0.5, np.nan]), "word": b"a", "count": np.int64(12345678)}
    assert json_output.summary_line(several) == "count 12345678  each [0.5, None]  word a"


def test_each_checkpoint_has_a_row_and_each_metric_a_column(capsys):
    found = [
        {"loss": 0.5, "global_step": 1},
        {"loss": 0.25, "accuracy": 0.75, "global_step": 2},
        {"loss": 0.125},
    ]
    report.print_metrics(found, "line", in_rows=True)
    title, cells = printed(capsys)
    assert title == ["line"]
    assert cells == [
        ["step", "accuracy", "loss"],
        ["1", "", "0.5"],
        ["2", "0.75", "0.25"],
        ["", "", "0.125"],
    ]


def test_a_variable_is_told_with_what_is_known_of_it(capsys):
    several = (
        ("one", (3, 2), 24, TWO[:1]),
        ("both", (), 4, TWO),
        ("all", (None, 2), None, SIX),
        ("any", None, None, TWO[1:]),
    )
    variables = tuple(
        description.Variable(name, "weight", shape, "float32", size, devices)
        for name, shape, size, devices in several
    )
    report.print_description(described(variables=variables))
    lines, cells = printed(capsys)
    assert lines == ["dense: 2 towers (mirrored), batches of 6 rows"]
    assert cells[:5] == [
        ["variable", "kind", "shape", "dtype", "bytes", "device"],
        ["one", "weight", "3x2", "float32", "24", "CPU:0"],
        ["both", "weight", "scalar", "float32", "4", "2 copies: CPU:0, CPU:1"],
        ["all", "weight", "?x2", "float32", "?", "6 copies: CPU:0, CPU:1, ..., CPU:5"],
        ["any", "weight", "?", "float32", "?", "CPU:1"],
    ]
    assert cells[5:] == [
        ["device", "tower", "variables", "bytes", "operations of a step"],
        ["CPU:0", "0", "1", "24", "1,234"],
        ["CPU:1", "1", "0", "0", "10"],
    ]


def test_operations_that_run_once_are_told_the_largest_first(capsys):
    whole = tuple(splitting.Whole(f"sort{n}", "Sort", "orders rows", 99 - n) for n in range(12))
    for count, said in ((0, "0 with rows run once"), (1, "1 with rows run once:")):
        split = splitting.Report(2, 1500, whole[:count])
        report.print_description(described(split=split))
        lines, cells = printed(capsys)
        assert lines[1:] == [
            f"one device's graph, split by rows: 1,500 operations on each of 2 devices; {said}"
        ]
        assert cells[1][-1] == "of them split by rows"
        assert [row[0] for row in cells[4:]] == ["operation", "sort0"][: 2 * count]
    report.print_description(described(split=splitting.Report(2, 1500, whole)))
    lines, cells = printed(capsys)
    assert lines[1].endswith("; 12 with rows run once, the largest:")
    assert cells[5] == ["sort0", "Sort", "99", "orders rows"]
    assert [row[0] for row in cells[5:]] == [f"sort{n}" for n in range(10)]


def test_bytes_of_devices_are_told_above_their_bound(capsys):
    devices = (
        description.Device(TWO[0], 0, 1, 24, 1234, held=2000, sent=1200, received=800, step=50),
        description.Device(TWO[1], 1, 0, 0, 10, held=0, sent=800, received=1200),
    )
    bound = description.Bound(held=1000, moved=900)
    report.print_description(described(devices=devices, bound=bound, unsized=3))
    lines, cells = printed(capsys)
    assert lines[1:] == [
        "bytes of weights and slots, and of a step; 3 tensors whose sizes only a run can tell:"
    ]
    assert cells[-4:] == [
        ["device", "held", "a step's tensors", "sent", "received"],
        ["CPU:0", "2,000", "50", "1,200", "800"],
        ["CPU:1", "0", "0", "800", "1,200"],
        ["bound", "1,000", "", "900", "900"],
    ]


class Left(io.StringIO):
    """A pipe whose reader has left."""

    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_has_left_is_no_failure_of_a_table(monkeypatch):
    monkeypatch.setattr("sys.stdout", Left())
    with pytest.raises(BrokenPipeError):
        report.print_description(described())
