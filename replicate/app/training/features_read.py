"""The features that a model's predictions are made from: no others need be there to predict."""

import re
from collections.abc import Mapping

from replicate import estimator, types
from replicate.app.config import config, sections
from replicate.app.data import inputs, section_inputs
from replicate.app.training import hooks
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.strategy import context

LONE = "input"  # what the served name of features is that are one tensor


def input_fn(settings: config.Config, made: estimator.Estimator) -> inputs.InputFn:
    """Returns the input_fn of predictions, which reads the columns that the model reads."""
    source = settings.section(sections.Predict).input
    specs = inputs.columns_of(source, source.called("predict"))
    if not specs:
        return section_inputs.input_fn(settings, "predict")
    try:
        only = specs.keys() - left_out(made, specs)
    except (TypeError, ValueError):  # it reads a column that is not there: reading will name it
        only = set(specs)
    make = section_inputs.input_fn(settings, "predict", only=only)
    return lambda: make().map(lambda features: filled_in(features, specs))


def left_out(made: estimator.Estimator, specs: types.Nest) -> set[str]:
    """Returns the features that can be left out; builds the model once to see which it reads.

    Args:
        made: The Estimator.
        specs: The spec of each feature; of features that are one tensor none is left out.
    """
    if not isinstance(specs, Mapping) or not specs:
        return set()
    with tf.Graph().as_default(), context.one_tower():
        tf1.train.get_or_create_global_step()
        fed = {name: placeholder(name, spec) for name, spec in specs.items()}
        spec = made.model_fn(dict(fed), None, estimator.ModeKeys.PREDICT, made.config)
        outputs = [vars(one) for one in (spec.export_outputs or {}).values()]
        found = tf.nest.flatten([spec.predictions, outputs], expand_composites=True)
        behind = operations.executed_by([one for one in found if tf.is_tensor(one)])
    dense = {name: one for name, one in fed.items() if isinstance(one, tf.Tensor)}
    unread = {name for name, one in dense.items() if one.shape.rank and one.op not in behind}
    # Hooks may fetch anything; and something tells how many rows there are.
    return unread if unread < fed.keys() and not spec.prediction_hooks else set()


def filled_in(
    features: Mapping[str, types.Rows], specs: Mapping[str, tf.TypeSpec]
) -> dict[str, types.Rows]:
    """Returns the features of all specs, with zeros for those that were left out."""
    rows = hooks.rows_of(features)
    zeros = {
        name: [1 if size is None else size for size in spec.shape.as_list()[1:]]
        for name, spec in specs.items()
        if name not in features
    }
    return {
        name: tf.zeros([rows, *zeros[name]], spec.dtype) if name in zeros else features[name]
        for name, spec in specs.items()
    }


def placeholder(feature: str, spec: tf.TypeSpec) -> types.Rows:
    """Returns what a feature is fed by; the signature keeps its name, the op has one like it.

    NOTE: it is in a scope of its own, since a variable of the model may be called as the feature.
    """
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", str(feature)).strip("/")
    name = f"serving_inputs/{name or LONE}"
    shape = None if spec.shape.rank is None else [None, *spec.shape.as_list()[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[spec.ragged_rank + 1 :].as_list()
        return tf1.ragged.placeholder(spec.dtype, spec.ragged_rank, inner, name=name)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf1.sparse_placeholder(spec.dtype, shape, name=name)
    return tf1.placeholder(spec.dtype, shape, name=name)
