"""Rows that are cached are read once, and never from what is out of date."""

import os
import sys
import types

import filelock
import pytest

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import caching, inputs, tables
from replicate.compat.tensorflow import tf, tf1

KEY = "eval.input"


def read(source, count=None, key=KEY):
    """Returns the labels of so many batches, or of all of them, one after the other."""
    make = inputs.input_fn(source, key, "eval", {})
    found = []
    with tf.Graph().as_default(), tf1.Session() as session:
        _, labels = tf1.data.make_one_shot_iterator(make()).get_next()
        while count is None or count:
            try:
                found += session.run(labels).tolist()
            except tf.errors.OutOfRangeError:
                break
            count = count and count - 1
    return found


def write_records(path, numbers, compression=""):
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression)) as writer:
        for number in numbers:
            whole = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            example = tf.train.Example(features=tf.train.Features(feature={"x": whole, "y": whole}))
            writer.write(example.SerializeToString())


def records(tmp_path, **keys):
    feature = input_config.Feature(dtype="int64")
    keys = {"file": (str(tmp_path / "*.tfrecord"),), "label": "y", "batch_size": 2} | keys
    return input_config.Tfrecord(features={"x": feature, "y": feature}, **keys)


@pytest.fixture(autouse=True)
def another_process(monkeypatch):
    """Each test begins as a process does, which holds no cache."""
    monkeypatch.setattr(caching, "_held", {})


@pytest.fixture(name="counted")
def make_counted(monkeypatch):
    """Returns a module `counted` whose `rows` counts in `read` how often a row was made."""
    module = types.ModuleType("counted")
    module.read = 0

    def generate():
        for number in range(3):
            module.read += 1
            yield number, number

    shapes = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))
    module.rows = lambda: tf.data.Dataset.from_generator(generate, output_signature=shapes)
    monkeypatch.setitem(sys.modules, "counted", module)
    return module


@pytest.mark.parametrize(("cache", "times"), [(False, 4), (True, 1)])
def test_a_cache_in_memory_reads_rows_once_in_a_run(counted, cache, times):
    source = input_config.Function(function="counted:rows", repeat=4, cache=cache, batch_size=2)
    assert read(source) == [0, 1, 2] * 4
    assert counted.read == 3 * times


def test_a_cache_in_files_is_read_by_later_runs(counted, tmp_path):
    cache = str(tmp_path / "new" / "cache")
    source = input_config.Function(function="counted:rows", cache=cache, batch_size=2)
    assert [read(source), read(source)] == [[0, 1, 2]] * 2
    assert counted.read == 3
    caching._held.clear()  # a later process
    again = source.model_copy(update={"repeat": 2, "shuffle": 3, "prefetch": 0})
    assert sorted(read(again)) == [0, 0, 1, 1, 2, 2]
    assert counted.read == 3


def test_each_section_has_a_cache_of_its_own(counted, tmp_path):
    source = input_config.Function(function="counted:rows", cache=str(tmp_path), batch_size=2)
    assert read(source) == read(source, key="train.input")
    assert counted.read == 6


def test_records_are_cached_until_their_files_or_keys_change(tmp_path):
    write_records(tmp_path / "a.tfrecord", [1, 2, 3])
    source = records(tmp_path, cache=str(tmp_path / "cache"))
    assert read(source) == [1, 2, 3]
    (made,) = (tmp_path / "cache").glob("*.data-*")
    made.chmod(0o444)
    assert read(source) == [1, 2, 3]
    os.utime(tmp_path / "a.tfrecord", ns=(1, 1))
    assert read(source) == [1, 2, 3]
    assert len(list((tmp_path / "cache").glob("*.index"))) == 2
    write_records(tmp_path / "a.tfrecord", [4, 5])
    assert read(source) == [4, 5]
    write_records(tmp_path / "b.tfrecord", [6])
    assert read(source) == [4, 5, 6]


