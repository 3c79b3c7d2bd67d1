"""What happens to gradients between the towers and the optimizer's update.

Every optimizer that applies gradients in a tower meets the other towers in a merge
call. `GradientStep` stands in that call: it sees that each tower's gradients carry the
tower's weight, reduces them, adds up successive batches, clips, and then lets the
optimizer's own function update the variables.
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context, default, values, variables, weights
from replicate.training import accumulation

# The functions that optimizers pass to a merge call: TensorFlow's own, then tf_keras'.
_APPLY = "_distributed_apply"
_KERAS_SUM = "_all_reduce_sum_fn"


class GradientStep:
    """Reduces, accumulates and clips the gradients of each optimizer step.

    Args:
        accumulate_steps: How many batches' gradients make one update.
        clip_global_norm: The largest global norm of the reduced gradients; None: any.

    Raises:
        ValueError: If one of them is not a positive number.
    """

    def __init__(self, accumulate_steps: int = 1, clip_global_norm: float | None = None):
        _require_positive("accumulate_steps", accumulate_steps, int)
        if clip_global_norm is not None:
            _require_positive("clip_global_norm", clip_global_norm, (int, float))
        self._accumulate_steps = accumulate_steps
        self._clip_global_norm = clip_global_norm

    def wrap(self, merge_fn: Callable) -> Callable:
        """Returns the function to run across towers in place of `merge_fn`.

        Args:
            merge_fn: What a tower passed to `tf.distribute`'s merge call.
        """
        function = _innermost(merge_fn)
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if name == _APPLY and isinstance(owner, tf1.train.Optimizer):

            def apply(strategy, pairs, global_step=None, name=None):
                return self._apply(merge_fn, owner, strategy, pairs, global_step, name)

            return apply
        if name == _KERAS_SUM:
            return lambda strategy, pairs: self._sum(strategy, pairs)
        if name == _APPLY and not isinstance(owner, tf1.train.Optimizer):

            def apply_keras(strategy, pairs, **kwargs):
                return self._apply_keras(merge_fn, strategy, pairs, kwargs)

            return apply_keras
        return merge_fn

    def _apply(self, merge_fn, optimizer, strategy, pairs, global_step, name) -> Any:
        """The step of a `tf.compat.v1.train.Optimizer`."""
        pairs = list(pairs)
        trained = [variable for _, variable in pairs]
        reduced = self._sum(strategy, pairs)

        def update(gradients, step):
            clipped = clip(gradients, self._clip_global_norm)
            return merge_fn(_Reduced(strategy, clipped), pairs, step, name)

        if self._accumulate_steps == 1:
            return update(reduced, global_step)
        with tf.init_scope():
            optimizer._create_slots(trained)
        return accumulation.accumulate(
            strategy.owner, reduced, trained, self._accumulate_steps, update, global_step
        )

    def _apply_keras(self, merge_fn, strategy, pairs, kwargs) -> Any:
        """The step of a tf_keras optimizer, whose gradients were summed before."""
        pairs = list(pairs)
        trained = [variable for _, variable in pairs]

        def update(gradients, step):
            del step  # the optimizer's `iterations` is its own to advance
            clipped = clip(gradients, self._clip_global_norm)
            return merge_fn(strategy, list(zip(clipped, trained, strict=True)), **kwargs)

        gradients = [gradient for gradient, _ in pairs]
        if self._accumulate_steps == 1:
            return update(gradients, None)
        return accumulation.accumulate(
            strategy.owner, gradients, trained, self._accumulate_steps, update, None
        )

    @staticmethod
    def _sum(strategy: Any, pairs: Sequence) -> list:
        """Sums the towers' gradients, weighted by their parts of the batch under mean."""
        gradients = [gradient for gradient, _ in pairs]
        share = context.current().share
        if default.get_loss_reduction() == variables.MEAN and not strategy.owner.is_single_tower:
            gradients = _weighted(strategy.owner, gradients, share)
        trained = [variable for _, variable in pairs]
        return strategy.owner.batch_reduce(
            variables.SUM, list(zip(gradients, trained, strict=True))
        )


def _require_positive(name: str, value: Any, kinds: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise ValueError(f"{name} must be a positive number; got {value!r}.")


class _Reduced:
    """The strategy of a merge call whose gradients have been reduced already.

    Args:
        strategy: The strategy as `tf.distribute` sees it.
        reduced: N reduced gradients.
    """

    def __init__(self, strategy: Any, reduced: Sequence[Any]):
        self._strategy = strategy
        self._reduced = list(reduced)

    @property
    def extended(self) -> Any:
        """Itself: reductions are answered here, all else by the strategy."""
        return self

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Sequence) -> list:
        """Returns the reduced gradients."""
        del reduce_op, value_destination_pairs
        return self._reduced

    def group(self, value: Any, name: str | None = None) -> Any:
        """See `tf.distribute.Strategy`."""
        return self._strategy.group(value, name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy.extended, name)


def _innermost(fn: Callable) -> Callable:
    """Returns the function inside partials and wrappers."""
    while True:
        inner = getattr(fn, "func", None) or getattr(fn, "__wrapped__", None)
        if inner is None or inner is fn:
            return fn
        fn = inner


def _weighted(strategy: Any, gradients: Sequence[Any], share: context.Share) -> list:
    """Multiplies by each tower's weight the gradients that do not carry it yet."""
    columns = [g for g in gradients if isinstance(g, values.PerDevice)]
    if not columns or weights.carries_weight([c.values[0] for c in columns], share.marks[0]):
        return list(gradients)
    return [
        values.PerDevice(
            [
                reductions.scaled(part, weight, _device_of(part))
                for part, weight in zip(gradient.values, share.weights, strict=True)
            ],
            gradient.devices,
        )
        if isinstance(gradient, values.PerDevice)
        else gradient
        for gradient in gradients
    ]


def _device_of(part: Any) -> str:
    return (part.values if isinstance(part, tf.IndexedSlices) else part).device or ""


def clip(gradients: Sequence[Any], limit: float | None) -> list:
    """Scales reduced gradients so that their global norm is at most `limit`.

    The norm is sqrt(sum over all gradients of their squares); rows of IndexedSlices with
    one index are added first.

    Args:
        gradients: N tensors, IndexedSlices, or copies of these on several devices.
        limit: The largest norm; None: the gradients are given back.
    """
    if limit is None:
        return list(gradients)
    gradients = [_deduplicated(gradient) for gradient in gradients]
    norm = tf.linalg.global_norm([_first(gradient) for gradient in gradients])
    limit = tf.cast(limit, norm.dtype)
    # NOTE: a norm that is not finite makes every gradient NaN, as on one device.
    factor = limit * tf.minimum(1.0 / norm, tf.ones_like(norm) / limit)
    factor = tf.where(tf.math.is_finite(norm), factor, tf.fill([], norm.dtype.as_numpy_dtype("nan")))
    return [_map_copies(lambda g: reductions.scaled(g, factor, _device_of(g)), g) for g in gradients]


def _map_copies(fn: Callable, value: Any) -> Any:
    if isinstance(value, values.DistributedValues):
        return type(value)([fn(copy) for copy in value.values], value.devices)
    return fn(value)


def _deduplicated(gradient: Any) -> Any:
    def once(copy):
        if not isinstance(copy, tf.IndexedSlices):
            return copy
        with tf.device(_device_of(copy)):
            return reductions.deduplicate(copy)

    return _map_copies(once, gradient)


def _first(gradient: Any) -> Any:
    return gradient.values[0] if isinstance(gradient, values.DistributedValues) else gradient

