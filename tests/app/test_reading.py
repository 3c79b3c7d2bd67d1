"""Data that cannot be read is told with its input, its file and its record."""

import pytest

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import reading
from replicate.compat.tensorflow import tf

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
    fault = "record 2: x must have as many values as its shape [2] has, 2, got 1."
    assert told(source, error).startswith(f"train.input: {tmp_path}/b.tfrecord: {fault}")


def test_where_all_records_fit_the_input_is_named(source, tmp_path, monkeypatch):
    said = f"train.input: {tmp_path}/a.tfrecord: must be readable as the config says: it is lost"
    fitting = source.model_copy(update={"file": (f"{tmp_path}/a.tfrecord",)})
    assert told(fitting, LOST) == said
    monkeypatch.setattr(reading, "_MAX_LOOKED_AT", 4)  # of six records: up to the first of b
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
