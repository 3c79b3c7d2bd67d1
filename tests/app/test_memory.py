"""What a step's tensors take is counted in the graph; a shortage is told with what would fit."""

import pytest

from replicate.app.config import config
from replicate.app.inspect import description, memory, shortage
from replicate.compat.tensorflow import tf, tf1

ROW = 400  # bytes of 100 numbers
CPU = "/device:CPU:0"


def peak(fetch, rows=0):
    return memory.peaks([fetch.op], rows)[CPU]


def given():
    return tf1.placeholder(tf.float32, [100])


def test_a_tensor_is_held_until_all_that_read_it_have_run(fresh_graph):
    first = tf.cumsum(given())  # 400 in and 400 out, then the first one is read by nothing
    assert peak(first) == 2 * ROW
    assert peak(tf.cumsum(first)) == 2 * ROW
    # Here the first sums wait for the third ones, beside what these read and make.
    assert peak(tf.concat([first, tf.cumsum(tf.cumsum(first))], 0)) == 4 * ROW


def test_what_is_made_entry_by_entry_is_written_to_what_nothing_else_reads(fresh_graph):
    first = tf.cumsum(given())
    assert peak(tf.nn.relu(tf.reshape(first, [10, 10]))) == 2 * ROW
    # Of two sums, the other one is read later: a third place is needed.
    assert peak(tf.concat([tf.nn.relu(first), tf.cumsum(first)], 0)) == 4 * ROW


def test_variables_and_constants_are_there_between_steps(fresh_graph):
    weights = tf1.get_variable("w", [100], use_resource=True)
    assert peak(tf.cumsum(weights.read_value())) == ROW
    assert peak(tf.cumsum(tf.constant(2.0, shape=[100]))) == ROW


def test_what_a_run_alone_can_count_is_taken_to_be_one_entry_of_each_row(fresh_graph):
    found = tf.where(given() > 0)  # 100 bools, and of each entry found a number of 8 bytes
    assert peak(found, rows=100) == 100 + 800
    assert peak(found) == ROW + 100
    with tf.name_scope("tower_0"):
        first = tf.where(tf.fill([50], True))
    with tf.name_scope("tower_1"):
        second = tf.where(tf.fill([50], True))
    assert peak(tf.concat([first, second], 0), rows=100) == 400 + 400 + 800


def test_a_text_has_a_place_whatever_it_says(fresh_graph):
    texts = tf1.placeholder(tf.string, [100])
    assert peak(tf.strings.lower(texts)) == 2 * 100 * 24


def test_each_device_has_its_own_tensors(fresh_graph):
    with tf.device("/cpu:1"):
        there = tf.cumsum(given())
    with tf.device("/cpu:0"):
        here = tf.cumsum(there)
    assert memory.peaks([here], 0) == {"/device:CPU:1": 2 * ROW, CPU: ROW}


def test_parts_that_take_turns_take_less(fresh_graph):
    parts = []
    for _ in range(2):
        with tf.control_dependencies(parts[-1:]):
            parts.append(tf.reduce_sum(tf.cumsum(tf.fill([100], 1.0))))
    # One of the parts at a time: 400 in and 400 out, beside the other one's sum of 4.
    assert peak(tf.add_n(parts)) <= 2 * ROW + 8


FULL = "OOM when allocating tensor with shape[9,9] and type float on /device:GPU:0"


@pytest.fixture(name="settings")
def load_settings():
    return config.load("configs/wide-and-deep.yaml")


def note_of(settings, text):
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught, shortage.explained(settings):
        raise tf.errors.ResourceExhaustedError(None, None, text)
    return "".join(getattr(caught.value, "__notes__", []))


def total(settings):
    return max(one.held + one.step for one in description.describe(settings).devices)


@pytest.mark.thorough
def test_a_training_without_memory_is_told_what_would_take_less(settings):
    note = note_of(settings, FULL)
    less = total(settings.model_copy(update={"micro_batches": 4}))
    assert less < total(settings)
    assert note.startswith("By its graph CPU:")
    # Its largest variable has far less than 1 MiB: slices would change nothing.
    assert note.endswith(f"Set the first of these: with micro_batches: 4 it takes {less:,} in all.")


def test_other_shortages_are_told_as_they_are(settings):
    assert note_of(settings, "out/model.ckpt-3; No space left on device") == ""
