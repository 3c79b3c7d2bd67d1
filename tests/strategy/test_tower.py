"""What TensorFlow asks of a replica."""

import types

import pytest

from replicate.strategy.towers import tower


@pytest.mark.parametrize(
    ("asker", "expected"), [("tensorflow.python.summary", 0), ("tensorflow_model", 2), (None, 2)]
)
def test_tensorflow_itself_gets_the_number_among_the_towers_of_a_worker(asker, expected):
    replica = types.SimpleNamespace(_tower=types.SimpleNamespace(position=0, tower_id=2))
    number = tower.ReplicaContext.replica_id_in_sync_group.fget
    names = {"number": number, "replica": replica}
    if asker is not None:
        names["__name__"] = asker
    assert eval("number(replica)", names) == expected
