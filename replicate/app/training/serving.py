"""What an exported model is fed, and what its signatures look like once written."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from replicate import errors, estimator
from replicate.app.config import export_config
from replicate.compat.tensorflow import tf, tf1

__all__ = ["receiver_fn", "signatures"]

_LONE = "input"  # what the served name of features is that are one tensor


def receiver_fn(
    described: Mapping[str, export_config.ServingInput] | None, element_spec: Any
) -> Callable[[], Any]:
    """Returns a serving_input_receiver_fn of raw tensors with an open batch dimension.

    Args:
        described: What the config says under export.inputs, if anything.
        element_spec: An input's element_spec, whose features are taken otherwise.

    Raises:
        RunError: If the features are neither one tensor nor a dict of tensors.
    """
    if described is not None:
        specs = {
            name: tf.TensorSpec([None, *one.shape], one.dtype) for name, one in described.items()
        }
        return lambda: _receiver(specs, None)
    features = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    if isinstance(features, Mapping):
        specs = dict(features)
        lone = None
    else:
        specs = {_LONE: features}
        lone = _LONE
    for name, spec in specs.items():
        if not isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec | tf.RaggedTensorSpec):
            raise errors.RunError(
                f"export.inputs: must be given where a feature is no tensor; {name} is "
                f"{type(spec).__name__}. Write each feature's dtype and shape there."
            )
    return lambda: _receiver(specs, lone)


def _receiver(specs: Mapping[str, Any], lone: str | None) -> Any:
    tensors = {name: _placeholder(name, spec) for name, spec in specs.items()}
    if lone is None:
        return estimator.export.ServingInputReceiver(tensors, tensors)
    return estimator.export.TensorServingInputReceiver(tensors[lone], tensors)


def _placeholder(name: str, spec: Any) -> Any:
    name = _op_name(name)
    shape = None if spec.shape.rank is None else [None, *spec.shape.as_list()[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[spec.ragged_rank + 1 :].as_list()
        return tf1.ragged.placeholder(spec.dtype, spec.ragged_rank, inner, name=name)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf1.sparse_placeholder(spec.dtype, shape, name=name)
    return tf1.placeholder(spec.dtype, shape, name=name)


def _op_name(feature: str) -> str:
    """Returns a valid op name like a feature's; the signature keeps the feature's own."""
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", str(feature)).strip("/")
    return name if name[:1].isalnum() else f"{_LONE}{name}"


def signatures(path: str) -> dict[str, dict[str, dict[str, str]]]:
    """Loads a SavedModel and returns its signatures.

    Returns:
        Signature -> `inputs` and `outputs` -> tensor's name -> e.g. `float32 [None, 10]`.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        loaded = tf1.saved_model.load(session, [tf1.saved_model.tag_constants.SERVING], path)
    return {
        name: {
            "inputs": {key: _described(info) for key, info in signature.inputs.items()},
            "outputs": {key: _described(info) for key, info in signature.outputs.items()},
        }
        for name, signature in sorted(loaded.signature_def.items())
        if not name.startswith("__")
    }


def _described(info: Any) -> str:
    shape = tf.TensorShape(info.tensor_shape)
    dimensions = "unknown" if shape.rank is None else shape.as_list()
    return f"{tf.as_dtype(info.dtype).name} {dimensions}"
