"""Which strategy a name means, on one machine and in a cluster with parameter servers."""

import json
from typing import get_args

import pytest

import replicate
from replicate import choices, errors, estimator
from replicate.app.config import catalog
from replicate.compat.tensorflow import tf, tf1

SERVERS = ["p:1", "q:2"]


@pytest.fixture
def config_of(monkeypatch):
    """Makes the RunConfig of a task."""

    def made(kind="worker", index=0, **more):
        jobs = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": SERVERS, **more}
        jobs = {job: addresses for job, addresses in jobs.items() if addresses}
        task = {"type": kind, "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
        return estimator.RunConfig()

    return made


def chosen(strategy, config, mode="train", devices=2):
    return choices.strategy_of(strategy, devices, mode, config)


@pytest.mark.parametrize("name", [None, "parameter_server", "round_robin"])
def test_variables_take_turns_on_the_servers(config_of, name):
    found = chosen(name, config_of("worker", 1))
    own = "/job:worker/task:1"
    assert found.worker_devices == (f"{own}/device:CPU:0", f"{own}/device:CPU:1")
    assert found.home == f"{own}/device:CPU:0"
    with tf.Graph().as_default(), found.scope():
        made = [tf1.get_variable(f"v{n}", [n + 1]) for n in range(3)]
        made.append(tf1.get_variable("big", [100]))
    turns = [f"/job:ps/task:{n}/device:CPU:0" for n in (0, 1, 0, 1)]
    assert [variable.device for variable in made] == turns


def test_balanced_is_by_bytes(config_of):
    found = chosen("balanced", config_of())
    with tf.Graph().as_default(), found.scope():
        made = [
            tf1.get_variable(name, [size]) for name, size in zip("abcd", (9, 2, 3, 4), strict=True)
        ]
    # 36 bytes on the first; 8, 12 and 16 on the second, which are as many before the last.
    assert [tf.DeviceSpec.from_string(v.device).task for v in made] == [0, 1, 1, 1]


def test_the_type_of_device_that_a_model_names_is_one_of_the_server(config_of):
    found = chosen(None, config_of("chief"))
    with tf.Graph().as_default(), found.scope():
        with tf.device("/cpu:0"):
            named = tf1.get_variable("named", [2])
        with tf.device("/job:ps/task:1"):
            placed = tf1.get_variable("placed", [2])
    assert named.device == "/job:ps/task:0/device:CPU:0"
    assert placed.device == "/job:ps/task:1/device:CPU:0"


def test_one_device_is_one_tower_of_the_worker(config_of):
    found = chosen("one_device", config_of("chief"))
    assert found.worker_devices == ("/job:chief/task:0/device:CPU:0",)


@pytest.mark.parametrize("mode", ["eval", "infer"])
@pytest.mark.parametrize("kind", ["chief", "worker"])
def test_what_a_worker_evaluates_it_evaluates_by_itself(config_of, mode, kind):
    config = config_of(kind)
    for strategy, devices in ((None, 2), (replicate.ParameterServerStrategy(2), None)):
        found = chosen(strategy, config, mode, devices)
        assert found.worker_devices == ("/device:CPU:0", "/device:CPU:1")
        assert found.parameter_devices == ("/device:CPU:0",)


def test_an_evaluator_has_no_servers(config_of):
    config = config_of("evaluator")
    for strategy, devices in ((None, 2), (replicate.ParameterServerStrategy(2), None)):
        found = chosen(strategy, config, "eval", devices)
        assert found.parameter_devices == ("/device:CPU:0",)


@pytest.mark.parametrize(
    "given",
    [
        "mirrored",
        "multi_worker",
        replicate.MirroredStrategy(2),
        replicate.LocalParameterServerStrategy(2, parameter_device="/cpu:1"),
        replicate.OneDeviceStrategy("/cpu:0"),
    ],
    ids=str,
)
def test_what_leaves_workers_alone_is_refused_beside_servers(config_of, given):
    devices = 2 if isinstance(given, str) else None
    with pytest.raises(errors.ConfigError, match=r"these keep the variables.*2 in its job ps"):
        chosen(given, config_of(), devices=devices)


def test_multi_worker_strategy_is_refused_beside_servers(config_of):
    config_of()
    with pytest.raises(errors.ConfigError, match="Use ParameterServerStrategy"):
        replicate.MultiWorkerStrategy(2)


def test_a_server_trains_nothing(config_of):
    with pytest.raises(errors.ConfigError, match="this process is ps:1"):
        chosen(None, config_of("ps", 1))


def test_unknown_roles_are_refused(config_of):
    with pytest.raises(errors.ConfigError, match="jobs are chief, master, worker, ps"):
        chosen(None, config_of(helper=["h:1"]))


def test_a_run_config_that_knows_no_cluster_is_refused(config_of, monkeypatch):
    config_of()
    strategy = replicate.ParameterServerStrategy(2)
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(errors.ConfigError, match="the RunConfig none"):
        chosen(strategy, estimator.RunConfig(), devices=None)


@pytest.mark.parametrize("options", [{"placement": "single"}, {"timeout": 0}])
def test_options_of_the_strategy_are_checked(options):
    with pytest.raises(ValueError, match="; got"):
        replicate.ParameterServerStrategy(2, **options)


def test_servers_have_no_eager_variables(config_of):
    config_of()
    strategy = replicate.ParameterServerStrategy(2)
    with pytest.raises(RuntimeError, match="runs eagerly"), strategy.scope():
        pass


def test_a_session_waits_for_no_other_worker(config_of):
    for kind, own in (("chief", "/job:chief"), ("worker", "/job:worker/task:0")):
        config_of(kind)
        session_config = tf1.ConfigProto()
        replicate.ParameterServerStrategy(2).configure(session_config)
        assert list(session_config.device_filters) == ["/job:ps", own]


def test_configs_know_each_strategy_that_has_a_name():
    assert set(get_args(catalog.Strategy)) == set(choices.NAMED)
