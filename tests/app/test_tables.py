"""Files that fit in memory become arrays; a bad row is named by file and line."""

import csv
import gzip
import io
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate import errors
from replicate.app.config import cell_values, input_config
from replicate.app.data import tables

COLUMNS = {"x": "float32", "n": "int32", "s": "string", "y": "bool"}


def csv_input(path, **keys):
    """Returns a Csv input of one file."""
    return input_config.Csv(file=(str(path),), **{"columns": COLUMNS, **keys})


def read(tmp_path, text, **keys):
    """Reads CSV text."""
    path = tmp_path / "d.csv"
    path.write_bytes(text.encode())
    return tables.read(csv_input(path, **keys), "train.input")


def fault_of(tmp_path, text, **keys):
    """Returns the fault of CSV text, without the folder."""
    with pytest.raises(errors.RunError) as caught:
        read(tmp_path, text, **keys)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_columns_have_their_dtypes(tmp_path):
    text = 'other,y,s,n,x\n1,true,"a,\nb",-3,1e-3\n\n2,0,,4,.5\n'
    features, label = read(tmp_path, text, label="y")
    assert set(features) == {"x", "n", "s"}
    np.testing.assert_array_equal(features["x"], np.float32([1e-3, 0.5]))
    np.testing.assert_array_equal(features["n"], np.int32([-3, 4]))
    assert features["s"].tolist() == [b"a,\nb", b""]
    assert label.tolist() == [True, False]
    assert (features["x"].dtype, features["n"].dtype) == (np.float32, np.int32)


def test_without_a_header_the_columns_are_in_order(tmp_path):
    features, label = read(tmp_path, "1;2;a;1\n", header=False, delimiter=";")
    assert (features["x"].tolist(), features["s"].tolist(), label) == ([1.0], [b"a"], None)


def test_patterns_and_gzip_are_read(tmp_path):
    for name, row in (("b.csv.gz", "2"), ("a.csv.gz", "1")):
        (tmp_path / name).write_bytes(gzip.compress(f"x\n{row}\n".encode()))
    source = input_config.Csv(file=(str(tmp_path / "*.gz"),), columns={"x": "int64"})
    assert tables.read(source, "k")[0]["x"].tolist() == [1, 2]
    none = csv_input(tmp_path / "*.none")
    with pytest.raises(errors.RunError, match=r"a file must exist by this name or pattern"):
        tables.read(none, "k")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n")[:-4])
    with pytest.raises(errors.RunError, match=r"a.csv.gz: must be CSV, .*Truncated"):
        tables.read(source, "k")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\nz\n"))
    with pytest.raises(errors.RunError, match=r"a.csv.gz:2: x must be int64, got 'z'"):
        tables.read(source, "k")


def test_a_file_of_another_kind_is_named(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros(3))
    with pytest.raises(errors.RunError, match=r"must be text, but is an npz file. Set kind: npz."):
        tables.read(csv_input(tmp_path / "d.npz"), "k")


def test_an_empty_cell_takes_its_default(tmp_path):
    features, _ = read(tmp_path, "x,n,s,y\n,7,,1\n", defaults={"x": 2, "s": "none"})
    assert (features["x"].tolist(), features["s"].tolist()) == ([2.0], [b"none"])
    # 1e3 is a whole number wherever a config wants one.
    features, _ = read(tmp_path, "x,n,s,y\n1,,a,\n", defaults={"n": 1e3, "y": True})
    assert (features["n"].tolist(), features["y"].tolist()) == ([1000], [True])


def test_words_for_an_empty_cell_take_the_default_of_their_column(tmp_path):
    text = "x,n,s,y\nNA, ? ,NA,\nnan,7,?,true\n"
    keys = {"na_values": ["NA", "?", "nan"], "defaults": {"x": 0.5, "n": -1, "y": False}}
    features, _ = read(tmp_path, text, **keys)
    assert (features["x"].tolist(), features["n"].tolist()) == ([0.5, 0.5], [-1, 7])
    assert (features["s"].tolist(), features["y"].tolist()) == ([b"NA", b"?"], [False, True])
    keys["defaults"] |= {"s": "none"}
    assert read(tmp_path, text, **keys)[0]["s"].tolist() == [b"none", b"none"]
    # Without a default a number is missing, which is no NaN.
    keys["defaults"] = {"n": 0, "y": False}
    assert "d.csv:2: x must be float32, got 'NA'. Fill it in" in fault_of(tmp_path, text, **keys)
    text = text.replace("NA,", "nan,", 1)
    assert "d.csv:2: x must be float32, got 'nan'. Fill it in" in fault_of(tmp_path, text, **keys)


