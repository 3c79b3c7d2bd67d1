"""Passes over an input, counted."""

import numpy as np
import pytest

from replicate import errors
from replicate.app.config import input_config
from replicate.app.data import epochs, positions
from replicate.compat.tensorflow import tf, tf1

ROWS, BATCH = 7, 3  # 3 batches in a pass: of 3, 3 and 1 rows


def known():
    """Returns a pass that knows how many batches it has."""
    return tf.data.Dataset.range(ROWS).batch(BATCH)


def stream():
    """Returns a pass that does not know how many batches it has."""
    return tf.data.Dataset.range(100).filter(lambda i: i < ROWS).map(lambda i: i).batch(BATCH)


def nested():
    """Returns a stream of features and labels."""
    return stream().map(lambda x: ({"x": x, "s": tf.sparse.from_dense(x)}, x))


def run(dataset_fn, limit=100):
    """Returns the batches that sessions see, as lists."""
    found = []
    with tf.Graph().as_default(), tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(dataset_fn())
        element = iterator.get_next()
        session.run(iterator.initializer)
        while len(found) < limit:
            try:
                found.append(session.run(element))
            except tf.errors.OutOfRangeError:
                break
    return found


def make(folder, pass_fn, number, start=0, description="d"):
    """Returns Epochs of a pass."""
    source = input_config.Function(function="a:b", repeat=True)

    def batches(position):
        return positions.of_function(position, source, pass_fn(), is_batched=True)

    return epochs.Epochs(number, batches, start, False, epochs.Notes(str(folder), description))


def test_arrays_know_their_end_beforehand(tmp_path):
    made = make(tmp_path, known, 4)
    assert made.end == 12
    batches = run(lambda: made.dataset(True, 0), limit=7)
    # A pass ends with a batch of its own.
    assert [list(b) for b in batches[:4]] == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]


@pytest.mark.parametrize("pass_fn", [stream, nested])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stream_ends_after_its_epochs_and_is_counted_meanwhile(tmp_path, pass_fn, prefetch):
    made = make(tmp_path, pass_fn, 2)
    told = []
    assert made.end is None
    assert len(run(lambda: made.dataset(True, prefetch, told.append))) == 6
    assert (made.end, told) == (6, [6])
    assert make(tmp_path, pass_fn, 5).end == 15


def test_a_stream_of_one_epoch_is_counted_at_its_end(tmp_path):
    made = make(tmp_path, stream, 1)
    assert len(run(lambda: made.dataset(True, 0))) == 3
    assert make(tmp_path, stream, 1).end == 3


@pytest.mark.parametrize(("number", "start"), [(1, 2), (2, 1), (2, 5)])
def test_a_run_that_continues_before_the_end_of_a_pass_trains_what_is_left(tmp_path, number, start):
    first = make(tmp_path, stream, number)
    before = run(lambda: first.dataset(True, 0), limit=min(start, 2))
    assert len(before) == min(start, 2)
    assert first.end is None
    second = make(tmp_path, stream, number, start)
    after = run(lambda: second.dataset(True, 0))
    assert len(after) == number * 3 - start
    np.testing.assert_array_equal(after[-1], [6])


@pytest.mark.parametrize("pass_fn", [known, stream])
def test_a_run_that_continues_in_a_pass_begins_with_what_is_left_of_it(tmp_path, pass_fn):
    run(lambda: make(tmp_path, pass_fn, 1).dataset(True, 0), limit=4)
    # Step 7 of 3 to a pass is in the third one, of which one batch is done.
    made = make(tmp_path, pass_fn, 3, start=7)
    assert made.end == 9
    batches = run(lambda: made.dataset(True, 0), limit=3)
    assert [list(b) for b in batches] == [[3, 4, 5], [6], [0, 1, 2]]


def test_a_length_counted_for_another_input_is_not_used(tmp_path):
    run(lambda: make(tmp_path, stream, 1).dataset(True, 0))
    assert make(tmp_path, stream, 1, description="other").end is None


def test_an_input_that_repeats_a_few_times_ends_by_itself(tmp_path):
    assert len(run(lambda: make(tmp_path, known, 9).dataset(2, 1))) == 6
    assert len(run(lambda: make(tmp_path, stream, 9).dataset(2, 1))) == 6
    assert len(run(lambda: make(tmp_path, known, 9).dataset(False, 1))) == 3


def test_a_length_is_written_down_by_the_chief_alone(tmp_path):
    for is_written, expected in ((False, None), (True, 5)):
        epochs.Notes(str(tmp_path), "d", is_written).write(5)
        assert epochs.Notes(str(tmp_path), "d").read() == expected
    assert epochs.Notes(str(tmp_path), "another input").read() is None


def test_an_input_that_waits_for_a_table_is_counted_while_it_is_read(tmp_path):
    def rows():
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["rows"], np.int64([ROWS])), -1
        )
        return tf.data.Dataset.range(table.lookup(tf.constant("rows"))).batch(BATCH)

    assert make(tmp_path, rows, 2).end is None


def test_an_input_without_an_end_has_no_epochs(tmp_path):
    with pytest.raises(errors.RunError, match=r"train.input: must come to an end for train.epochs"):
        make(tmp_path, lambda: known().repeat(), 1)
