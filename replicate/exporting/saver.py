"""Specs whose graph loads on any machine, once an Estimator exports it.

An Estimator asks the Saver of a spec's scaffold for the MetaGraphDef that it writes into
a SavedModel. That is the one place through which every export goes and nothing else, so
here the spec gets a Saver that takes out what belongs to the exporting machine.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import portable
from replicate.graph import operations

_LOADED = (
    tf1.GraphKeys.ASSET_FILEPATHS,
    tf1.GraphKeys.LOCAL_INIT_OP,
    tf1.GraphKeys.TABLE_INITIALIZERS,
    tf1.saved_model.constants.LEGACY_INIT_OP_KEY,
    tf1.saved_model.constants.MAIN_OP_KEY,
)


class PortableSaver:
    """A Saver whose MetaGraphDef any machine can load; in all else, the Saver it wraps.

    Args:
        graph: The graph of the spec.
        worker_devices: The towers' devices.
        saver: Returns the Saver that does the work; asked on first use, and once.
        disposable: Names of the operations that an export may leave out.
        roots: Names of those among them that must stay.
    """

    def __init__(
        self,
        graph: tf.Graph,
        worker_devices: Sequence[str],
        saver: Callable[[], tf1.train.Saver],
        disposable: frozenset[str] = frozenset(),
        roots: frozenset[str] = frozenset(),
    ):
        self._graph = graph
        self._worker_devices = tuple(worker_devices)
        self._make = saver
        self._disposable = disposable
        self._roots = roots

    @functools.cached_property
    def wrapped(self) -> tf1.train.Saver:
        """The Saver that does the work."""
        return self._make()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def export_meta_graph(self, *args: Any, **kwargs: Any) -> tf1.MetaGraphDef:
        """Returns a MetaGraphDef without devices and absolute paths."""
        meta_graph = self.wrapped.export_meta_graph(*args, **kwargs)
        portable.strip_devices(meta_graph, self._worker_devices)
        portable.name_assets(meta_graph)
        if self._disposable:
            saver_def = meta_graph.saver_def
            ends = (
                saver_def.filename_tensor_name,
                saver_def.save_tensor_name,
                saver_def.restore_op_name,
            )
            roots = {*self._roots, *_needed_to_load(self._graph), *map(_operation, ends)}
            portable.prune(meta_graph, self._disposable, roots)
        return meta_graph


def make_exportable(
    spec: types.EstimatorSpec,
    before: frozenset[str],
    given: types.Nest,
    worker_devices: Sequence[str],
    config: types.RunConfig | None,
) -> types.EstimatorSpec:
    """Returns the spec with a scaffold whose Saver exports a graph for any machine.

    Args:
        spec: An EstimatorSpec.
        before: Names of the graph's operations before the model was built.
        given: Features and labels that the model was built on.
        worker_devices: The towers' devices; none: no tower can be placed again.
        config: The RunConfig, or None.
    """
    graph = tf1.get_default_graph()
    scaffold = spec.scaffold
    if isinstance(scaffold.saver, tf.train.Checkpoint):
        return spec  # it writes no MetaGraphDef
    if spec.mode != types.PREDICT and not _placeholders(given):
        return spec  # it is trained or evaluated: it has what it has on one device
    left_out: tuple[frozenset[str], ...] = ()
    if spec.mode == types.PREDICT:
        spec = spec._replace(train_op=None)
        left_out = operation_names() - before, _outputs(spec)
    own = scaffold.saver

    def saver() -> tf1.train.Saver:
        return _default_saver(config) if own is None else own

    portable_saver = PortableSaver(graph, worker_devices, saver, *left_out)
    return spec._replace(scaffold=_with_saver(scaffold, portable_saver))


def _with_saver(scaffold: tf1.train.Scaffold, saver: PortableSaver) -> tf1.train.Scaffold:
    """Returns a copy with this Saver; of a class of the user's, the object itself."""
    if type(scaffold) is tf1.train.Scaffold:
        return tf1.train.Scaffold(copy_from_scaffold=scaffold, saver=saver)
    # NOTE: such a class may do more and cannot be copied, and `saver` has no setter.
    scaffold._saver = saver
    return scaffold


def operation_names() -> frozenset[str]:
    """Returns the names of all operations of the current graph."""
    return frozenset(operation.name for operation in tf1.get_default_graph().get_operations())


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


def _variables(graph: tf.Graph) -> list[tf.Variable]:
    """Returns all variables in collections, each once."""
    listed = [item for key in graph.get_all_collection_keys() for item in graph.get_collection(key)]
    return list({id(item): item for item in listed if isinstance(item, tf.Variable)}.values())


def _outputs(spec: types.EstimatorSpec) -> frozenset[str]:
    """Returns the names of the operations whose results a signature may return."""
    exported = [vars(output) for output in (spec.export_outputs or {}).values()]
    tensors = tf.nest.flatten([spec.predictions, exported], expand_composites=True)
    return frozenset(tensor.op.name for tensor in tensors if hasattr(tensor, "op"))


def _needed_to_load(graph: tf.Graph) -> set[str]:
    """Returns the names of the operations that a loader looks up in the graph."""
    fields = ("variable_name", "initializer_name", "initial_value_name", "snapshot_name")
    protos = [variable.to_proto() for variable in _variables(graph)]
    needed = {_operation(getattr(proto, field)) for proto in protos for field in fields}
    listed = [item for key in _LOADED for item in graph.get_collection(key)]
    return needed | {getattr(item, "op", item).name for item in listed}


def _operation(name: str) -> str:
    return name.split(":")[0]
