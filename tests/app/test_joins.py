"""The collectives of a graph, whose bytes are worked out by hand."""

from replicate.app.inspect import joins
from replicate.app.inspect.cost import ALL_GATHER, ALL_REDUCE, Collective
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives


def across():
    """Returns what joins the first of four workers with the others."""
    return collectives.Across(collectives.Options(4, 0, "ring"), "/device:CPU:0")


def test_what_is_packed_is_one_collective():
    with tf.Graph().as_default() as graph:
        across().sum([tf.zeros([3, 2]), tf.zeros([2])])
        # 6 + 2 floats of 4 bytes.
        assert joins.of(graph.get_operations()) == [Collective(ALL_REDUCE, 32)]


def test_slices_are_as_many_as_the_next_power_of_two():
    with tf.Graph().as_default() as graph:
        rows = tf1.placeholder(tf.float32, [5, 3])
        across().slices([tf.IndexedSlices(rows, tf.constant([4, 1, 0, 2, 2], tf.int64))])
        # How many there are (int32); 8 rows of 3 floats; 8 indices of 8 bytes.
        assert joins.of(graph.get_operations()) == [
            Collective(ALL_GATHER, 4),
            Collective(ALL_GATHER, 8 * 3 * 4),
            Collective(ALL_GATHER, 8 * 8),
        ]


def test_slices_of_a_batch_are_as_many_as_it_has_rows():
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensors((tf.zeros([7, 2], tf.int32), tf.zeros([7])))
        ids, _ = tf1.data.make_one_shot_iterator(data.unbatch().batch(7)).get_next()  # not read
        ids = tf.reshape(ids, [-1])
        rows = tf.gather(tf.zeros([9, 3]), ids)
        across().slices([tf.IndexedSlices(rows, ids)])
        assert [one.bytes for one in joins.of(graph.get_operations())] == [4, None, None]
        counts = joins.row_counts(graph, 7)
        # 14 ids, and so 16 rows.
        assert [one.bytes for one in joins.of(graph.get_operations(), counts)] == [4, 192, 64]
