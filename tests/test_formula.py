"""What a step of a cluster moves: formulas, and collectives of graphs, worked out by hand."""

import pytest

from replicate.app.inspect import traffic
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import all_reduce, collectives
from scripts.benchmarking import formula, shapes
from scripts.benchmarking.formula import ALL_GATHER, ALL_REDUCE, Collective

ALL = [Collective(ALL_REDUCE, 1200), Collective(ALL_GATHER, 100)]


def test_a_ring_passes_each_piece_on_twice():
    # All-reduce: 1200 bytes in 4 pieces of 300, each passed on 2 * 3 times. All-gather: 100 bytes
    # passed on 3 times.
    found = formula.ring(ALL, 4)
    assert found == formula.Figures(sent=6 * 300 + 3 * 100, received=2100, messages=6 + 3)


def test_a_worker_of_a_ring_never_sends_twice_what_it_has():
    # 2 * 999 / 1000 of 1200 bytes; but an all-gather's bytes grow with the workers.
    assert formula.ring(ALL[:1], 1000).sent == 2398  # 2397.6
    assert formula.ring(ALL[1:], 1000).sent == 99_900


def test_one_worker_moves_nothing():
    assert formula.ring(ALL, 1) == formula.Figures(0, 0, 0)


def test_what_only_a_run_can_size_still_has_messages():
    assert formula.ring([Collective(ALL_GATHER, None)], 3) == formula.Figures(0, 0, 2)


def test_servers_share_what_all_workers_move():
    # Each of 4 workers reads 800 bytes and sends 600; 2 servers have half of that each.
    found = formula.servers([400, 400], [300, 300], 4)
    assert found == formula.Figures(600, 800, 2, server_sent=1600, server_received=1200)


def test_messages_wait_for_one_another_and_bytes_for_the_link():
    # 9 messages of 1 ms, and 2100 bytes at a million in a second: 2.1 ms.
    network = formula.Network(1e6, 1e-3)
    assert formula.ring(ALL, 4).seconds(network) == pytest.approx(0.0111)


def test_the_busiest_link_is_waited_for():
    network = formula.Network(1e6, 1e-3)
    # A server sends 1600 bytes, then receives 1200; the workers' links have less to do.
    found = formula.servers([400, 400], [300, 300], 4)
    assert found.seconds(network) == pytest.approx(0.002 + 0.0028)
    # With more servers than workers the workers' links are the busiest: 800, then 600.
    found = formula.servers([200] * 4, [150] * 4, 2)
    assert found.seconds(network) == pytest.approx(0.002 + 0.0014)


def test_the_server_that_has_most_is_what_counts():
    # 3 workers, each of which reads 700 bytes of 800 from one server.
    found = formula.servers([700, 100], [], 3)
    assert found == formula.Figures(0, 800, 2, server_sent=2100, server_received=0)


def across():
    """Returns what joins the first of four workers with the others."""
    return collectives.CollectiveWorkers(collectives.Options(4, 0, "ring"), "/device:CPU:0")


def test_what_is_packed_is_one_collective():
    with tf.Graph().as_default() as graph:
        across().sum([tf.zeros([3, 2]), tf.zeros([2])])
        # 6 + 2 floats of 4 bytes.
        assert formula.collectives_of(graph.get_operations(), {}) == [Collective(ALL_REDUCE, 32)]


def test_slices_are_as_many_as_the_next_power_of_two():
    with tf.Graph().as_default() as graph:
        rows = tf1.placeholder(tf.float32, [5, 3])
        across().slices([tf.IndexedSlices(rows, tf.constant([4, 1, 0, 2, 2], tf.int64))])
        # How many there are (int32); 8 rows of 3 floats; 8 indices of 8 bytes.
        assert formula.collectives_of(graph.get_operations(), {}) == [
            Collective(ALL_GATHER, 4),
            Collective(ALL_GATHER, 8 * 3 * 4),
            Collective(ALL_GATHER, 8 * 8),
        ]


@pytest.mark.usefixtures("either_shapes")
def test_slices_of_a_batch_are_as_many_as_it_has_rows():
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensors((tf.zeros([7, 2], tf.int32), tf.zeros([7])))
        ids, _ = tf1.data.make_one_shot_iterator(data.unbatch().batch(7)).get_next()  # not read
        ids = tf.reshape(ids, [-1])
        rows = tf.gather(tf.zeros([9, 3]), ids)
        across().slices([tf.IndexedSlices(rows, ids)])
        assert [one.bytes for one in formula.collectives_of(graph.get_operations(), {})] == [
            4,
            None,
            None,
        ]
        counts = shapes.row_counts(graph, 7)
        # 14 ids, and so 16 rows.
        assert [one.bytes for one in formula.collectives_of(graph.get_operations(), counts)] == [
            4,
            192,
            64,
        ]


def test_collectives_of_gpus_move_what_a_ring_does():
    gpus = [f"/device:GPU:{number}" for number in range(4)]
    with tf.Graph().as_default():
        parts = []
        for gpu in gpus:
            with tf.device(gpu):
                parts.append([tf.zeros([20]), tf.zeros([4])])
        sums = all_reduce.nccl(parts, gpus)
        moved = traffic.transfers([tensor for row in sums for tensor in row])
    # Each passes 2 * 3 / 4 of 80 and of 16 bytes on to the next one.
    assert moved == [
        traffic.Transfer(gpus[k], gpus[(k + 1) % 4], tensors=2, bytes=120 + 24, unsized=0)
        for k in range(4)
    ]
