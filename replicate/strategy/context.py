"""Where the running code stands: in a tower, across towers, or in an update.

A thread-local stack of modes, and nothing else. The empty stack means the default
strategy's tower, which `base` supplies.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from replicate.compat.tensorflow import tf
from replicate.graph import batches, collectives


class Step(Protocol):
    """Stands between the gradients that towers bring and the update of an optimizer.

    Attributes:
        is_left_out: Whether optimizers update nothing.
    """

    is_left_out: bool

    def wrap(self, merge_fn: Callable, args: Sequence) -> tuple[Callable, Sequence]:
        """Returns what to call across towers in place of `merge_fn(*args)`.

        Args:
            merge_fn: What a tower passed to `tf.distribute`'s merge call.
            args: Its arguments, this tower's.
        """

    def apply_gradients(self, optimizer: Any, pairs: Sequence, *args: Any, **kwargs: Any) -> Any:
        """Lets the towers meet, and calls `optimizer.apply_gradients` once for all."""


class Strategy(Protocol):
    """What code below `DistributionStrategy` asks of it."""

    is_default: bool
    num_towers: int
    all_towers: int
    first_tower: int
    is_single_tower: bool
    worker_devices: tuple[str, ...]
    workers: collectives.Workers
    extended: Any
    merging: Callable
    reduce: Callable
    mean_by_rows: Callable
    unwrap: Callable


class Tower(Protocol):
    """What code below `TowerContext` asks of it; see there."""

    position: int
    tower_id: int
    is_of_one_batch: bool
    has_rows: bool | tf.Tensor
    distribution_strategy: Strategy
    merge_call: Callable


class Share(NamedTuple):
    """A batch that K towers share, and how what they bring is joined.

    Attributes:
        parts: What part of the batch each tower holds.
        step: What is done with gradients before the update.
        reduction: `"sum"` or `"mean"`, by rows: of losses and gradients.
        workers: The workers that join what they bring.
        is_gathered: Whether what towers count becomes that of all towers, and of all workers,
            by itself, as it does in an evaluation.
    """

    parts: batches.Parts
    step: Step
    reduction: str = "mean"
    workers: collectives.Workers = collectives.ALONE
    is_gathered: bool = False


class Mode(NamedTuple):
    """One entry of the stack.

    Attributes:
        strategy: The `DistributionStrategy` in charge.
        tower: The `TowerContext`, or None across towers.
        update_device: The device of the running `update`, or None outside of one.
        share: The towers' parts of the batch, or None where no batch was split.
        is_tensorflows: Whether towers meet because code of TensorFlow's kind asked for it.
    """

    strategy: "Strategy"
    tower: "Tower | None" = None
    update_device: str | None = None
    share: Share | None = None
    is_tensorflows: bool = False


class _Stack(threading.local):
    def __init__(self):
        self.modes: list[Mode | None] = []
        self.is_one_tower = False


_stack = _Stack()


def current() -> Mode | None:
    """Returns the innermost mode, or None in the default strategy's tower."""
    return _stack.modes[-1] if _stack.modes else None


@contextlib.contextmanager
def entered(mode: Mode | None) -> Iterator[Mode | None]:
    """Makes `mode` the current one of this thread, or leaves it to the default strategy."""
    _stack.modes.append(mode)
    try:
        yield mode
    finally:
        _stack.modes.pop()


@contextlib.contextmanager
def one_tower() -> Iterator[None]:
    """Gives every model that this thread builds inside one tower, whatever its devices."""
    before, _stack.is_one_tower = _stack.is_one_tower, True
    try:
        yield
    finally:
        _stack.is_one_tower = before


def is_one_tower() -> bool:
    """Whether `one_tower` is entered."""
    return _stack.is_one_tower
