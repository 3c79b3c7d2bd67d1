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
from replicate.app.data import arrow, tables
from replicate.app.data import npz as npz_files

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


def test_files_are_read_one_after_the_other(tmp_path):
    for name, row in (("a.csv", "1"), ("b.csv", "2")):
        (tmp_path / name).write_text(f"x\n{row}\n")
    paths = (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    source = input_config.Csv(file=paths, columns={"x": "int64"})
    assert tables.read(source, "k")[0]["x"].tolist() == [1, 2]


def test_patterns_and_gzip_are_read(tmp_path):
    for name, row in (("b.csv.gz", "2"), ("a.csv.gz", "1")):
        (tmp_path / name).write_bytes(gzip.compress(f"x\n{row}\n".encode()))
    source = input_config.Csv(file=(str(tmp_path / "*.gz"),), columns={"x": "int64"})
    assert tables.read(source, "k")[0]["x"].tolist() == [1, 2]
    none = csv_input(tmp_path / "*.none")
    with pytest.raises(errors.RunError, match=r"a file must exist by this name or pattern"):
        tables.read(none, "k")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n")[:-4])
    with pytest.raises(errors.RunError, match=r"a.csv.gz: must be a readable file: Compressed"):
        tables.read(source, "k")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\nz\n"))
    with pytest.raises(errors.RunError, match=r"a.csv.gz:2: x must be int64, got 'z'"):
        tables.read(source, "k")


def test_a_file_of_another_kind_is_named(tmp_path, archive):
    (tmp_path / "t.csv").write_text("x\n1\n")
    with pytest.raises(errors.RunError, match=r"it is text. Set kind: csv if it is a table."):
        npz(str(tmp_path / "t.csv"))
    with pytest.raises(errors.RunError, match=r"must be text, but is an npz file. Set kind: npz."):
        tables.read(csv_input(archive), "k")


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
    assert "d.csv:2: x must be float32, got 'NA', of na_values. Fill it in" in fault_of(
        tmp_path, text, **keys
    )
    assert "d.csv:2: x must be float32, got 'nan', of na_values." in fault_of(
        tmp_path, text.replace("NA,", "nan,", 1), **keys
    )


NUMBERS = "1 -2 2.0 1e3 0 nan inf 1_0 0x1 99999999999999999999 300 +5 1e39 1e400".split()
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
    """Reads the second column cell by cell; returns its values, or the line of the first fault."""
    values, line, reader = [], 1, csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            if cells:
                cell = cells[1] if dtype == "string" else cells[1].strip()
                if len(cells) != 2 or (dtype != "string" and not cell and default is None):
                    return line
                values.append(cell_values.value_of(cell or default or "", dtype))
            line = reader.line_num + 1
    except (csv.Error, ValueError):
        return line
    return values


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
    expected = patiently(text, dtype, default)
    if isinstance(expected, int):
        with pytest.raises(errors.RunError, match=re.escape(f"k: {path}:{expected}: ")):
            tables.read(csv_input(path, **keys), "k")
        return
    found = tables.read(csv_input(path, **keys), "k")[0]["b"]
    expected = [one.encode() for one in expected] if dtype == "string" else expected
    np.testing.assert_array_equal(found, np.array(expected, found.dtype))
    assert found.dtype == (object if dtype == "string" else dtype)


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
    monkeypatch.setattr(arrow, "_PIECE", 8)
    lines = [f'{i},{i},"a{i},\n{i}",1\n' for i in range(500)]
    (tmp_path / "d.csv").write_text("x,n,s,y\n" + "".join(lines))
    found = list(tables.pieces(csv_input(tmp_path / "d.csv"), "k"))
    assert max(len(one["n"]) for one in found) == 8
    assert np.concatenate([one["n"] for one in found]).tolist() == list(range(500))
    lines[400] = '400,z,"a",1\n'
    (tmp_path / "d.csv").write_text("x,n,s,y\n" + "".join(lines))
    with pytest.raises(errors.RunError, match=r"d.csv:802: n must be int32, got 'z'"):
        list(tables.pieces(csv_input(tmp_path / "d.csv"), "k"))  # 1 + 2 * 400 lines before


def test_a_quote_that_is_not_closed_swallows_no_rows_in_a_column_that_is_not_read(tmp_path):
    text = 'x,other\n1,a\n2,"b\n3,c\n'
    assert "d.csv:3: must be CSV" in fault_of(tmp_path, text, columns={"x": "float32"})


def test_what_stands_behind_a_quote_is_part_of_the_cell_and_no_fault(tmp_path):
    text = 'x,n,s,y\n1,2,"a" b,1\n1,z,c,1\n'
    assert "d.csv:3: n must be int32, got 'z'" in fault_of(tmp_path, text)
    assert read(tmp_path, text.replace("z", "3"))[0]["s"].tolist() == [b"a b", b"c"]


def test_pyarrow_is_imported_for_a_table_alone(run_python):
    run_python(
        "import sys\n"
        "from replicate.app.data import csv_rows, npz, samples, tables\n"
        "from replicate.app.inspect import absences, starter\n"
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
        ("x,n,s,y\n1,2,a\n", "d.csv:2: must have 4 cells like the header, got 3"),
        ("x,n,s,y\n1,2,a,1\n\n1,2,a,1,9\n", "d.csv:4: must have 4 cells"),
        ('x,n,s,y\n1,2,"a\nb",1\n1,z,c,1\n', "d.csv:4: n must be int32, got 'z'"),
        ('x,n,s,y\n1,z,"a\nb",1\n', "d.csv:2: n must be int32, got 'z'"),
        ("x,n,s,y\r\n1,2,a,1\r\n1,2,a,maybe\r\n", "d.csv:3: y must be bool, got 'maybe'"),
        ("x,n,s,y\n1,3000000000,a,1\n", "d.csv:2: n must be int32, got '3000000000'"),
        ("x,n,s,y\n1,2.0,a,1\n", "d.csv:2: n must be int32, got '2.0'"),
        ("x,n,s,y\n1_0,2,a,1\n", "d.csv:2: x must be float32, got '1_0'"),
        ("x,n,s,y\n,2,a,1\n", "d.csv:2: x must be float32, got an empty cell. Fill it in"),
        ('x,n,s,y\n1,2,"a,1\n', "d.csv:2: must be CSV"),
        ('y,x,n,s\n1,1,2,a\n1,2,3,"b\n0,3,4,c\n', "d.csv:3: must be CSV"),
        ("x,m,s,y\n", "d.csv:1: the header must have the column 'n' once, got x, m, s, y"),
        ("x,nn,s,y\n", "Did you mean nn?"),
        ("x,n,s,n,y\n", "Rename n in the header: it must be there once."),
        ("x,n,s,y\n", "must have rows, has none"),
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
    with pytest.raises(errors.RunError, match=r"d.csv:3: s must be string, got an empty cell"):
        next(tables.pieces(labelled, "k"))
    filled = labelled.model_copy(update={"defaults": {"s": "none"}, "na_values": (" ",)})
    assert next(tables.pieces(filled, "k"))["s"].tolist() == [b"a", b"none"]


def test_a_file_must_exist_and_be_utf8(tmp_path):
    with pytest.raises(errors.RunError, match=r"none.csv: the file must exist"):
        tables.read(csv_input(tmp_path / "none.csv"), "k")
    with pytest.raises(errors.RunError, match="must be a file, but is none"):
        tables.read(csv_input(tmp_path), "k")
    (tmp_path / "l.csv").write_bytes(b"x,n,s,y\n1,2,a,1\n1,2,\xe4,1\n")
    with pytest.raises(errors.RunError, match=r"l.csv:3: must be UTF-8 text, got the byte 0xe4"):
        tables.read(csv_input(tmp_path / "l.csv"), "k")


@pytest.fixture(name="archive")
def make_archive(tmp_path):
    """Returns the path of an npz file with image [6, 2], name [6], label [6], few [5]."""
    path = tmp_path / "d.npz"
    np.savez(
        path,
        image=np.arange(12.0).reshape(6, 2),
        name=np.array(list("abcdef")),
        label=np.arange(6),
        few=np.arange(5),
        lone=np.float32(3),
        none=np.zeros([0, 2]),
        ragged=np.array([[1], [1, 2]], object),
    )
    return str(path)


def npz(archive, **keys):
    """Reads an npz file."""
    return npz_files.read(input_config.Npz(file=archive, **keys), "eval.input")


def test_npz_features_may_be_named_in_three_ways(archive):
    listed, label = npz(archive, features=("image",), label="label")
    assert list(listed) == ["image"]
    assert label.tolist() == [0, 1, 2, 3, 4, 5]
    renamed, no_label = npz(archive, features={"pixels": "image"})
    assert (list(renamed), no_label) == (["pixels"], None)
    lone, _ = npz(archive, features="image")
    assert lone.shape == (6, 2)


def test_npz_rows_are_cut_and_converted(archive):
    features, label = npz(
        archive,
        features=("image",),
        label="label",
        rows=(4, None),
        dtypes={"image": "float32", "label": "int32"},
    )
    np.testing.assert_array_equal(features["image"], np.float32([[8, 9], [10, 11]]))
    assert (label.tolist(), label.dtype) == ([4, 5], np.int32)


def test_npz_numbers_may_be_read_as_text_or_as_truths(archive):
    features, label = npz(
        archive,
        features=("image", "name"),
        label="label",
        rows=(0, 2),
        dtypes={"image": "bool", "label": "string"},
    )
    assert features["image"].tolist() == [[False, True], [True, True]]
    assert features["name"].tolist() == [b"a", b"b"]
    assert label.tolist() == [b"0", b"1"]


def test_npz_text_of_any_language_is_utf8(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, word=np.array(["größe", "λ", ""]), raw=np.array(["λ".encode(), b"\xff", b"c"]))
    features, _ = npz(str(path), dtypes={"raw": "string"})
    assert features["word"].tolist() == ["größe".encode(), "λ".encode(), b""]
    assert features["raw"].tolist() == ["λ".encode(), b"\xff", b"c"]
    np.savez(path, word=np.array(["a", "\ud800"]))  # half of a character
    with pytest.raises(errors.RunError, match=r"eval.input.dtypes: .*t.npz: word cannot be conv"):
        npz(str(path))
    np.savez(path, day=np.array(["2026-01-01"], dtype="datetime64[D]"))
    with pytest.raises(errors.RunError, match=r"day cannot be converted to tensors: it holds date"):
        npz(str(path))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (
            {"features": ("imag",)},
            "must have the array 'imag', got image, name, label, few, lone",
        ),
        (
            {"features": ("image",), "label": "zzz"},
            "ragged. Correct features and label, or the file.",
        ),
        ({"features": ("image", "few")}, "image has 6 rows, few has 5"),
        ({"features": ("lone",)}, "lone must have rows along axis 0"),
        ({"features": ("none",)}, "must have rows, has none."),
        ({"features": ("ragged",)}, "ragged must hold numbers or text, but holds Python objects"),
        ({"features": ("image",), "rows": (0, 7)}, "must lie within the 6 rows"),
        ({"features": ("image",), "rows": (6, None)}, "must lie within the 6 rows"),
        ({"features": ("name",), "dtypes": {"name": "int32"}}, "cannot be converted to int32"),
        ({"features": ("image",), "dtypes": {"imge": "int32"}}, "got 'imge'. Did you mean image?"),
    ],
)
def test_bad_npz_inputs_are_named(archive, keys, fault):
    with pytest.raises(errors.RunError) as caught:
        npz(archive, **keys)
    assert str(caught.value).startswith("eval.input")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("values", "dtype", "fault"),
    [
        (np.int64([[1, 2], [3, 4], [5, 300]]), "uint8", "row 2 (the first is 0) is [  5, 300]"),
        (np.int64([1, -1, 2]), "uint8", "row 1 (the first is 0) is -1"),
        (np.float32([1, 2, 2.5]), "int32", "row 2 (the first is 0) is 2.5"),
        (np.float32([1, np.nan, 2]), "int64", "row 1 (the first is 0) is nan"),
        (np.float64([1, 2, 1e300]), "float32", "row 2 (the first is 0) is 1.e+300"),
        (np.array(["1", "2", "x"]), "int32", "row 2 (the first is 0) is 'x'"),
        (np.array(["1", "2", "300"]), "int8", "row 2 (the first is 0) is '300'"),
        (np.array(["1", "2", "1e39"]), "float32", "row 2 (the first is 0) is '1e39'"),
        (np.array(["1", "true", "no"]), "bool", "row 2 (the first is 0) is 'no'"),
        (
            np.array([[b"1", b"2"], [b"3", b"\xff"]]),
            "int8",
            "row 1 (the first is 0) is [b'3', b'\\xff']",
        ),
    ],
)
def test_a_row_that_its_dtype_cannot_hold_is_named(tmp_path, values, dtype, fault):
    path = tmp_path / "d.npz"
    np.savez(path, x=values)
    for rows in (None, (1, None)):
        with pytest.raises(errors.RunError) as caught:
            npz(str(path), rows=rows, dtypes={"x": dtype})
        assert f"{path}: x cannot be converted to {dtype}: {fault}. Correct" in str(caught.value)


