"""`replicate_model_fn` takes a model_fn written for one device to many.

Names are loaded on first use: `import replicate` alone does not import TensorFlow.
"""

import importlib
import os
from typing import Any

from replicate.compat import versions

__version__ = "0.1.0"

# Public name -> the room it is in. A room that is named like its name is the name itself.
_ROOMS = {
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

__all__ = ["__version__", *_ROOMS]

# Not TensorFlow, only a word to it: code that imports this package and then uses tf.keras
# before anything of ours gets the Keras that Estimators need.
versions.choose_keras(os.environ)


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'replicate' has no attribute {name!r}")
    room = importlib.import_module(_ROOMS[name])
    value = room if _ROOMS[name] == f"replicate.{name}" else getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
