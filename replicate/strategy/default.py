"""The default strategy, and the accessors that library code may always call."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from replicate import devices as device_names
from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import base, context, conversion
from replicate.strategy.variables import variables


class DefaultStrategy(base.DistributionStrategy):
    """One tower, wherever the code runs: what is in charge when nobody chose."""

    is_default = True

    def __init__(self) -> None:
        super().__init__(("",), ("",))

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device that TensorFlow would choose."""
        return device_names.resolve(None)[:1]

    @contextlib.contextmanager
    def scope(self) -> Iterator[base.DistributionStrategy]:
        """See base class.

        Raises:
            RuntimeError: If any scope is current.
        """
        mode = context.current()
        if mode is not None and mode.strategy is not self:
            raise RuntimeError(
                "The default strategy is in charge only where no other is: entered its scope "
                f"inside that of {mode.strategy!r}. Leave that scope before."
            )
        with context.entered(context.Mode(self)):
            yield self

    @contextlib.contextmanager
    def merging(
        self, share: context.Share | None = None, is_tensorflows: bool = False
    ) -> Iterator[None]:
        """See base class."""
        del is_tensorflows  # a single tower has nothing that differs
        with context.entered(context.Mode(self, share=share)):
            yield

    def run_towers(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: Mapping[str, types.Nest] | None = None,
        **options: object,
    ) -> list[types.Nest]:
        """See base class."""
        del options  # a single tower shares nothing
        with context.entered(context.Mode(self, context.TowerContext(self, 0))):
            return [fn(*args, **(kwargs or {}))]

    @contextlib.contextmanager
    def colocate_vars_with(self, v: tf.Variable) -> Iterator[None]:
        """See base class."""
        if tf.executing_eagerly():
            with tf.device(v.device):
                yield
        else:
            with tf1.get_default_graph().colocate_with(v.handle):
                yield

    def _require_mine(self, method: str) -> None:
        if context.current() is not None:
            super()._require_mine(method)

    def _require_cross_tower(self, method: str) -> None:
        if context.current() is None:
            raise RuntimeError(
                f"{method}() sees all towers at once, but was called in the default strategy's "
                "tower: no scope was entered. Write `with strategy.scope():` around it, or call "
                "it through get_tower_context().merge_call(lambda strategy, ...: ...)."
            )
        super()._require_cross_tower(method)

    def _reduce_destinations(self, value: types.Nest) -> Sequence[str]:
        return ("",)


_default = DefaultStrategy()
_default_tower = context.TowerContext(_default, 0)


def get_tower_context() -> context.TowerContext | None:
    """Returns the tower context of the running code, or None across towers."""
    mode = context.current()
    return _default_tower if mode is None else mode.tower


def required_tower_context() -> context.TowerContext:
    """Returns the tower context, to code that runs in a tower.

    Raises:
        RuntimeError: If it runs across towers.
    """
    tower = get_tower_context()
    if tower is None:
        raise RuntimeError(
            "This code runs in each tower; it was called across towers, in the scope of "
            f"{get_distribution_strategy()!r}. Call it in the function that "
            "strategy.call_for_each_tower runs."
        )
    return tower


def get_cross_tower_context() -> base.DistributionStrategy | None:
    """Returns the strategy if the running code sees all towers at once, else None."""
    mode = context.current()
    return None if mode is None or mode.tower is not None else get_distribution_strategy()


def get_distribution_strategy() -> base.DistributionStrategy:
    """Returns the strategy in charge: the default one where nobody chose."""
    mode = context.current()
    return _default if mode is None else mode.strategy


def has_distribution_strategy() -> bool:
    """Returns whether a strategy other than the default one is in charge."""
    return get_distribution_strategy() is not _default


def get_loss_reduction() -> tf.VariableAggregation:
    """Returns how towers' losses are joined.

    Returns:
        What `replicate_model_fn` was told; else SUM where the last `tf.losses` loss was
        reduced by a sum, and MEAN in every other case.
    """
    mode = context.current()
    if mode is not None and mode.share is not None:
        return variables.SUM if mode.share.reduction == "sum" else variables.MEAN
    last = getattr(tf1.get_default_graph(), "_last_loss_reduction", None)
    is_sum = last in (tf1.losses.Reduction.SUM, tf.losses.Reduction.SUM)
    return variables.SUM if is_sum else variables.MEAN


def get_update_device() -> str | None:
    """Returns the device of the running update, or None outside of one."""
    mode = context.current()
    return None if mode is None else mode.update_device


@contextlib.contextmanager
def UpdateContext(device: str) -> Iterator[None]:  # noqa: N802 - entered like a class
    """Marks code that updates the copies on one device.

    Args:
        device: The device whose copies are updated.
    """
    mode = context.current() or context.Mode(_default)
    if mode.tower is not None:
        raise RuntimeError(
            f"An update runs across towers, but this is tower {mode.tower.position}. Use "
            "get_tower_context().merge_call and strategy.update."
        )
    with context.entered(mode._replace(update_device=device_names.canonicalize(device))):
        yield


@conversion.unconverted
def increment_var(v: tf.Variable, amount: float | tf.Tensor = 1) -> tf.Operation:
    """Adds `amount` to a variable once, in a tower or across towers.

    Args:
        v: A variable; each of its copies is incremented.
        amount: What is added, the same in every tower.

    Returns:
        One operation.
    """

    def across(strategy: base.DistributionStrategy, v: tf.Variable) -> tf.Operation:
        updated = strategy.update(v, lambda copy: copy.assign_add(amount, read_value=False))
        return strategy.group(updated)

    tower = get_tower_context()
    if tower is not None:
        return tower.merge_call(across, v)
    return across(get_distribution_strategy(), v)
