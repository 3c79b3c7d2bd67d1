"""Where the running code stands: in a tower, across towers, or in an update.

A thread-local stack of modes, and nothing else. The empty stack means the default
strategy's tower, which `base` supplies.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Share(NamedTuple):
    """What part of the batch each of K towers holds, and what becomes of gradients.

    Attributes:
        weights: List of K scalars n_i / B, Python floats or float64 tensors; they sum to
            1. A tower may replace its own: see `TowerContext.set_loss_weight`.
        has_rows: K truths n_i > 0, Python bools or bool tensors. A tower without rows
            computes on a borrowed one, and counts for nothing.
        reduction: `"sum"`, `"mean"`, or None where the last loss decides.
        marks: K lists of the operations that hold a tower's weight: what depends on one
            has been multiplied by the weight already.
        products: K lists of what was multiplied by the number of towers: see `tower_count`.
        step: Stands between the gradients and the update; None: nothing does.
        given: K lists of the operations that make a tower's features and labels.
        row_counts: K numbers n_i, Python ints or int32 tensors; None where nobody counted.
    """

    weights: list
    has_rows: tuple
    reduction: str | None = None
    marks: tuple = ()
    products: tuple = ()
    step: Any = None
    given: tuple = ()
    row_counts: tuple = (None,)


class Mode(NamedTuple):
    """One entry of the stack.

    Attributes:
        strategy: The `DistributionStrategy` in charge.
        tower: The `TowerContext`, or None across towers.
        update_device: The device of the running `update`, or None outside of one.
        share: The towers' parts of the batch, or None where no batch was split.
    """

    strategy: Any
    tower: Any = None
    update_device: str | None = None
    share: Share | None = None


class _Stack(threading.local):
    def __init__(self):
        self.modes: list[Mode] = []
        self.is_one_tower = False


_stack = _Stack()


def current() -> Mode | None:
    """Returns the innermost mode, or None in the default strategy's tower."""
    return _stack.modes[-1] if _stack.modes else None


def depth() -> int:
    """Returns how many modes this thread has entered."""
    return len(_stack.modes)


@contextlib.contextmanager
def entered(mode: Mode) -> Iterator[Mode]:
    """Makes `mode` the current one of this thread."""
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
