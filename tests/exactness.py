"""Runs a model_fn on one device and split over K, and compares all that comes out.

The one device is TensorFlow alone: the model_fn is called as an Estimator would call it,
without anything of this package. Variables start from numbers that follow from their
shape, so both runs begin alike.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations

PATIENCE = tf1.RunOptions(timeout_in_ms=20_000)  # a graph that waits for itself is a failure


def arrays(path) -> dict[str, np.ndarray]:
    """Returns the arrays in an npz file, which is closed again."""
    with np.load(path) as found:
        return dict(found)


def session_config() -> tf1.ConfigProto:
    """A session that runs the graph as it was built, without optimizing it first."""
    config = tf1.ConfigProto(device_count={"CPU": len(tf.config.list_logical_devices("CPU"))})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return config


def start(shape, dtype=tf.float32, partition_info=None, **unused):
    """An initializer: numbers in [-0.5, 0.5) that follow from the shape."""
    del partition_info, unused
    numbers = np.random.RandomState(int(np.prod(shape)) + len(shape)).uniform(-0.5, 0.5, shape)
    return tf.constant(numbers, dtype)


class Run(NamedTuple):
    """What came out of some steps.

    Attributes:
        fetched: What was fetched in each step.
        variables: All global variables after each step, by name.
        metrics: The metrics after all steps.
        races: What a step reads and writes in any order; see `unordered`.
    """

    fetched: list
    variables: list
    metrics: dict
    races: list


class Counted:
    """A model_fn that knows how often it was called.

    Args:
        model: A model_fn of features, labels and mode.
    """

    def __init__(self, model):
        self._model = model
        self.calls = 0

    def __call__(self, features, labels, mode):
        self.calls += 1
        return self._model(features, labels, mode)


class Unranked(tf1.SparseTensorValue):
    """A sparse value of which a dynamic graph does not know the rank."""


class Padded(np.ndarray):
    """Rows padded to the batch's longest: a dynamic graph knows no second dimension either."""


def placeholders(nest: Any, is_static: bool) -> Any:
    """Returns placeholders for a nest of arrays and of sparse and ragged values."""

    def rows(shape):
        return shape if is_static or not shape else [None, *shape[1:]]

    def placeholder(value):
        if value is None:
            return None
        if isinstance(value, tf1.SparseTensorValue):
            shape = rows([int(size) for size in value.dense_shape])
            is_open = isinstance(value, Unranked) and not is_static
            return tf1.sparse_placeholder(value.values.dtype, None if is_open else shape)
        if isinstance(value, tf1.ragged.RaggedTensorValue):
            inner = value.flat_values.shape[1:]
            return tf1.ragged.placeholder(value.flat_values.dtype, value.ragged_rank, inner)
        if isinstance(value, Padded) and not is_static:
            return tf1.placeholder(value.dtype, [None, None, *value.shape[2:]])
        value = np.asarray(value)
        return tf1.placeholder(value.dtype, rows(list(value.shape)))

    leaves = [placeholder(value) for value in flatten(nest)]
    return tf.nest.pack_sequence_as(mapped(nest, lambda value: 0), leaves)


