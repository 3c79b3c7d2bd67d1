"""What may be wrong with a cluster is told alike with parameter servers and without them."""

import functools
import json
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

import replicate
from replicate import devices, errors, estimator
from replicate.compat import estimator as estimators
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster, manifest, membership
from tests.cluster import servers

TASK = {"type": "chief", "index": 0}


class Kind(NamedTuple):
    """A kind of cluster.

    Attributes:
        strategy: Its strategy.
        other: The job of a task that the chief waits for.
        towers: How many the chief has.
    """

    strategy: Any
    other: str
    towers: int = 2

    def jobs(self, own="127.0.0.1:1", other="127.0.0.1:2"):
        """The addresses of the cluster."""
        return {"chief": [own], self.other: [other]}

    def member(self, task=TASK, timeout=0.2, **addresses):
        """This process, as the chief."""
        found = cluster.of({"cluster": self.jobs(**addresses), "task": task})
        return membership.Membership(found, timeout=timeout)


KINDS = {
    "workers": Kind(replicate.MultiWorkerStrategy, "worker"),
    "servers": Kind(replicate.ParameterServerStrategy, "ps"),
    "servers of one tower": Kind(replicate.ParameterServerStrategy, "ps", 1),
}
kinds = pytest.mark.parametrize("kind", list(KINDS.values())[:2], ids=list(KINDS)[:2])
all_kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture(autouse=True)
def same_environment(monkeypatch):
    """What a strategy with servers sets is set back."""
    monkeypatch.setenv("GRPC_FAIL_FAST", "true")


# Addresses.


@kinds
@pytest.mark.parametrize(
    ("task", "addresses", "text"),
    [
        (TASK, {"own": "127.0.0.1:99999"}, "a port from 1 to 65535; chief:0 has '127.0.0.1:99999'"),
        (TASK, {"other": "127.0.0.1:99999"}, "a port from 1 to 65535"),
        (TASK, {"own": "a:1", "other": "a:1"}, "gives a:1 to chief:0 and"),
        ({"type": "chief"}, {}, "Give each task an index of its own"),
        ({"type": "chief", "index": 1}, {}, "Check type and index"),
    ],
)
def test_a_task_without_an_address_of_its_own_is_refused(kind, task, addresses, text):
    with pytest.raises(errors.ConfigError, match=text):
        kind.member(task, **addresses)


