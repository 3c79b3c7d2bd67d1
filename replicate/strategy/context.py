"""Where the running code stands: in a tower, across towers, or in an update.

A thread-local stack of modes, and nothing else. The empty stack means the default
strategy's tower, which `base` supplies.
"""

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, collectives

Pairs: TypeAlias = Sequence[tuple[types.Nest, tf.Variable]]
"""Gradients, or copies of them on several devices, or None, each with its variable."""


class Step(Protocol):
    """Stands between the gradients that towers bring and the update of an optimizer.

    Attributes:
        is_left_out: Whether optimizers update nothing.
    """

    is_left_out: bool

    @property
    def changes(self) -> Sequence[str]:
        """In words, what is done with gradients beside reducing them."""

    @property
    def made(self) -> Collection[tf.Operation]:
        """The operations of the updates, if something is done with gradients."""

    def wrap(
        self, merge_fn: types.Function, args: Sequence[types.Nest]
    ) -> tuple[types.Function, Sequence[types.Nest]]:
        """Returns what to call across towers in place of `merge_fn(*args)`.

        Args:
            merge_fn: What a tower passed to `tf.distribute`'s merge call.
            args: Its arguments, this tower's.
        """

    def apply_gradients(
        self,
        optimizer: tf1.train.Optimizer,
        grads_and_vars: Pairs,
        global_step: tf.Variable | None = None,
        name: str | None = None,
        **others: object,
    ) -> types.Nest:
        """Lets the towers meet, and calls `optimizer.apply_gradients` once for all."""


class Strategy(Protocol):
    """What code below `DistributionStrategy` asks of it; see there."""

    @property
    def is_default(self) -> bool:
        """Whether it is in charge only where nobody chose."""

    @property
    def is_between_graph(self) -> bool:
        """Whether each worker builds a graph of its own."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and summaries."""

    @property
    def is_single_tower(self) -> bool:
        """Whether there is one tower, over all workers."""

    @property
    def num_towers(self) -> int:
        """K."""

    @property
    def all_towers(self) -> int:
        """K, or W x K where W workers take part."""

    @property
    def first_tower(self) -> int:
        """The number, over all workers, of the first tower."""

    @property
    def workers(self) -> collectives.Workers:
        """The workers that join what they bring in the current graph."""

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The K devices on which towers compute."""

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices on which variables live and are updated."""

    @property
    def home(self) -> str:
        """The device of what is computed once, across towers."""

    @property
    def extended(self) -> tf1.distribute.StrategyExtended:
        """What `tf.distribute` sees."""

    def scope(self) -> AbstractContextManager[object]:
        """Enters cross-tower context."""

    def merging(
        self, share: "Share | None" = None, is_tensorflows: bool = False
    ) -> AbstractContextManager[None]:
        """Enters cross-tower context from a tower."""

    def configure(self, session_config: tf1.ConfigProto | None) -> None:
        """Sets what suits the strategy in a `ConfigProto`."""

    def run(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: Mapping[str, types.Nest] | None = None,
    ) -> types.Nest:
        """Runs a function once per tower, entering the scope where needed."""

    def call_for_each_tower(
        self,
        fn: types.Function,
        *args: types.Nest,
        run_concurrently: bool = False,
        **kwargs: types.Nest,
    ) -> types.Nest:
        """Runs a function once per tower."""

    def reduce(
        self,
        aggregation: types.NamedReduction,
        value: types.Nest,
        destinations: types.Nest = None,
    ) -> types.Nest:
        """Reduces a value over towers."""

    def batch_reduce(
        self,
        aggregation: types.NamedReduction,
        value_destination_pairs: Sequence[tuple[types.Nest, types.Nest]],
    ) -> list[types.Nest]:
        """Reduces many values over towers."""

    def mean_by_rows(self, value: types.Nest, destinations: types.Nest = None) -> types.Nest:
        """Averages a value over towers, each weighted by its rows."""

    def broadcast(self, tensor: types.Nest, destinations: types.Nest = None) -> types.Nest:
        """Copies a tensor to devices."""

    def destinations_of(self, destination: types.Nest) -> tuple[str, ...]:
        """Returns the devices that are meant."""

    def sum_places(self, destination: types.Nest) -> tuple[str, ...]:
        """Returns the devices that get what towers bring, added up."""

    def unwrap(self, value: types.Nest) -> list[types.Nest]:
        """Returns the values per device."""

    def group(self, value: types.Nest, name: str | None = None) -> tf.Operation:
        """Returns one operation that runs those per device."""

    def update(
        self, var: tf.Variable, fn: types.Function, *args: types.Nest, **kwargs: types.Nest
    ) -> types.Nest:
        """Runs a function on each copy of a variable."""

    def update_non_slot(
        self,
        colocate_with: Sequence[str],
        fn: types.Function,
        *args: types.Nest,
        **kwargs: types.Nest,
    ) -> types.Nest:
        """Runs a function on each non-slot device."""

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> Sequence[str]:
        """Returns where an optimizer's variables live that belong to no single variable."""

    def colocate_vars_with(self, v: tf.Variable | Sequence[str]) -> AbstractContextManager[None]:
        """Variables made inside live where another one lives."""

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        """Returns a variable's value."""


class Tower(Protocol):
    """What code below `TowerContext` asks of it; see there."""

    @property
    def position(self) -> int:
        """Which of this process's towers this is."""

    @property
    def tower_id(self) -> int:
        """Which tower of all this is."""

    @property
    def device(self) -> str:
        """The device on which it computes."""

    @property
    def is_of_one_batch(self) -> bool:
        """Whether the towers hold the parts of one batch."""

    @property
    def has_rows(self) -> bool | tf.Tensor:
        """Whether it holds rows of the batch."""

    @property
    def weight(self) -> float | tf.Tensor:
        """Its part of the batch."""

    @property
    def distribution_strategy(self) -> Strategy:
        """The strategy whose tower this is."""

    def merge_call(
        self, merge_fn: types.Function, *args: types.Nest, **kwargs: types.Nest
    ) -> types.Nest:
        """Runs a function once, across towers."""

    def merge_for_tensorflow(
        self, merge_fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        """The same for functions of `tf.distribute`."""


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
    reduction: types.Reduction = "mean"
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

    strategy: Strategy
    tower: Tower | None = None
    update_device: str | None = None
    share: Share | None = None
    is_tensorflows: bool = False


class _Stack(threading.local):
    def __init__(self) -> None:
        self.modes: list[Mode | None] = []
        self.is_one_tower = False


_stack = _Stack()


def current() -> Mode | None:
    """Returns the innermost mode, or None in the default strategy's tower."""
    return _stack.modes[-1] if _stack.modes else None


def required() -> Mode:
    """Returns the innermost mode of code that a strategy of the user's is in charge of.

    Raises:
        RuntimeError: If no strategy is.
    """
    mode = current()
    if mode is None:
        raise RuntimeError(
            "This code runs in the scope of a strategy, or in its towers; no scope was entered. "
            "Write `with strategy.scope():` around it."
        )
    return mode


def share() -> Share | None:
    """Returns the batch that the running code's towers share, if one was split."""
    mode = current()
    return None if mode is None else mode.share


def required_share() -> Share:
    """Returns the batch that the towers share, to code that runs where one was split.

    Raises:
        RuntimeError: If none was.
    """
    found = share()
    if found is None:
        raise RuntimeError(
            "This code runs in the towers of a batch that was split, or joins what they bring; no "
            "batch was split. Call the model_fn through replicate_model_fn."
        )
    return found


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
