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
