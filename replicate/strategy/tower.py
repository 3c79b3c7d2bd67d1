"""What the code of one tower may ask and do."""

from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import reductions
from replicate.strategy import context, conversion, lockstep, sharing, tower_count, values


@conversion.unconverted
class TowerContext:
    """What the code of one tower may ask and do.

    Args:
        strategy: The strategy whose tower this is.
        tower_id: From 0 to K - 1.
        share: The towers' parts of the batch, if one was split.
    """

    def __init__(self, strategy: Any, tower_id: int, share=None):
        self._strategy = strategy
        self._tower_id = tower_id
        self._share = share
        self._count = None
        self._scaling_is_next = False
        self.before_gradients: Callable = lambda: None  # what optimizers of TensorFlow wait for

    def merge_call(self, merge_fn: Callable, *args, **kwargs) -> Any:
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

    def merge_for_tensorflow(self, merge_fn: Callable, args: Sequence, kwargs: dict) -> Any:
        """The same for `tf.distribute`, whose functions take its own kind of strategy."""

        def run(fn, args, kwargs):
            with self._strategy.merging(self._share):
                bridge_strategy = self._strategy.extended.container
                return conversion.as_here(fn)(bridge_strategy, *args, **kwargs)

        return self._merge_call(merge_fn, tuple(args), dict(kwargs or {}), run)

    def _run_merge(self, fn: Callable, args: Sequence, kwargs: dict) -> Any:
        with self._strategy.merging(self._share):
            return conversion.as_here(fn)(self._strategy, *args, **kwargs)

    def _merge_call(self, fn, args, kwargs, run) -> Any:
        return run(fn, args, kwargs)

    @property
    def tower_id(self) -> int:
        """Which tower this is, from 0 to `num_towers - 1`."""
        return self._tower_id

    @property
    def num_towers(self) -> int:
        """K."""
        return self._strategy.num_towers

    @property
    def is_single_tower(self) -> bool:
        """Whether K is 1."""
        return self.num_towers == 1

    @property
    def distribution_strategy(self) -> Any:
        """The strategy whose tower this is."""
        return self._strategy

    @property
    def device(self) -> str:
        """The device on which this tower computes."""
        return self._strategy.worker_devices[self._tower_id]

    @property
    def has_rows(self) -> Any:
        """Whether this tower holds rows of the batch: a bool, or a bool tensor of shape []."""
        return True if self._share is None else self._share.has_rows[self._tower_id]

    @property
    def weight(self) -> Any:
        """This tower's part of the batch, n_i / B: a float, or a float64 tensor of shape []."""
        if self._share is None:
            return 1.0 / self.num_towers
        return self._share.weights[self._tower_id]

    @property
    def count(self) -> tower_count.TowerCount:
        """K as the model's code sees it, which may divide its loss by it."""
        if self._count is None:
            self._count = self._new_count()
        return self._count

    def _new_count(self) -> tower_count.TowerCount:
        share, i = self._share, self._tower_id
        if share is None or not share.marks:
            return tower_count.TowerCount(self.num_towers, self.weight, [], [])
        return tower_count.TowerCount(
            self.num_towers, self.weight, share.marks[i], share.products[i]
        )

    def set_loss_weight(self, denominator: Any) -> None:
        """Tells by how much this tower's loss weighs in the mean over towers.

        A loss that is a weighted mean divides by its tower's own weights, not by its
        rows. Given each tower's denominator d_i, towers weigh d_i / sum(d), and the mean
        is one device's. To be called in every tower, before the optimizer; does nothing
        where the model is not replicated, or losses are summed.

        Args:
            denominator: What this tower's loss was divided by: a scalar, at least 0.
        """
        if self._share is None or self.is_single_tower:
            return

        def across(strategy, denominators):
            parts = [tf.cast(part, tf.float64) for part in strategy.unwrap(denominators)]
            parts = parts * strategy.num_towers if len(parts) == 1 else parts
            parts = reductions.mask_rows(parts, self._share.has_rows)
            total = tf.add_n(parts)
            # NOTE: without any weight losses are 0, but what is regularized still counts once.
            return values.PerDevice(
                [
                    tf.where(total > 0, tf.math.divide_no_nan(part, total), rows)
                    for part, rows in zip(parts, self._share.weights, strict=True)
                ]
            )

        self._share.weights[self._tower_id] = self.merge_call(
            across, tf.convert_to_tensor(denominator)
        )
        self._count = None

    def expect_scaling(self) -> None:
        """Notes that an optimizer of TensorFlow asks for K next, to scale its loss."""
        self._scaling_is_next = True

    def count_for_reader(self) -> tower_count.TowerCount:
        """Returns K for whoever reads it: the model's code, or an optimizer's scaling."""
        if self._scaling_is_next:
            self._scaling_is_next = False
            return self._new_count()
        return self.count


@conversion.unconverted
class LockstepContext(TowerContext):
    """A tower among several, in a thread of its own."""

    def __init__(self, strategy, thread: Any, creations: sharing.Creations, share):
        super().__init__(strategy, thread.tower_id, share)
        self._thread = thread
        self.creations = creations

    def _merge_call(self, fn, args, kwargs, run):
        return self._thread.sleep(lockstep.MergeRequest(fn, args, kwargs, run))


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
        found = f"tower {running.tower_id} of {running.distribution_strategy!r}"
    raise RuntimeError(
        f"A tower context serves only while its tower runs: used tower {tower.tower_id} of "
        f"{tower.distribution_strategy!r}, but the current tower context is {found}. Ask "
        "get_tower_context() where you need it."
    )
