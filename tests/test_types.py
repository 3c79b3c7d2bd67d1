"""Loss reductions in every usual spelling."""

import pytest

from replicate import types
from replicate.compat.tensorflow import tf, tf1


@pytest.mark.parametrize(
    ("value", "reduction"),
    [
        ("sum", "sum"),
        ("MEAN", "mean"),
        (tf.VariableAggregation.SUM, "sum"),
        (tf.VariableAggregation.MEAN, "mean"),
        (tf1.VariableAggregation.SUM, "sum"),
        (tf1.VariableAggregation.MEAN, "mean"),
        (tf.distribute.ReduceOp.SUM, "sum"),
        (tf.distribute.ReduceOp.MEAN, "mean"),
        (tf1.losses.Reduction.SUM, "sum"),
        (tf1.losses.Reduction.MEAN, "mean"),
        (tf1.losses.Reduction.SUM_OVER_BATCH_SIZE, "mean"),
        (tf1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS, "mean"),
    ],
)
def test_every_spelling_is_a_sum_or_a_mean(value, reduction):
    assert types.reduction_from(value) == reduction


@pytest.mark.parametrize(
    "value",
    [tf1.losses.Reduction.NONE, tf.VariableAggregation.NONE, "none", "max", None, 1],
)
def test_anything_else_is_refused(value):
    with pytest.raises(ValueError, match="loss_reduction is 'sum' or 'mean'; got"):
        types.reduction_from(value)
