"""Softmax, cross entropies, batch normalisation by given statistics, and recurrent cells."""

from collections.abc import Mapping, Sequence

from replicate.splitting.rules import items
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import FIRST, SUM, Rows, Split, State, WholeError


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


# What inputs and outputs of recurrent cells are: steps of sequences, and states.
_STEPS, _STATES, _WEIGHTS = 1, 0, None  # the axis that has rows


@rule("BlockLSTM", "BlockLSTMV2")
def _lstm(case: Case) -> Split:
    """Steps `x` of [T, n, D], behind their number; two states of [n, C], weights, and a bias."""
    return _recurrent(case, {1: _STEPS, 2: _STATES, 3: _STATES}, [_STEPS] * 7)


@rule("BlockLSTMGrad", "BlockLSTMGradV2")
def _lstm_gradient(case: Case) -> Split:
    """What the cell read and made, and gradients; those by weights are sums over rows."""
    steps = dict.fromkeys((1, *range(9, 18)), _STEPS)
    gives = [_STEPS, _STATES, _STATES, *[_WEIGHTS] * 5]
    return _recurrent(case, {**steps, 2: _STATES, 3: _STATES}, gives)


@rule("LSTMBlockCell")
def _lstm_cell(case: Case) -> Split:
    """One step `x` of [n, D], two states, weights, and a bias."""
    return _recurrent(case, dict.fromkeys(range(3), _STATES), [_STATES] * 7)


@rule("LSTMBlockCellGrad")
def _lstm_cell_gradient(case: Case) -> Split:
    """See `_lstm_gradient`; the products with the weights are not this operation's.

    NOTE: with peepholes the kernel may write gradients into the buffer of weights that it still
    reads, if nothing else reads them: so it might on devices, to which they were sent.
    """
    if case.attribute("use_peephole"):
        raise WholeError("its kernel may overwrite what was sent to devices")
    reads = dict.fromkeys((0, 1, 2, *range(8, 16)), _STATES)
    return _recurrent(case, reads, [_STATES, _STATES, *[_WEIGHTS] * 3])


@rule("GRUBlockCell")
def _gru_cell(case: Case) -> Split:
    """One step `x` of [n, D], a state, weights, and biases."""
    return _recurrent(case, dict.fromkeys(range(2), _STATES), [_STATES] * 4)


@rule("GRUBlockCellGrad")
def _gru_cell_gradient(case: Case) -> Split:
    """What the cell read and made, and the gradient by the new state."""
    return _recurrent(case, dict.fromkeys((0, 1, *range(6, 10)), _STATES), [_STATES] * 4)


def _recurrent(case: Case, axes: Mapping[int, int], gives: Sequence[int | None]) -> Split:
    """Splits a recurrent cell.

    Args:
        case: The operation.
        axes: For each input that has rows, along which axis.
        gives: For each output along which axis it has rows, or `_WEIGHTS` for a sum over them.
    """
    n, rows = items.rows_of(case, list(axes))
    if rows.axis != axes[n]:
        raise WholeError("rows are inside of the items")
    wants = [
        items.along(case, m, rows.at(axes[m])) if m in axes else items.same(case, m)
        for m in range(len(case.inputs))
    ]
    made: list[State] = [SUM if axis is _WEIGHTS else rows.at(axis) for axis in gives]
    return items.never_none(Split(wants, made))
