"""Specs whose graph loads on any machine, once an Estimator exports it.

An Estimator asks the Saver of a spec's scaffold for the MetaGraphDef that it writes into
a SavedModel. That is the one place through which every export goes and nothing else, so
here the spec gets a Saver that takes out what belongs to the exporting machine.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations


class PortableSaver:
    """A Saver whose MetaGraphDef any machine can load; in all else, the Saver it wraps.

    Args:
        saver: Returns the Saver that does the work; asked on first use, and once.
    """

    def __init__(self, saver: Callable[[], tf1.train.Saver]):
        self._make = saver

    @functools.cached_property
    def wrapped(self) -> tf1.train.Saver:
        """The Saver that does the work."""
        return self._make()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def export_meta_graph(self, *args: Any, **kwargs: Any) -> tf1.MetaGraphDef:
        """Returns a MetaGraphDef without devices, in functions as well."""
        meta_graph = self.wrapped.export_meta_graph(*args, **kwargs)
        graph_def = meta_graph.graph_def
        inner = (function.node_def for function in graph_def.library.function)
        for node in itertools.chain(graph_def.node, *inner):
            node.device = ""
        return meta_graph


def make_exportable(
    spec: types.EstimatorSpec, given: types.Nest, config: types.RunConfig | None
) -> types.EstimatorSpec:
    """Returns the spec with a scaffold whose Saver exports a graph for any machine.

    Args:
        spec: An EstimatorSpec.
        given: Features and labels that the model was built on.
        config: The RunConfig, or None.
    """
    scaffold, own = spec.scaffold, spec.scaffold.saver
    if isinstance(own, tf.train.Checkpoint):
        return spec  # it writes no MetaGraphDef
    if spec.mode != types.PREDICT and not _placeholders(given):
        return spec  # it is trained or evaluated: it has what it has on one device
    if spec.mode == types.PREDICT:
        spec = spec._replace(train_op=None)
    make = functools.partial(_default_saver, config) if own is None else lambda: own
    return spec._replace(scaffold=_with_saver(scaffold, PortableSaver(make)))


def _with_saver(scaffold: tf1.train.Scaffold, saver: PortableSaver) -> tf1.train.Scaffold:
    """Returns a copy with this Saver; of a class of the user's, the object itself."""
    if type(scaffold) is tf1.train.Scaffold:
        return tf1.train.Scaffold(copy_from_scaffold=scaffold, saver=saver)
    # NOTE: such a class may do more and cannot be copied, and `saver` has no setter.
    scaffold._saver = saver
    return scaffold


def _default_saver(config: types.RunConfig | None) -> tf1.train.Saver:
    """Makes the Saver that an Estimator would use."""
    listed = tf1.get_collection(tf1.GraphKeys.SAVERS)
    if len(listed) == 1:
        return listed[0]
    kept = {}
    if config is not None:
        kept = {
            "max_to_keep": config.keep_checkpoint_max,
            "keep_checkpoint_every_n_hours": config.keep_checkpoint_every_n_hours,
        }
    return tf1.train.Saver(sharded=True, allow_empty=True, save_relative_paths=True, **kept)


def is_served(nest: types.Nest) -> bool:
    """Whether tensors come from a serving_input_receiver_fn.

    NOTE: an Estimator calls an input_fn, which may have placeholders as well, on the CPU.
    """
    return any(not operation.device for operation in _placeholders(nest))


def _placeholders(nest: types.Nest) -> list[tf.Operation]:
    """Returns the placeholders that tensors come from."""
    given = [t for t in tf.nest.flatten(nest, expand_composites=True) if hasattr(t, "op")]
    kinds = ("Placeholder", "PlaceholderWithDefault")
    return [op for op in operations.made_from(given) if op.type in kinds]
