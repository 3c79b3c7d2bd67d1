"""What happens to gradients between the towers and the optimizer's update.

Every optimizer that applies gradients in a tower meets the other towers in a merge
call. `GradientStep` stands in that call: it joins the gradients of all towers, adds up
successive batches, clips, and then lets the optimizer's own function update the
variables, once, with all towers as one.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations, reductions
from replicate.strategy import base, context, conversion, default, extended
from replicate.strategy.variables import values, variables
from replicate.training import accumulation

Update: TypeAlias = Callable[[context.Pairs, tf.Variable | None], tf.Operation]
"""Updates by pairs of a reduced gradient and its variable; advances the global step, if given."""

Merge: TypeAlias = tuple[types.Function, Sequence[types.Nest]]
"""A function to call across towers, and its arguments."""

# The functions that optimizers pass to a merge call: TensorFlow's own, then tf_keras'.
_APPLY = "_distributed_apply"
_KERAS_SUM = "_all_reduce_sum_fn"


@dataclasses.dataclass(eq=False)
class TowerGradients:
    """One tower's gradients, on their way to the other towers': to them one thing, and no nest.

    Attributes:
        optimizer: The tower's optimizer.
        pairs: The tower's pairs of gradient (or None) and variable.
    """

    optimizer: tf1.train.Optimizer
    pairs: context.Pairs

    @property
    def trained(self) -> list[tuple[types.Nest, tf.Variable]]:
        """The pairs that have a gradient."""
        return [pair for pair in self.pairs if pair[0] is not None]


@dataclasses.dataclass(eq=False)
class GradientStep:
    """Reduces, accumulates and clips the gradients of each optimizer step.

    Attributes:
        accumulate_steps: How many batches' gradients make one update.
        clip_global_norm: The largest global norm of the reduced gradients, if it is limited.
        has_whole_batch: Whether a single tower has the whole batch. Where nothing is to be done
            with gradients, an optimizer then makes the operations that it makes on one device, no
            other, and by the same names.
        is_left_out: Whether optimizers are not run: the towers meet, and nothing is done.
        made: The operations of the updates, if something is done with gradients.

    Raises:
        ValueError: If a number is not a positive one.
    """

    accumulate_steps: int = 1
    clip_global_norm: float | None = None
    has_whole_batch: bool = False
    is_left_out: bool = False
    made: set[tf.Operation] = dataclasses.field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        """Refuses what is no positive number."""
        require_positive("accumulate_steps", self.accumulate_steps, int)
        if self.clip_global_norm is not None:
            require_positive("clip_global_norm", self.clip_global_norm, (int, float))

    def told(self) -> list[str]:
        """Returns in words what was asked for."""
        return [
            f"accumulate_steps={self.accumulate_steps}",
            f"clip_global_norm={self.clip_global_norm}",
        ]

    @property
    def changes(self) -> list[str]:
        """In words, what is done with gradients beside reducing them; may be empty."""
        done = (self.accumulate_steps > 1, self.clip_global_norm is not None)
        return list(itertools.compress(self.told(), done))

    @property
    def _is_one_devices(self) -> bool:
        return self.has_whole_batch and not self.changes

    def of_graph(self, has_whole_batch: bool) -> "GradientStep":
        """Returns this step for the towers, or the single tower, of one more graph."""
        return dataclasses.replace(self, has_whole_batch=has_whole_batch)

    def wrap(self, merge_fn: types.Function, args: Sequence[types.Nest]) -> Merge:
        """Returns what to call across towers in place of `merge_fn(*args)`.

        Args:
            merge_fn: What a tower passed to `tf.distribute`'s merge call.
            args: Its arguments, this tower's.
        """
        function = conversion.innermost(merge_fn)
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        is_of_keras = not isinstance(owner, tf1.train.Optimizer)
        if name == _KERAS_SUM:
            if self.is_left_out or self._is_one_devices:
                return _as_given, args
            return self._sum_keras, (TowerGradients(owner, list(args[0])),)
        # NOTE: tf_keras has made variables by now, which are forgotten if their step is not run.
        if name != _APPLY or (self.is_left_out and is_of_keras):
            return merge_fn, args
        if self.is_left_out:
            return (lambda *_, **__: tf.no_op()), args
        if is_of_keras:
            return functools.partial(self._apply_keras, merge_fn), args
        is_usual = getattr(function, "__func__", None) is tf1.train.Optimizer._distributed_apply
        if self._is_one_devices and is_usual:
            apply = functools.partial(tf1.train.Optimizer.apply_gradients, owner)
            return (lambda _, *given: apply(*given, skip_gradients_aggregation=True)), args
        pairs, *others = args
        brought = TowerGradients(owner, list(pairs))
        return functools.partial(self._apply, merge_fn), (brought, *others)

    def apply_gradients(
        self,
        optimizer: tf1.train.Optimizer,
        grads_and_vars: context.Pairs,
        global_step: tf.Variable | None = None,
        name: str | None = None,
        **others: object,
    ) -> tf.Operation:
        """Lets the towers meet, and calls `optimizer.apply_gradients` once for all.

        Args:
            optimizer: This tower's optimizer; the first tower's is applied.
            grads_and_vars: This tower's gradients and variables.
            global_step: As given to `apply_gradients`.
            name: Likewise.
            **others: Likewise, where an optimizer takes more.

        Returns:
            What `apply_gradients` returned.

        Raises:
            ValueError: If no variable has a gradient.
        """
        if self.is_left_out:
            return tf.no_op()
        brought = TowerGradients(optimizer, list(grads_and_vars))
        _require_gradients(brought)

        def apply(
            pairs: context.Pairs,
            global_step: tf.Variable | None,
            name: str | None,
            others: Mapping[str, object],
        ) -> tf.Operation:
            given = {"global_step": global_step, "name": name}  # which an optimizer may not take
            given = {key: value for key, value in given.items() if value is not None}
            return optimizer.apply_gradients(pairs, **given, **others)

        def apply_once(strategy: context.Strategy, *args: types.Nest) -> tf.Operation:
            return strategy.extended.call_for_each_replica(apply, (*args, others))

        if self._is_one_devices:
            return apply(brought.pairs, global_step, name, others)
        across = functools.partial(self._apply, apply_once)
        return default.required_tower_context().merge_call(across, brought, global_step, name)

    def _apply(
        self,
        apply: types.Function,
        strategy: base.DistributionStrategy,
        brought: types.Nest,
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """The step of a `tf.compat.v1.train.Optimizer`."""
        towers = _brought(brought)
        optimizer = towers[0].optimizer
        pairs = self._joined(strategy, towers)
        if self.accumulate_steps > 1:
            if isinstance(optimizer, tf1.train.SyncReplicasOptimizer):
                raise ValueError(
                    "accumulate_steps and SyncReplicasOptimizer both gather gradients of several "
                    "batches; got both. Leave out one of them."
                )
            _create_slots(optimizer, [variable for _, variable in pairs])

        def update(found: context.Pairs, step: tf.Variable | None) -> tf.Operation:
            return extended.as_one_replica(strategy, apply, found, step, name)

        updated = self._updated(strategy, pairs, update, global_step)
        for tower in towers[1:]:
            # NOTE: what one tower's optimizer made serves all: get_slot, variables().
            vars(tower.optimizer).update(vars(optimizer))
        return updated

    def _apply_keras(
        self,
        merge_fn: types.Function,
        strategy: base.DistributionStrategy,
        pairs: context.Pairs,
        **kwargs: types.Nest,
    ) -> tf.Operation:
        """The step of a tf_keras optimizer, whose gradients were summed before."""

        def update(found: context.Pairs, step: tf.Variable | None) -> tf.Operation:
            del step  # the optimizer's `iterations` is its own to advance
            return merge_fn(strategy, found, **kwargs)

        return self._updated(strategy, list(pairs), update)

    def _sum_keras(
        self, strategy: base.DistributionStrategy, brought: types.Nest
    ) -> list[types.Nest]:
        return [gradient for gradient, _ in self._joined(strategy, _brought(brought))]

    def _joined(
        self, strategy: context.Strategy, towers: Sequence[TowerGradients]
    ) -> context.Pairs:
        """Returns N pairs of a gradient of all towers, reduced, and its variable."""
        pairs = joined_pairs(towers, strategy.worker_devices)
        share, reduced = context.share(), pairs
        if share is not None and share.reduction == "mean" and not strategy.is_single_tower:
            with tf1.name_scope(reductions.SCOPE):
                reduced = [(values.weighted(g, share.parts.weights), v) for g, v in pairs]
        gradients = strategy.batch_reduce(variables.SUM, reduced)
        return [(gradient, v) for gradient, (_, v) in zip(gradients, pairs, strict=True)]

    def _updated(
        self,
        strategy: context.Strategy,
        pairs: context.Pairs,
        update: Update,
        global_step: tf.Variable | None = None,
    ) -> tf.Operation:
        """Updates by reduced gradients, clipped, or by those of several batches together.

        Args:
            strategy: The strategy; the code runs across towers.
            pairs: N pairs of a reduced gradient and its variable.
            update: Makes the update.
            global_step: Advanced with every batch, if there is one.
        """
        trained = [variable for _, variable in pairs]
        graph = tf1.get_default_graph()
        before = len(graph.get_operations()) if self.changes else 0

        def clipped(found: list[types.Nest], step: tf.Variable | None) -> tf.Operation:
            if self.clip_global_norm is not None:
                found = clip(found, self.clip_global_norm)
            return update(list(zip(found, trained, strict=True)), step)

        if self.accumulate_steps == 1:
            updated = clipped([gradient for gradient, _ in pairs], global_step)
        else:
            is_mean = default.get_loss_reduction() == variables.MEAN
            batches = self.accumulate_steps, is_mean
            updated = accumulation.accumulated(strategy, *batches, pairs, clipped, global_step)
        if self.changes:
            self.made.update(operations.with_called(graph.get_operations()[before:]))
        return updated


def _brought(brought: types.Nest) -> Sequence[TowerGradients]:
    """Returns what the towers brought: one thing of each of them."""
    return brought.values if isinstance(brought, values.PerDevice) else [brought]


def _as_given(
    strategy: object, pairs: context.Pairs, *args: object, **kwargs: object
) -> list[types.Nest]:
    """Stands for the sum of gradients where there is nothing to sum."""
    del strategy, args, kwargs
    return [gradient for gradient, _ in pairs]


def _create_slots(optimizer: tf1.train.Optimizer, trained: Sequence[tf.Variable]) -> None:
    """Makes an optimizer's variables where no condition holds, with one device's names."""
    with tf.init_scope():
        optimizer._create_slots(trained)
    for inner in vars(optimizer).values():
        if isinstance(inner, tf1.train.Optimizer):  # of a wrapper
            _create_slots(inner, trained)


def require_positive(
    name: str, value: float, kinds: type[int] | tuple[type[int], type[float]]
) -> None:
    """Refuses an option that is no positive number."""
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise ValueError(f"{name} must be a positive number; got {value!r}.")


def _require_gradients(tower: TowerGradients) -> None:
    """Refuses gradients that are all None.

    Raises:
        ValueError: Names the variables.
    """
    if not tower.trained:
        raise ValueError(
            "The loss must depend on a trainable variable: none of "
            f"{[_name(variable) for _, variable in tower.pairs]} has a gradient. Check the "
            "model_fn for operations without gradients."
        )


def joined_pairs(
    towers: Sequence[TowerGradients], devices: Sequence[str]
) -> list[tuple[types.Nest, tf.Variable]]:
    """Joins K towers' lists of N pairs into one list.

    Args:
        towers: What the K towers bring.
        devices: The K towers' devices.

    Returns:
        N pairs of a PerDevice gradient (K = 1: the gradient itself) and its variable.

    Raises:
        TowerMismatchError: If a variable has a gradient in some towers only, or the
            towers' optimizers differ.
    """
    for i, tower in enumerate(towers):
        _require_same_kind(i, tower, towers[0])
        _require_same_variables(i, tower, towers[0])
    columns = list(zip(*(tower.trained for tower in towers), strict=True))
    if len(towers) == 1:
        return [pair for (pair,) in columns]
    return [
        (values.PerDevice([gradient for gradient, _ in column], devices), column[0][1])
        for column in columns
    ]


def _require_same_kind(i: int, tower: TowerGradients, first: TowerGradients) -> None:
    here, there = type(tower.optimizer), type(first.optimizer)
    # NOTE: a class that the model_fn itself defines is another one in each tower.
    if (here.__module__, here.__qualname__) != (there.__module__, there.__qualname__):
        raise errors.TowerMismatchError(
            "Every tower must use the same optimizers in the same order: tower "
            f"{i} applies {here.__name__} where tower 0 applies {there.__name__}. Look for a "
            "branch on the tower in model_fn."
        )


def _require_same_variables(i: int, tower: TowerGradients, first: TowerGradients) -> None:
    here, there = ([variable for _, variable in each.trained] for each in (tower, first))
    pairs = itertools.zip_longest(here, there)
    differing = [n for n, (own, other) in enumerate(pairs) if own is not other]
    if not differing:
        return
    only_there, only_here = _without(there, here), _without(here, there)
    if only_there:
        found = f"tower {i} has none for {_name(only_there[0])}, tower 0 has one"
    elif only_here:
        found = f"tower {i} has one for {_name(only_here[0])}, tower 0 has none"
    else:
        at = differing[0]
        found = (
            f"as its number {at + 1}, tower {i} has {_name(here[at])}, "
            f"tower 0 has {_name(there[at])}"
        )
    raise errors.TowerMismatchError(
        "Every tower must have gradients for the same variables in the same order: "
        f"{found}. Look for a branch on the tower, or for gradients that are dropped or "
        "replaced by None in some towers."
    )


def _without(wanted: Sequence[tf.Variable], others: Sequence[tf.Variable]) -> list[tf.Variable]:
    known = {id(variable) for variable in others}
    return [variable for variable in wanted if id(variable) not in known]


def _name(variable: tf.Variable) -> str:
    return str(getattr(variable, "name", variable))


def clip(gradients: Sequence[types.Nest], limit: float) -> list[types.Nest]:
    """Scales reduced gradients so that their global norm is at most `limit`.

    The norm is sqrt(sum over all gradients of their squares); rows of IndexedSlices with
    one index are added first.

    Args:
        gradients: N tensors, IndexedSlices, or copies of these on several devices.
        limit: The largest norm.
    """
    gradients = [values.map_copies(reductions.deduplicate, gradient) for gradient in gradients]
    norm = tf.linalg.global_norm([values.first_of(gradient) for gradient in gradients])
    limit = tf.constant(limit, norm.dtype)
    # NOTE: a norm that is not finite makes every gradient NaN, as on one device.
    factor = tf.where(norm > limit, limit / norm, tf.ones_like(norm))
    factor = tf.where(
        tf.math.is_finite(norm), factor, tf.fill([], norm.dtype.as_numpy_dtype("nan"))
    )

    def scaled(copy: types.Gradient) -> types.Gradient:
        return reductions.scaled(copy, factor, reductions.device_of(copy))

    return [values.map_copies(scaled, gradient) for gradient in gradients]
