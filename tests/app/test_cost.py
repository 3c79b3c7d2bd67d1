"""The formulas of what a step of a cluster moves, with numbers worked out by hand."""

import pytest

from replicate.app.inspect import cost

ALL = [cost.Collective(cost.ALL_REDUCE, 1200), cost.Collective(cost.ALL_GATHER, 100)]


def test_a_ring_passes_each_piece_on_twice():
    # All-reduce: 1200 bytes in 4 pieces of 300, each passed on 2 * 3 times. All-gather: 100 bytes
    # passed on 3 times.
    found = cost.ring(ALL, 4)
    assert found == cost.Figures(sent=6 * 300 + 3 * 100, received=2100, messages=6 + 3)


def test_a_worker_of_a_ring_never_sends_twice_what_it_has():
    # 2 * 999 / 1000 of 1200 bytes; but an all-gather's bytes grow with the workers.
    assert cost.ring(ALL[:1], 1000).sent == 2398  # 2397.6
    assert cost.ring(ALL[1:], 1000).sent == 99_900


def test_one_worker_moves_nothing():
    assert cost.ring(ALL, 1) == cost.Figures(0, 0, 0)


def test_what_only_a_run_can_size_still_has_messages():
    assert cost.ring([cost.Collective(cost.ALL_GATHER, None)], 3) == cost.Figures(0, 0, 2)


def test_servers_share_what_all_workers_move():
    # Each of 4 workers reads 800 bytes and sends 600; 2 servers have half of that each.
    found = cost.servers([400, 400], [300, 300], 4)
    assert found == cost.Figures(600, 800, 2, server_sent=1600, server_received=1200)


def test_messages_wait_for_one_another_and_bytes_for_the_link():
    # 9 messages of 1 ms, and 2100 bytes at a million in a second: 2.1 ms.
    network = cost.Network(1e6, 1e-3)
    assert cost.ring(ALL, 4).seconds(network) == pytest.approx(0.0111)


def test_the_busiest_link_is_waited_for():
    network = cost.Network(1e6, 1e-3)
    # A server sends 1600 bytes, then receives 1200; the workers' links have less to do.
    found = cost.servers([400, 400], [300, 300], 4)
    assert found.seconds(network) == pytest.approx(0.002 + 0.0028)
    # With more servers than workers the workers' links are the busiest: 800, then 600.
    found = cost.servers([200] * 4, [150] * 4, 2)
    assert found.seconds(network) == pytest.approx(0.002 + 0.0014)


def test_the_server_that_has_most_is_what_counts():
    # 3 workers, each of which reads 700 bytes of 800 from one server.
    found = cost.servers([700, 100], [], 3)
    assert found == cost.Figures(0, 800, 2, server_sent=2100, server_received=0)


def test_a_share_is_of_the_whole_step():
    assert cost.share(1.0, 3.0) == 0.25
    assert cost.share(0.0, 0.0) == 0.0
