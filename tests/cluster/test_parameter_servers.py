"""A chief, a worker, two parameter servers and an evaluator, in processes of their own."""

import json
import re

import numpy as np
import pytest

from replicate import estimator, model_fn
from tests import exactness
from tests.cluster import acts, cases, once, servers, task, test_training

pytestmark = pytest.mark.thorough

PS = tuple(f"/job:ps/task:{n}/device:CPU:0" for n in range(servers.SERVERS))
OWN = "/job:{}/task:0/device:CPU:{}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What all tasks wrote in all acts."""

    def train(folder):
        cluster = servers.Cluster(folder)
        cluster.run(seconds=240)
        logs = "\n\n".join(f"{name}:\n{cluster.log(name)}" for name in cluster.codes)
        assert cluster.codes["chief:0"] == 0, logs
        assert cluster.codes["evaluator:0"] == 0, logs
        assert cluster.codes["worker:0"] == -9, logs  # killed in the last act but one
        return folder

    return once.made(tmp_path_factory, "servers", train)


def told(ran, act, job="chief"):
    return json.loads((ran / f"{act}-{job}.json").read_text())


def plain(places):
    """Returns devices by names without the scope that a case has for its dtype."""
    return {name.removeprefix("float64/"): devices for name, devices in places.items()}


def assert_same(found, expected, relative=1e-9):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, relative, 1e-11, err_msg=name)


def joined(found):
    """Returns variables whose parts are put together."""
    whole = {}
    for key in sorted(found):
        name = re.sub(r"\|part_\d+", "", key)
        whole[name] = np.concatenate([whole[name], found[key]]) if name in whole else found[key]
    return whole


# One worker alone.


OF_ONE_TOWER = {"one_tower": "static", "sliced_one_tower": "sliced"}


@pytest.mark.parametrize("name", [*acts.CASES, *OF_ONE_TOWER])
def test_one_worker_with_parameter_servers_is_one_device(ran, name):
    case = acts.CASES[OF_ONE_TOWER.get(name, name)]
    expected = test_training.one_device(case, "train")
    assert_same(joined(exactness.arrays(ran / f"{name}-chief.npz")), joined(expected))


def test_a_checkpoint_of_a_cluster_goes_on_in_a_cluster_and_on_one_device(ran):
    case = acts.CASES["adam_penalized"]
    once = dict(exactness.arrays(ran / "adam_penalized-chief.npz"))
    expected = test_training.one_device(case, "train", once)
    assert_same(exactness.arrays(ran / "restored-chief.npz"), expected)
    model = model_fn.replicate_model_fn(
        cases.model_of(case, estimator.EstimatorSpec), case.optimizer, ["/cpu:0"]
    )
    here = estimator.Estimator(model, str(ran / "adam_penalized"))
    here.train(lambda: cases.dataset(case, cases.batches_of(case, 0)))
    thrice = test_training.one_device(case, "train", expected)
    found = {
        name.replace("/", "|"): here.get_variable_value(name) for name in here.get_variable_names()
    }
    assert_same(found, thrice)


def test_variables_take_turns_and_slots_stay_beside_them(ran):
    places = plain(told(ran, "embedding_adam")["places"])
    # In the order in which they are made: table, w, b. The global step is the Estimator's.
    assert places["table"] == [PS[0]]
    assert places["w"] == [PS[1]]
    assert places["b"] == [PS[0]]
    for name in ("table", "w", "b"):
        assert places[f"{name}/Adam"] == places[f"{name}/Adam_1"] == places[name]
    assert places["global_step"] == ["/job:ps/task:0"]
    powers = {place for name in ("beta1_power", "beta2_power") for place in places[name]}
    assert powers < set(PS)


@pytest.mark.parametrize("act", ["sliced", "sliced_one_tower"])
def test_each_server_has_a_slice_of_each_variable(ran, act):
    places = plain(told(ran, act)["places"])
    for name in ("table", "table/Adagrad"):
        assert [places[f"{name}/part_{n}"] for n in range(2)] == [[PS[0]], [PS[1]]]


def test_parts_of_variables_take_turns_and_slots_stay_beside_them(ran):
    places = plain(told(ran, "parted")["places"])
    table = [f"parted/table/part_{n}" for n in range(2)]
    assert [places[name] for name in table] == [[PS[0]], [PS[1]]]
    assert [places[f"{name}/Momentum"] for name in table] == [[PS[0]], [PS[1]]]


