"""What the code of one tower may ask and do."""

from collections.abc import Sequence
from typing import NoReturn

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.strategy import context, conversion
from replicate.strategy.towers import lockstep, sharing
from replicate.strategy.variables import values


@conversion.unconverted
class TowerContext:
    """What the code of one tower may ask and do.

    Args:
        strategy: The strategy whose tower this is.
        tower_id: From 0 to K - 1.
        share: The towers' parts of the batch, if one was split.
    """

    def __init__(
        self, strategy: context.Strategy, tower_id: int, share: context.Share | None = None
    ):
        self._strategy = strategy
        self._tower_id = tower_id
        self._share = share

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
        require_current(self)
        return self._merge_call(merge_fn, args, kwargs, self._run_merge)

    def merge_for_tensorflow(
        self, merge_fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        """The same for `tf.distribute`, whose functions take its own kind of strategy."""

        def run(
            fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
        ) -> types.Nest:
            with self._strategy.merging(self._share, is_tensorflows=True):
                bridge_strategy = self._strategy.extended.container
                return conversion.as_here(fn)(bridge_strategy, *args, **kwargs)

        return self._merge_call(merge_fn, tuple(args), dict(kwargs or {}), run)

    def _run_merge(
        self, fn: types.Function, args: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        with self._strategy.merging(self._share):
            return conversion.as_here(fn)(self._strategy, *args, **kwargs)

    def _merge_call(
        self,
        fn: types.Function,
        args: tuple[types.Nest, ...],
        kwargs: types.Arguments,
        run: lockstep.Merge,
    ) -> types.Nest:
        return run(fn, args, kwargs)

    @property
    def tower_id(self) -> int:
        """Which tower this is, from 0 to `num_towers - 1`."""
        return self._strategy.first_tower + self._tower_id

    @property
    def position(self) -> int:
        """Which of this process's towers this is, from 0."""
        return self._tower_id

    @property
    def num_towers(self) -> int:
        """K, or W x K where W workers take part."""
        return self._strategy.all_towers

    @property
    def is_single_tower(self) -> bool:
        """Whether K is 1."""
        return self._strategy.is_single_tower

    @property
    def distribution_strategy(self) -> context.Strategy:
        """The strategy whose tower this is."""
        return self._strategy

    @property
    def device(self) -> str:
        """The device on which this tower computes."""
        return self._strategy.worker_devices[self._tower_id]

    @property
    def is_of_one_batch(self) -> bool:
        """Whether the towers hold the parts of one batch."""
        return self._share is not None

    @property
    def has_rows(self) -> bool | tf.Tensor:
        """Whether this tower holds rows of the batch: a bool, or a bool tensor of shape []."""
        return True if self._share is None else self._share.parts.has_rows[self._tower_id]

    @property
    def weight(self) -> float | tf.Tensor:
        """This tower's part of the batch, n_i / B: a float, or a float64 tensor of shape []."""
        if self._share is None:
            return 1.0 / self.num_towers
        return self._share.parts.weights[self._tower_id]


@conversion.unconverted
class LockstepContext(TowerContext):
    """A tower among several, in a thread of its own."""

    def __init__(
        self,
        strategy: context.Strategy,
        thread: lockstep.TowerThread,
        creations: sharing.Creations,
        share: context.Share | None,
    ):
        super().__init__(strategy, thread.tower_id, share)
        self._thread = thread
        self.creations = creations

    def _merge_call(
        self,
        fn: types.Function,
        args: tuple[types.Nest, ...],
        kwargs: types.Arguments,
        run: lockstep.Merge,
    ) -> types.Nest:
        answer = self._thread.sleep(lockstep.MergeRequest(fn, args, kwargs, run))
        if self._share is not None or self.is_single_tower:
            return answer
        return _without_gradient(answer, (args, kwargs))


def _without_gradient(answer: types.Nest, given: types.Nest) -> types.Nest:
    """Lets a tape refuse to derive what a merge call returned by what a tower gave to it.

    NOTE: a tape belongs to one thread. The merge function runs in the first tower's, and to the
    other towers' tapes, in silence, what it returns would depend on nothing.
    """
    leaves = tf.nest.flatten(given, expand_composites=True)
    tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating]
    if not tfc.record.should_record_backprop(tensors):
        return answer

    def refused(*gradients: tf.Tensor) -> NoReturn:
        raise RuntimeError(
            "A tape cannot take the gradient of what a merge call returned: it sees the "
            f"operations of its own tower, and was asked by {len(tensors)} tensor(s) that the "
            "tower passed to the call. Use tf.distribute.get_replica_context().all_reduce, "
            "which has a gradient, or tf.gradients in a graph."
        )

    def cut(leaf: types.Nest) -> types.Nest:
        if isinstance(leaf, tf.IndexedSlices):
            return tf.IndexedSlices(cut(leaf.values), leaf.indices, leaf.dense_shape)
        if not isinstance(leaf, tf.Tensor) or any(leaf is tensor for tensor in tensors):
            return leaf
        return tf.custom_gradient(lambda *unused: (tf.identity(leaf), refused))(*tensors)

    return values.map_nest(cut, answer)


def require_current(tower: TowerContext) -> None:
    """Refuses a tower context other than the one the code runs in.

    Raises:
        RuntimeError: Says which context is current instead.
    """
    mode = context.current()
    running = mode.tower if mode is not None else None
    if running is tower or (mode is None and tower.distribution_strategy.is_default):
        return
    if mode is None:
        found = "the default strategy's"
    elif running is None:
        found = f"none: this is cross-tower context of {mode.strategy!r}"
    else:
        found = f"tower {running.position} of {running.distribution_strategy!r}"
    raise RuntimeError(
        f"A tower context serves only while its tower runs: used tower {tower.position} of "
        f"{tower.distribution_strategy!r}, but the current tower context is {found}. Ask "
        "get_tower_context() where you need it."
    )
