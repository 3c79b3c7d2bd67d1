"""One model in one mode, in a graph of its own, and what comes out when it runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate import types
from replicate.compat import keras
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry
from replicate.strategy.variables import variables
from replicate.verification import inputs

LOSS = "loss"
WEIGHTS = "weights"
SLOTS = "slots"
OTHERS = "other variables"
METRICS = "metrics"
PREDICTIONS = "predictions"
EXPORTS = "export outputs"
WHATS = (LOSS, WEIGHTS, SLOTS, OTHERS, METRICS, PREDICTIONS, EXPORTS)
OF_MODE = {
    types.TRAIN: (LOSS, WEIGHTS, SLOTS, OTHERS),
    types.EVAL: (LOSS, METRICS, PREDICTIONS),
    types.PREDICT: (PREDICTIONS, EXPORTS),
}
_SEED = 1  # of all random numbers
_PATIENCE = tf1.RunOptions(timeout_in_ms=600_000)  # for one batch; a queue may never fill
MODE_NAMES = {types.TRAIN: "train", types.EVAL: "eval", types.PREDICT: "predict"}


class Key(NamedTuple):
    """What a value is.

    Attributes:
        what: One of `WHATS`.
        name: Which one of them, e.g. the name of a variable.
    """

    what: str
    name: str


class Quantity(NamedTuple):
    """A value after one batch.

    Attributes:
        copies: The value, once for each copy of a mirrored variable; of a weight, how much
            it has changed.
        magnitude: The largest number that `copies` are a difference of; 0 where they are none.
    """

    copies: tuple
    magnitude: float = 0.0


Outcome = dict[Key, Quantity]
"""All that came out of one batch."""


class Trace:
    """A model in one mode, built.

    Args:
        build: A function of features, labels and mode that returns an EstimatorSpec.
        form: Of the batches.
        row_count: B, where the form says that graphs know it.
        mode: The mode key.
        session_config: Of the sessions.

    Attributes:
        graph: The graph.
        made_by: The operation that each value is of: the one that makes it, or a variable's own.
        has_updates: Whether there are `UPDATE_OPS`.
    """

    def __init__(
        self,
        build: Callable,
        form: inputs.Form,
        row_count: int,
        mode: str,
        session_config: Any,
    ):
        self._session_config = session_config
        self.graph = tf.Graph()
        with self.graph.as_default(), keras.drawing_from(_SEED):
            tf1.set_random_seed(_SEED)
            tf1.train.create_global_step()
            self._inputs = inputs.placeholders(form, row_count)
            labels = None if mode == types.PREDICT else self._inputs.labels
            spec = build(self._inputs.features, labels, mode)
            outputs = dict(_outputs(spec, mode))
            self._metrics = {}
            updates = [spec.train_op] if mode == types.TRAIN else []
            if mode == types.EVAL:
                for name, (value, update) in (spec.eval_metric_ops or {}).items():
                    self._metrics[Key(METRICS, name)] = value
                    updates.append(update)
            self._fetches = [outputs, updates]
            self._has_variables = mode == types.TRAIN
            self.has_updates = bool(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
            self.made_by = {key: value.op for key, value in (outputs | self._metrics).items()}
            self._prepare_variables()
            self._scaffold = (spec.scaffold or tf1.train.Scaffold()).finalize()

    def _prepare_variables(self) -> None:
        """Makes what reads and sets the global variables, all their copies included."""
        trainable = {variable.name for variable in tf1.trainable_variables()}
        self._reads: dict[str, list] = {}
        self._sets: dict[str, tuple] = {}
        self._kinds: dict[str, str] = {}
        for variable in tf1.global_variables():
            name = variable.name
            is_mirrored = isinstance(variable, variables.MirroredVariable)
            copies = variable.members if is_mirrored else (variable,)
            self._reads[name] = [copy.read_value() for copy in copies]
            value = tf1.placeholder(variable.dtype.base_dtype, variable.shape)
            self._sets[name] = (value, tf1.group(variable.assign(value)))
            self._kinds[name] = _kind(name, trainable)
            self.made_by[Key(self._kinds[name], name.removesuffix(":0"))] = variable.op

    @property
    def variable_names(self) -> frozenset[str]:
        """The names of all global variables."""
        return frozenset(self._reads)

    def variables(self) -> list[tf.Operation]:
        """Returns the operations of all variables, local ones among them."""
        with self.graph.as_default():
            return [each.op for each in (*tf1.global_variables(), *tf1.local_variables())]

    def executed(self) -> set[tf.Operation]:
        """Returns all operations that a batch runs."""
        leaves = tf.nest.flatten(self._fetches, expand_composites=True)
        return ancestry.executed_by([leaf for leaf in leaves if leaf is not None])

    def run(self, batches: Sequence, start: dict[str, np.ndarray]) -> list[Outcome]:
        """Runs batches one after the other, from a start, in a session of its own.

        Args:
            batches: Lists of leaves.
            start: Values of variables by name. What it lacks begins as the model says, and
                is added to it.

        Returns:
            What came out of each batch; the metrics are with the last one.
        """
        session = tf1.Session(graph=self.graph, config=self._session_config)
        with session, keras.drawing_from(_SEED):
            self._begin(session, start)
            before = session.run(self._reads)
            outcomes = []
            for batch in batches:
                found, _ = session.run(self._fetches, self._inputs.feed(batch), _PATIENCE)
                outcome = _quantities(found)
                if self._has_variables:
                    outcome.update(self._variables(before, session.run(self._reads)))
                outcomes.append(outcome)
            outcomes[-1].update(_quantities(session.run(self._metrics)))
            return outcomes

    def _begin(self, session: Any, start: dict[str, np.ndarray]) -> None:
        """Initialises as an Estimator's session does, then sets what the start has."""
        scaffold = self._scaffold
        session.run(scaffold.init_op, feed_dict=scaffold.init_feed_dict)
        if scaffold.init_fn is not None:
            scaffold.init_fn(session)
        session.run(scaffold.local_init_op)
        known = [name for name in self._sets if name in start]
        feed = {self._sets[name][0]: start[name] for name in known}
        session.run([self._sets[name][1] for name in known], feed)
        for name, copies in session.run(self._reads).items():
            start.setdefault(name, copies[0])

    def _variables(self, before: Mapping, after: Mapping) -> Iterator[tuple[Key, Quantity]]:
        for name, copies in after.items():
            kind = self._kinds[name]
            key = Key(kind, name.removesuffix(":0"))
            if kind == WEIGHTS:
                pairs = zip(copies, before[name], strict=True)
                changes = tuple(np.asarray(new - old) for new, old in pairs)
                yield key, Quantity(changes, _magnitude(copies[0]))
            else:
                yield key, Quantity(tuple(map(np.asarray, copies)))


