"""What a step's tensors take is counted in its graph."""

from replicate.app.inspect import memory
from replicate.compat.tensorflow import tf, tf1

ROW = 400  # bytes of 100 numbers
CPU = "/device:CPU:0"


def peak(fetch):
    return memory.peaks([fetch.op])[CPU]


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


def test_each_device_has_its_own_tensors(fresh_graph):
    with tf.device("/cpu:1"):
        there = tf.cumsum(given())
    with tf.device("/cpu:0"):
        here = tf.cumsum(there)
    assert memory.peaks([here]) == {"/device:CPU:1": 2 * ROW, CPU: ROW}


def test_parts_that_take_turns_take_less(fresh_graph):
    parts = []
    for _ in range(2):
        with tf.control_dependencies(parts[-1:]):
            parts.append(tf.reduce_sum(tf.cumsum(tf.fill([100], 1.0))))
    # One of the parts at a time: 400 in and 400 out, beside the other one's sum of 4.
    assert peak(tf.add_n(parts)) <= 2 * ROW + 8
