"""Names of TensorFlow that code written for Estimators still imports.

`replicate.estimator.install()` adds them, beside the rows of `estimator`, so that such code runs
as it is. Like those, these only add what is missing, and nothing is added by importing a module.
"""

import importlib
import importlib.util
import pkgutil
import sys
from types import ModuleType

from replicate.compat import estimator

_LAYERS = ("base", "convolutional", "core", "normalization", "pooling")
_ESTIMATORS = "tensorflow_estimator.python.estimator"


def _add_moved(row: estimator.Row) -> None:
    """Shows by its old name what has another one today."""
    if row.today.startswith(_ESTIMATORS):
        estimator.load_v1()
    found = pkgutil.resolve_name(row.today)
    if isinstance(found, ModuleType):
        _show(found, row.name)
    else:
        parent, _, name = row.name.rpartition(".")
        setattr(sys.modules[parent], name, found)


def _add_legacy_layers(row: estimator.Row) -> None:
    """Shows the layers of `tf.compat.v1.layers` where TensorFlow itself looks for them."""
    if importlib.util.find_spec("tf_keras") is None:
        return  # the Keras of TensorFlow 2.15 has layers of its own
    for name in ("", *(f".{layer}" for layer in _LAYERS)):
        _show(importlib.import_module(f"tf_keras.src.legacy_tf_layers{name}"), row.name + name)


def _add_estimators(row: estimator.Row) -> None:
    """Shows every loaded module of tensorflow-estimator under the name that it had."""
    estimator.load_v1()
    loaded = [name for name in sys.modules if f"{name}.".startswith(f"{_ESTIMATORS}.")]
    for name in sorted(loaded):  # packages before their modules
        _show(sys.modules[name], row.name + name[len(_ESTIMATORS) :])


def _show(module: ModuleType, name: str) -> None:
    """Lets a module be imported by another name, too."""
    sys.modules.setdefault(name, module)
    parent, _, last = name.rpartition(".")
    if not hasattr(sys.modules[parent], last):
        setattr(sys.modules[parent], last, module)


# For whom, since when: the old name, and the module or `module:name` of today.
_MOVED = {
    ("slim asks whether a rate or a gradient is a tensor, and clips sparse ones", "2.15"): {
        "tensorflow.python.framework.ops.Tensor": "tensorflow:Tensor",
        "tensorflow.python.framework.ops.IndexedSlices": "tensorflow:IndexedSlices",
    },
    ("DeepCTR, and much else, has recurrent cells copied from older TensorFlows", "2.15"): {
        "tensorflow.python.ops.array_ops.stack": "tensorflow:stack",
        "tensorflow.python.ops.array_ops.unstack": "tensorflow:unstack",
        "tensorflow.python.ops.control_flow_ops.cond": "tensorflow:compat.v1.cond",
        "tensorflow.python.ops.control_flow_ops.while_loop": "tensorflow:compat.v1.while_loop",
        "tensorflow.python.util.nest.is_sequence": "tensorflow:nest.is_nested",
    },
    ("optimizers of one's own make updates by TensorFlow's operations: EasyRec's", "2.16"): {
        f"tensorflow.python.training.{name}": "tensorflow.python.ops.gen_training_ops"
        for name in ("gen_training_ops", "training_ops")
    },
    ("optimizers and layers of one's own ask for the strategy", "2.15"): {
        "tensorflow.python.distribute.distribution_strategy_context": (
            "tensorflow.python.distribute.distribute_lib"
        ),
    },
    ("code that starts from a checkpoint lists what is in it", "2.15"): {
        "tensorflow.python.pywrap_tensorflow.NewCheckpointReader": (
            "tensorflow:compat.v1.train.NewCheckpointReader"
        ),
    },
    ("estimators of one's own are marked as TensorFlow's are", "2.15"): {
        "tensorflow.python.util.tf_export.estimator_export": (
            f"{_ESTIMATORS}.estimator_export:estimator_export"
        ),
    },
    ("Mesh TensorFlow, and models for TPUs, import TPUEstimator from there", "2.16"): {
        f"tensorflow.python.tpu.{name}": f"{_ESTIMATORS}.tpu.{name}"
        for name in ("tpu_config", "tpu_context", "tpu_estimator")
    },
}

ROWS = (
    *(
        estimator.Row(name, since, why, _add_moved, today)
        for (why, since), names in _MOVED.items()
        for name, today in names.items()
    ),
    estimator.Row(
        "tf_keras.legacy_tf_layers",
        "2.15",
        "slim's batch norm is TensorFlow's, which looks for its layer there",
        _add_legacy_layers,
    ),
    estimator.Row(
        "tensorflow.python.estimator",
        "2.16",
        "DeepCTR and EasyRec import heads, optimizers, exporters of canned estimators",
        _add_estimators,
    ),
)


def add_missing() -> list[str]:
    """Adds what this TensorFlow lacks of the names above; returns those that were added."""
    is_there = importlib.util.find_spec
    return estimator.add_missing([row for row in ROWS if is_there(row.name.split(".")[0])])
