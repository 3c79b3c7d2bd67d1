"""Reports what became of a graph that was split: what is split, what is whole and why."""

import contextlib
import contextvars
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting import splitter
from replicate.splitting.inference import extents
from replicate.splitting.structure import effects

_TOLD = 3  # how many whole operations are named
_ROWS = 64  # for how many rows bytes are counted by default

_Results: TypeAlias = list[splitter.Result]

_heard: contextvars.ContextVar[_Results | None] = contextvars.ContextVar("heard", default=None)


class Whole(NamedTuple):
    """An operation with rows that runs once.

    Attributes:
        name: Its name.
        type: Its kind.
        reason: Why it is whole.
        bytes: How many bytes it reads and makes, as far as lengths are known.
    """

    name: str
    type: str
    reason: str
    bytes: int


class Report(NamedTuple):
    """A graph that was split.

    Attributes:
        devices: K.
        split: How many operations each device runs a copy of.
        whole: The operations with rows that run once, the largest first.
    """

    devices: int
    split: int
    whole: tuple[Whole, ...]

    def __str__(self) -> str:
        runs = "runs" if len(self.whole) == 1 else "run"
        devices = "1 device" if self.devices == 1 else f"{self.devices} devices"
        text = (
            f"The model's graph is split over {devices}: each runs {self.split} "
            f"operations on its rows; {len(self.whole)} with rows {runs} once"
        )
        told = [f"{one.type} {one.name} ({one.reason})" for one in self.whole[:_TOLD]]
        more = ", the largest: " if len(self.whole) > _TOLD else ": "
        return f"{text}{more if told else ''}{'; '.join(told)}."


def of(result: splitter.Result, num_devices: int) -> Report:
    """Returns the report on a graph that was split.

    Args:
        result: What became of it.
        num_devices: K.
    """
    return Report(num_devices, len(result.split), _whole(result, result.whole, _ROWS))


def told_of_held(result: splitter.Result) -> str:
    """Returns which operations keep memory from falling with micro-batches."""
    named = ", ".join(f"{op.type} {op.name}" for op in result.held[:_TOLD])
    more = len(result.held) - _TOLD
    advice = (
        " Updates that run beside the train_op, as tf.group(train_op, *updates), rather than before"
        " the gradients, make no gradient wait."
    )
    return (
        f"micro_batches: what follows {named}{f' and {more} more' if more > 0 else ''} waits until "
        "all parts of a device have come there, so they keep what they computed before, and of "
        "that no memory is saved. Numbers are right."
        f"{advice if any(map(effects.changes_state, result.held)) else ''}"
    )


def of_step(
    result: splitter.Result, executed: Container[tf.Operation], num_devices: int, rows: int
) -> Report:
    """Returns the report on what one step runs.

    Args:
        result: What became of the graph.
        executed: The operations of the step.
        num_devices: K.
        rows: For how many rows bytes are counted.
    """
    split = sum(op.name.startswith("tower_0/") for op in result.made.values() if op in executed)
    whole = [op for op in result.whole if op in executed]
    return Report(num_devices, split, _whole(result, whole, rows))


def _whole(result: splitter.Result, ops: Iterable[tf.Operation], rows: int) -> tuple[Whole, ...]:
    """Returns the operations that are whole though they have rows, the largest first."""
    found = [
        Whole(op.name, op.type, result.why(op), _bytes(result, op, rows))
        for op in ops
        if result.why(op)
    ]
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.name)))


def _bytes(result: splitter.Result, op: tf.Operation, rows: int) -> int:
    tensors = {tensor.ref() for tensor in (*op.inputs, *op.outputs)}
    return sum(_size(result, ref.deref(), rows) for ref in tensors)


def _size(result: splitter.Result, tensor: tf.Tensor, rows: int) -> int:
    """Returns a tensor's bytes; an unknown length counts as one."""
    shape = result.shape(tensor)
    return 0 if shape is None else extents.num_bytes(shape, tensor.dtype, rows)


@contextlib.contextmanager
def heard() -> Iterator[_Results]:
    """Collects the results of all graphs that are split meanwhile."""
    found: _Results = []
    before = _heard.set(found)
    try:
        yield found
    finally:
        _heard.reset(before)


def tell(result: splitter.Result) -> None:
    """Tells `heard` what became of a graph."""
    found = _heard.get()
    if found is not None:
        found.append(result)
