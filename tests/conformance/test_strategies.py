"""The contract, strategy by strategy."""

from replicate import strategy as core
from tests.conformance import contract, strategies


class TestOneDevice(contract.StrategyContract):
    name = "one_device"
    num_towers = 1


class TestParameterServer(contract.StrategyContract):
    name = "parameter_server"


class TestRoundRobinParameterServers(contract.StrategyContract):
    name = "round_robin"


class TestBalancedParameterServers(contract.StrategyContract):
    num_towers = 3

    def make_strategy(self):
        return core.LocalParameterServerStrategy((*strategies.TWO, "/cpu:2"), placement="balanced")


class TestMirrored(contract.StrategyContract):
    name = "mirrored"
    num_copies = 2


class TestMirroredOnOneDevice(contract.StrategyContract):
    num_towers = 1

    def make_strategy(self):
        return core.MirroredStrategy(["/cpu:1"])
