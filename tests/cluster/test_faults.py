"""A worker that is gone: the others end in time, and say who it was; then all go on."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.cluster import cases, processes

WAITED = 6  # seconds that a worker waits for another one


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder, and what became of two workers of which the second was killed in step 5 of 8."""
    folder = tmp_path_factory.mktemp("killed")
    settings = {"WAITED": str(WAITED), "KILLED": "1", "TOWERS": "1"}
    return folder, processes.run(folder, ["lasting"], settings, seconds=60, is_patient=True)


@pytest.fixture(scope="module")
def resumed(killed):
    """What became of the same workers, started again with an evaluator; the second is late."""
    folder, _ = killed
    settings = {"NAMED": "yes", "LATE": "1", "TOWERS": "1"}
    return processes.run(folder, ["lasting"], settings, seconds=90, has_evaluator=True)


def test_who_loses_a_worker_ends_in_time_and_names_it(killed):
    _, ended = killed
    assert ended.codes == [1, -9]
    assert ended.lasted[0] - ended.lasted[1] < WAITED + 10
    said = ended.logs[0]
    assert "worker:0 has lost worker:1 (127.0.0.1:" in said
    assert "go on from the last checkpoint" in said


def test_a_late_worker_is_waited_for_by_name(resumed):
    assert resumed.codes == [0, 0, 0], "\n".join(resumed.logs)
    assert "worker:0 waits for worker:1 (127.0.0.1:" in resumed.logs[0]


def test_who_is_started_again_ends_as_if_nothing_had_been(killed, resumed):
    folder, _ = killed
    expected = undisturbed()
    for worker in range(2):
        found = np.load(folder / f"lasting-{worker}.npz")
        assert found["global_step of tower 0"] == 8
        for name, value in expected.items():
            np.testing.assert_allclose(found[f"{name} of tower 0"], value, 1e-9, 1e-11)


def test_the_evaluator_evaluates_the_last_checkpoint(killed, resumed):
    assert resumed.codes[2] == 0  # it ends when it has evaluated step 8
    assert list((killed[0] / "lasting" / "eval").glob("events.out.tfevents.*"))


def undisturbed() -> dict:
    """What one device makes of eight steps on both workers' rows."""
    case = cases.STEADY
    with tf.Graph().as_default():
        dataset = cases.dataset(case, cases.batches_of_all(case)).repeat(8)
        features, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
        with tf1.variable_scope(case.dtype.name):
            update = case.optimizer().minimize(case.loss(features, labels))
        variables = {v.op.name.replace("/", "|"): v for v in tf1.global_variables()}
        with tf1.Session(config=exactness.session_config()) as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(8):
                session.run(update)
            return session.run(variables)
