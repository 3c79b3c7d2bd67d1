"""What a config's training comes to: its variables, their devices, and the work of a step.

The training graph is built as a training builds it, over a batch of the config's input, and
measured. Nothing runs, and no checkpoint is looked at.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicate import estimator, model_fn, types
from replicate.app.config import config, sections
from replicate.app.data import section_inputs
from replicate.app.inspect import memory, traffic
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
        held: The bytes of weights and slots there.
        sent: How many bytes a step sends to other devices, as far as they are known.
        received: How many it receives from them.
        step: The bytes of tensors that a step takes there at most, as far as they are known.
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
    step: int = 0


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
        batch_size: Rows of a batch, for which bytes are counted.
        variables: Weights first, then slots, others and local ones.
        devices: The towers', in their order, then all others that have something to do.
        split: What is split by rows of one device's graph, and what is whole; None: towers are
            calls of the model.
        bound: Of each device; None: there is one tower, or there are other workers.
        unsized: How many tensors move whose sizes only a run can tell.
        micro_batches: In how many parts each device computes its rows.
    """

    name: str
    strategy: str
    batch_size: int
    variables: tuple[Variable, ...]
    devices: tuple[Device, ...]
    split: report.Report | None = None
    bound: Bound | None = None
    unsized: int = 0
    micro_batches: int = 1

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

    It is built twice: as a training builds it, and for batches that are known to have all rows,
    where TensorFlow infers how many bytes a step moves and takes.

    Raises:
        DeviceError: If this machine lacks a device.
        RunError: If a function or a file is bad or missing.
    """
    rows = settings.section(sections.Train).input.batch_size
    described = estimators.describe(settings)
    workers = subjects.worker_devices(described.devices, described.options.get("strategy"))
    name = settings.strategy_name or "parameter_server"
    if len(workers) == 1 and name != "multi_worker":
        name = "one_device"
    with _graph(settings, described, rows) as step:
        taken = memory.peaks(step, rows)
        moved = traffic.transfers(step) if len(workers) > 1 else []
    with report.heard() as heard, _graph(settings, described) as step:
        variables, executed = find_variables(), operations.executed_by(step)
        split = heard and report.of_step(heard[0], executed, len(workers), rows)
        number = settings.micro_batches if split else 0
        measured = _measured(executed, variables, workers, moved, number)
        found = tuple(one._replace(step=taken.get(one.name, 0)) for one in measured)
    bound = _bound(variables, len(workers)) if len(workers) > 1 else None
    unsized = sum(one.unsized for one in moved)
    parts = settings.micro_batches
    return Description(
        settings.name, name, rows, variables, found, split or None, bound, unsized, parts
    )


@contextlib.contextmanager
def _graph(
    settings: config.Config, described: estimators.Described, rows: int | None = None
) -> Iterator[traffic.Step]:
    """Enters a training graph, of which it yields what a step runs.

    Args:
        settings: The config.
        described: What its training is made of.
        rows: How many rows a batch is known to have; None: only a run can tell.
    """
    make = section_inputs.input_fn(settings, "train")
    with tf.Graph().as_default():
        tf1.set_random_seed(settings.seed)
        tf1.train.create_global_step()
        with tf.device("/device:CPU:0"):
            element = tf1.data.make_initializable_iterator(make()).get_next()
        for tensor in tf.nest.flatten(element) if rows else ():
            if isinstance(tensor, tf.Tensor) and tensor.shape.rank:
                tensor.set_shape([rows, *[None] * (tensor.shape.rank - 1)])
        spec = _built(described, element)
        yield [spec.train_op, spec.loss]


def _bound(variables: Sequence[Variable], num_towers: int) -> Bound:
    """Returns what each device holds and moves at best."""
    weights, slots = (_bytes(variables, (kind,)) for kind in ("weight", "slot"))
    moved = 2 * (num_towers - 1) * weights / num_towers
    return Bound(math.ceil((weights + slots) / num_towers), math.ceil(moved))


def _bytes(variables: Sequence[Variable], kinds: Sequence[str] = KINDS) -> int:
    """Returns the bytes of one copy of variables, as far as they are known."""
    return sum(one.bytes or 0 for one in variables if one.kind in kinds)


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
    weights = set(map(operations.whole_name, tf1.trainable_variables()))
    kinds = [
        (one, _KINDS[verified.kind_of(operations.whole_name(one), weights)])
        for one in tf1.global_variables()
    ]
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
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.kind), one.name)))


def _measured(
    executed: set[tf.Operation],
    variables: Sequence[Variable],
    workers: Sequence[str],
    moved: Sequence[traffic.Transfer],
    number: int,
) -> Iterator[Device]:
    """Yields the towers' devices, then all others that hold or do something in a step.

    Args:
        executed: What a step runs.
        variables: All variables.
        workers: The towers' devices.
        moved: What moves between devices.
        number: Of how many parts of a split graph each device has the operations; or 0.
    """
    counts = Counter(map(traffic.place_of, executed))
    named = (_TOWER.match(op.name) for op in executed if number)
    parts = Counter(int(match[1]) // number for match in named if match)
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
            parts[-1 if tower is None else tower],
            held=_bytes(own, ("weight", "slot")),
            sent=sum(one.bytes for one in moved if one.source == name),
            received=sum(one.bytes for one in moved if one.target == name),
        )
