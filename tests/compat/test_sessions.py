"""Runs of a graph are watched, and bounded."""

import threading

import pytest

from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1


def test_runs_of_one_graph_are_watched_and_no_others():
    seen = []

    def watch(run):
        seen.append(run)
        return run

    watched, free = tf.Graph(), tf.Graph()
    for graph in (watched, free):
        with graph.as_default():
            one = tf.constant(1.0)
        sessions.watch_runs(watched, watch)  # once, however often it is asked for
        with tf1.Session(graph=graph) as session:
            assert session.run(one) == 1.0
    assert len(seen) == 1


def waiting(graph: tf.Graph) -> tf.Tensor:
    """Returns what comes when the queue of a graph gets it from another thread."""
    with graph.as_default():
        queue = tf1.FIFOQueue(1, [tf.float32], [[]], shared_name="awaited")
        queue.enqueue(1.0, name="bring")
        return queue.dequeue()


@pytest.mark.parametrize("has_server", [False, True])
def test_runs_of_one_graph_are_bounded_and_no_others(has_server):
    target = tf.distribute.Server.create_local_server().target if has_server else ""
    bounded, free = tf.Graph(), tf.Graph()
    never, late = waiting(bounded), waiting(free)
    sessions.bound_runs(bounded, 0.1)
    with tf1.Session(target, bounded) as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(never)
        own = tf1.RunOptions(timeout_in_ms=60_000)
        timer = threading.Timer(0.3, session.run, ["bring"])
        timer.start()
        assert session.run(never, options=own) == 1.0
        timer.join()
    with tf1.Session(target, free) as session:
        timer = threading.Timer(0.3, session.run, ["bring"])
        timer.start()
        assert session.run(late) == 1.0
        timer.join()


@pytest.mark.parametrize("has_server", [False, True])
@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_a_bound_may_be_longer_than_any_run(seconds, has_server):
    target = tf.distribute.Server.create_local_server().target if has_server else ""
    graph = tf.Graph()
    fetched = waiting(graph)
    sessions.bound_runs(graph, seconds)
    with tf1.Session(target, graph) as session:
        timer = threading.Timer(0.1, session.run, ["bring"])
        timer.start()
        assert session.run(fetched) == 1.0
        timer.join()


def test_of_several_bounds_the_shortest_counts():
    graph = tf.Graph()
    never = waiting(graph)
    for seconds in (60.0, 0.2, 30.0):
        sessions.bound_runs(graph, seconds)
    with tf1.Session(graph=graph) as session, pytest.raises(tf.errors.DeadlineExceededError):
        session.run(never)
