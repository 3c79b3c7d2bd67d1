"""`replicate_model_fn` runs a single-device model_fn on many devices, with the same results.

Names are loaded on first use: `import replicate` alone imports no TensorFlow, and chooses no Keras.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that has it. Of a module that has the name, the name is the module.
_MODULES = {
    "BatchError": "replicate.errors",
    "ConfigError": "replicate.errors",
    "DeviceError": "replicate.errors",
    "DistributionStrategy": "replicate.strategy",
    "devices": "replicate.devices",
    "errors": "replicate.errors",
    "estimator": "replicate.estimator",
    "export_saved_model": "replicate.exporting.export",
    "get_cross_tower_context": "replicate.strategy",
    "get_distribution_strategy": "replicate.strategy",
    "get_loss_reduction": "replicate.strategy",
    "get_tower_context": "replicate.strategy",
    "get_update_device": "replicate.strategy",
    "has_distribution_strategy": "replicate.strategy",
    "HierarchicalCopyAllReduce": "replicate.strategy",
    "increment_var": "replicate.strategy",
    "load_exported": "replicate.exporting.predictor",
    "LocalParameterServerStrategy": "replicate.strategy",
    "metric_reduction": "replicate.towers.metrics",
    "Mirrored": "replicate.strategy",
    "MirroredStrategy": "replicate.strategy",
    "MirroredVariable": "replicate.strategy",
    "MultiWorkerStrategy": "replicate.strategy",
    "NcclAllReduce": "replicate.strategy",
    "OneDeviceStrategy": "replicate.strategy",
    "ParameterServerStrategy": "replicate.strategy",
    "PerDevice": "replicate.strategy",
    "place_towers": "replicate.exporting.placed_towers",
    "progress": "replicate.progress",
    "ReductionToOneDevice": "replicate.strategy",
    "replicate_model_fn": "replicate.model_fn",
    "replicated_scope": "replicate.replicated_variable",
    "replicated_variable_for_optimizer": "replicate.replicated_variable",
    "ReplicatedVariable": "replicate.replicated_variable",
    "ReplicateError": "replicate.errors",
    "require_tower_context": "replicate.strategy",
    "RingAllReduce": "replicate.strategy",
    "strategy": "replicate.strategy",
    "TowerContext": "replicate.strategy",
    "TowerLocalVariable": "replicate.strategy",
    "TowerMismatchError": "replicate.errors",
    "TowerOptimizer": "replicate.training.tower_optimizer",
    "UnsupportedTensorFlowError": "replicate.errors",
    "UpdateContext": "replicate.strategy",
    "Verification": "replicate.verification",
    "verify": "replicate.verification",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'replicate' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    value = module if _MODULES[name] == f"replicate.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
