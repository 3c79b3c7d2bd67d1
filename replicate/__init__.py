"""`replicate_model_fn` runs a single-device model_fn on many devices, with the same results.

Names are loaded on first use: `import replicate` alone imports no TensorFlow, and chooses no Keras.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Module -> the public names that it has. Its own name is the module.
_NAMES = {
    "errors": """
        BatchError ConfigError DeviceError errors ReplicateError TowerMismatchError
        UnsupportedTensorFlowError
    """,
    "strategy": """
        DistributionStrategy get_cross_tower_context get_distribution_strategy
        get_loss_reduction get_tower_context get_update_device has_distribution_strategy
        HierarchicalCopyAllReduce increment_var LocalParameterServerStrategy Mirrored
        MirroredStrategy MirroredVariable MultiWorkerStrategy NcclAllReduce OneDeviceStrategy
        ParameterServerStrategy PerDevice ReductionToOneDevice require_tower_context
        RingAllReduce strategy TowerContext TowerLocalVariable UpdateContext
    """,
    "devices": "devices",
    "estimator": "estimator",
    "exporting.export": "export_saved_model",
    "exporting.predictor": "load_exported",
    "towers.metrics": "metric_reduction",
    "progress": "progress",
    "model_fn": "replicate_model_fn",
    "replicated_variable": "replicated_scope replicated_variable_for_optimizer ReplicatedVariable",
    "training.tower_optimizer": "TowerOptimizer",
    "verification": "Verification verify",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'replicate' has no attribute {name!r}")
    module = importlib.import_module(f"replicate.{_MODULES[name]}")
    value = module if _MODULES[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
