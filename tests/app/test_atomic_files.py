"""Files of this machine and remote ones appear whole, or not at all."""

import os

import pytest

from replicate.app.runs import atomic_files
from replicate.compat.tensorflow import tf


@pytest.fixture(name="folder", params=["local", "remote"])
def make_folder(request, tmp_path):
    """Returns a folder of this machine, and one that only TensorFlow can read."""
    path = str(tmp_path) if request.param == "local" else f"ram://{tmp_path.name}"
    tf.io.gfile.makedirs(path)
    yield path
    tf.io.gfile.rmtree(path)


def names(folder):
    return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))


def test_a_file_replaces_the_one_before(folder):
    for value in ({"a": 1}, {"b": [1, 2]}):
        atomic_files.write_json(f"{folder}/f.json", value)
        assert atomic_files.read_json(f"{folder}/f.json") == value
    assert names(folder) == ["f.json"]


def test_what_fails_leaves_the_file_before_and_nothing_else(folder):
    atomic_files.write_text(f"{folder}/f", "before")

    def fail():
        with atomic_files.replacing(f"{folder}/f") as path, tf.io.gfile.GFile(path, "w") as file:
            file.write("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert atomic_files.read_text(f"{folder}/f") == "before"
    assert names(folder) == ["f"]


def test_what_fails_before_it_writes_leaves_nothing(folder):
    with pytest.raises(KeyError), atomic_files.replacing(f"{folder}/f"):
        raise KeyError
    assert names(folder) == []


def test_who_moves_the_unfinished_file_away_may_do_so(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_files.replacing(str(tmp_path / "f")) as path:
        os.remove(path)
    assert names(str(tmp_path)) == []


@pytest.mark.parametrize("text", ["", "[1]", "{torn", "[" * 100_000, '{"a": 9223372036854775808}'])
def test_what_is_no_object_is_an_empty_one(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    assert atomic_files.read_json(str(tmp_path / "f.json")) == {}
