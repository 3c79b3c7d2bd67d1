"""Who is in a cluster, by `TF_CONFIG`."""

import json

import pytest

import replicate
from replicate import errors
from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster, membership
from tests.cluster import servers

_JOBS = {"worker": ["b:2", "c:3"], "chief": ["a:1"], "ps": ["p:4"]}
_WORKERS = {job: _JOBS[job] for job in ("chief", "worker")}


def test_the_chief_comes_first_and_parameter_servers_train_nothing():
    found = cluster.of({"cluster": _JOBS, "task": {"type": "worker", "index": 1}})
    tasks = [(task.job, task.index) for task in found.tasks]
    assert tasks == [("chief", 0), ("worker", 0), ("worker", 1)]
    assert found.addresses == ("a:1", "b:2", "c:3")
    assert (found.size, found.position, found.name) == (3, 2, "worker:1")
    assert found.spec() == _JOBS


def leader_of(found):
    """The task that gives the order of steps, as TensorFlow names it."""
    config = tf1.ConfigProto()
    membership.Membership(found).configure(config)
    return config.experimental.collective_group_leader


def test_the_first_worker_is_the_chief_where_there_is_none():
    found = cluster.of(
        {"cluster": {"worker": ["b:2", "c:3"]}, "task": {"type": "worker", "index": 0}}
    )
    assert found.position == 0
    assert found.name == "worker:0"
    assert leader_of(found) == "/job:chief/replica:0/task:0"  # the job that Estimators want
    assert found.spec() == {"chief": ["b:2"], "worker": ["c:3"]}
    assert found.as_environment()["task"] == {"type": "chief", "index": 0}


def test_an_evaluator_takes_no_part():
    found = cluster.of({"cluster": _JOBS, "task": {"type": "evaluator", "index": 0}})
    assert found.position is None
    assert found.name == "evaluator:0"
    assert found.is_chief


def test_tasks_know_the_servers():
    jobs = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["p:3", "q:4"]}
    found = cluster.of({"cluster": jobs, "task": {"type": "ps", "index": 1}})
    assert [task.address for task in found.servers] == ["p:3", "q:4"]
    assert (found.position, found.own) == (None, found.servers[1])
    with pytest.raises(errors.ConfigError, match="ps:0, ps:1"):
        cluster.of({"cluster": jobs, "task": {"type": "ps", "index": 2}})


def test_text_of_the_environment_is_read(monkeypatch):
    task = {"type": "worker", "index": "0"}  # SLURM scripts write numbers as text
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": _JOBS, "task": task}))
    assert cluster.of().position == 1


def test_without_a_cluster_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert (cluster.of().size, cluster.of().position) == (1, 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("{", "is JSON"),
        ({"cluster": {"worker": "a:1"}}, "list of addresses"),
        ({"cluster": {"workers": ["a:1"]}}, "a chief or a worker"),
        ({"cluster": {"worker": ["a:1", "b"]}}, r"host:port, .*; worker:1 has 'b'"),
        ({"cluster": {"worker": ["a:1"], "ps": ["a:1"]}}, "gives a:1 to worker:0 and ps:0"),
        ({"cluster": _JOBS, "task": "worker"}, "an object with type and index"),
        ({"cluster": _JOBS, "task": {"type": "worker", "index": 2}}, "worker:0, worker:1"),
        ({"cluster": _JOBS}, "by an index from 0"),
        ({"cluster": _JOBS, "task": {"type": "boss", "index": 0}}, "one of its cluster"),
        ({"cluster": _JOBS, "task": {"type": "worker", "index": "one"}}, "an index of its own"),
        ({"cluster": {"worker": ["a:99999"]}}, r"from 1 to 65535; worker:0 has 'a:99999'"),
    ],
)
def test_what_names_no_task_is_refused(given, text):
    with pytest.raises(errors.ConfigError, match=text):
        cluster.of(given)


def test_a_session_that_shows_other_tasks_or_has_no_target_is_refused(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    task = {"type": "worker", "index": 1}
    strategy = replicate.MultiWorkerStrategy(["/cpu:0"], {"cluster": _WORKERS, "task": task})
    config = strategy.run_config()
    assert (config.is_chief, config.master) == (False, "grpc://c:3")
    strategy.require_session(config)
    with pytest.raises(errors.ConfigError, match="device_filters"):
        strategy.require_session(strategy.run_config(session_config=tf1.ConfigProto()))
    with pytest.raises(errors.ConfigError, match=r"worker:1 has no master.*run_config"):
        strategy.require_session(replicate.estimator.RunConfig())


def test_a_process_listens_once():
    jobs = servers.free_addresses({"chief": 1, "worker": 2})
    own = cluster.of({"cluster": jobs, "task": {"type": "worker", "index": 1}})
    before = len(sessions.SERVERS)
    for num_cpus in (2, 1, 2):
        assert membership.Membership(own, num_cpus).start() == f"grpc://{jobs['worker'][1]}"
    assert len(sessions.SERVERS) == before + 1
    told = sessions.SERVERS[-1].server_def.default_session_config
    assert told.device_count["CPU"] >= 8
    assert not told.operation_timeout_in_ms  # which would bound sessions that wait for nobody
    more = told.device_count["CPU"] + 1
    with pytest.raises(errors.ClusterError, match=rf"worker:1 \(.* CPU devices, and {more} are"):
        membership.Membership(own, more).start()


def test_a_strategy_with_a_server_is_made_once(monkeypatch):
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": _WORKERS, "task": task}))
    replicated = replicate.replicate_model_fn(lambda features: None, strategy="multi_worker")
    chosen = replicated.strategy("train", None)
    assert isinstance(chosen, replicate.MultiWorkerStrategy)
    assert chosen.cluster.name == "worker:1"
    assert replicated.strategy("eval", None) is chosen


def test_workers_are_as_many_as_the_cluster_has():
    told = {"cluster": {"worker": ["a:1", "b:2", "c:3"]}, "task": {"type": "worker", "index": 1}}
    strategy = replicate.MultiWorkerStrategy(["/cpu:0", "/cpu:1"], told)
    assert strategy.num_workers == 3
    assert strategy.input_context.num_input_pipelines == 3
    assert strategy.input_context.input_pipeline_id == 1
    assert strategy.input_context.num_replicas_in_sync == 6


def test_a_worker_reduces_to_its_own_devices_unless_told_otherwise(fresh_graph):
    told = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    strategy = replicate.MultiWorkerStrategy(["/cpu:1", "/cpu:2"], told)
    value = replicate.strategy.PerDevice([tf.constant(1.0), tf.constant(2.0)])
    with strategy.scope():
        found = strategy.unwrap(strategy.reduce(tf.VariableAggregation.SUM, value))
    assert [part.device for part in found] == ["/device:CPU:1", "/device:CPU:2"]
