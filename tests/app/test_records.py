"""Records are read once, from files in turn; one that cannot be read is told with its file."""

import pytest

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import inputs, reading, records
from replicate.compat.tensorflow import tf, tf1

LOST = tf.errors.DataLossError(None, None, "it is lost")
NO_TEXT = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


class Settings:
    """Takes the place of a config with one input."""

    model_dir = ""

    def __init__(self, source):
        self._source = source

    def input_of(self, section):
        return self._source


@pytest.fixture(name="source")
def make_source(tmp_path):
    """Returns an input of two files: a has three records that fit; of b the second does not."""
    for name, counts in (("a", (2, 2, 2)), ("b", (2, 1, 2))):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as file:
            for count in counts:
                example = tf.train.Example()
                example.features.feature["x"].float_list.value.extend([0.5] * count)
                file.write(example.SerializeToString())
    feature = input_config.Feature(dtype="float32", shape=(2,))
    return input_config.Tfrecord(file=(str(tmp_path / "*.tfrecord"),), features={"x": feature})


def told(source, error):
    """Returns what is said of an error."""
    with pytest.raises(errors.RunError) as raised, reading.naming(Settings(source), "train"):
        raise error
    assert raised.value.__cause__ is error
    return str(raised.value)


@pytest.mark.parametrize("error", [LOST, NO_TEXT])
def test_the_first_record_that_does_not_fit_is_named(source, tmp_path, error):
    said = told(source, error)
    assert said.startswith(f"train.input: {tmp_path}/b.tfrecord: record 2: ")
    assert "Key: x" in said
    assert "Values size: 1 but output shape: [2]" in said


def test_where_all_records_fit_the_input_is_named(source, tmp_path, monkeypatch):
    said = f"train.input: {tmp_path}/a.tfrecord: must be readable as the config says: it is lost"
    fitting = source.model_copy(update={"file": (f"{tmp_path}/a.tfrecord",)})
    assert told(fitting, LOST) == said
    monkeypatch.setattr(records, "_MAX_LOOKED_AT", 1)  # of each file
    said = f"train.input: {tmp_path}/*.tfrecord: must be readable as the config says: it is lost"
    assert told(source, LOST) == said


@pytest.mark.parametrize("error", [tf.errors.InvalidArgumentError(None, None, "a shape"), NO_TEXT])
def test_what_is_no_fault_of_the_data_is_raised_as_it_is(error):
    source = input_config.Function(function="a:b")
    with pytest.raises(type(error)) as raised, reading.naming(Settings(source), "train"):
        raise error
    assert raised.value is error


def test_the_operation_tells_whether_an_error_is_of_the_data(fresh_graph):
    numbers = tf.data.Dataset.range(3)
    read = tf.compat.v1.data.make_one_shot_iterator(numbers).get_next()
    for tensor, expected in ((read, True), (tf.constant(1), False)):
        error = tf.errors.InvalidArgumentError(tensor.op.node_def, tensor.op, "wrong")
        assert reading._is_reading(error) is expected


def write(path, numbers, compression=""):
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression)) as writer:
        for number in numbers:
            made = tf.train.Example()
            for name in "xy":
                made.features.feature[name].int64_list.value.append(number)
            writer.write(made.SerializeToString())


def read(tmp_path, **keys):
    """Returns the labels of all batches, one after the other."""
    feature = input_config.Feature(dtype="int64")
    keys = {"file": (str(tmp_path / "*.tfrecord"),), "label": "y", "batch_size": 2} | keys
    source = input_config.Tfrecord(features={"x": feature, "y": feature}, **keys)
    found = []
    with tf.Graph().as_default(), tf1.Session() as session:
        make = inputs.input_fn(source, "eval.input", "eval", {})
        _, labels = tf1.data.make_one_shot_iterator(make()).get_next()
        while True:
            try:
                found += session.run(labels).tolist()
            except tf.errors.OutOfRangeError:
                return found


@pytest.mark.parametrize("cache", [False, True])
def test_a_cache_changes_no_row(tmp_path, cache):
    write(tmp_path / "a.tfrecord", [1, 2, 3])
    assert read(tmp_path, repeat=3, cache=cache) == [1, 2, 3] * 3
    assert sorted(read(tmp_path, repeat=2, cache=cache, shuffle=3)) == [1, 1, 2, 2, 3, 3]


def test_files_read_at_a_time_take_turns_in_a_fixed_order(tmp_path):
    for place, name in enumerate("abc"):
        write(tmp_path / f"{name}.tfrecord", range(10 * place, 10 * place + 3))
    assert read(tmp_path) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    # Two files in turn; where one ends, the next one takes its place.
    two = [0, 10, 1, 11, 2, 12, 20, 21, 22]
    assert [read(tmp_path, parallel_reads=2) for _ in range(3)] == [two] * 3
    assert read(tmp_path, parallel_reads=8) == [0, 10, 20, 1, 11, 21, 2, 12, 22]


def test_shuffled_records_come_from_files_in_any_order(tmp_path):
    for place in range(20):
        write(tmp_path / f"{place:02}.tfrecord", [place, place])
    # A buffer of one row leaves the rows as they come: the files are shuffled alone.
    found = read(tmp_path, shuffle=1)
    assert found != sorted(found)
    assert found[::2] == found[1::2]
    assert sorted(found) == sorted([*range(20)] * 2)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_records_are_read(tmp_path, compression):
    write(tmp_path / "a.tfrecord", [1, 2, 3], compression)
    assert read(tmp_path, compression=compression) == [1, 2, 3]
