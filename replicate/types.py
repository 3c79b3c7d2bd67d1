"""Names for what travels between rooms."""

from typing import Any, Literal, Protocol, TypeAlias

from replicate.compat.tensorflow import tf, tf1

Nest: TypeAlias = Any
"""A tensor, or lists, tuples, named tuples and dicts of Nests."""

GradAndVar: TypeAlias = tuple[Any, Any]
"""A gradient (Tensor, IndexedSlices or None) and its variable."""

Reduction: TypeAlias = Literal["sum", "mean"]
"""How K towers' losses become one."""

TRAIN = "train"
EVAL = "eval"
PREDICT = "infer"


class ModelFn(Protocol):
    """An Estimator's model_fn; it may leave out any argument but `features`."""

    def __call__(
        self, features: Nest, labels: Nest, mode: str, params: Any = None, config: Any = None
    ) -> Any:
        """Returns an EstimatorSpec."""


_MEANS = (
    tf.VariableAggregation.MEAN,
    tf.distribute.ReduceOp.MEAN,
    tf1.losses.Reduction.MEAN,
    tf1.losses.Reduction.SUM_OVER_BATCH_SIZE,
    tf1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS,
    tf1.losses.Reduction.SUM_OVER_NONZERO_WEIGHTS,
)
_SUMS = (
    tf.VariableAggregation.SUM,
    tf.distribute.ReduceOp.SUM,
    tf1.losses.Reduction.SUM,
)


def reduction_from(value: Any) -> Reduction:
    """Returns `"sum"` or `"mean"` for any usual spelling of a loss reduction.

    Args:
        value: `"sum"`, `"mean"`, a `tf.VariableAggregation`, a `tf.distribute.ReduceOp`,
            or a `tf.compat.v1.losses.Reduction`.

    Raises:
        ValueError: If it is none of these, or `Reduction.NONE`.
    """
    if isinstance(value, str) and value.lower() in ("sum", "mean"):
        return value.lower()
    if value in _MEANS:
        return "mean"
    if value in _SUMS:
        return "sum"
    raise ValueError(
        f"loss_reduction is 'sum' or 'mean'; got {value!r}. Towers' losses must become one: "
        "choose 'mean' for a loss that is a mean over examples, 'sum' for one that is a sum."
    )