NUMBERS = "1 -2 2.0 1e3 0 nan inf 1_0 99999999999999999999 300 +5 0x10 1e39 1e400".split()
WORDS = [
    "true",
    "FALSE",
    "\ufeff",
    "",
    " 7 ",
    '"q"',
    '"a,b"',
    '"l\nm"',
    'p"q',
    '"d""e"',
    "λ",
    "NA",
    "None",
    "\t",
]
cells = st.sampled_from([*NUMBERS, *WORDS])
ends = st.sampled_from(["\n", "\r\n", "\n\n", " \n"])
rows = st.lists(st.tuples(st.lists(cells, min_size=2, max_size=3), ends), max_size=5)


def patiently(text, dtype, default):
    """Reads the second column cell by cell; returns its values, and the lines of all faults."""
    values, faults, line, reader = [], [], 1, csv.reader(io.StringIO(text, newline=""))
    for cells in reader:
        if cells:
            cell = cells[-1] if dtype == "string" else cells[-1].strip()
            try:
                if len(cells) != 2 or (dtype != "string" and not cell and default is None):
                    raise ValueError
                values.append(cell_values.value_of(cell or default or "", dtype))
            except ValueError:
                faults.append(line)
        line = reader.line_num + 1
    return values, faults


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows,
    st.sampled_from(["float32", "float64", "int64", "uint8", "string", "bool"]),
    st.sampled_from([None, "1"]),
)
def test_columns_are_read_as_each_cell_is_by_itself(tmp_path, written, dtype, default):
    path = tmp_path / "f.csv"
    text = "1,1\n" + "".join(",".join(cells) + end for cells, end in written)
    path.write_bytes(text.encode())
    keys = {"columns": {"a": "string", "b": dtype}, "header": False}
    keys["defaults"] = {} if default is None else {"b": default}
    expected, faults = patiently(text, dtype, default)
    if faults:
        with pytest.raises(errors.RunError) as caught:
            tables.read(csv_input(path, **keys), "k")
        told = re.match(rf"k: {re.escape(str(path))}:(\d+): ", str(caught.value))
        assert int(told[1]) in faults
        return
    found = tables.read(csv_input(path, **keys), "k")[0]["b"]
    expected = [one.encode() for one in expected] if dtype == "string" else expected
    np.testing.assert_array_equal(found, np.array(expected, found.dtype))
    assert found.dtype == (object if dtype == "string" else dtype)


def test_only_a_quote_that_is_open_at_the_end_is_refused(tmp_path):
    path = tmp_path / "f.csv"
    keys = {"columns": {"a": "string", "b": "string"}, "header": False}
    path.write_text('1,"l\nm" \n')  # more follows a quote that is closed
    assert tables.read(csv_input(path, **keys), "k")[0]["b"] == [b"l\nm "]
    path.write_text('1,"l\nm" \n2,"n\n3,o\n')
    with pytest.raises(errors.RunError, match="must be CSV"):
        tables.read(csv_input(path, **keys), "k")


def test_floats_are_numbers_that_their_dtype_holds(tmp_path):
    path = tmp_path / "f.csv"

    def outcome(text):
        path.write_text(text)
        return tables.read(csv_input(path, columns={"x": "float32"}), "k")[0]["x"].tolist()

    # From 2^128 - 2^103 on a number is nearer to 2^128, which a float32 has not.
    assert outcome("x\n3.4028235e38\n-inf\n") == [float(np.finfo(np.float32).max), -np.inf]
    for bad in ("true", "3.4028236e38", "1e400", "-1e39"):
        for rows in (bad, f"{bad}\n{bad}", f"1\n{bad}", f"{bad}\n2.5"):
            with pytest.raises(errors.RunError, match=rf"x must be float32, got '{bad}'"):
                outcome(f"x\n{rows}\n")


def test_pieces_hold_little_and_name_the_lines_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK", 200)
    lines = [f'{i},{i},"a{i},\n{i}",1\n' for i in range(500)]
    (tmp_path / "d.csv").write_text("x,n,s,y\n" + "".join(lines))
    found = list(tables.pieces(csv_input(tmp_path / "d.csv"), "k"))
    assert max(len(one["n"]) for one in found) < 20
    assert np.concatenate([one["n"] for one in found]).tolist() == list(range(500))
    lines[400] = '400,z,"a",1\n'
    (tmp_path / "d.csv").write_text("x,n,s,y\n" + "".join(lines))
    with pytest.raises(errors.RunError, match=r"d.csv:802: n must be int32, got 'z'"):
        list(tables.pieces(csv_input(tmp_path / "d.csv"), "k"))  # 1 + 2 * 400 lines before


def test_a_quote_that_is_not_closed_swallows_no_rows_in_a_column_that_is_not_read(tmp_path):
    text = 'x,other\n1,a\n2,"b\n3,c\n'
    assert "d.csv:3: must be CSV" in fault_of(tmp_path, text, columns={"x": "float32"})