def test_text_is_converted_as_in_csv(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, a=np.array([["True", "0"], ["FALSE", "1"]]), b=np.array([b" 7", b"-1"]))
    features, _ = npz(str(path), dtypes={"a": "bool", "b": "int8"})
    assert features["a"].tolist() == [[True, False], [False, True]]
    assert (features["b"].tolist(), features["b"].dtype) == ([7, -1], np.int8)


def test_numbers_that_tensorflow_has_not_are_refused(tmp_path):
    path = tmp_path / "d.npz"
    long = np.longdouble if np.longdouble(0).itemsize > 8 else None
    if long is None:
        pytest.skip("this machine's long doubles are doubles")
    np.savez(path, x=np.ones(2, long))
    with pytest.raises(errors.RunError, match=r"x cannot be converted to tensors: it holds float"):
        npz(str(path))
    assert npz(str(path), dtypes={"x": "float64"})[0]["x"].dtype == np.float64


def test_what_npz_is_not_is_said_without_a_word_about_pickles(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(gzip.compress(b"x,y"))
    with pytest.raises(errors.RunError, match=r"must be npz, but is compressed with gzip. Decomp"):
        npz(str(path))


def test_numbers_that_their_dtype_holds_are_converted(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.float64([0, 255, 7]), y=np.float64([np.inf, np.nan, 0.1]))
    features, _ = npz(str(path), dtypes={"x": "uint8", "y": "float32"})
    assert features["x"].tolist() == [0, 255, 7]
    np.testing.assert_array_equal(features["y"], np.float32([np.inf, np.nan, 0.1]))


def test_what_is_no_npz_file_is_refused(tmp_path):
    with pytest.raises(errors.RunError, match="the file must exist"):
        npz(str(tmp_path / "none.npz"))
    for name, data in (("text.npz", b"text"), ("empty.npz", b""), ("cut.npz", b"PK\x03\x04abc")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(errors.RunError, match=f"{name}: must be a readable npz file"):
            npz(str(tmp_path / name))
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(errors.RunError, match="must be a readable npz file"):
        npz(str(tmp_path / "one.npy"))
    np.savez(tmp_path / "pickle.npz", a=np.array([{}], dtype=object))
    with pytest.raises(errors.RunError, match="a must hold numbers or text, but holds Python obj"):
        npz(str(tmp_path / "pickle.npz"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_npz_file_is_refused_wherever_the_damage_is(tmp_path, save):
    path = tmp_path / "d.npz"
    save(path, a=np.arange(3), b=np.float32([1, 2]))
    whole = path.read_bytes()
    faults = []
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0xFF]) + whole[index + 1 :])
        try:
            npz(str(path), features=("a",), label=None)
        except errors.RunError as e:
            faults.append(str(e))
    assert len(faults) > len(whole) / 3  # what is damaged otherwise: dates, and the like
    assert all(fault.startswith(f"eval.input: {path}: ") for fault in faults)


@pytest.mark.parametrize("reason", [NotImplementedError("of method 9."), MemoryError()])
def test_whatever_reading_an_npz_file_raises_is_told(archive, monkeypatch, reason):
    def load(*args, **kwargs):
        raise reason

    monkeypatch.setattr(np, "load", load)
    text = str(reason).rstrip(".") or "MemoryError"
    with pytest.raises(errors.RunError, match=f"d.npz: must be a readable npz file: {text}. Wr"):
        npz(archive)