def test_each_device_of_the_worker_computes(ran):
    own = {OWN.format("chief", n) for n in range(2)}
    assert own <= set(told(ran, "parted")["types"]["MatMul"])
    assert set(told(ran, "one_tower")["types"]["MatMul"]) == {OWN.format("chief", 0)}


def test_balanced_variables_go_where_the_fewest_bytes_are(ran):
    places = plain(told(ran, "adam_penalized")["places"])
    assert places["w"] == [PS[0]]  # 48 bytes
    assert places["b"] == [PS[1]]  # 16


def test_what_is_a_workers_own_stays_with_it(ran):
    places = told(ran, "accumulated")["places"]
    own = {name: devices for name, devices in places.items() if "gradient" in name}
    assert len(own) == 2  # of w and b
    assert all(devices == [OWN.format("chief", 0)] for devices in own.values())


def test_a_table_is_never_sent(ran):
    types = told(ran, "embedding_adam")["types"]
    assert set(types["ResourceGather"]) == {PS[0]}
    scattered = [kind for kind in types if kind.startswith("ResourceScatter")]
    assert scattered
    assert all(set(types[kind]) <= {PS[0]} for kind in scattered)


def test_the_same_variable_is_on_the_same_server_for_every_worker(ran):
    for act in ("async", "sync", "sync_inside"):
        there, here = (told(ran, act, job)["places"] for job in ("chief", "worker"))
        servers_of = lambda places: {  # noqa: E731
            name: devices for name, devices in places.items() if "ps" in devices[0]
        }
        assert servers_of(there) == servers_of(here)
        assert len(servers_of(there)) > 3


# Two workers.


def test_steps_of_all_workers_count(ran):
    both = [told(ran, "async", job) for job in ("chief", "worker")]
    steps = [one["steps"] for one in both]
    assert min(steps) > 0
    assert sum(steps) == max(one["step"] for one in both)  # at the end of the later one
    # One may be in a step, for which it has read the count, while the other makes all that are
    # left: it goes on for a second one.
    assert task.STEPS <= sum(steps) <= task.STEPS + 2, steps


def test_an_evaluator_evaluates_the_last_checkpoint_by_itself(ran):
    found = json.loads((ran / "evaluator.json").read_text())
    assert found["global_step"] >= task.STEPS
    assert found["loss"] < 0.5  # of the first, which is 1 + 4 E[x^2] > 2
    assert 1 < found["slope"] < 3


@pytest.mark.parametrize("name", ["sync", "sync_inside"])
def test_two_synchronous_workers_are_one_device(ran, name):
    case = acts.synchronous_case(name)
    expected = test_training.one_device(case, "train")
    for job in ("chief", "worker"):
        assert told(ran, name, job)["steps"] == task.SYNCHRONOUS
        found = exactness.arrays(ran / f"{name}-{job}.npz")
        assert_same(found, expected)


@pytest.mark.parametrize("name", acts.ENDS)
def test_a_worker_ends_with_the_chief_unless_that_was_stopped(ran, name):
    assert told(ran, name)["step"] >= task.CHIEFS
    is_stopped, _ = acts.ENDS[name]
    step = told(ran, name, "worker")["step"]
    assert step >= task.STEPS if is_stopped else step < task.MANY


# What goes wrong.


def test_a_worker_with_another_model_is_told_the_difference(ran):
    said = told(ran, "differing", "worker")["said"]
    assert said.startswith("ClusterError: All tasks of a cluster run the same model")
    assert "first (3,) float32 on /job:ps" in said


def test_a_parameter_server_that_comes_back_gets_the_last_checkpoint(ran):
    for job in ("chief", "worker"):
        found = told(ran, "recovering", job)
        assert found["step"] >= task.STEPS


def test_a_chief_goes_on_without_a_worker(ran):
    assert told(ran, "losing")["step"] == 30


def test_a_worker_that_others_wait_for_is_named(ran):
    found = told(ran, "losing_together")
    assert "chief:0 has lost worker:0 (127.0.0.1:" in found["said"]
    assert found["lasted"] < task.WAITED + 10


@pytest.mark.parametrize("act", ["lost_at_first", "lost"])
def test_a_parameter_server_that_is_gone_ends_the_others_in_time(ran, act):
    found = told(ran, act)
    assert found["said"].startswith("ClusterError: All tasks of a cluster must run")
    assert "ps:1" in found["said"]
    assert found["lasted"] < task.WAITED + 10
