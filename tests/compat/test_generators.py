"""Generators see no replicas while they are told so, and as before afterwards."""

from replicate.compat import generators
from replicate.compat import tensorflow as tfc


def replica_id():
    return tfc.stateful_random_ops.target().get_replica_id()


def test_they_see_no_replica_while_they_are_told_so():
    before = tfc.stateful_random_ops.target().get_replica_id
    assert replica_id() == 0  # of the default strategy
    with generators.drawing_as_one_device(lambda: True):
        assert replica_id() is None
    with generators.drawing_as_one_device(lambda: False):
        assert replica_id() == 0
    assert tfc.stateful_random_ops.target().get_replica_id is before