def _quantities(found: Mapping[Key, Any]) -> Outcome:
    return {key: Quantity((np.asarray(value),)) for key, value in found.items()}


def _kind(name: str, trainable: set[str]) -> str:
    """Tells weights from slots, whose names hold that of a weight, and from all else."""
    if name in trainable:
        return WEIGHTS
    path = f"/{name.removesuffix(':0')}/"
    is_slot = any(f"/{weight.removesuffix(':0')}/" in path for weight in trainable)
    return SLOTS if is_slot else OTHERS


def _magnitude(value: np.ndarray) -> float:
    return float(np.max(np.abs(np.asarray(value, np.float64)), initial=0.0))


def _outputs(spec: Any, mode: str) -> Iterator[tuple[Key, Any]]:
    """Yields the tensors of a spec that a batch computes."""
    name = MODE_NAMES[mode]
    if spec.loss is not None and mode != types.PREDICT:
        yield Key(LOSS, name), tf.convert_to_tensor(spec.loss)
    if spec.predictions is not None and mode != types.TRAIN:
        yield from _leaves(PREDICTIONS, name, spec.predictions)
    if mode == types.PREDICT:
        for signature, output in (spec.export_outputs or {}).items():
            for field in ("outputs", "scores", "classes", "value"):
                value = getattr(output, field, None)
                if value is not None:
                    path = signature if field == "outputs" else f"{signature}/{field}"
                    yield from _leaves(EXPORTS, path, value)


def _leaves(what: str, path: str, nest: Any) -> Iterator[tuple[Key, Any]]:
    """Yields the tensors of a nest with their paths."""
    if isinstance(nest, Mapping):
        for name, part in nest.items():
            yield from _leaves(what, f"{path}/{name}", part)
    elif isinstance(nest, (list, tuple)):
        for i, part in enumerate(nest):
            yield from _leaves(what, f"{path}/{i}", part)
    elif nest is not None:
        yield Key(what, path), tf.convert_to_tensor(nest)
