"""A chief and a worker whose variables are on parameter servers, each splitting its own batches."""

import json
import os
import pathlib
import time

import numpy as np
import pytest

from tests import exactness
from tests.cluster import forks, once, servers
from tests.splitting import estimators, servers_acts

PS = [f"/job:ps/task:{n}/device:CPU:0" for n in range(2)]
OWN = [f"/job:chief/task:0/device:CPU:{n}" for n in range(2)]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
]


def run(folder):
    """Runs all tasks until those that train have ended; returns what they wrote."""
    script = pathlib.Path(__file__).with_name("servers_task.py")
    addresses = servers.free_addresses({"ps": 2, "chief": 1, "worker": 1})
    running = {}
    try:
        for job, number in (("ps", 0), ("ps", 1), ("chief", 0), ("worker", 0)):
            config = {"cluster": addresses, "task": {"type": job, "index": number}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
            log = folder / f"{job}-{number}.log"
            running[job, number] = forks.Forked(script, [str(folder)], environment, log)
        training = [running["chief", 0], running["worker", 0]]
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and any(each.poll() is None for each in training):
            if any(each.poll() for each in training):
                break
            time.sleep(0.05)
        codes = [each.poll() for each in training]
    finally:
        for each in running.values():
            each.kill()
            each.wait()
    logs = [(folder / f"{job}-0.log").read_text()[-5000:] for job in ("chief", "worker")]
    assert codes == [0, 0], "\n".join(logs)
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the tasks wrote."""
    return once.made(tmp_path_factory, "split-servers", run)


def told(ran, name, job="chief"):
    return json.loads((ran / f"{name}-{job}.json").read_text())


def values(ran, name, job="chief"):
    found = exactness.arrays(ran / f"{name}-{job}.npz")
    return {key.replace("|", "/"): found[key] for key in found}


REFERENCES = {
    "momentum": lambda: estimators.stepping(
        servers_acts.CASES["momentum"]["optimizer_fn"], servers_acts.model_of("momentum")
    ),
    "inside": lambda: servers_acts.model_of("inside"),
    "sliced": lambda: estimators.stepping(
        servers_acts.CASES["sliced"]["optimizer_fn"], servers_acts.model_of("sliced")
    ),
    "one": lambda: servers_acts.model_of("inside"),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_worker_that_splits_its_batch_is_one_device(ran, tmp_path, name):
    made = estimators.one(REFERENCES[name](), tmp_path)
    expected = estimators.outcomes(made, modes=("train",))["variables"]
    found = {}
    for key, value in sorted(values(ran, name).items()):
        whole = "/".join(part for part in key.split("/") if not part.startswith("part_"))
        found[whole] = np.concatenate([found[whole], value]) if whole in found else value
    estimators.require_same(expected, found)


def test_each_server_has_a_slice_of_each_variable(ran):
    places = told(ran, "sliced")["places"]
    for name in ("table", "table/Adagrad"):
        assert [places[f"{name}/part_{n}"] for n in range(2)] == [PS[:1], PS[1:]]


def test_parts_of_variables_take_turns_on_the_servers(ran):
    for name in ("momentum", "inside", "one"):
        places = told(ran, name)["places"]
        assert [places[f"parted/table/part_{n}"] for n in range(2)] == [PS[:1], PS[1:]]
        slots = {key: place for key, place in places.items() if "/part_0/" in key}
        assert slots
        for key, place in slots.items():
            assert place == places[key[: key.index("/part_0/") + len("/part_0")]]


def test_each_device_of_the_worker_computes(ran):
    operations = told(ran, "momentum")["operations"]
    assert set(OWN) <= set(operations["MatMul"])
    assert set(told(ran, "one")["operations"]["MatMul"]) == {OWN[0]}


def test_what_is_gathered_is_the_workers_own(ran):
    places = told(ran, "accumulated")["places"]
    own = {name: place for name, place in places.items() if name.endswith(("/gradient", "/rows"))}
    assert own
    assert all(place == OWN[:1] for place in own.values())


def test_two_workers_share_what_each_splits(ran):
    # Rate 0.5, and the gradient of a mean of rows x w is the mean of the rows.
    batches = [*estimators.batches(servers_acts.SIZES[0])]
    batches += estimators.batches(servers_acts.SIZES[1])
    expected = -0.5 * sum(features["x"].mean(0) for features, _ in batches)
    for job in ("chief", "worker"):
        assert told(ran, "together", job)["steps"] == 3
        np.testing.assert_allclose(values(ran, "together", job)["w"][:, 0], expected, 1e-9)
