"""Arrays of npz files are read as they are, or as the config says; a bad one is named."""

import gzip

import numpy as np
import pytest

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import npz as arrays


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
    return arrays.read(input_config.Npz(file=archive, **keys), "eval.input")


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
            "must have the array 'imag'; there is image, name, label, few, lone",
        ),
        (
            {"features": ("image",), "label": "zzz"},
            "ragged. Correct the config, or the file.",
        ),
        ({"features": ("image", "few")}, "image has 6 rows, few has 5"),
        ({"features": ("lone",)}, "lone must have rows along axis 0"),
        ({"features": ("none",)}, "must have rows, has none."),
        ({"features": ("ragged",)}, "ragged must hold numbers or text, but holds Python objects"),
        ({"features": ("image",), "rows": (0, 7)}, "must lie within the 6 rows"),
        ({"features": ("image",), "rows": (6, None)}, "must lie within the 6 rows"),
        ({"features": ("name",), "dtypes": {"name": "int32"}}, "cannot be converted to int32"),
        ({"features": ("image",), "dtypes": {"imge": "int32"}}, "got 'imge'; there is "),
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
    ],
)
def test_a_row_that_its_dtype_cannot_hold_is_named(tmp_path, values, dtype, fault):
    path = tmp_path / "d.npz"
    np.savez(path, x=values)
    for rows in (None, (1, None)):
        with pytest.raises(errors.RunError) as caught:
            npz(str(path), rows=rows, dtypes={"x": dtype})
        assert f"{path}: x cannot be converted to {dtype}: {fault}. Correct" in str(caught.value)


def test_numbers_that_their_dtype_holds_are_converted(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.float64([0, 255, 7]), y=np.float64([np.inf, np.nan, 0.1]))
    features, _ = npz(str(path), dtypes={"x": "uint8", "y": "float32"})
    assert features["x"].tolist() == [0, 255, 7]
    np.testing.assert_array_equal(features["y"], np.float32([np.inf, np.nan, 0.1]))


def test_what_is_no_npz_file_is_refused(tmp_path):
    with pytest.raises(errors.RunError, match="the file must exist"):
        npz(str(tmp_path / "none.npz"))
    for name, data in (("empty.npz", b""), ("cut.npz", b"PK\x03\x04abc")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(errors.RunError, match=f"{name}: must be a readable npz file"):
            npz(str(tmp_path / name))
    for name, data in (("a.npz", gzip.compress(b"x,y")), ("b.npz", b"x,y")):  # no word of pickles
        (tmp_path / name).write_bytes(data)
        with pytest.raises(errors.RunError, match=r"must be npz, but is (compressed|text)"):
            npz(str(tmp_path / name))
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(errors.RunError, match="must be npz, but is a single NumPy array"):
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