def mapped(nest: Any, fn: Callable) -> Any:
    """Applies `fn` to the leaves, of which a sparse value is one, unlike to `tf.nest`."""
    if isinstance(nest, dict):
        return {key: mapped(value, fn) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)) and not isinstance(nest, tf1.SparseTensorValue):
        parts = [mapped(value, fn) for value in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return fn(nest)


def flatten(nest: Any) -> list:
    """Returns the leaves in the order of `tf.nest`."""
    return [leaf.value for leaf in tf.nest.flatten(mapped(nest, Leaf))]


class Noted(dict):
    """Features or labels that note which of them are read, one by one or all at once."""

    def __init__(self, nest: dict):
        super().__init__(nest)
        self.read: set = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def __iter__(self):
        self.read |= super().keys()
        return super().__iter__()

    def keys(self):
        self.read |= super().keys()
        return super().keys()

    def values(self):
        return [self[key] for key in self]

    def items(self):
        return [(key, self[key]) for key in self]

    def get(self, key, default=None):
        return self[key] if key in self else default


class Leaf:
    """Hides what a leaf is made of."""

    def __init__(self, value: Any):
        self.value = value


def feeds(holders: Any, nest: Any) -> dict:
    """Returns the feed_dict that gives the placeholders the values of a nest."""
    pairs = zip(tf.nest.flatten(holders), flatten(nest), strict=True)
    return {holder: value for holder, value in pairs if holder is not None}


def run(
    model: Callable,
    batches: Sequence,
    mode: str = "train",
    is_static: bool = False,
    fetch: Callable | None = None,
    params: Any = None,
) -> Run:
    """Builds a spec in a graph of its own and runs it, batch by batch.

    Args:
        model: A model_fn of `features, labels, mode`, replicated or not.
        batches: Pairs of features and labels, nests of arrays.
        mode: The mode key.
        is_static: Whether the graph knows the batch size.
        fetch: From the spec to what each step fetches beside the update; None: all that
            the mode returns.
        params: Passed to the model, where given.
    """
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(3)
        tf1.train.create_global_step()
        holders = placeholders(batches[0], is_static)
        features, labels = holders
        spec = model(features, labels, mode, **({} if params is None else {"params": params}))
        fetches = (fetch or fetched)(spec)
        updates = updates_of(spec)
        values = {name: value for name, (value, _) in (spec.eval_metric_ops or {}).items()}
        found = values_of_variables()
        copies = copies_of_variables()
        initializer = initializer_of_all()
        with tf1.Session(graph=graph, config=session_config()) as session:
            session.run(initializer)
            outcome = Run([], [], {}, races_of([fetches, updates]))
            for batch in batches:
                feed = feeds(holders, batch)
                outcome.fetched.append(session.run([fetches, updates], feed, PATIENCE)[0])
                outcome.variables.append(session.run(found))
            require_equal(session.run(copies))
            return outcome._replace(metrics=session.run(values))


def values_of_variables() -> dict:
    """Returns the values of all global variables by name; of parts that of the whole variable."""
    parts: dict = {}
    for variable in tf1.global_variables():
        name = operations.whole_name(variable) + ":0"
        parts.setdefault(name, []).append(variable.read_value())
    return {
        name: found[0] if len(found) == 1 else tf.concat(found, 0) for name, found in parts.items()
    }


def initializer_of_all() -> list:
    """Returns what an Estimator's session runs before the first step."""
    return [
        tf1.global_variables_initializer(),
        tf1.local_variables_initializer(),
        tf1.tables_initializer(),
    ]


def fetched(spec: Any) -> dict:
    """Returns what a spec's mode is for: the loss, predictions."""
    found = {}
    if spec.loss is not None:
        found["loss"] = spec.loss
    if spec.predictions is not None and spec.mode != "train":
        found["predictions"] = spec.predictions
    return found


def races_of(fetches: Any) -> list[tuple[str, str, str]]:
    """Returns what a run of tensors and operations reads and writes in any order."""
    graph = tf1.get_default_graph()
    flat = tf.nest.flatten(fetches, expand_composites=True)
    elements = [graph.as_graph_element(each, allow_operation=True) for each in flat]
    return unordered([getattr(each, "op", each) for each in elements])


def unordered(ops: Sequence[tf.Operation]) -> list[tuple[str, str, str]]:
    """Returns variables with what a run reads of them, and a write before or after that.

    A copy has the variable's name.
    """
    before = reached(ops, inputs_of)
    after = {op: [] for op in before}
    for op in before:
        for each in inputs_of(op):
            after[each].append(op)
    reads, writes = ({}, {})
    for op in before:
        for handle in (tensor for tensor in op.inputs if tensor.dtype == tf.resource):
            maker = handle.op
            while maker.type in PASSING:
                maker = maker.inputs[0].op
            if maker.type == "VarHandleOp" and op.type not in PASSING:
                users = reads if op.type in READS else writes
                users.setdefault(maker, []).append(op)
    found = []
    for variable, changes in writes.items():
        for change in changes if variable in reads else ():
            known = reached([change], inputs_of) | reached([change], after.__getitem__)
            free = [read for read in reads[variable] if read not in known]
            name = COPY.sub("", variable.name)
            found += [(name, each.name, change.name) for each in free if not excludes(each, change)]
    return found


def excludes(one: tf.Operation, other: tf.Operation) -> bool:
    """Whether operations are in different branches, as version 1 makes them."""
    sides, others = (
        {
            (tensor.op.inputs[1].ref(), tensor.value_index)
            for each in reached([op], inputs_of)
            for tensor in each.inputs
            if tensor.op.type == "Switch"
        }
        for op in (one, other)
    )
    return any((truth, 1 - n) in others - sides for truth, n in sides - others)


COPY = re.compile(r"tower_\d+/|/tower_\d+(?=/|$)|/replica_\d+(?=/|$)")
PASSING = ("Identity", "Enter", "Switch")  # handles, into loops and branches
READS = (
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd"),
    *("VariableShape", "VarIsInitializedOp"),
)


def inputs_of(op: tf.Operation) -> list[tf.Operation]:
    """Returns what runs before an operation."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def reached(ops: Sequence[tf.Operation], step: Callable) -> set[tf.Operation]:
    """Returns operations, and all to which steps lead from them."""
    found, waiting = set(), list(ops)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += step(op)
    return found


def updates_of(spec: Any) -> list:
    if spec.mode == "train":
        return [spec.train_op]
    return [update for _, update in (spec.eval_metric_ops or {}).values()]


def copies_of_variables() -> dict:
    """Returns the values of all copies of each mirrored variable."""
    return {
        variable.name: [member.read_value() for member in variable.members]
        for variable in tf1.global_variables()
        if type(variable).__name__ == "MirroredVariable"
    }


def require_equal(copies: dict) -> None:
    """Finds a mirrored variable whose copies differ."""
    for name, values in copies.items():
        for value in values[1:]:
            np.testing.assert_array_equal(values[0], value, name)


def stepping(model: Callable, optimizer_fn: Callable) -> Callable:
    """Returns the model_fn with its optimizer inside, as it is written for one device."""

    def model_fn(features, labels, mode):
        spec = model(features, labels, mode)
        if mode != "train":
            return spec
        step = optimizer_fn().minimize(spec.loss, global_step=tf1.train.get_global_step())
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        return spec._replace(train_op=tf1.group(step, *updates))

    return model_fn


def spec_of(mode: str, loss=None, predictions=None, **fields) -> Any:
    """An EstimatorSpec whose train_op does nothing: optimizer_fn makes the step."""
    if mode == "train":
        fields.pop("eval_metric_ops", None)
        fields.setdefault("train_op", tf1.no_op())
    if mode == "infer":
        loss = None
        fields.pop("eval_metric_ops", None)
    return estimator.EstimatorSpec(mode, loss=loss, predictions=predictions, **fields)


def compare(found: Any, expected: Any, rtol: float = 2e-4, atol: float = 2e-5) -> None:
    """Requires two nests of numbers to be equal up to reassociation."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), f"only one has {sorted(set(found) ^ set(expected))}"
        for key in expected:
            with named(key):
                compare(found[key], expected[key], rtol, atol)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), f"{len(found)} for {len(expected)}"
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            with named(i):
                compare(one, other, rtol, atol)
    elif expected is None:
        assert found is None
    elif np.asarray(expected).dtype.kind in "fc":
        np.testing.assert_allclose(found, expected, rtol, atol)
    else:
        np.testing.assert_array_equal(found, expected)


