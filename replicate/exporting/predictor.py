"""A SavedModel, loaded: a small predictor."""

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export

_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_NOT_CALLED = ("__saved_model_init_op", "__saved_model_train_op")


class Predictor:
    """A SavedModel in a session of its own: dicts of arrays in, dicts of arrays out.

    Args:
        path: The directory of the SavedModel.
        tags: The tags of the graph to load, or its one tag.

    Raises:
        ValueError: If the directory holds no SavedModel, or none with these tags.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        tags: Iterable[str] | str = (tf.saved_model.SERVING,),
    ):
        self.path = os.fsdecode(path)
        tags = [tags] if isinstance(tags, str) else list(tags)
        _require_tags(self.path, set(tags))
        self._graph = tf.Graph()
        # What has no kernel for a GPU stays on the CPU.
        settings = tf1.ConfigProto(allow_soft_placement=True)
        self._session = tf1.Session(graph=self._graph, config=settings)
        try:
            with self._graph.as_default():
                loaded = tf1.saved_model.load(self._session, tags, self.path)
        except BaseException:
            self.close()
            raise
        self._signatures = {
            name: loaded.signature_def[name]
            for name in sorted(loaded.signature_def)
            if name not in _NOT_CALLED
        }

    @property
    def signatures(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Signature -> the names of its inputs, and those of its outputs."""
        return {
            name: (tuple(sorted(one.inputs)), tuple(sorted(one.outputs)))
            for name, one in self._signatures.items()
        }

    @property
    def graph(self) -> tf.Graph:
        """The loaded graph."""
        return self._graph

    def __call__(self, inputs: Mapping[str, Any], signature: str = _DEFAULT) -> dict[str, Any]:
        """Runs the model on one batch.

        Args:
            inputs: Name -> array of shape [B, ...], for any B that the model takes; for a
                sparse input a SparseTensor or its value, likewise for a ragged one.
            signature: Which of `signatures` to run.

        Returns:
            Name -> array; a SparseTensorValue or RaggedTensorValue where the output is one.

        Raises:
            ValueError: If the signature does not exist, or inputs are missing or unknown.
        """
        if signature not in self._signatures:
            raise ValueError(
                f"{self.path} has the signatures {_names(self._signatures)}; got {signature!r}."
                f"{_nearest(signature, self._signatures)}"
            )
        definition = self._signatures[signature]
        _require_inputs(inputs, definition.inputs, signature)
        feeds = {
            self._tensor(definition.inputs[name]): _fed(value) for name, value in inputs.items()
        }
        outputs = {name: self._tensor(info) for name, info in sorted(definition.outputs.items())}
        return self._session.run(outputs, feeds)

    def _tensor(self, info: tf1.TensorInfo) -> types.Rows:
        with self._graph.as_default():
            return tf1.saved_model.get_tensor_from_tensor_info(info, graph=self._graph)

    def close(self) -> None:
        """Frees what the session holds."""
        self._session.close()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Predictor({self.path!r}, signatures={_names(self._signatures)})"


def load_exported(
    path: str | bytes | os.PathLike[str],
    tags: Iterable[str] | str = (tf.saved_model.SERVING,),
) -> Predictor:
    """Loads a SavedModel; see `Predictor`."""
    return Predictor(path, tags)


def _require_tags(path: str, tags: set[str]) -> None:
    listed = [sorted(graph.meta_info_def.tags) for graph in export.read(path).meta_graphs]
    if sorted(tags) not in listed:
        raise ValueError(
            f"{path} has graphs with the tags {listed}; got {sorted(tags)}. Name the tags of one."
        )


def _require_inputs(given: Mapping[str, Any], wanted: Mapping[str, Any], signature: str) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(
            f"Inputs are a dict of arrays; got {type(given).__name__}. Signature {signature!r} "
            f"takes {_names(wanted)}."
        )
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in sorted(wanted) if name not in given]
    if unknown or missing:
        came = [f"no input {name!r}.{_nearest(name, missing or wanted)}" for name in unknown]
        came += [f"{name!r} is missing." for name in missing]
        raise ValueError(
            f"Signature {signature!r} takes the inputs {_names(wanted)}: {' '.join(came)}"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _names(known: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(known))) or "none"


def _fed(value: Any) -> Any:
    """Returns what a session takes for one input."""
    if isinstance(value, tf.SparseTensor):
        parts = (value.indices, value.values, value.dense_shape)
        return tf1.SparseTensorValue(*[part.numpy() for part in parts])
    if isinstance(value, tf.RaggedTensor):
        return tf1.ragged.RaggedTensorValue(_fed(value.values), value.row_splits.numpy())
    return value.numpy() if isinstance(value, tf.Tensor) else value
