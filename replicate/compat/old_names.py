"""Names of TensorFlow that code written for Estimators still imports.

`replicate.estimator.install()` adds them, so that such code runs as it is. Like the rows of
`estimator`, these only add what is missing, and nothing is added by importing a module.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

from replicate.compat import estimator
from replicate.compat import tensorflow as tfc

_LAYERS = ("base", "convolutional", "core", "normalization", "pooling")
_ESTIMATORS = "tensorflow_estimator.python.estimator"


def _add_tensor_class(row: estimator.Row) -> None:
    parent, _, name = row.name.rpartition(".")
    setattr(importlib.import_module(parent), name, getattr(tfc.tf, name))


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


ROWS = (
    estimator.Row(
        name="tensorflow.python.framework.ops.Tensor",
        missing_since="2.15",
        why="slim asks whether a learning rate or a multiplier is a tensor",
        added="tf.Tensor",
        add=_add_tensor_class,
    ),
    estimator.Row(
        name="tensorflow.python.framework.ops.IndexedSlices",
        missing_since="2.15",
        why="slim clips and multiplies gradients, sparse ones too",
        added="tf.IndexedSlices",
        add=_add_tensor_class,
    ),
    estimator.Row(
        name="tf_keras.legacy_tf_layers",
        missing_since="2.15",
        why="slim's batch norm is TensorFlow's, which looks for its layer there",
        added="the modules of tf_keras.src.legacy_tf_layers",
        add=_add_legacy_layers,
    ),
    estimator.Row(
        name="tensorflow.python.estimator",
        missing_since="2.16",
        why="DeepCTR imports heads and optimizers of canned estimators",
        added="the modules of tensorflow-estimator",
        add=_add_estimators,
    ),
)


def add_missing() -> list[str]:
    """Adds what this TensorFlow lacks of the names above; returns those that were added."""
    rows = [row for row in ROWS if _has_parent(row)]
    return estimator.add_missing(rows)


def _has_parent(row: estimator.Row) -> bool:
    return importlib.util.find_spec(row.name.split(".")[0]) is not None
