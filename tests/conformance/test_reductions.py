"""The contract of reductions, for those that `MirroredStrategy` does not take by itself."""

import pytest

from tests.conformance import contract


@pytest.mark.thorough
class TestPacked(contract.ReductionContract):
    name = "mirrored_packed"
    num_copies = 2


class TestHierarchical(contract.ReductionContract):
    name = "mirrored_hierarchical"
    num_towers = 4
    num_copies = 4


@pytest.mark.thorough
class TestRing(contract.ReductionContract):
    name = "mirrored_ring"
    num_copies = 2
