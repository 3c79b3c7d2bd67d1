"""The exception tree of the package.

    ReplicateError
    ├── ConfigError(ValueError)                   a config file or option is wrong
    ├── DeviceError(ValueError)                   a device does not exist, or cannot do this
    ├── BatchError(ValueError)                    features and labels do not form one batch
    ├── TowerMismatchError(ValueError)            towers did not build the same model
    ├── UnsupportedTensorFlowError(ImportError)   this TensorFlow is outside the range
    └── RunError(RuntimeError)                    a run's data, functions or directories are bad
        └── ClusterError                          workers differ, or one of them is lost

Every text says the rule, what came (with name, value and tower) and the next step.
"""

__all__ = [
    "BatchError",
    "ClusterError",
    "ConfigError",
    "DeviceError",
    "ReplicateError",
    "RunError",
    "TowerMismatchError",
    "UnsupportedTensorFlowError",
]


class ReplicateError(Exception):
    """Root of every exception that this package raises on its own account."""


class ConfigError(ReplicateError, ValueError):
    """A config file, or an option that overrides it, is not valid."""


class DeviceError(ReplicateError, ValueError):
    """A device is malformed, missing, repeated, or of the wrong kind."""


class BatchError(ReplicateError, ValueError):
    """Features and labels do not have one common batch dimension."""


class TowerMismatchError(ReplicateError, ValueError):
    """Two towers did different things where all must do the same."""


class UnsupportedTensorFlowError(ReplicateError, ImportError):
    """The installed TensorFlow is outside the supported range."""


class RunError(ReplicateError, RuntimeError):
    """A command of the app found its data, functions or directories bad when it used them."""


class ClusterError(RunError):
    """Workers of a cluster differ in what they were given, or one of them is lost."""
