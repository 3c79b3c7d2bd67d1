"""How a task of a cluster with parameter servers finds the others."""

import logging
import socket

import pytest

from replicate import errors
from replicate.strategy.cluster import cluster, servers


def test_somebody_who_listens_is_found():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert not servers.is_listening(address)
        listening.listen()
        assert servers.is_listening(address)


def test_a_server_that_does_not_come_is_named():
    with socket.socket() as held:  # a port on which nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        jobs = {"chief": ["a:1"], "ps": [address]}
        found = cluster.of({"cluster": jobs, "task": {"type": "chief", "index": 0}})
        with pytest.raises(errors.ClusterError, match=rf"waited 0.1 seconds for ps:0 at {address}"):
            servers.Part(found).wait_for_servers(0.1)


def test_who_is_asked_to_stop_waits_for_nobody():
    with pytest.raises(errors.ClusterError, match="was stopped, and the chief has not come"):
        servers.wait(lambda: False, "the chief", 600, is_stopping=lambda: True)


def test_waiting_says_so(caplog, monkeypatch):
    monkeypatch.setattr(servers, "_LONG", 0.0)
    answers = iter([False, False, True])
    with caplog.at_level(logging.INFO, "replicate"):
        servers.wait(lambda: next(answers), "the chief", 60)
    assert "Still waiting for the chief" in caplog.text


def test_tasks_know_the_servers():
    jobs = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["p:3", "q:4"]}
    found = cluster.of({"cluster": jobs, "task": {"type": "ps", "index": 1}})
    assert found.servers == ("p:3", "q:4")
    assert (found.position, found.own) == (None, ("ps", 1))
    assert found.spec_with_servers() == jobs
    with pytest.raises(errors.ConfigError, match="ps:0, ps:1"):
        cluster.of({"cluster": jobs, "task": {"type": "ps", "index": 2}})
