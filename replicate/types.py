"""Types and names that all packages share."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from replicate.compat.tensorflow import tf, tf1

Nest: TypeAlias = Any
"""A tensor, or lists, tuples, named tuples and dicts of Nests."""

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
"""What is summed over towers, of which the latter stays sparse."""

Rows: TypeAlias = tf.Tensor | tf.SparseTensor | tf.RaggedTensor
"""A tensor of any kind, whose rows lie along axis 0."""

Fetch: TypeAlias = tf.Operation | tf.Tensor
"""What a session runs."""

Function: TypeAlias = Callable[..., Any]
"""A function of a user's or of TensorFlow's, of whatever arguments."""

Arguments: TypeAlias = dict[str, Any]
"""Keyword arguments of a `Function`."""

EstimatorSpec: TypeAlias = Any
"""A `replicate.estimator.EstimatorSpec`; Estimators are loaded on first use."""

ModelFn: TypeAlias = Callable[..., EstimatorSpec]
"""An Estimator's model_fn."""

OptimizerFn: TypeAlias = Callable[..., tf1.train.Optimizer]
"""Makes an optimizer; gets `params` if it names it."""

RunConfig: TypeAlias = Any
"""A `replicate.estimator.RunConfig`."""

Reduction: TypeAlias = Literal["sum", "mean"]
"""How K towers' losses become one."""

NamedReduction: TypeAlias = str | tf.VariableAggregation | tf.distribute.ReduceOp
"""A `Reduction` in any usual spelling; see `reduction_from`."""

TRAIN = "train"
EVAL = "eval"
PREDICT = "infer"


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


def reduction_from(value: NamedReduction) -> Reduction:
    """Returns `"sum"` or `"mean"` for any usual spelling of a loss reduction.

    Args:
        value: `"sum"`, `"mean"`, a `tf.VariableAggregation`, a `tf.distribute.ReduceOp`,
            or a `tf.compat.v1.losses.Reduction`.

    Raises:
        ValueError: If it is none of these, or `Reduction.NONE`.
    """
    if isinstance(value, str) and value.lower() in ("sum", "mean"):
        return "sum" if value.lower() == "sum" else "mean"
    if value in _MEANS:
        return "mean"
    if value in _SUMS:
        return "sum"
    raise ValueError(
        f"loss_reduction is 'sum' or 'mean'; got {value!r}. Towers' losses must become one: "
        "choose 'mean' for a loss that is a mean over examples, 'sum' for one that is a sum."
    )
