"""What a config's training comes to: its variables, their devices, and the work of a step.

The training graph is built as a training builds it, over a batch of the config's input, and
measured. Nothing runs, and no checkpoint is looked at.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from replicate import estimator, model_fn, types
from replicate.app.config import config, sections
from replicate.app.data import section_inputs
from replicate.app.inspect import traffic
from replicate.app.training import estimators
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting import report
from replicate.splitting.structure import runs
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.variables import distributed_variable
from replicate.verification import runs as verified
from replicate.verification import subjects

_KINDS = {verified.WEIGHTS: "weight", verified.SLOTS: "slot", verified.OTHERS: "other"}
_LISTED = (*_KINDS.values(), "local")
_TOWER = re.compile(r"tower_(\d+)/")  # begins the names of a tower's operations


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
        held: How many bytes of weights and slots there are.
        sent: How many bytes a step sends to other devices, as far as they are known.
        received: How many it receives from them.
    """

    name: str
    tower: int | None
    variables: int
    bytes: int
    operations: int
    of_tower: int = 0
    held: int = 0
    sent: int = 0
    received: int = 0


class Bound(NamedTuple):
    """What each of K devices holds and moves if all do as much, and no more than they must.

    Attributes:
        held: 1 / K of the bytes of weights and slots.
        moved: 2 (K - 1) / K of the bytes of weights, sent and received: a ring all-reduce.
    """

    held: int
    moved: int


class Description(NamedTuple):
    """A training, measured.

    Attributes:
        name: Of the config.
        strategy: Who keeps the variables.
        batch_size: Rows of the global batch, for which bytes are counted.
        variables: Weights first, then slots, others and local ones.
        devices: The towers', in their order, then all others that have something to do.
        transfers: What travels between them in a step.
        bound: For each device; None: there is one tower, or a cluster.
        split: What is split by rows of one device's graph, and what is whole; None: towers are
            calls of the model.
    """

    name: str
    strategy: str
    batch_size: int
    variables: tuple[Variable, ...]
    devices: tuple[Device, ...]
    transfers: tuple[traffic.Transfer, ...]
    bound: Bound | None = None
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


def describe(settings: config.Config, task: clusters.Cluster = clusters.ALONE) -> Description:
    """Builds the training graph of a config and measures it.

    Args:
        settings: The config.
        task: Which worker of which cluster this is. Nothing listens, and nobody is waited for.

    Raises:
        DeviceError: If this machine lacks a device.
        RunError: If a function or a file is bad or missing.
    """
    batch_size = settings.section(sections.Train).input.batch_size
    # Workers that meet share each batch; those with servers take one each.
    own_size = batch_size if task.servers else -(-batch_size // task.size)
    described = estimators.describe(settings, task._replace(listens=False))
    strategy = described.options.get("strategy")
    if strategy is None or isinstance(strategy, str):
        workers = subjects.worker_devices(described.devices, strategy)
        name = "one_device" if len(workers) == 1 else strategy or "parameter_server"
    else:  # of a cluster: servers know devices by other names
        workers, name = strategy.worker_devices, settings.strategy or "one_device"
    is_of_cluster = task.size > 1 or bool(task.servers)
    if is_of_cluster:
        name = "parameter_server" if task.servers else "multi_worker"
    make = section_inputs.input_fn(settings, "train", task=task)
    with tf.Graph().as_default() as graph, report.heard() as heard:
        tf1.set_random_seed(settings.seed)
        tf1.train.create_global_step()
        with tf.device("/device:CPU:0"):
            element = tf1.data.make_initializable_iterator(make()).get_next()
        spec = _built(described, element)
        step = [spec.train_op, spec.loss]
        variables, split, shape_of = find_variables(), None, traffic.unknown_shape
        if heard:
            executed = operations.executed_by(step)
            split = report.of_step(heard[0], executed, len(workers), batch_size)
            parts = [end - begin for begin, end in runs.static_bounds(own_size, len(workers))]
            shape_of = functools.partial(report.part_shape, heard[0], parts)
        moved = traffic.transfers(step, traffic.row_counts(graph, own_size), shape_of)
        found = tuple(measure_devices(step, variables, workers, moved, split is not None))
    bound = None if is_of_cluster else bound_of(variables, len(workers))
    return Description(settings.name, name, own_size, variables, found, tuple(moved), bound, split)


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
                traffic.size_of(shape, dtype),
                tuple(map(traffic.place_of, handles)),
            )
        )
    return tuple(sorted(found, key=lambda one: (_LISTED.index(one.kind), one.name)))


def bound_of(variables: Iterable[Variable], num_towers: int) -> Bound | None:
    """Returns what each device holds and moves at best; None where there is one tower."""
    if num_towers == 1:
        return None
    weights, slots = (_bytes(variables, (kind,)) for kind in ("weight", "slot"))
    return Bound(
        held=math.ceil((weights + slots) / num_towers),
        moved=math.ceil(2 * (num_towers - 1) * weights / num_towers),
    )


def _bytes(variables: Iterable[Variable], kinds: Sequence[str] = _LISTED) -> int:
    """Returns the bytes of one copy of variables, as far as they are known."""
    return sum(one.bytes or 0 for one in variables if one.kind in kinds)


def measure_devices(
    step: traffic.Step,
    variables: Sequence[Variable],
    workers: Sequence[str],
    transfers: Sequence[traffic.Transfer],
    is_split: bool,
) -> Iterator[Device]:
    """Yields the towers' devices, then all others that hold or do something.

    Args:
        step: What is run.
        variables: Of its graph.
        workers: The towers' devices.
        transfers: What travels in a step.
        is_split: Whether towers are parts of a graph that is split by rows.
    """
    executed = operations.executed_by(step)
    counts = Counter(map(traffic.place_of, executed))
    named = (_TOWER.match(op.name) for op in executed if is_split)
    parts = Counter(match[1] for match in named if match)
    held = {name for variable in variables for name in variable.devices}
    for name in (*workers, *sorted({*counts, *held} - set(workers))):
        own = [variable for variable in variables if name in variable.devices]
        tower = workers.index(name) if name in workers else None
        yield Device(
            name,
            tower,
            len(own),
            _bytes(own),
            counts[name],
            parts[str(tower)],
            held=_bytes(own, ("weight", "slot")),
            sent=sum(one.bytes for one in transfers if one.source == name),
            received=sum(one.bytes for one in transfers if one.target == name),
        )
