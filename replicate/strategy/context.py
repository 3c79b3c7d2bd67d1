"""Where the running code stands: in a tower, across towers, or in an update.

A stack of modes for each thread. The empty stack means the default strategy's tower, which
`default` supplies. `tf.distribute` has such a stack for each graph, of its own modes: who enters
a mode of ours there enters the one that matches, so that optimizers, batch normalization, moving
averages and metrics which ask `tf.distribute` find this strategy.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, collectives
from replicate.strategy import conversion

Strategy: TypeAlias = tf.distribute.Strategy
"""A `DistributionStrategy`, to code below that class."""

Merge: TypeAlias = Callable[[types.Function, Sequence[types.Nest], types.Arguments], types.Nest]
"""Runs a function with arguments as across towers."""

Pairs: TypeAlias = Sequence[tuple[types.Nest, tf.Variable]]
"""Gradients, or copies of them on several devices, or None, each with its variable."""


class Share(NamedTuple):
    """A batch that K towers share, and how what they bring is joined.

    Attributes:
        parts: What part of the batch each tower holds.
        step: What is done with gradients before the update, a `training.step.GradientStep`.
        reduction: `"sum"` or `"mean"`, by rows: of losses and gradients.
        workers: The workers that join what they bring.
        is_gathered: Whether what towers count becomes that of all towers, and of all workers,
            by itself, as it does in an evaluation.
        is_exported: Whether the graph is exported, and no step writes the model's variables: each
            has one copy then.
    """

    parts: batches.Parts
    step: Any
    reduction: types.Reduction = "mean"
    workers: collectives.Workers = collectives.ALONE
    is_gathered: bool = False
    is_exported: bool = False


@conversion.unconverted
class TowerContext:
    """What the code of one tower may ask and do.

    Args:
        strategy: The strategy whose tower this is.
        position: Which of this process's towers it is, from 0.
        share: The towers' parts of the batch, if one was split.
        creations: The log of what towers make, if there are several.
        meet: Lets the towers meet, if there are several.

    Attributes:
        creations: Likewise.
    """

    def __init__(
        self,
        strategy: Strategy,
        position: int,
        share: Share | None = None,
        creations: Any = None,
        meet: Callable[[types.Function, types.Nest, types.Nest, Merge], types.Nest] | None = None,
    ):
        self._strategy = strategy
        self._position = position
        self._share = share
        self._meet = meet
        self.creations = creations

    def merge_call(
        self, merge_fn: types.Function, *args: types.Nest, **kwargs: types.Nest
    ) -> types.Nest:
        """Pauses until all towers are here, and runs a function across towers.

        Args:
            merge_fn: Called once as `merge_fn(strategy, *args, **kwargs)` in cross-tower
                context, with what the K towers passed merged into one nest.
            *args: This tower's positional arguments.
            **kwargs: This tower's keyword arguments.

        Returns:
            This tower's part of what `merge_fn` returned.

        Raises:
            RuntimeError: If this is not the current tower context.
            TowerMismatchError: If the towers make different numbers of calls, or pass
                different functions.
        """
        require_tower_context(self)
        return self.meet(merge_fn, args, kwargs)

    def meet(
        self,
        merge_fn: types.Function,
        args: Sequence[types.Nest],
        kwargs: types.Arguments,
        is_tensorflows: bool = False,
    ) -> types.Nest:
        """Does what `merge_call` does, also for a function of `tf.distribute`'s kind."""

        def run(
            fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
        ) -> types.Nest:
            with self._strategy.merging(self._share, is_tensorflows):
                return conversion.as_here(fn)(self._strategy, *args, **kwargs)

        if self._meet is None:
            return run(merge_fn, args, kwargs)
        return self._meet(merge_fn, tuple(args), dict(kwargs), run)

    @property
    def tower_id(self) -> int:
        """Which tower this is, from 0 to `num_towers - 1`."""
        return self._strategy.first_tower + self._position

    @property
    def position(self) -> int:
        """Which of this process's towers this is, from 0."""
        return self._position

    @property
    def num_towers(self) -> int:
        """K, or W x K where W workers take part."""
        return self._strategy.all_towers

    @property
    def is_single_tower(self) -> bool:
        """Whether K is 1."""
        return self._strategy.is_single_tower

    @property
    def distribution_strategy(self) -> Strategy:
        """The strategy whose tower this is."""
        return self._strategy

    @property
    def device(self) -> str:
        """The device on which this tower computes."""
        return self._strategy.worker_devices[self._position]

    @property
    def has_rows(self) -> bool | tf.Tensor:
        """Whether this tower holds rows of the batch: a bool, or a bool tensor of shape []."""
        return True if self._share is None else self._share.parts.has_rows[self._position]

    @property
    def weight(self) -> float | tf.Tensor:
        """This tower's part of the batch, n_i / B: a float, or a float64 tensor of shape []."""
        if self._share is None:
            return 1.0 / self.num_towers
        return self._share.parts.weights[self._position]


class Mode(NamedTuple):
    """One entry of the stack.

    Attributes:
        strategy: The `DistributionStrategy` in charge.
        tower: The `TowerContext`, or None across towers.
        update_device: The device of the running `update`, or None outside of one.
        share: The towers' parts of the batch, or None where no batch was split.
        is_tensorflows: Whether towers meet because code of TensorFlow's kind asked for it.
        copies: Where an optimizer runs once, and all towers are one replica to `tf.distribute`: its
            gradients that have copies on several devices, by the ids of the first copies.
    """

    strategy: Strategy
    tower: "TowerContext | None" = None
    update_device: str | None = None
    share: Share | None = None
    is_tensorflows: bool = False
    copies: Mapping[int, types.Nest] | None = None


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
    mode = current()
    if mode is None or mode.share is None:
        raise RuntimeError(
            "This code runs in the towers of a batch that was split, or joins what they bring; no "
            "batch was split. Call the model_fn through replicate_model_fn."
        )
    return mode.share


@contextlib.contextmanager
def entered(mode: Mode | None) -> Iterator[Mode | None]:
    """Makes `mode` the current one of this thread, or leaves it to the default strategy."""
    _stack.modes.append(mode)
    try:
        yield mode
    finally:
        _stack.modes.pop()


@contextlib.contextmanager
def across(mode: Mode) -> Iterator[None]:
    """Enters a mode across towers, ours and TensorFlow's."""
    with (
        entered(mode),
        in_tensorflow(tfc.distribute_lib._CrossReplicaThreadMode(mode.strategy)),
    ):
        yield


@contextlib.contextmanager
def in_tensorflow(mode: object) -> Iterator[None]:
    """Enters a mode of TensorFlow's alone, in the current graph."""
    stack = tf1.get_default_graph()._distribution_strategy_stack
    stack.append(mode)
    try:
        yield
    finally:
        stack.pop()


def require_tower_context(tower_ctx: TowerContext) -> None:
    """Refuses a tower context other than the one the code runs in.

    Raises:
        RuntimeError: Says which context is current instead.
    """
    mode = current()
    running = mode.tower if mode is not None else None
    if running is tower_ctx or (mode is None and tower_ctx.distribution_strategy.is_default):
        return
    if mode is None:
        where = "the default strategy's"
    elif running is None:
        where = f"none: this is cross-tower context of {mode.strategy!r}"
    else:
        where = f"tower {running.position} of {running.distribution_strategy!r}"
    raise RuntimeError(
        f"A tower context serves only while its tower runs: used tower {tower_ctx.position} of "
        f"{tower_ctx.distribution_strategy!r}, but the current tower context is {where}. Ask "
        "get_tower_context() where you need it."
    )


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
