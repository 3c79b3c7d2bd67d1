"""Softmax, cross entropies, and batch normalisation by given statistics."""

from replicate.splitting.rules import items
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import FIRST, SUM, Rows, Split, WholeError


@rule("LogSoftmax", "Softmax")
def _softmax(case: Case) -> Split:
    """[..., C], over the last dimension."""
    return items.split(case, 1)


@rule("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(case: Case) -> Split:
    """`features` of shape [n, C] and `labels` of [n] to losses of [n] and a gradient of [n, C]."""
    return items.split_first(case, items=(0, 1))


@rule("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(case: Case) -> Split:
    """`features` and `labels`, broadcast to [n, C], to losses of [n] and a gradient of [n, C]."""
    n, rows = items.rows_of(case, (0, 1))
    if rows.axis != case.rank(n) - 2:
        raise WholeError("rows are inside of the items")
    wants = [items.along_or_one(case, n, Rows(case.rank(n) - 2, rows.space)) for n in range(2)]
    return Split(wants, [rows.at(0), rows.at(0)])


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(case: Case) -> Split:
    """`x` with rows first; scale, offset, mean and variance of each channel.

    Its other outputs are the mean and variance that it is given, but not if there are no rows.
    """
    _of_given_statistics(case)
    found = items.never_none(items.split_first(case))
    others = len(case.op.outputs) - 1
    return Split(found.wants, [found.gives[0]] + [FIRST] * others)


@rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def _batch_norm_gradient(case: Case) -> Split:
    """Gradients by `x`, and by scale and offset, which are sums over rows; the rest is empty."""
    _of_given_statistics(case)
    found = items.split_first(case, items=(0, 1))
    others = len(case.op.outputs) - 3
    return Split(found.wants, [found.gives[0], SUM, SUM] + [FIRST] * others)


def _of_given_statistics(case: Case) -> None:
    if case.attribute("is_training"):
        raise WholeError("its statistics are of the whole batch")
