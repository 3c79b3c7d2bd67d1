"""SavedModels as a config wants them: on request, and after training."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from replicate import errors, estimator, types
from replicate.app.config import config, sections
from replicate.app.data import inputs, section_inputs
from replicate.app.runs import folders
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export

_LONE = "input"  # what the served name of features is that are one tensor


def saver(settings: config.Config, made: estimator.Estimator) -> Callable[[str], str]:
    """Returns what exports a checkpoint of an Estimator, by its path, and returns the SavedModel's.

    Raises:
        RunError: If what the config says cannot be written; better now than after training.
    """
    wanted = settings.export or sections.Export()
    directory = wanted.directory or os.path.join(settings.model_dir, "export")
    folders.make(directory, "export.directory")
    receive = receiver_fn(_features(settings, wanted))

    def save(checkpoint: str) -> str:
        path = export.export_saved_model(
            made, directory, receive, towers=wanted.towers, checkpoint_path=checkpoint
        )
        return os.fsdecode(path)

    return save


def _features(settings: config.Config, wanted: sections.Export) -> types.Nest:
    """Returns the specs of what the config says is fed, or of an input's features."""
    if wanted.inputs is not None:
        inputs_of = wanted.inputs.items()
        return {name: tf.TensorSpec([None, *one.shape], one.dtype) for name, one in inputs_of}
    named = ("predict", "eval", "train")
    section = next((one for one in named if getattr(settings, one) is not None), None)
    if section is None:
        raise errors.RunError(
            "export.inputs: must be given where the config has no predict, eval or train section. "
            "Write each feature's dtype and shape there."
        )
    element = inputs.element_of(section_inputs.input_fn(settings, section))
    return element[0] if isinstance(element, tuple) else element


def receiver_fn(features: types.Nest) -> Callable[[], estimator.export.ServingInputReceiver]:
    """Returns a serving_input_receiver_fn of raw tensors with an open batch dimension.

    Args:
        features: The spec of one tensor, or a dict of such.

    Raises:
        RunError: If the features are neither one tensor nor a dict of tensors.
    """
    is_lone = not isinstance(features, Mapping)
    specs = {_LONE: features} if is_lone else dict(features)
    for name, spec in specs.items():
        if not isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec | tf.RaggedTensorSpec):
            raise errors.RunError(
                f"export.inputs: must be given where a feature is no tensor; {name} is "
                f"{type(spec).__name__}. Write each feature's dtype and shape there."
            )

    def receive() -> estimator.export.ServingInputReceiver:
        tensors = {name: _placeholder(name, spec) for name, spec in specs.items()}
        if is_lone:
            return estimator.export.TensorServingInputReceiver(tensors[_LONE], tensors)
        return estimator.export.ServingInputReceiver(tensors, tensors)

    return receive


def _placeholder(feature: str, spec: tf.TypeSpec) -> types.Rows:
    """Returns what a feature is fed by; the signature keeps its name, the op has one like it.

    NOTE: it is in a scope of its own, since a variable of the model may be called as the feature.
    """
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", str(feature)).strip("/")
    name = f"serving_inputs/{name or _LONE}"
    shape = None if spec.shape.rank is None else [None, *spec.shape.as_list()[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[spec.ragged_rank + 1 :].as_list()
        return tf1.ragged.placeholder(spec.dtype, spec.ragged_rank, inner, name=name)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf1.sparse_placeholder(spec.dtype, shape, name=name)
    return tf1.placeholder(spec.dtype, shape, name=name)


def signatures(path: str) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the signatures of a SavedModel.

    Returns:
        Signature -> `inputs` and `outputs` -> tensor's name -> e.g. `float32 [None, 10]`.
    """
    served = {tf.saved_model.SERVING}
    found = (one for one in export.read(path).meta_graphs if {*one.meta_info_def.tags} == served)
    loaded = next(found)

    def described(tensors: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for name, info in sorted(tensors.items()):
            shape = tf.TensorShape(info.tensor_shape)
            dimensions = "unknown" if shape.rank is None else shape.as_list()
            found[name] = f"{tf.as_dtype(info.dtype).name} {dimensions}"
        return found

    return {
        name: {"inputs": described(signature.inputs), "outputs": described(signature.outputs)}
        for name, signature in sorted(loaded.signature_def.items())
        if not name.startswith("__")
    }
