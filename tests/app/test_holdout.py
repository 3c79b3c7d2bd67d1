"""Rows that are held out: the same ones however they are read, for evaluation alone."""

import gzip

import pytest

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import inputs, tables
from replicate.compat.tensorflow import tf, tf1

ROWS = 1000
# Written down once: another choice would put rows that models were trained on into evaluations.
FIRST = {
    "csv": [0, 10, 33, 45],
    "tfrecord": [22, 34, 51, 56],
}


def ids_of(source, mode):
    """Returns the ids of all rows of an input, in order, and the sizes of its batches."""
    make = inputs.input_fn(source, "k", mode, {})
    found, sizes = [], []
    with tf.Graph().as_default(), tf1.Session() as session:
        element = tf1.data.make_one_shot_iterator(make()).get_next()
        while True:
            try:
                batch = session.run(element)["id"].tolist()
            except tf.errors.OutOfRangeError:
                return found, sizes
            found += batch
            sizes.append(len(batch))


def csv_input(path, **keys):
    columns = {"id": "int64", "word": "string"}
    return input_config.Csv(file=(str(path),), columns=columns, holdout=0.1, **keys)


@pytest.fixture(name="source", params=["csv", "stream", "tfrecord"])
def make_source(request, tmp_path, monkeypatch):
    """Returns an input of each kind, with a tenth of a thousand rows held out."""
    if request.param in ("csv", "stream"):
        if request.param == "stream":
            monkeypatch.setattr(tables, "_MAX_IN_MEMORY", 10)
        path = tmp_path / "d.csv"
        path.write_text("id,word\n" + "".join(f"{i},w{i % 3}\n" for i in range(ROWS)))
        return csv_input(path)
    path = str(tmp_path / "d.tfrecord")
    with tf.io.TFRecordWriter(path) as file:
        for i in range(ROWS):
            example = tf.train.Example()
            example.features.feature["id"].int64_list.value.append(i)
            file.write(example.SerializeToString())
    features = {"id": input_config.Feature(dtype="int64")}
    return input_config.Tfrecord(file=(path,), features=features, holdout=0.1)


@pytest.mark.thorough("tfrecord", "csv")
def test_training_and_evaluation_share_the_rows_out(source):
    trained, sizes = ids_of(source, "train")
    evaluated, _ = ids_of(source, "eval")
    assert sorted(trained + evaluated) == list(range(ROWS))
    # A tenth of 1000 rows; their number has a standard deviation of (1000 * 0.1 * 0.9)^0.5 < 10.
    assert abs(len(evaluated) - ROWS / 10) < 40
    assert set(sizes[:-1]) == {32}
    assert ids_of(source, "infer") == ids_of(source, "eval")
    shuffled = source.model_copy(update={"shuffle": True})
    assert sorted(ids_of(shuffled, "eval")[0]) == evaluated
    assert evaluated[:4] == FIRST[source.kind]
    more = ids_of(source.model_copy(update={"holdout": 0.3}), "eval")[0]
    assert set(evaluated) < set(more)


def test_what_else_a_config_says_of_a_table_moves_no_row(tmp_path):
    text = "id,word\n" + "".join(f"{i},w\n" for i in range(200))
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "packed.csv").write_bytes(gzip.compress(text.replace("\n", "\r\n").encode()))
    (tmp_path / "later.csv").write_text("id;word\n" + text[8:].replace(",", ";"))
    sources = [
        csv_input(tmp_path / "plain.csv"),
        csv_input(tmp_path / "packed.csv").model_copy(update={"columns": {"id": "int64"}}),
        csv_input(tmp_path / "later.csv", delimiter=";"),
    ]
    first, *others = [ids_of(source, "eval")[0] for source in sources]
    assert others == [first, first]


def test_equal_rows_are_on_the_same_side_and_none_left_is_told(tmp_path):
    (tmp_path / "d.csv").write_text("id,word\n" + "7,w\n" * 20)
    source = csv_input(tmp_path / "d.csv")
    sides = []
    for is_training in (True, False):
        try:
            sides.append(len(tables.read(source, "k", is_training)[0]["id"]))
        except errors.RunError as e:
            sides.append(str(e))
    text = f"k: {tmp_path / 'd.csv'}: must have rows for holdout: 0.1, has none."
    assert sorted(sides, key=str) == [20, text]
