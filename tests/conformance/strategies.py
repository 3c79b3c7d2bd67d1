"""One of each strategy, by name."""

from replicate import strategy as core
from replicate.strategy import cross_device

TWO = ("/cpu:0", "/cpu:1")

MAKERS = {
    "one_device": lambda: core.OneDeviceStrategy("/cpu:1"),
    "parameter_server": lambda: core.LocalParameterServerStrategy(TWO, "/cpu:2"),
    "round_robin": lambda: core.LocalParameterServerStrategy(TWO, placement="round_robin"),
    "balanced": lambda: core.LocalParameterServerStrategy(TWO, placement="balanced"),
    "mirrored": lambda: core.MirroredStrategy(TWO),
    "mirrored_packed": lambda: core.MirroredStrategy(
        TWO, cross_device.ReductionToOneDevice(pack_bytes=1 << 20)
    ),
    "mirrored_hierarchical": lambda: core.MirroredStrategy(
        4, cross_device.HierarchicalCopyAllReduce()
    ),
    "mirrored_ring": lambda: core.MirroredStrategy(TWO, cross_device.RingAllReduce()),
}
SEVERAL = [name for name in MAKERS if name != "one_device"]