LISTENING = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as found:
    print(found.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def taken():
    """An address at which another process listens, and says nothing."""
    other = subprocess.Popen(
        [sys.executable, "-c", LISTENING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:  # closes its stdin, and waits for its end
        yield f"127.0.0.1:{other.stdout.readline().strip()}"


@kinds
def test_an_address_that_another_process_has_is_no_server_of_ones_own(kind, taken):
    with pytest.raises(errors.ClusterError, match=f"chief:0 could not, on {taken} "):
        kind.member(own=taken).start()


def started_by_tensorflow(kind, **options):
    """This process as the chief, which has a server that no strategy has started."""
    jobs = servers.free_addresses({"chief": 1, kind.other: 1})
    devices.settle_sessions()
    tf.distribute.Server(jobs, job_name="chief", task_index=0, **options)
    return membership.Membership(cluster.of({"cluster": jobs, "task": TASK}), 2)


def test_a_server_that_tensorflow_has_started_suits_parameter_servers_alone():
    member = started_by_tensorflow(KINDS["servers"])
    assert member.start() == f"grpc://{member.cluster.own.address}"
    with pytest.raises(errors.ClusterError, match="Call replicate"):
        started_by_tensorflow(KINDS["workers"]).start()


@kinds
def test_a_server_that_was_told_fewer_devices_is_refused(kind):
    member = started_by_tensorflow(kind, config=tf1.ConfigProto(device_count={"CPU": 1}))
    with pytest.raises(errors.ClusterError, match="shows 1 CPU devices, and 2 are named"):
        member.start()


@kinds
def test_who_does_not_come_is_named(kind):
    member = kind.member()
    with pytest.raises(errors.ClusterError, match=rf"s for {kind.other}:0 \(127.0.0.1:2\)"):
        member.wait_for([*member.cluster.others, *member.cluster.servers])


@kinds
def test_a_program_that_is_no_task_is_waited_for_in_vain(kind, taken, monkeypatch):
    monkeypatch.setattr(membership, "_ANSWER", 0.1)
    member = kind.member(other=taken)
    with pytest.raises(errors.ClusterError, match=rf"s for {kind.other}:0 \({taken}\).*no other"):
        member.wait_for([*member.cluster.others, *member.cluster.servers])


# What all tasks must have alike.


def model(features, labels, mode, shape=(3, 1), name="w", dtype=tf.float32):
    """A linear model."""
    w = tf1.get_variable(name, shape, dtype)
    total = tf.reduce_sum(tf.cast(w, tf.float32))
    loss = tf.reduce_mean(tf.square(features @ tf.ones([3, 1]) * total - labels))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def other_model(features, labels, mode):
    """The same, by another name."""
    return model(features, labels, mode)


def of_two(features, labels, mode, names=("v", "w")):
    """A model whose variables have one shape."""
    first, second = (tf1.get_variable(name, []) for name in names)
    loss = tf.reduce_mean(tf.square(features * first + second - labels))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def descend(rate=0.1):
    """The usual optimizer."""
    return tf1.train.GradientDescentOptimizer(rate)


def record_of(kind, monkeypatch, given=model, optimizer=descend, config=None, **options):
    """Returns what a task that builds a model compares with the others, whom it does not meet."""
    found = []
    with monkeypatch.context() as patch, tf.Graph().as_default():
        patch.setattr(membership.Membership, "listen", lambda self: "grpc://here")
        patch.setattr(membership.Membership, "wait_for", lambda self, tasks: None)
        patch.setattr(manifest, "compare", lambda member, options, own: found.append(own))
        towers = [f"/cpu:{number}" for number in range(kind.towers)]
        own = {"cluster": kind.jobs(), "task": TASK}
        strategy = kind.strategy(towers, own, compared=config or {"seed": 1})
        run = estimators.run_config(strategy.cluster.as_environment())
        tf1.train.create_global_step()
        dataset = tf.data.Dataset.from_tensors((np.ones([3], np.float32), np.float32([1])))
        features, labels = tf1.data.make_one_shot_iterator(dataset.repeat(4).batch(4)).get_next()
        replicated = replicate.replicate_model_fn(given, optimizer, strategy=strategy, **options)
        built = replicated(features, labels, "train", config=run).scaffold.built()
        if kind.other == "worker":
            strategy.agree(built)
            (built,) = found
    return json.loads(json.dumps(built))


def different(function, **options):
    """Returns a function of the same name with other arguments."""
    return functools.wraps(function)(functools.partial(function, **options))


DIFFERENCES = {
    "clip": ({"clip_global_norm": 0.5}, "clip_global_norm=0.5"),
    "accumulation": ({"accumulate_steps": 2}, "accumulate_steps=2"),
    "random numbers": ({"random_numbers": "one_device"}, "random_numbers=one_device"),
    "model": ({"given": other_model}, "other_model"),
    "shape": ({"given": different(model, shape=(4, 1))}, r"the variable w\. .*w \(4, 1\) float32"),
    "dtype": ({"given": different(model, dtype=tf.float64)}, r"w \(3, 1\) float64"),
    "name": ({"given": different(model, name="u")}, "the variable w.* has none"),
    "config": ({"config": {"seed": 2}}, "the config's seed. .* has 2"),
}


@all_kinds
def test_tasks_that_differ_are_told_in_what(kind, monkeypatch):
    record = functools.partial(record_of, kind, monkeypatch)
    usual = record()
    assert manifest.difference({"chief:0": usual, "worker:0": record()}) is None
    for options, text in DIFFERENCES.values():
        with pytest.raises(errors.ClusterError, match=text):
            manifest.require_alike({"chief:0": usual, "worker:0": record(**options)})


@pytest.mark.parametrize(
    ("package", "attribute"),
    [
        (replicate, "__version__"),
        (manifest.tf, "__version__"),
        (manifest.np, "__version__"),
        (manifest.platform, "python_version"),
    ],
    ids=["replicate", "TensorFlow", "numpy", "Python"],
)
def test_versions_are_compared(package, attribute, monkeypatch):
    usual = manifest.of({})
    version = (lambda: "0.0.1") if attribute == "python_version" else "0.0.1"
    monkeypatch.setattr(package, attribute, version)
    said = manifest.difference({"a": usual, "b": manifest.of({})})
    assert "b has 0.0.1" in said


@all_kinds
def test_each_thing_of_the_record_can_differ(kind, monkeypatch):
    usual = record_of(kind, monkeypatch, optimizer=tf1.train.AdamOptimizer)
    assert len(usual) > 8
    for name in usual:
        said = manifest.difference({"a": usual, "b": {**usual, name: "another"}})
        assert said.startswith(f"{name}. ")
        assert "b has another" in said


def test_workers_that_join_gradients_have_variables_in_one_order(monkeypatch):
    turned = different(of_two, names=("w", "v"))
    records = [record_of(KINDS["workers"], monkeypatch, one) for one in (of_two, turned)]
    said = manifest.difference(dict(zip("ab", records, strict=True)))
    assert said.startswith("number 2 of the variables. a has v; b has w")
