"""The next session that a thread makes is watched, once."""

import threading

import pytest

from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1

OWN = {name: getattr(tf1.train.SessionManager, name) for name in sessions._METHODS}


def made(is_chief: bool = True) -> None:
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        creator = tf1.train.ChiefSessionCreator() if is_chief else tf1.train.WorkerSessionCreator()
        creator.create_session().close()


def require_own() -> None:
    assert {name: getattr(tf1.train.SessionManager, name) for name in OWN} == OWN


def test_the_next_session_is_made_by_what_watches_it():
    seen = []

    def watch(make):
        seen.append(make)
        return make

    sessions.watch_next(watch)
    made()
    made()
    assert seen == [OWN["prepare_session"]]
    require_own()


def test_what_a_watch_raises_is_raised_and_leaves_nothing():
    def watch(make):
        def fail(*args, **kwargs):
            raise ValueError("seen")

        return fail

    sessions.watch_next(watch)
    with pytest.raises(ValueError, match="seen"):
        made()
    made()
    require_own()


def test_another_threads_sessions_are_its_own():
    seen = []

    def watch(make):
        seen.append(make)
        return make

    sessions.watch_next(lambda make: make)
    sessions.watch_next(watch)  # the last one counts
    other = threading.Thread(target=made)
    other.start()
    other.join()
    assert not seen
    made()
    assert len(seen) == 1
    require_own()


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
