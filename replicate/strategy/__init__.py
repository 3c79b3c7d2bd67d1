"""The strategy core, for whoever writes a distributed algorithm of their own."""

from replicate.strategy.base import DistributionStrategy
from replicate.strategy.context import TowerContext, require_tower_context
from replicate.strategy.cross_device import (
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    RingAllReduce,
)
from replicate.strategy.default import (
    UpdateContext,
    get_cross_tower_context,
    get_distribution_strategy,
    get_loss_reduction,
    get_tower_context,
    get_update_device,
    has_distribution_strategy,
    increment_var,
)
from replicate.strategy.policies.mirrored import MirroredStrategy
from replicate.strategy.policies.multi_worker import MultiWorkerStrategy
from replicate.strategy.policies.one_device import OneDeviceStrategy
from replicate.strategy.policies.parameter_server import (
    LocalParameterServerStrategy,
    ParameterServerStrategy,
)
from replicate.strategy.variables.values import Mirrored, PerDevice
from replicate.strategy.variables.variables import MirroredVariable, TowerLocalVariable

__all__ = [
    "DistributionStrategy",
    "HierarchicalCopyAllReduce",
    "LocalParameterServerStrategy",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "MultiWorkerStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerDevice",
    "ReductionToOneDevice",
    "RingAllReduce",
    "TowerContext",
    "TowerLocalVariable",
    "UpdateContext",
    "get_cross_tower_context",
    "get_distribution_strategy",
    "get_loss_reduction",
    "get_tower_context",
    "get_update_device",
    "has_distribution_strategy",
    "increment_var",
    "require_tower_context",
]
