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


def test_npz_rows_are_cut(archive):
    features, label = npz(
        archive,
        features=("image",),
        label="label",
        rows=(4, None),
    )
    assert features["image"].tolist() == [[8, 9], [10, 11]]
    assert label.tolist() == [4, 5]


def test_npz_text_of_any_language_is_utf8(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, word=np.array(["größe", "λ", ""]), raw=np.array(["λ".encode(), b"\xff", b"c"]))
    features, _ = npz(str(path))
    assert features["word"].tolist() == ["größe".encode(), "λ".encode(), b""]
    assert features["raw"].tolist() == ["λ".encode(), b"\xff", b"c"]
    np.savez(path, word=np.array(["a", "\ud800"]))  # half of a character
    with pytest.raises(errors.RunError, match=r"eval.input: .*t.npz: word cannot become a"):
        npz(str(path))
    np.savez(path, day=np.array(["2026-01-01"], dtype="datetime64[D]"))
    with pytest.raises(errors.RunError, match=r"day cannot become a tensor: it holds date"):
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
    ],
)
def test_bad_npz_inputs_are_named(archive, keys, fault):
    with pytest.raises(errors.RunError) as caught:
        npz(archive, **keys)
    assert str(caught.value).startswith("eval.input")
    assert fault in str(caught.value)


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