@contextlib.contextmanager
def named(key: Any):
    """Adds where we are to an assertion that fails inside."""
    try:
        yield
    except AssertionError as failure:
        raise AssertionError(f"[{key!r}] {failure}") from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Requires that the package warns of nothing."""
    heard = _Texts()
    logging.getLogger("replicate").addHandler(heard)
    try:
        yield
    finally:
        logging.getLogger("replicate").removeHandler(heard)
    assert not heard.texts, heard.texts


class _Texts(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        """See base class."""
        self.texts.append(record.getMessage())


def require_one_device(
    model: Callable,
    batches: Sequence,
    mode: str = "train",
    optimizer_fn: Callable | None = None,
    is_static: bool = False,
    fetch: Callable | None = None,
    reference: Callable | None = None,
    narrowed: Callable | None = None,
    tolerance: tuple[float, float] = (2e-4, 2e-5),
    in_any_order: Sequence[str] = (),
    **options,
) -> Run:
    """Requires K devices to give, without a warning, what one gives; returns what they gave.

    Args:
        model: A model_fn.
        batches: See `run`; the same object is run on one device once for several strategies.
        mode: See `run`.
        optimizer_fn: See `replicate_model_fn`; on one device it steps inside the model.
        is_static: See `run`.
        fetch: See `run`.
        reference: What runs on one device; None: the model.
        narrowed: From a batch to what K devices are given of it, once one device has run.
        tolerance: Relative and absolute.
        in_any_order: Variables that may be read and written so, though one device does not.
        **options: Of `replicate_model_fn`.
    """
    inside = optimizer_fn if mode == "train" else None
    given = _Same(reference or model), inside, _Same(batches), mode, is_static, fetch
    expected = _on_one_device(*given)
    with quiet():
        replicated = model_fn.replicate_model_fn(model, optimizer_fn, **options)
        shared = batches if narrowed is None else [narrowed(batch) for batch in batches]
        found = run(replicated, shared, mode, is_static, fetch)
    is_open = {*in_any_order, *(variable for variable, *_ in expected.races)}
    races = [each for each in found.races if each[0] not in is_open]
    assert not races, f"read and written in any order: {races}"
    for part in ("fetched", "variables", "metrics"):
        with named(part):
            compare(getattr(found, part), getattr(expected, part), *tolerance)
    return found


class _Same(NamedTuple):
    """An object that equals itself alone."""

    value: Any

    def __eq__(self, other):
        return self.value is other.value

    def __hash__(self):
        return id(self.value)


@functools.lru_cache(maxsize=4)
def _on_one_device(model: _Same, optimizer_fn, batches: _Same, *given) -> Run:
    """Runs a model_fn without anything of this package, and remembers what came out."""
    single = model.value if optimizer_fn is None else stepping(model.value, optimizer_fn)
    return run(single, batches.value, *given)
