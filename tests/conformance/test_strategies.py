"""The contract, strategy by strategy."""

import pytest

from replicate import strategy as core
from tests.conformance import contract, strategies


@pytest.mark.thorough
class TestOneDevice(contract.StrategyContract):
    name = "one_device"
    num_towers = 1


class TestParameterServer(contract.StrategyContract):
    name = "parameter_server"


@pytest.mark.thorough
class TestRoundRobinParameterServers(contract.PlacementContract):
    name = "round_robin"


@pytest.mark.thorough
class TestBalancedParameterServers(contract.StrategyContract):
    num_towers = 3

    def make_strategy(self):
        return core.LocalParameterServerStrategy((*strategies.TWO, "/cpu:2"), placement="balanced")


class TestMirrored(contract.StrategyContract):
    name = "mirrored"
    num_copies = 2


@pytest.mark.thorough
class TestMirroredOnOneDevice(contract.StrategyContract):
    num_towers = 1

    def make_strategy(self):
        return core.MirroredStrategy(["/cpu:1"])