def test_a_cell_may_be_long(tmp_path):
    text = f"x,n,s,y\n1,2,{'a' * 200_000},1\n"
    assert len(read(tmp_path, text)[0]["s"][0]) == 200_000


def test_what_stands_behind_a_quote_is_part_of_the_cell_and_no_fault(tmp_path):
    text = 'x,n,s,y\n1,2,"a" b,1\n1,z,c,1\n'
    assert "d.csv:3: n must be int32, got 'z'" in fault_of(tmp_path, text)
    assert read(tmp_path, text.replace("z", "3"))[0]["s"].tolist() == [b"a b", b"c"]


@pytest.mark.thorough
def test_pyarrow_is_imported_for_a_table_alone(run_python):
    run_python(
        "import sys\n"
        "from replicate.app.data import inputs, npz\n"
        "from replicate.app.inspect import absences, samples, starter\n"
        "assert 'pyarrow' not in sys.modules"
    )


@pytest.mark.parametrize("then", ["rows.close()", "pass"])
def test_a_file_that_is_left_early_holds_nothing_up(run_python, tmp_path, then):
    path = tmp_path / "d.csv.gz"  # of more than pyarrow reads at a time
    path.write_bytes(gzip.compress(b"x\n" + b"1\n" * 3_000_000, 1))
    run_python(
        "from replicate.app.config import input_config\n"
        "from replicate.app.data import tables\n"
        f"source = input_config.Csv(file=({str(path)!r},), columns={{'x': 'int8'}})\n"
        f"rows = tables.pieces(source, 'k')\nnext(rows)\n{then}\n"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "x,n,s,y\n1,2,a\n",
            "d.csv:2: must be CSV, as the config says: CSV parse error: Row #2: Exp",
        ),
        ("x,n,s,y\n1,2,a,1\n\n1,2,a,1,9\n", "d.csv:4: must be CSV"),
        ('x,n,s,y\n1,2,"a\nb",1\n1,z,c,1\n', "d.csv:4: n must be int32, got 'z'"),
        ('x,n,s,y\n1,z,"a\nb",1\n', "d.csv:2: n must be int32, got 'z'"),
        ("x,n,s,y\r\n1,2,a,1\r\n1,2,a,maybe\r\n", "d.csv:3: y must be bool, got 'maybe'"),
        ("x,n,s,y\n1,3000000000,a,1\n", "d.csv:2: n must be int32, got '3000000000'"),
        ("x,n,s,y\n1,2.0,a,1\n", "d.csv:2: n must be int32, got '2.0'"),
        ("x,n,s,y\n1_0,2,a,1\n", "d.csv:2: x must be float32, got '1_0'"),
        ("x,n,s,y\n,2,a,1\n", "d.csv:2: x must be float32, got ''. Fill it in"),
        ('x,n,s,y\n1,2,"a,1\n', "d.csv:2: must be CSV"),
        ('y,x,n,s\n1,1,2,a\n1,2,3,"b\n0,3,4,c\n', "d.csv:3: must be CSV"),
        ("x,m,s,y\n", "d.csv:1: the header must have the column 'n' once, got x, m, s, y"),
        ("x,nn,s,y\n", "Did you mean nn?"),
        ("x,n,s,n,y\n", "Rename those that are there twice."),
        ("x,n,s,y\n", "must have rows, has none"),
        ("x,n,s,y", "must have rows, has none"),
        ("", "must have rows, has none"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, text, fault):
    found = fault_of(tmp_path, text)
    assert found.startswith("train.input: d.csv")
    assert fault in found


def test_a_label_of_text_must_not_be_empty(tmp_path):
    (tmp_path / "d.csv").write_text("x,n,s,y\n1,2,a,1\n1,2, ,1\n")
    source = csv_input(tmp_path / "d.csv")
    assert next(tables.pieces(source, "k"))["s"].tolist() == [b"a", b" "]
    labelled = source.model_copy(update={"label": "s"})
    with pytest.raises(errors.RunError, match=r"d.csv:3: s must be string, got ''"):
        next(tables.pieces(labelled, "k"))
    filled = labelled.model_copy(update={"defaults": {"s": "none"}, "na_values": (" ",)})
    assert next(tables.pieces(filled, "k"))["s"].tolist() == [b"a", b"none"]


def test_a_file_must_exist_and_be_utf8(tmp_path):
    with pytest.raises(errors.RunError, match=r"none.csv: the file must exist"):
        tables.read(csv_input(tmp_path / "none.csv"), "k")
    with pytest.raises(errors.RunError, match="must be a file, but is none"):
        tables.read(csv_input(tmp_path), "k")
    (tmp_path / "l.csv").write_bytes(b"x,n,s,y\n1,2,a,1\n1,2,\xe4,1\n")
    with pytest.raises(errors.RunError, match=r"l.csv:3: must be CSV, .*invalid UTF8"):
        tables.read(csv_input(tmp_path / "l.csv"), "k")
