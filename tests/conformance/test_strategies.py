"""The contract, strategy by strategy."""

from replicate import strategy as core
from tests.conformance import contract

TWO = ("/cpu:0", "/cpu:1")


class TestOneDevice(contract.StrategyContract):
    num_towers = 1

    def make_strategy(self):
        return core.OneDeviceStrategy("/cpu:1")


class TestParameterServer(contract.StrategyContract):
    def make_strategy(self):
        return core.LocalParameterServerStrategy(TWO, parameter_device="/cpu:2")


class TestRoundRobinParameterServers(contract.StrategyContract):
    def make_strategy(self):
        return core.LocalParameterServerStrategy(TWO, placement="round_robin")


class TestBalancedParameterServers(contract.StrategyContract):
    num_towers = 3

    def make_strategy(self):
        return core.LocalParameterServerStrategy((*TWO, "/cpu:2"), placement="balanced")


class TestMirrored(contract.StrategyContract):
    num_copies = 2

    def make_strategy(self):
        return core.MirroredStrategy(TWO)
