"""Where the running code stands: in a tower, across towers, or in an update.

A thread-local stack of modes, and nothing else. The empty stack means the default
strategy's tower, which `base` supplies.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class Joiner(Protocol):
    """Stands between what towers of one batch bring and what becomes of it."""

    whole: Any  # joins what is made of rows: a `graph.whole.Whole`

    def loss(self, losses: Sequence[Any]) -> Any:
        """Returns the whole batch's loss, of K losses of shape []."""

    def wrap(self, merge_fn: Callable, args: Sequence) -> tuple[Callable, Sequence]:
        """Returns what to call across towers in place of `merge_fn(*args)`.

        Args:
            merge_fn: What a tower passed to `tf.distribute`'s merge call.
            args: Its arguments, this tower's.
        """

    def mean(self, strategy: Any, value: Any, destination: Any) -> Any:
        """Returns what TensorFlow's own code averages over towers, as one device has it."""

    def written(self, strategy: Any, variable: Any, method: str, value: Any) -> list | None:
        """Returns what each copy of a variable gets of what K towers write.

        Args:
            strategy: The strategy; the code runs across towers.
            variable: The variable.
            method: The variable's method that towers called.
            value: Its argument, of all towers.

        Returns:
            A value for each copy, None where it keeps its own; None: each tower writes by
            itself.
        """

    @property
    def is_gathering(self) -> bool:
        """Whether what towers count becomes that of all of them, and of all workers, by itself."""

    def note(self, tower_id: int, tensor: Any) -> None:
        """Takes note of a tensor of a tower that has the same value in all of them."""

    def set_loss_weights(self, denominators: Sequence[Any]) -> None:
        """Takes by how much the K towers' losses weigh; see `TowerContext.set_loss_weight`."""

    def get_loss_reduction(self) -> str | None:
        """Returns `"sum"` or `"mean"` where losses are reduced so whatever the model says."""


class Share(NamedTuple):
    """What part of the batch each of K towers holds.

    Attributes:
        weights: K scalars n_i / B, Python floats or float64 tensors; they sum to 1.
        has_rows: K truths n_i > 0, Python bools or bool tensors. A tower without rows
            computes on a borrowed one, and counts for nothing. The first one has rows, if
            there are no other workers.
        joiner: Joins what the towers bring.
        across: Joins what workers bring, a `graph.collectives.Across`; None: there is one.
    """

    weights: tuple
    has_rows: tuple
    joiner: Joiner
    across: Any = None


class Mode(NamedTuple):
    """One entry of the stack.

    Attributes:
        strategy: The `DistributionStrategy` in charge.
        tower: The `TowerContext`, or None across towers.
        update_device: The device of the running `update`, or None outside of one.
        share: The towers' parts of the batch, or None where no batch was split.
        is_tensorflows: Whether towers meet because code of TensorFlow's kind asked for it.
    """

    strategy: Any
    tower: Any = None
    update_device: str | None = None
    share: Share | None = None
    is_tensorflows: bool = False


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
