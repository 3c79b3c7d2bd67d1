"""One model in one mode, in a graph of its own, and what comes out when it runs."""

import collections
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replicate import types
from replicate.compat import keras
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.structure import definitions
from replicate.strategy.variables import variables
from replicate.verification import inputs, races

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
MODE_NAMES = {types.TRAIN: "train", types.EVAL: "eval", types.PREDICT: "predict"}

Build = Callable[[types.Nest, types.Nest, str], types.EstimatorSpec]
"""A function of features, labels and mode."""

_SEED = 1  # of all random numbers
_PATIENCE = tf1.RunOptions(timeout_in_ms=600_000)  # for one batch; a queue may never fill
_DRAWS = re.compile(
    "Random|TruncatedNormal|Multinomial|StatefulUniform|StatefulStandardNormal|RngReadAndSkip"
    "|CandidateSampler|SampleDistorted"
)
_EPSILONS = {"bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}


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

    copies: tuple[npt.NDArray[Any], ...]
    magnitude: float = 0.0


Outcome = dict[Key, Quantity]
"""All that came out of one batch."""

Values = dict[str, npt.NDArray[Any]]
"""Values of variables by name."""

_Copies = Mapping[str, Sequence[npt.NDArray[Any]]]
"""What all devices have of variables, by name."""


class _Variable(NamedTuple):
    """A global variable of the graph.

    Attributes:
        key: What it is.
        ops: Its own operation, or those of its parts.
        reads: The value of each copy.
        given: A placeholder for another value.
        set: Gives that to all copies.
    """

    key: Key
    ops: tuple[tf.Operation, ...]
    reads: tuple[tf.Tensor, ...]
    given: tf.Tensor
    set: tf.Operation


class Built:
    """A model in one mode, built.

    Args:
        build: Builds it.
        form: Of the batches.
        row_count: B, where the form says that graphs know it.
        mode: The mode key.
        session_config: Of the sessions.
        reads_first: Whether reads are to come first where the model leaves that open.

    Attributes:
        variable_names: The names of all global variables.
        races: What a batch leaves open, some of it settled.
    """

    def __init__(
        self,
        build: Build,
        form: inputs.Form,
        row_count: int,
        mode: str,
        session_config: tf1.ConfigProto,
        reads_first: bool = False,
    ):
        self._is_training = mode == types.TRAIN
        self._session_config = session_config
        self._graph = tf.Graph()
        with self._graph.as_default(), keras.drawing_from(_SEED):
            tf1.set_random_seed(_SEED)
            tf1.train.create_global_step()
            self._holders = inputs.placeholders(form, row_count)
            labels = None if mode == types.PREDICT else self._holders.labels
            spec = build(self._holders.features, labels, mode)
            self._outputs = dict(_outputs(spec, mode))
            metrics = (spec.eval_metric_ops or {}) if mode == types.EVAL else {}
            self._metrics = {Key(METRICS, name): value for name, (value, _) in metrics.items()}
            self._updates = [update for _, update in metrics.values()]
            if self._is_training:
                self._updates.append(spec.train_op)
            self._variables = _variables()
            self._scaffold = (spec.scaffold or tf1.train.Scaffold()).finalize()
        look = races.settle if reads_first else races.find
        self.races = look(self._graph, self._fetches())
        self.variable_names = frozenset(self._variables)

    def run(self, batches: Sequence[inputs.Batch], start: Values) -> list[Outcome]:
        """Runs batches one after the other, from a start, in a session of its own.

        Args:
            batches: The batches.
            start: What variables begin with. What it lacks begins as the model says, and is
                added to it.

        Returns:
            What came out of each batch; the metrics are with the last one.
        """
        session = tf1.Session(graph=self._graph, config=self._session_config)
        reads = {name: variable.reads for name, variable in self._variables.items()}
        with session, keras.drawing_from(_SEED):
            self._begin(session, start)
            before = session.run(reads)
            for name, copies in before.items():
                start.setdefault(name, copies[0])
            outcomes = []
            for batch in batches:
                feeds = inputs.feed(self._holders, batch)
                found, _ = session.run((self._outputs, self._updates), feeds, _PATIENCE)
                outcomes.append(_quantities(found))
                if self._is_training:
                    outcomes[-1].update(self._changes(before, session.run(reads)))
            outcomes[-1].update(_quantities(session.run(self._metrics)))
            return outcomes

    def _begin(self, session: tf1.Session, start: Values) -> None:
        """Initialises as an Estimator's session does, then sets what the start has."""
        scaffold = self._scaffold
        session.run(scaffold.init_op, feed_dict=scaffold.init_feed_dict)
        if scaffold.init_fn is not None:
            scaffold.init_fn(session)
        session.run(scaffold.local_init_op)
        known = {name: self._variables[name] for name in start if name in self._variables}
        feeds = {variable.given: start[name] for name, variable in known.items()}
        session.run([variable.set for variable in known.values()], feeds)

    def _changes(self, before: _Copies, after: _Copies) -> Iterator[tuple[Key, Quantity]]:
        """Yields the values of all variables after a batch, of weights their changes."""
        for name, variable in self._variables.items():
            copies = after[name]
            if variable.key.what == WEIGHTS:
                pairs = zip(copies, before[name], strict=True)
                largest = np.max(np.abs(np.asarray(copies[0], np.float64)), initial=0.0)
                changes = tuple(np.asarray(new - old) for new, old in pairs)
                yield variable.key, Quantity(changes, float(largest))
            else:
                yield variable.key, Quantity(tuple(map(np.asarray, copies)))

    def _fetches(self) -> list[types.Fetch]:
        """Returns all that a batch runs."""
        leaves = tf.nest.flatten([self._outputs, self._updates], expand_composites=True)
        return [leaf for leaf in leaves if leaf is not None]

    @functools.cached_property
    def precision(self) -> float:
        """ε of the coarsest dtype in which a batch computes what it makes from variables.

        It is 0 where that is none coarser than those of variables.
        """
        owned = self._variables.values()
        own = {op: epsilon(each.given.dtype) for each in owned for op in each.ops}
        floating = [op for op, least in own.items() if least]
        made = operations.executed_by(self._fetches()) & operations.reached_from(floating)
        outputs = (tensor for op in operations.with_called(made) for tensor in op.outputs)
        coarsest = max((epsilon(tensor.dtype) for tensor in outputs), default=0.0)
        return coarsest if coarsest > min(map(own.__getitem__, floating), default=0.0) else 0.0

    @functools.cached_property
    def drawing(self) -> list[tf.Operation]:
        """The operations of a batch that draw random numbers, in functions as well.

        What initialises variables is no part of a batch.
        """
        functions = definitions.Functions(self._graph)
        executed = operations.executed_by(self._fetches())
        found = [op for op in executed if functions.has_effect(op.node_def, _draws)]
        return sorted(found, key=lambda op: op.name)

    def reached_from(self, sources: Iterable[tf.Operation]) -> set[Key]:
        """Returns what operations change in one batch or a later one.

        A variable that is written from there passes it on to all that read it.
        """
        with self._graph.as_default():
            listed = (*tf1.global_variables(), *tf1.local_variables())
        sources = set(sources)
        writes = [(v.op, use.op) for v in listed for use in races.uses(v.handle) if use.is_write]
        while True:
            found = operations.reached_from(sources)
            written = {variable for variable, write in writes if write in found}
            if written <= sources:
                made = {key: value.op for key, value in (self._outputs | self._metrics).items()}
                owned = {each.key for each in self._variables.values() if found & {*each.ops}}
                return {key for key, op in made.items() if op in found} | owned
            sources |= written


def epsilon(dtype: tf.DType) -> float:
    """Returns the distance of a dtype from 1 to the next number; 0 if it is no floating one."""
    dtype = dtype.base_dtype
    if not (dtype.is_floating or dtype.is_complex):
        return 0.0
    known = _EPSILONS.get(dtype.name)
    return float(np.finfo(dtype.as_numpy_dtype).eps) if known is None else known


def _draws(kind: str) -> bool:
    return _DRAWS.search(kind) is not None


def _variables() -> dict[str, _Variable]:
    """Returns the global variables of the current graph by name."""
    trainable = set(map(operations.whole_name, tf1.trainable_variables()))
    parts: dict[str, list[tf.Variable]] = collections.defaultdict(list)
    for variable in tf1.global_variables():
        parts[operations.whole_name(variable)].append(variable)
    return {
        name: _variable(Key(kind_of(name, trainable), name), found) for name, found in parts.items()
    }


def _variable(key: Key, parts: Sequence[tf.Variable]) -> _Variable:
    """Returns a variable, given the parts that it is in, or itself."""
    infos, first = [part._save_slice_info for part in parts], parts[0]
    whole = first.shape if infos[0] is None else infos[0].full_shape
    given = tf1.placeholder(first.dtype.base_dtype, whole)
    copies = zip(*map(_copies, parts), strict=True)
    reads = tuple(_joined([copy.read_value() for copy in copied], whole) for copied in copies)
    written = [
        part.assign(given if own is None else tf.slice(given, own.var_offset, own.var_shape))
        for part, own in zip(parts, infos, strict=True)
    ]
    return _Variable(key, tuple(part.op for part in parts), reads, given, tf1.group(*written))


def _copies(variable: tf.Variable) -> Sequence[tf.Variable]:
    is_mirrored = isinstance(variable, variables.MirroredVariable)
    return variable.members if is_mirrored else (variable,)


def _joined(parts: Sequence[tf.Tensor], whole: Sequence[int] | tf.TensorShape) -> tf.Tensor:
    """Puts parts of a shape together, along the one axis that they do not have whole."""
    if len(parts) == 1:
        return parts[0]
    pairs = enumerate(zip(whole, parts[0].shape.as_list(), strict=True))
    return tf.concat(parts, next(axis for axis, (length, own) in pairs if length != own))


def kind_of(name: str, trainable: set[str]) -> str:
    """Tells weights from slots, whose names hold that of a weight, and from all else."""
    if name in trainable:
        return WEIGHTS
    path = f"/{name}/"
    return SLOTS if any(f"/{weight}/" in path for weight in trainable) else OTHERS


def _quantities(found: Mapping[Key, Any]) -> Outcome:
    return {key: Quantity((np.asarray(value),)) for key, value in found.items()}


def _outputs(spec: types.EstimatorSpec, mode: str) -> Iterator[tuple[Key, tf.Tensor]]:
    """Yields the tensors of a spec that a batch computes."""
    name = MODE_NAMES[mode]
    if spec.loss is not None and mode != types.PREDICT:
        yield Key(LOSS, name), tf.convert_to_tensor(spec.loss)
    if spec.predictions is not None and mode != types.TRAIN:
        yield from _leaves(PREDICTIONS, name, spec.predictions)
    if mode == types.PREDICT:
        for signature, output in (spec.export_outputs or {}).items():
            for field in ("outputs", "scores", "classes", "value"):
                path = signature if field == "outputs" else f"{signature}/{field}"
                yield from _leaves(EXPORTS, path, getattr(output, field, None))


def _leaves(what: str, path: str, nest: types.Nest) -> Iterator[tuple[Key, tf.Tensor]]:
    """Yields the tensors of a nest with their paths."""
    if isinstance(nest, Mapping):
        for name, part in nest.items():
            yield from _leaves(what, f"{path}/{name}", part)
    elif isinstance(nest, (list, tuple)):
        for i, part in enumerate(nest):
            yield from _leaves(what, f"{path}/{i}", part)
    elif nest is not None:
        yield Key(what, path), tf.convert_to_tensor(nest)
