"""Which tasks of a cluster answer, who is waited for, and who is lost."""

import contextlib
import logging
import socket
import threading
import time
import types

import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster, membership

SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # the first frame of HTTP/2: its kind is 4, it has no bytes


@contextlib.contextmanager
def listening(word=SETTINGS):
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


def three(second, third, timeout=5.0, is_stopping=None):
    """Three workers, of whom this process is the first."""
    jobs = {"worker": ["127.0.0.1:1", second, third]}
    found = cluster.of({"cluster": jobs, "task": {"type": "worker", "index": 0}})
    return membership.Membership(found._replace(is_stopping=is_stopping), timeout=timeout)


def silent(member):
    """The names of the others that do not answer."""
    return [task.name for task in membership.silent(member.cluster.others)]


def wait_for_others(member):
    member.wait_for(member.cluster.others)


def gone():
    """An address at which nobody answers any more."""
    with listening() as address:
        return address


def test_who_does_not_answer_is_silent():
    with listening() as address:
        assert silent(three(address, gone())) == ["worker:2"]


def test_who_closes_without_a_word_is_silent_and_who_stands_still_is_not():
    with listening(b"") as ended, listening(None) as still:
        assert silent(three(ended, still)) == ["worker:1"]


def test_an_error_names_who_is_lost():
    lost = gone()
    with listening() as address:
        found = three(address, lost).lost(ValueError("timed out"))
    assert isinstance(found, errors.ClusterError)
    assert f"worker:0 has lost worker:2 ({lost})" in str(found)
    assert address not in str(found)
    assert "'timed out'" in str(found)


def test_an_error_says_that_all_answer():
    with listening() as one, listening() as two:
        found = str(three(one, two).lost(ValueError("timed out")))
    assert f"All still answer (worker:1 ({one}), worker:2 ({two}))" in found


def test_who_is_asked_to_stop_waits_for_nobody():
    lost = gone()
    with listening() as address, pytest.raises(errors.ClusterError, match="was stopped, and wor"):
        wait_for_others(three(address, lost, 600, lambda: True))


def test_who_does_not_come_in_time_is_named():
    lost = gone()
    with listening() as address, pytest.raises(errors.ClusterError, match="worker:2") as raised:
        wait_for_others(three(address, lost, 0.3))
    assert lost in str(raised.value)


def test_who_comes_late_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(membership, "_FIRST_WORD", 0.0)
    with listening() as address, socket.socket() as late, contextlib.ExitStack() as leave:
        late.bind(("127.0.0.1", 0))
        there, come_in = f"127.0.0.1:{late.getsockname()[1]}", []

        def come(seconds):
            if "worker:0 waits" in caplog.text and not come_in:
                come_in.append(late.listen())
                speaker = threading.Thread(target=speak, args=(late, SETTINGS), daemon=True)
                leave.callback(speaker.join)
                leave.callback(late.shutdown, socket.SHUT_RDWR)
                speaker.start()

        clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=come)
        monkeypatch.setattr(membership, "time", clock)
        wait_for_others(three(address, there, 30))
    assert f"worker:0 waits for worker:2 ({there})" in caplog.text


def test_what_tensorflow_says_of_a_lost_task_becomes_ours():
    def run():
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    found = three(gone(), gone()).watched(run)
    with pytest.raises(errors.ClusterError, match=r"has lost worker:1 .*worker:2 .*Socket closed"):
        found()


@pytest.mark.parametrize("kind", [tf.errors.CancelledError, tf.errors.InternalError])
def test_an_error_of_several_causes_is_a_lost_worker_where_one_is_silent(kind):
    def run():
        raise kind(None, None, "Step was cancelled")

    with listening() as one, pytest.raises(errors.ClusterError, match=r"has lost worker:2 .*Step"):
        three(one, gone()).watched(run)()


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
        found = three(one, two).watched(run)
        with pytest.raises(becomes or kind, match="BufRendezvous") as raised:
            found()
    assert becomes is None or "runs another step, as by a session.run" in str(raised.value)


def with_servers(address, timeout=600.0, is_stopping=None):
    """The chief of a cluster with a parameter server."""
    jobs = {"chief": ["a:1"], "ps": [address]}
    found = cluster.of({"cluster": jobs, "task": {"type": "chief", "index": 0}})
    return membership.Membership(found._replace(is_stopping=is_stopping), timeout=timeout)


def test_a_server_that_does_not_come_is_named():
    address = gone()
    member = with_servers(address, 0.1)
    with pytest.raises(errors.ClusterError, match=rf"waited 0 s for ps:0 \({address}\)"):
        member.wait_for(member.cluster.servers)


def test_who_is_asked_to_stop_waits_for_no_chief():
    with pytest.raises(errors.ClusterError, match="was stopped, and the chief had not come"):
        with_servers("p:1", is_stopping=lambda: True).wait_until(lambda: "the chief")


@pytest.mark.parametrize("lost", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_of_a_lost_task_a_session_beside_servers_recovers(lost):
    def run():
        raise lost(None, None, "Socket closed")

    with pytest.raises(lost):
        with_servers(gone()).watched(run)()


def test_waiting_says_so(caplog, monkeypatch):
    monkeypatch.setattr(membership, "_FIRST_WORD", 0.0)
    answers = iter(["the chief", "the chief", ""])
    with caplog.at_level(logging.INFO, "replicate"):
        with_servers("p:1", 60).wait_until(lambda: next(answers))
    assert "chief:0 waits for the chief, for" in caplog.text
