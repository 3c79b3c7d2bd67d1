"""What K towers bring to an optimizer step: one list of gradients, clipped."""

import dataclasses
import itertools
from collections.abc import Sequence

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context
from replicate.strategy.variables import values


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


def require_gradients(tower: TowerGradients) -> None:
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


def joined(
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
