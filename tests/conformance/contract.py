"""What every strategy promises, and every reduction, as classes of tests."""

import pytest

from replicate.compat.tensorflow import tf
from tests.conformance import (
    assignments,
    bridging,
    cleanliness,
    contexts,
    reducing,
    strategies,
    towers,
    variables,
)
from tests.conformance import bench as benches


class Contract:
    """A subclass says which strategy; every behaviour runs in each mode.

    Attributes:
        name: The strategy's key in `strategies.MAKERS`.
        num_towers: K.
        num_copies: How many copies a mirrored variable has.
    """

    name = ""
    num_towers = 2
    num_copies = 1

    def make_strategy(self):
        """Returns a new strategy."""
        return strategies.MAKERS[self.name]()

    @pytest.fixture
    def strategy(self, bench):
        """A new strategy, whose variables belong to the bench's graph."""
        return self.make_strategy()

    @pytest.fixture(params=benches.MODES)
    def bench(self, request):
        """Runs steps in one of the modes."""
        with benches.Bench(request.param).entered() as bench:
            yield bench

    @pytest.fixture
    def keras(self):
        """Keras 2, which this TensorFlow has or finds as `tf_keras`."""
        if tf.version.VERSION.startswith("2.15."):
            return tf.keras
        return pytest.importorskip("tf_keras")


class StrategyContract(
    assignments.Assignments,
    contexts.Contexts,
    towers.Towers,
    reducing.Reducing,
    variables.Variables,
    bridging.Bridging,
    cleanliness.Cleanliness,
    Contract,
):
    """Every behaviour: what a strategy promises."""


class PlacementContract(assignments.Assignments, variables.Variables, Contract):
    """The behaviours of variables: what a strategy that differs in their devices promises."""


class ReductionContract(reducing.Reducing, Contract):
    """The behaviours that reduce: what a strategy that differs in its reduction promises."""
