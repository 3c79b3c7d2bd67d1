"""A worker that is gone: the other one ends in time, and says why."""

import pytest

from tests.cluster import processes


@pytest.mark.parametrize("killed", [0, 1], ids=["chief", "worker"])
def test_who_loses_another_worker_ends_in_time(tmp_path, killed):
    waited = 5  # seconds that a worker waits for another one
    settings = {"WAITED": str(waited), "KILLED": str(killed)}
    ended = processes.run(tmp_path, ["momentum_masked"], settings, seconds=60, is_patient=True)
    assert ended.codes[killed] == -9  # killed in its third step
    assert ended.codes[1 - killed] == 1
    assert ended.lasted[1 - killed] - ended.lasted[killed] < waited + 10
    said = ended.logs[1 - killed]
    assert ("go on from the last checkpoint" if killed == 0 else "timed out") in said
