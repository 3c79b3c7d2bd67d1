"""What a config's training comes to: its variables, their devices, and the work of a step.

The training graph is built as a training builds it, over a batch of the config's input, and
measured. Nothing runs, and no checkpoint is looked at.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicate import devices, estimator, model_fn, types
from replicate.app.config import config, sections
from replicate.app.data import section_inputs
from replicate.app.training import estimators
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting import report
from replicate.strategy.variables import distributed_variable
from replicate.verification import runs as verified
from replicate.verification import subjects

KINDS = ("weight", "slot", "other", "local")  # of variables, in the order in which they are told
_KINDS = {verified.WEIGHTS: "weight", verified.SLOTS: "slot", verified.OTHERS: "other"}
_TOWER = re.compile(r"tower_(\d+)/")  # begins the names of a tower's operations
_CPU = "/device:CPU:0"


class Variable(NamedTuple):
    """One variable of the training graph.

    Attributes:
        name: As in checkpoints.
        kind: weight; slot, which an optimizer keeps for a weight; other; or local, which is not
            in checkpoints.
        shape: None where not even its rank is known.
        dtype: By name.
        bytes: Of one copy; None where only a run can tell.
        devices: Where its copies live, one or more.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...] | None
    dtype: str
    bytes: int | None
    devices: tuple[str, ...]


class Device(NamedTuple):
    """One device.

    Attributes:
        name: Canonical.
        tower: The number of the tower that works there; None: none does.
        variables: How many variables have a copy there.
        bytes: Of these copies, as far as they are known.
        operations: How many operations of a training step run there.
        of_tower: How many of a step are the tower's part of a graph that is split by rows.
    """

    name: str
    tower: int | None
    variables: int
    bytes: int
    operations: int
    of_tower: int = 0


class Description(NamedTuple):
    """A training, measured.

    Attributes:
        name: Of the config.
        strategy: Who keeps the variables.
        batch_size: Rows of a batch, for which bytes are counted.
        variables: Weights first, then slots, others and local ones.
        devices: The towers', in their order, then all others that have something to do.
        split: What is split by rows of one device's graph, and what is whole; None: towers are
            calls of the model.
    """

    name: str
    strategy: str
    batch_size: int
    variables: tuple[Variable, ...]
    devices: tuple[Device, ...]
    split: report.Report | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold."""
        return _plain(self)


def _plain(value: Any) -> Any:
    """Returns named tuples as mappings."""
    if hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def short(device: str) -> str:
    """Returns a canonical device name as people read it: CPU:0."""
    return device.removeprefix("/").replace("device:", "")


def describe(settings: config.Config) -> Description:
    """Builds the training graph of a config and measures it.

    Raises:
        DeviceError: If this machine lacks a device.
        RunError: If a function or a file is bad or missing.
    """
    batch_size = settings.section(sections.Train).input.batch_size
    described = estimators.describe(settings)
    workers = subjects.worker_devices(described.devices, described.options.get("strategy"))
    name = settings.strategy or "parameter_server"
    if len(workers) == 1 and name != "multi_worker":
        name = "one_device"
    make = section_inputs.input_fn(settings, "train")
    with tf.Graph().as_default(), report.heard() as heard:
        tf1.set_random_seed(settings.seed)
        tf1.train.create_global_step()
        with tf.device(_CPU):
            element = tf1.data.make_initializable_iterator(make()).get_next()
        spec = _built(described, element)
        variables, executed = find_variables(), operations.executed_by([spec.train_op, spec.loss])
        split = heard and report.of_step(heard[0], executed, len(workers), batch_size)
        measured = tuple(_measured(executed, variables, workers, bool(split)))
    return Description(settings.name, name, batch_size, variables, measured, split or None)


def _built(described: estimators.Described, element: types.Nest) -> estimator.EstimatorSpec:
    """Builds the towers over a batch, as an Estimator does; returns the EstimatorSpec."""
    is_pair = isinstance(element, list | tuple) and len(element) == 2
    features, labels = element if is_pair else (element, None)
    replicated = model_fn.replicate_model_fn(
        described.model_fn, described.optimizer_fn, described.devices, **described.options
    )
    mode, params = estimator.ModeKeys.TRAIN, described.params
    return replicated(features, labels, mode, params=params, config=described.config)


def find_variables() -> tuple[Variable, ...]:
    """Returns the variables of the default graph: weights, slots, others, local ones."""
    weights = {variable.name for variable in tf1.trainable_variables()}
    kinds = [(one, _KINDS[verified.kind_of(one.name, weights)]) for one in tf1.global_variables()]
    found = []
    for variable, kind in [*kinds, *((one, "local") for one in tf1.local_variables())]:
        is_many = isinstance(variable, distributed_variable.DistributedVariable)
        copies = variable.members if is_many else [variable]
        handles = [getattr(copy, "handle", copy).op for copy in copies]
        shape, dtype = variable.shape, variable.dtype.base_dtype
        found.append(
            Variable(
                variable.name.partition(":")[0],
                kind,
                None if shape.rank is None else tuple(shape.as_list()),
                dtype.name,
                size_of(shape, dtype),
                tuple(map(place_of, handles)),
            )
        )
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.kind), one.name)))


def size_of(shape: tf.TensorShape, dtype: tf.DType) -> int | None:
    """Returns how many bytes a tensor has; None where only a run can tell."""
    count = shape.num_elements()
    is_known = count is not None and dtype not in (tf.string, tf.variant, tf.resource)
    return count * dtype.base_dtype.size if is_known else None


def place_of(op: tf.Operation) -> str:
    """Returns the device on which an operation runs.

    What works on a variable, an iterator or a table is where that is, whatever it was told; and
    one that was not told is where the first that works on it was told to be.
    """
    resources = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
    if resources and not operations.is_call(op):
        return place_of(resources[0].op)
    made = [tensor for tensor in op.outputs if tensor.dtype == tf.resource]
    users = (user for tensor in made for user in tensor.consumers())
    told = (one.device for one in (op, *users) if one.device and not operations.is_call(one))
    return _placed(op.device or next(told, None))


@functools.cache
def _placed(device: str | None) -> str:
    """Returns the whole name of a device that is named in part, or not at all.

    Where nothing is named TensorFlow takes the first GPU, or the CPU where there is none.
    """
    found = devices.canonical_or_same(device)
    named = tf.DeviceSpec.from_string(found)
    if named.device_type and named.device_index is not None:
        return found
    first = (devices.local_devices("GPU") or (_CPU,))[0]
    if named.device_type and named.device_type not in first:
        first = f"/device:{named.device_type}:0"
    whole = tf.DeviceSpec.from_string(first).make_merged_spec(named)
    return devices.canonical_or_same(whole.to_string())


def _measured(
    executed: set[tf.Operation],
    variables: Sequence[Variable],
    workers: Sequence[str],
    is_split: bool,
) -> Iterator[Device]:
    """Yields the towers' devices, then all others that hold or do something in a step."""
    counts = Counter(map(place_of, executed))
    named = (_TOWER.match(op.name) for op in executed if is_split)
    parts = Counter(match[1] for match in named if match)
    held = {name for variable in variables for name in variable.devices}
    for name in (*workers, *sorted({*counts, *held} - set(workers))):
        own = [variable.bytes or 0 for variable in variables if name in variable.devices]
        tower = workers.index(name) if name in workers else None
        yield Device(name, tower, len(own), sum(own), counts[name], parts[str(tower)])