def test_a_stream_of_csv_is_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MAX_IN_MEMORY", 10)
    (tmp_path / "d.csv").write_text("x,y\n1,1\n2,2\n3,3\n")
    source = input_config.Csv(
        file=(str(tmp_path / "d.csv"),),
        columns={"x": "float32", "y": "int64"},
        label="y",
        cache=str(tmp_path / "cache"),
    )
    assert [read(source), read(source)] == [[1, 2, 3]] * 2
    assert len(list((tmp_path / "cache").glob("eval-*.index"))) == 1


def test_columns_in_another_order_are_another_cache(tmp_path):
    places = {
        caching.place_of(
            input_config.Csv(file=("x",), header=False, cache="c", columns=columns), KEY
        )
        for columns in ({"a": "int64", "b": "int64"}, {"b": "int64", "a": "int64"})
    }
    assert len(places) == 2


def test_what_was_not_read_to_its_end_is_not_cached(tmp_path):
    write_records(tmp_path / "a.tfrecord", range(1, 100))
    source = records(tmp_path, cache=str(tmp_path / "cache"), prefetch=0)
    assert read(source, count=1) == [1, 2]
    assert read(source, count=1) == [1, 2]
    assert list((tmp_path / "cache").glob("*.index")) == []
    assert read(source) == list(range(1, 100))
    assert len(list((tmp_path / "cache").glob("*.index"))) == 1


def test_what_a_killed_process_left_is_begun_anew(tmp_path):
    write_records(tmp_path / "a.tfrecord", [1, 2, 3])
    source = records(tmp_path, cache=str(tmp_path / "cache"))
    place = caching.place_of(source, KEY, [str(tmp_path / "a.tfrecord")])
    (tmp_path / "cache").mkdir()
    for ending in ("_0.lockfile", "_0.data-00000-of-00001"):
        (tmp_path / "cache" / f"{os.path.basename(place)}{ending}").write_text("half")
    assert read(source) == [1, 2, 3]
    assert not list((tmp_path / "cache").glob("*.lockfile"))


def test_what_another_process_writes_is_left_to_it(tmp_path, caplog):
    write_records(tmp_path / "a.tfrecord", [1, 2, 3])
    source = records(tmp_path, cache=str(tmp_path / "cache"))
    place = caching.place_of(source, KEY, [str(tmp_path / "a.tfrecord")])
    (tmp_path / "cache").mkdir()
    with filelock.FileLock(f"{place}.lock", is_singleton=False):
        assert read(source) == [1, 2, 3]
    assert "eval.input.cache: another process is writing" in caplog.text
    assert not list((tmp_path / "cache").glob("*.index"))


def test_a_cache_needs_a_folder_that_can_be_written(tmp_path):
    write_records(tmp_path / "a.tfrecord", [1])
    source = records(tmp_path, cache=str(tmp_path / "a.tfrecord"))
    with pytest.raises(errors.RunError, match=r"eval.input.cache: .*a.tfrecord must be a dir"):
        read(source)


def test_files_read_at_a_time_take_turns_in_a_fixed_order(tmp_path):
    for place, name in enumerate("abc"):
        write_records(tmp_path / f"{name}.tfrecord", range(10 * place, 10 * place + 3))
    assert read(records(tmp_path)) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    # Two files in turn; where one ends, the next one takes its place.
    two = [0, 10, 1, 11, 2, 12, 20, 21, 22]
    assert [read(records(tmp_path, parallel_reads=2)) for _ in range(3)] == [two] * 3
    three = [0, 10, 20, 1, 11, 21, 2, 12, 22]
    assert read(records(tmp_path, parallel_reads=8)) == three


def test_shuffled_records_come_from_files_in_any_order(tmp_path):
    for place in range(20):
        write_records(tmp_path / f"{place:02}.tfrecord", [place, place])
    # A buffer of one row leaves the rows as they come: the files are shuffled alone.
    found = read(records(tmp_path, shuffle=1))
    assert found != sorted(found)
    assert found[::2] == found[1::2]
    assert sorted(found) == sorted([*range(20)] * 2)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_records_are_read(tmp_path, compression):
    write_records(tmp_path / "a.tfrecord", [1, 2, 3], compression)
    assert read(records(tmp_path, compression=compression)) == [1, 2, 3]
