"""A worker that is gone: the others end in time, and say who it was; then all go on."""

import pytest

from tests.cluster import cases, once, processes, test_training

pytestmark = pytest.mark.thorough

WAITED = 6  # seconds that a worker waits for another one
SETTINGS = {"WAITED": str(WAITED), "TOWERS": "1"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder, and what became of three workers of which the third was killed at last.

    It was in the fifth of eight steps.
    """
    works = [*cases.OF_THREE, "lasting"]
    settings = {**SETTINGS, "KILLED": "2"}

    def train(folder):
        return folder, processes.run(folder, works, settings, is_patient=True, number=3)

    return once.made(tmp_path_factory, "three_workers", train)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, killed):
    """What became of the same workers, started again; the chief is killed in other work.

    The second is late; an evaluator is there, too.
    """
    settings = {**SETTINGS, "WAITED": "15", "LATE": "1", "LOST": "0"}
    works = ["lasting", "losing"]

    def train(_):
        options = {"is_patient": True, "number": 3, "has_evaluator": True}
        return processes.run(killed[0], works, settings, **options)

    return once.made(tmp_path_factory, "three_workers_again", train)


@pytest.mark.parametrize("name", cases.OF_THREE)
def test_three_workers_of_one_tower_are_one_device(killed, name):
    case = cases.OF_THREE[name]
    expected = test_training.one_device(case, "train")
    test_training.require_alike(killed[0], name, case, expected, workers=3)


def test_who_loses_a_worker_ends_in_time_and_names_it(killed):
    _, ended = killed
    assert ended.codes == [1, 1, -9], "\n".join(ended.logs)
    for number in range(2):
        assert ended.lasted[number] - ended.lasted[2] < WAITED + 10
        said = ended.logs[number]
        assert f"worker:{number} has lost " in said
        assert "worker:2 (127.0.0.1:" in said
        assert "go on from the last checkpoint" in said


def test_a_late_worker_is_waited_for_by_name(resumed):
    assert "worker:0 waits for worker:1 (127.0.0.1:" in resumed.logs[0]


def test_who_is_started_again_ends_as_if_nothing_had_been(killed, resumed):
    assert list((killed[0] / "lasting").glob("model.ckpt-4.index"))  # where they went on
    expected = test_training.one_device(cases.STEADY, "train", times=8)
    assert expected["global_step"] == 8
    test_training.require_alike(killed[0], "lasting", cases.STEADY, expected, workers=3)


def test_the_evaluator_evaluates_the_last_checkpoint(killed, resumed):
    assert resumed.codes[3] == 0  # it ends when it has evaluated step 8
    assert list((killed[0] / "lasting" / "eval").glob("events.out.tfevents.*"))


def test_who_loses_the_chief_names_it(killed, resumed):
    assert resumed.codes[:3] == [-9, 1, 1], "\n".join(resumed.logs)
    address = (killed[0] / "0.address").read_text()
    for number in (1, 2):
        assert f"worker:{number} has lost worker:0 ({address})" in resumed.logs[number]
