"""Which tasks of a cluster answer."""

import contextlib
import socket
import threading

import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster, presence


@contextlib.contextmanager
def listening(word=b"!"):
    """An address at which somebody says a word to who comes, and closes; None: says nothing."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        speaker = threading.Thread(target=speak, args=(found, word), daemon=True)
        speaker.start()
        try:
            yield f"127.0.0.1:{found.getsockname()[1]}"
        finally:
            found.shutdown(socket.SHUT_RDWR)
            speaker.join()


def speak(listener, word):
    with contextlib.ExitStack() as kept, contextlib.suppress(OSError):  # the listener is closed
        while True:
            connection = kept.enter_context(listener.accept()[0])
            if word is not None:
                connection.sendall(word)
                connection.close()


def three(second, third):
    """Three workers, of whom this process is the first."""
    jobs = {"worker": ["127.0.0.1:1", second, third]}
    return cluster.of({"cluster": jobs, "task": {"type": "worker", "index": 0}})


def gone():
    """An address at which nobody answers any more."""
    with listening() as address:
        return address


def test_who_does_not_answer_is_silent():
    with listening() as address:
        assert presence.silent(three(address, gone())) == [2]


def test_who_closes_without_a_word_is_silent_and_who_stands_still_is_not():
    with listening(b"") as ended, listening(None) as still:
        assert presence.silent(three(ended, still)) == [1]


def test_an_error_names_who_is_lost():
    lost = gone()
    with listening() as address:
        found = presence.lost(three(address, lost), ValueError("timed out"), 5)
    assert isinstance(found, errors.ClusterError)
    assert f"worker:0 has lost worker:2 ({lost})" in str(found)
    assert address not in str(found)
    assert "'timed out'" in str(found)


def test_an_error_says_that_all_answer():
    with listening() as one, listening() as two:
        found = str(presence.lost(three(one, two), ValueError("timed out"), 5))
    assert f"All still answer (worker:1 ({one}), worker:2 ({two}))" in found


def test_of_several_errors_the_first_is_told():
    text = "Graph execution error:\n\n2 root error(s) found.\n  (0) DEADLINE_EXCEEDED: too late\n"
    found = presence.lost(three("nowhere:1", "nowhere:2"), ValueError(text), 5, [1])
    assert "TensorFlow says: '(0) DEADLINE_EXCEEDED: too late'" in str(found)


def test_who_is_asked_to_stop_waits_for_nobody():
    lost = gone()
    with listening() as address, pytest.raises(errors.ClusterError, match="was stopped, and wor"):
        presence.wait_for_all(three(address, lost), 600, lambda: True)


def test_who_does_not_come_in_time_is_named():
    lost = gone()
    with listening() as address, pytest.raises(errors.ClusterError, match="worker:2") as raised:
        presence.wait_for_all(three(address, lost), 0.3)
    assert lost in str(raised.value)


def test_who_comes_late_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(presence, "_FIRST_WORD", 0.0)
    with listening() as address, socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        there = f"127.0.0.1:{late.getsockname()[1]}"
        timer = threading.Timer(0.5, late.listen)
        timer.start()
        presence.wait_for_all(three(address, there), 30)
        timer.join()
    assert f"worker:0 waits for worker:2 ({there})" in caplog.text


def test_what_tensorflow_says_of_a_lost_task_becomes_ours():
    def run():
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    found = presence.watched(run, three(gone(), gone()), 5, (tf.errors.UnavailableError,))
    with pytest.raises(errors.ClusterError, match=r"has lost worker:1 .*worker:2 .*Socket closed"):
        found()


@pytest.mark.parametrize(
    ("node", "kind", "becomes"),
    [
        ("replicate_workers/CollectiveReduceV2_1", tf.errors.InternalError, errors.ClusterError),
        ("replicate_workers/CollectiveReduceV2_1", tf.errors.OutOfRangeError, None),
        ("dense/MatMul", tf.errors.InternalError, None),
    ],
)
def test_where_workers_meet_any_error_is_a_lost_worker(node, kind, becomes):
    def run():
        raise kind(tf1.NodeDef(name=node), None, "Delete called on non-empty BufRendezvous")

    with listening() as one, listening() as two:
        found = presence.watched(run, three(one, two), 5, (tf.errors.UnavailableError,))
        with pytest.raises(becomes or kind, match="BufRendezvous") as raised:
            found()
    assert becomes is None or "runs another step, as by a session.run" in str(raised.value)
